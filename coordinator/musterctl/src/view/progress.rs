//! A cluster in motion: what `musterctl watch` shows, line by line, and when it ends.

mod changes;
mod ends;

use std::collections::BTreeMap;

use jiff::Timestamp;
use muster_proto::listing::some_names;
use muster_proto::{
    model::{Phase, Reason, Severity},
    resource::{BlockedSince, Cluster, Machine, Rollout, UpdateStatus, Waiting},
};

pub use self::changes::{cluster_changes, machine_move, machine_troubles, rollout_changes};
use super::{
    age,
    clusters::ready_line,
    machines::{activity_text, note, outcome},
    printable,
    text::sentence,
};

/// All that is known of one cluster.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// The cluster. None: not heard of yet.
    pub cluster: Option<Cluster>,
    /// Its machines, by name.
    pub machines: BTreeMap<String, Machine>,
    /// Its rollouts, by name.
    pub rollouts: BTreeMap<String, Rollout>,
}

/// One phase as a bar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseLine {
    /// Which one.
    pub phase: Phase,
    /// Machines through with it.
    pub done: u32,
    /// Machines that have items in it.
    pub total: u32,
    /// `3 running, 1 failed`.
    pub text: String,
}

/// Where a rollout stands, for somebody who waits for its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It moves, or will by itself.
    Going,
    /// It has come to its end: what that is, in a line.
    Ended(String),
    /// An operator aborted it, and everything was given back: how far it came, in a line.
    Aborted(String),
    /// Everybody who was to go out of service is out of service, and stays so: who, and since when, line by line.
    InMaintenance(Vec<String>),
    /// It does not go on until a person decides: what, line by line.
    NeedsPerson(Vec<String>),
}

impl Fleet {
    /// The rollout under way, else the newest one. None too if one is under way that was not heard of yet.
    #[must_use]
    pub fn rollout(&self) -> Option<&Rollout> {
        match self.cluster.as_ref().and_then(|cluster| cluster.status.rollout.as_ref()) {
            Some(under_way) => self.rollouts.get(under_way),
            None => self.rollouts.values().max_by_key(|rollout| rollout.order()),
        }
    }

    /// How the cluster stands: how many machines are Ready, or through what disturbs them just now. None: it was not
    /// heard of yet.
    #[must_use]
    pub fn headline(&self) -> Option<String> {
        let cluster = self.cluster.as_ref()?;
        let name = &cluster.metadata.name;
        let disturbs = |rollout: &&Rollout| rollout.status.update.is_some();
        let under_way = cluster.status.rollout.as_ref().and_then(|rollout| self.rollouts.get(rollout)).filter(disturbs);
        Some(printable(&match under_way {
            Some(Rollout { metadata, status, .. }) => {
                format!(
                    "cluster {name}: {} of {} machines are through {}",
                    status.ready, status.machines, metadata.name
                )
            }
            None => format!("cluster {name}: {}", ready_line(cluster)),
        }))
    }

    /// A bar for each phase that has machines.
    #[must_use]
    pub fn phases(&self) -> Vec<PhaseLine> {
        let phases = self.cluster.iter().flat_map(|cluster| &cluster.status.phases);
        phases
            .filter(|phase| phase.total > 0)
            .map(|phase| {
                let parts = [(phase.running, "running"), (phase.failed, "failed")];
                let said = parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
                let text = said.collect::<Vec<_>>().join(", ");
                PhaseLine { phase: phase.phase, done: phase.done, total: phase.total, text }
            })
            .collect()
    }

    /// A line for each machine that is busy or in trouble; those in trouble first.
    #[must_use]
    pub fn busy_lines(&self, now: Timestamp) -> Vec<String> {
        let width = self.machines.keys().map(|name| name.chars().count()).max().unwrap_or(0);
        let troubled = self.machines.values().filter(|machine| in_trouble(machine));
        let busy = self.machines.values().filter(|machine| !in_trouble(machine) && machine.status.activity.is_some());
        troubled
            .chain(busy)
            .map(|machine| {
                let text = match (&machine.status.activity, in_trouble(machine)) {
                    (Some(activity), false) => activity_text(activity, now),
                    _ => note(machine, now),
                };
                printable(&format!("{:width$}  {:11}  {text}", machine.metadata.name, machine.status.state))
            })
            .collect()
    }

