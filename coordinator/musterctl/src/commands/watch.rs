//! `musterctl watch`: shows a cluster's progress until its rollout is Ready or needs a person.

mod screen;

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use muster_proto::{printable::printable, resource::Kind};
use serde::de::DeserializeOwned;
use tokio::{
    signal::ctrl_c,
    time::{Instant, MissedTickBehavior, interval},
};

pub use self::screen::Screen;
use crate::{
    client::Coordinator,
    config::{Config, Context},
    errors::{Exit, Failure, not_this_version},
    feed::{Feed, FeedItem, Subject},
    name, terminal,
    view::{self, Fleet, Verdict},
};

/// Interval between two drawings of the screen.
const DRAW_EVERY: Duration = Duration::from_millis(100);
/// The end of a rollout may be reported before that of its last machines: listen this long for them.
const SETTLE: Duration = Duration::from_millis(300);

/// Show a cluster as it moves, until its rollout is Ready or needs a person
///
/// A bar per phase, a line per busy machine, what is blocked and why. Without a terminal: a line per change.
/// Ends with status 0 when its rollout has come to its end (machines that are not Ready all the same are named) or
/// everybody who was to go is in maintenance, 4 when a person must decide (it says what). Ctrl-C only detaches.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  musterctl watch edge-7")]
pub(crate) struct Args {
    /// Name of the cluster
    #[arg(value_parser = name::cluster)]
    cluster: String,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let config = context.config()?;
    Coordinator::connect(&config).await?.get_one(Kind::Clusters, &args.cluster).await?;
    to_the_end(&args.cluster, context).await
}

/// Show the cluster until its rollout ends, or Ctrl-C.
pub(crate) async fn to_the_end(cluster: &str, context: &Context) -> Result<(), Failure> {
    let config = context.config()?;
    let mut screen = Screen::new();
    let ended = tokio::select! {
        ended = follow(config, cluster, &mut screen) => Some(ended),
        _ = ctrl_c() => None,
    };
    screen.clear();
    match ended {
        Some(ended) => ended,
        None => {
            terminal::say(&format!("detached; the cluster goes on. Again: musterctl watch {cluster}"));
            Ok(())
        }
    }
}

/// Show the cluster until its rollout ends.
pub async fn follow(config: Config, cluster: &str, screen: &mut Screen) -> Result<(), Failure> {
    let mut watched = Watched::default();
    let mut feed = Feed::open(config, subjects(cluster));
    let mut draw = interval(DRAW_EVERY);
    draw.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut ends_at: Option<Instant> = None;
    loop {
        tokio::select! {
            item = feed.next() => watched.take(item?, screen)?,
            at = draw.tick() => {
                screen.draw(&watched.fleet, Timestamp::now());
                if ends_at.is_some_and(|ends_at| at >= ends_at) {
                    let verdict = watched.fleet.verdict(Timestamp::now());
                    if verdict != Verdict::Going {
                        return end(cluster, verdict, screen);
                    }
                    ends_at = None;
                }
            }
        }
        if watched.synced && ends_at.is_none() && watched.fleet.verdict(Timestamp::now()) != Verdict::Going {
            ends_at = Some(Instant::now() + SETTLE);
        }
    }
}

fn subjects(cluster: &str) -> Vec<Subject> {
    let of = |kind| Subject { kind, name: String::new(), cluster: cluster.to_owned() };
    let the_cluster = Subject { kind: Kind::Clusters, name: cluster.to_owned(), cluster: String::new() };
    vec![the_cluster, of(Kind::Machines), of(Kind::Rollouts)]
}

fn end(cluster: &str, verdict: Verdict, screen: &mut Screen) -> Result<(), Failure> {
    screen.clear();
    match verdict {
        Verdict::Going => Ok(()),
        Verdict::Ended(how) => screen.line(&format!("cluster {cluster}: {how}")),
        Verdict::Aborted(how) => {
            screen.line(&format!("cluster {cluster}: {how}"))?;
            Err(Failure::silent(Exit::Refused))
        }
        Verdict::InMaintenance(lines) => lines.iter().try_for_each(|line| screen.line(line)),
        Verdict::NeedsPerson(lines) => needs_person(cluster, &lines),
    }
}

