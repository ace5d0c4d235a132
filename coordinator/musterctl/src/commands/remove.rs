//! `musterctl remove`: removes a machine from its cluster for good.

use muster_proto::{
    model::RemovalPolicy,
    printable::printable,
    resource::{Kind, Machine},
    wire::{AbortRemovalRequest, RemoveRequest},
};
use tokio::signal::ctrl_c;

use crate::{
    commands::{actions::show, update::Start},
    config::Context,
    errors::{Exit, Failure, not_this_version},
    feed::{Feed, FeedItem, Subject},
    name, terminal,
    view::machine_note as note,
};

/// Remove a machine from its cluster for good
///
/// graceful: its application controllers move its workloads away and its Swarm node is drained, as for an update; then
/// a manager is demoted, the machine leaves the swarm, its certificate is revoked, and its name is free. unsafe: the
/// same without waiting for controllers and drain: what runs there is cut off. forced: the machine is dead and is not
/// asked; it is revoked, and a manager removes what it left in the swarm. A removal under way can be loosened, in that
/// order.
/// Ends with status 0 when the machine is gone, 4 when a person must decide (it says what). Ctrl-C only detaches.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  musterctl remove worker-3
  musterctl remove worker-3 --policy forced --yes     it burnt down
  musterctl remove worker-3 --abort                   as long as it has not begun to leave the swarm")]
pub(crate) struct Args {
    /// Name of the machine
    #[arg(value_parser = name::machine)]
    machine: String,
    /// What it waits for: `graceful`, `unsafe` or `forced`
    #[arg(long, default_value = "graceful")]
    policy: RemovalPolicy,
    /// Keep a machine that is being removed
    #[arg(long, conflicts_with_all = ["policy", "accept_control_plane_downtime"])]
    abort: bool,
    #[command(flatten)]
    start: Start,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let coordinator = context.coordinator().await?;
    let Args { machine, policy, abort, start } = args;
    if abort {
        let request = AbortRemovalRequest { machine: machine.clone() };
        return show(&coordinator.call_on(Kind::Machines, &machine, coordinator.fleet().abort_removal(request)).await?);
    }
    let found = coordinator.get_one(Kind::Machines, &machine).await?;
    let known: Machine = serde_json::from_slice(&found.json).map_err(not_this_version)?;
    let cluster = known.spec.cluster_name.to_string();
    let warning = match policy {
        RemovalPolicy::Graceful => "",
        RemovalPolicy::Unsafe => " Its workloads are not moved away: what runs there is cut off.",
        RemovalPolicy::Forced => " It is not asked: be sure that it is off.",
    };
    if !start.agreed(&format!("Remove {machine} from cluster {cluster} for good?{warning}"))? {
        return Ok(());
    }
    let accept_control_plane_downtime = start.accept_control_plane_downtime;
    let request = RemoveRequest { machine: machine.clone(), policy: policy.to_string(), accept_control_plane_downtime };
    show(&coordinator.call_on(Kind::Machines, &machine, coordinator.fleet().remove(request)).await?)?;
    if start.detach {
        return Ok(());
    }
    tokio::select! {
        ended = follow(&machine, &cluster, context) => ended,
        _ = ctrl_c() => {
            terminal::say(&format!("detached; the removal goes on. Again: musterctl describe machine {machine}"));
            Ok(())
        }
    }
}

/// Print what the machine waits for, until it is gone.
async fn follow(machine: &str, cluster: &str, context: &Context) -> Result<(), Failure> {
    let subject = Subject { kind: Kind::Machines, name: machine.to_owned(), cluster: cluster.to_owned() };
    let mut feed = Feed::open(context.config()?, vec![subject]);
    let (mut seen, mut said) = (false, String::new());
    loop {
        match feed.next().await? {
            FeedItem::Put { json, .. } => {
                seen = true;
                let known: Machine = serde_json::from_slice(&json).map_err(not_this_version)?;
                let note = note(&known, jiff::Timestamp::now());
                let line = printable(&format!("{machine}: {note}"));
                match known.status.prepare_deletion_phase.as_deref() {
                    None => return stays(machine),
                    Some("failed") => return needs_person(machine, &line),
                    Some(_) if note.is_empty() || said == line => {}
                    Some(_) => {
                        terminal::print(&line)?;
                        said = line;
                    }
                }
            }
            FeedItem::Deleted { .. } => return removed(machine),
            FeedItem::Synced if !seen => return removed(machine),
            FeedItem::Synced => {}
            FeedItem::Lost(why) => terminal::say(&format!("connection lost ({why}); connecting again")),
            FeedItem::Back => seen = false,
        }
    }
}

fn removed(machine: &str) -> Result<(), Failure> {
    terminal::print(&format!("machine {machine}: removed"))
}

fn stays(machine: &str) -> Result<(), Failure> {
    terminal::print(&format!("machine {machine}: stays, its removal was aborted"))?;
    Err(Failure::silent(Exit::Refused))
}

fn needs_person(machine: &str, line: &str) -> Result<(), Failure> {
    terminal::say("the removal needs a person:");
    terminal::say(&format!("  {line}"));
    terminal::say(&format!("What clears it: musterctl describe machine {machine}"));
    Err(Failure::silent(Exit::Refused))
}