    /// Why nothing (or not everything) moves: the cluster's reason, then how many machines wait for what.
    #[must_use]
    pub fn blocked_lines(&self, now: Timestamp) -> Vec<String> {
        let cluster = self.cluster_wait().into_iter();
        let rollout = self.rollout().into_iter().filter_map(|rollout| rollout.status.blocked.as_ref());
        let mut lines: Vec<String> = cluster.chain(rollout).map(|wait| wait_text(wait, now)).collect();
        lines.dedup();
        let mut waiting: BTreeMap<Reason, Vec<&Machine>> = BTreeMap::new();
        let told = self.cluster_wait().map(|wait| wait.blocked.reason);
        for machine in self.machines.values().filter(|machine| !in_trouble(machine)) {
            if let Some(wait) = machine.status.blocked.as_ref().filter(|wait| told != Some(wait.blocked.reason)) {
                waiting.entry(wait.blocked.reason).or_default().push(machine);
            }
        }
        for (reason, machines) in waiting {
            let Some(first) = machines.first() else { continue };
            let message = first.status.blocked.as_ref().map_or("", |wait| &wait.blocked.message);
            let who = match machines.len() {
                1 => first.metadata.name.clone(),
                count => format!("{count} machines, {} first", first.metadata.name),
            };
            lines.push(printable(&format!("{reason} ({who}): {message}")));
        }
        lines
    }

    /// Has the rollout ended, or does it need a person? `now` is for what is told of the time since.
    #[must_use]
    pub fn verdict(&self, now: Timestamp) -> Verdict {
        let Some(rollout) = self.rollout() else {
            return if self.cluster_stands() { Verdict::NeedsPerson(self.decisions()) } else { Verdict::Going };
        };
        match rollout.status.state.as_str() {
            "Ready" if self.cluster_stands() => Verdict::NeedsPerson(self.decisions()),
            // Whoever came since is not blocked: it has a rollout in a moment.
            "Ready" if self.not_ready().any(|machine| machine.status.blocked.is_none() && !machine.status.lost) => {
                Verdict::Going
            }
            "Ready" => match self.decisions() {
                lines if lines.is_empty() => Verdict::Ended(ends::ended(rollout, self.not_ready())),
                lines => Verdict::NeedsPerson(lines),
            },
            "InMaintenance" => Verdict::InMaintenance(self.out_of_service(now)),
            "Aborted" => Verdict::Aborted(ends::aborted(rollout, self.not_ready())),
            _ if let Some(update) = &rollout.status.update => match update.needs_operator {
                true => Verdict::NeedsPerson(waiting_lines(update)),
                false if self.cluster_stands() => Verdict::NeedsPerson(self.decisions()),
                false => Verdict::Going,
            },
            _ if self.cluster_stands() || self.machines.values().all(is_settled) => match self.decisions() {
                lines if lines.is_empty() => Verdict::Going,
                lines => Verdict::NeedsPerson(lines),
            },
            _ => Verdict::Going,
        }
    }

    fn not_ready(&self) -> impl Iterator<Item = &Machine> {
        let revoked = |machine: &Machine| {
            machine.status.blocked.as_ref().is_some_and(|wait| wait.blocked.reason == Reason::Revoked)
        };
        let ready =
            move |machine: &Machine| machine.status.state == "Ready" && !machine.status.lost && !revoked(machine);
        self.machines.values().filter(move |machine| !ready(machine))
    }

    /// Machines that are out of service, and the way back.
    fn out_of_service(&self, now: Timestamp) -> Vec<String> {
        let since = |machine: &Machine| machine.status.maintenance.filter(|known| !known.leaving)?.since;
        let machines = self.machines.iter().filter_map(|(name, machine)| Some((name, since(machine)?)));
        let line = |(name, since): (&String, Timestamp)| {
            let age = age(since, now);
            printable(&format!("{name}: in maintenance for {age}; `musterctl maintenance leave {name}` brings it back"))
        };
        machines.map(line).collect()
    }