fn needs_person(cluster: &str, lines: &[String]) -> Result<(), Failure> {
    terminal::say(&format!("cluster {cluster} needs a person:"));
    for line in lines {
        terminal::say(&format!("  {line}"));
    }
    terminal::say(&format!("Then again: musterctl watch {cluster}"));
    Err(Failure::silent(Exit::Refused))
}

#[derive(Default)]
struct Watched {
    fleet: Fleet,
    synced: bool,
    /// Documents seen since the connection came up: those missing at `Synced` are gone.
    seen: BTreeSet<String>,
}

impl Watched {
    fn take(&mut self, item: FeedItem, screen: &mut Screen) -> Result<(), Failure> {
        match item {
            FeedItem::Put { kind, name, json, .. } => {
                let lines = self.put(kind, &json, screen)?;
                self.seen.insert(name);
                // Before the first sync everything is new, and the summary covers it.
                let lines = if self.synced { lines } else { Vec::new() };
                lines.iter().try_for_each(|line| screen.line(line))
            }
            FeedItem::Deleted { kind, name, .. } => {
                self.forget(kind, &name);
                screen.line(&printable(&format!("{} {name}: deleted", kind.singular())))
            }
            FeedItem::Synced => {
                let seen = std::mem::take(&mut self.seen);
                self.fleet.machines.retain(|name, _| seen.contains(name));
                self.fleet.rollouts.retain(|name, _| seen.contains(name));
                if self.synced {
                    return Ok(());
                }
                self.synced = true;
                screen.summary(&self.fleet, Timestamp::now())
            }
            FeedItem::Lost(why) => {
                screen.line(&format!("connection to the coordinator lost ({why}); connecting again"))
            }
            FeedItem::Back => {
                self.seen.clear();
                screen.line("connected to the coordinator again")
            }
        }
    }

    fn put(&mut self, kind: Kind, json: &[u8], screen: &Screen) -> Result<Vec<String>, Failure> {
        let fleet = &mut self.fleet;
        Ok(match kind {
            Kind::Clusters => {
                let new = read(json)?;
                let lines = view::cluster_changes(fleet.cluster.as_ref(), &new, Timestamp::now());
                fleet.cluster = Some(new);
                lines
            }
            Kind::Machines => {
                let new: muster_proto::resource::Machine = read(json)?;
                let old = fleet.machines.get(&new.metadata.name);
                let mut lines = view::machine_troubles(old, &new, Timestamp::now());
                if screen.is_plain() {
                    lines.splice(0..0, view::machine_move(old, &new));
                }
                fleet.machines.insert(new.metadata.name.clone(), new);
                lines
            }
            Kind::Rollouts => {
                let new: muster_proto::resource::Rollout = read(json)?;
                let lines = view::rollout_changes(fleet.rollouts.get(&new.metadata.name), &new);
                fleet.rollouts.insert(new.metadata.name.clone(), new);
                lines
            }
            Kind::Locks(_)
            | Kind::Requests(_)
            | Kind::ClusterStates
            | Kind::Tokens
            | Kind::Secrets
            | Kind::Credentials
            | Kind::Audit
            | Kind::AuditChains => Vec::new(),
        })
    }

    fn forget(&mut self, kind: Kind, name: &str) {
        match kind {
            Kind::Clusters => self.fleet.cluster = None,
            Kind::Machines => drop(self.fleet.machines.remove(name)),
            Kind::Rollouts => drop(self.fleet.rollouts.remove(name)),
            // Other kinds are ignored.
            _ => {}
        }
    }
}

fn read<T: DeserializeOwned>(json: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(json).map_err(not_this_version)
}