    fn cluster_wait(&self) -> Option<&BlockedSince> {
        self.cluster.as_ref()?.status.blocked.as_ref()
    }

    /// Nothing of it moves until a person acts, whatever its machines were last known to be at.
    fn cluster_stands(&self) -> bool {
        self.cluster_wait().is_some_and(|wait| wait.blocked.reason.needs_operator())
    }

    /// What a person has to decide, machine by machine. What the whole cluster waits for is said once.
    fn decisions(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, machine) in &self.machines {
            let items = machine.status.items.iter();
            for item in items.filter(|item| matches!(item.standing.as_str(), "failed" | "held")) {
                let what = machine.status.state_item_statuses.get(&item.name).map(outcome).unwrap_or_default();
                let choices: &[&str] =
                    if item.standing == "held" { &["accept", "retry", "skip"] } else { &["retry", "skip"] };
                let command = |choice: &&str| format!("musterctl {choice} {name} {}", item.name);
                let mut commands = choices.iter().map(command).collect::<Vec<_>>().join(", or ");
                // In an update it is another: its machines say which.
                if item.standing == "failed" && self.rollout().is_none_or(|rollout| rollout.status.update.is_none()) {
                    commands.push_str("; a wrong item: musterctl apply a mended manifest, and it runs anew");
                }
                lines.push(printable(&format!(
                    "{name}: item {} {}: {what}. Look: musterctl logs {name} {}; then: {commands}",
                    item.name, item.standing, item.name
                )));
            }
        }
        let of_cluster = self.cluster.iter().filter_map(|cluster| Some((&cluster.metadata.name, self.cluster_wait()?)));
        let of_machines =
            self.machines.iter().filter_map(|(name, machine)| Some((name, machine.status.blocked.as_ref()?)));
        let told = self.cluster_wait().map(|wait| wait.blocked.reason);
        let of_machines = of_machines.filter(|(_, wait)| told != Some(wait.blocked.reason));
        for (name, BlockedSince { blocked, .. }) in of_cluster.chain(of_machines) {
            if blocked.reason.needs_operator() {
                let said = sentence(&format!("{}: {}", blocked.reason, blocked.message));
                lines.push(printable(&format!("{name}: {said} Clears when {}", blocked.clears_when)));
            }
        }
        lines
    }
}

/// Whom an update waits for, machine by machine; those that merely wait for another are left out.
fn waiting_lines(update: &UpdateStatus) -> Vec<String> {
    let held = |wait: &&Waiting| wait.reason.severity() != Severity::Ordinary;
    let ordinary = !update.waiting.iter().any(|wait| held(&wait));
    // Of many machines that wait for the same, one line.
    let mut lines: Vec<(String, Vec<&str>)> = Vec::new();
    for wait in update.waiting.iter().filter(|wait| ordinary || held(wait)) {
        let said = sentence(&format!("{}: {}", wait.reason, wait.message));
        let text = format!("{said} Clears when {}", wait.clears_when);
        match lines.iter_mut().find(|(known, _)| *known == text) {
            Some((_, machines)) => machines.push(&wait.machine),
            None => lines.push((text, vec![&wait.machine])),
        }
    }
    lines.into_iter().map(|(text, machines)| printable(&format!("{}: {text}", some_names(machines)))).collect()
}

/// Nothing happens on it, and it says why, or it is Ready.
fn is_settled(machine: &Machine) -> bool {
    let status = &machine.status;
    status.activity.is_none() && (status.blocked.is_some() || in_trouble(machine) || status.state == "Ready")
}

fn in_trouble(machine: &Machine) -> bool {
    let status = &machine.status;
    status.lost || status.failed || status.indeterminate
}

fn wait_text(wait: &BlockedSince, now: Timestamp) -> String {
    let blocked = &wait.blocked;
    printable(&format!(
        "{} for {}: {} Clears when {}",
        blocked.reason,
        age(wait.since, now),
        sentence(&blocked.message),
        blocked.clears_when
    ))
}
