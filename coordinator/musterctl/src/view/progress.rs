//! Progress of a cluster: the lines that `musterctl watch` shows, and when it ends.

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

/// Everything known of one cluster.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// The cluster. None: its document is still to arrive.
    pub cluster: Option<Cluster>,
    /// Its machines, by name.
    pub machines: BTreeMap<String, Machine>,
    /// Its rollouts, by name.
    pub rollouts: BTreeMap<String, Rollout>,
}

/// One phase as a bar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseLine {
    /// The phase.
    pub phase: Phase,
    /// Machines that have completed it.
    pub done: u32,
    /// Machines that have items in it.
    pub total: u32,
    /// `3 running, 1 failed`.
    pub text: String,
}

/// State of a rollout, for a caller that waits for its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It makes progress, or will by itself.
    Going,
    /// It has ended; a line says how.
    Ended(String),
    /// An operator aborted it, and everything has been released; a line says how far it came.
    Aborted(String),
    /// All requested machines are in maintenance and stay so; each line has a machine and its start.
    InMaintenance(Vec<String>),
    /// It needs a person to decide; the lines say what.
    NeedsPerson(Vec<String>),
}

impl Fleet {
    /// The rollout under way, else the newest one. None also while the document of the one under way is still to
    /// arrive.
    #[must_use]
    pub fn rollout(&self) -> Option<&Rollout> {
        match self.cluster.as_ref().and_then(|cluster| cluster.status.rollout.as_ref()) {
            Some(under_way) => self.rollouts.get(under_way),
            None => self.rollouts.values().max_by_key(|rollout| rollout.order()),
        }
    }

    /// State of the cluster: number of Ready machines, or progress of a disruptive rollout. None: its document is still
    /// to arrive.
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

    /// A line for each machine that is in trouble or busy; trouble comes first.
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

    /// What blocks progress: the cluster's reason, then the number of machines for each wait.
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

    /// Has the rollout ended, or does it need a person? `now` is for durations.
    #[must_use]
    pub fn verdict(&self, now: Timestamp) -> Verdict {
        let Some(rollout) = self.rollout() else {
            return if self.cluster_stands() { Verdict::NeedsPerson(self.decisions()) } else { Verdict::Going };
        };
        match rollout.status.state.as_str() {
            "Ready" if self.cluster_stands() => Verdict::NeedsPerson(self.decisions()),
            // A machine that enrolled meanwhile is free to go: its rollout starts in a moment.
            "Ready" if self.not_ready().any(|machine| machine.status.blocked.is_none() && !machine.status.lost) => {
                Verdict::Going
            }
            // Add-ons come after the machines.
            "Ready" if self.awaits_addon() => Verdict::Going,
            "Ready" => match self.decisions() {
                lines if lines.is_empty() => Verdict::Ended(ends::ended(rollout, self.not_ready())),
                lines => Verdict::NeedsPerson(lines),
            },
            "InMaintenance" => Verdict::InMaintenance(self.out_of_service(now)),
            "Aborted" => Verdict::Aborted(ends::aborted(rollout, self.not_ready())),
            _ if let Some(update) = &rollout.status.update => match update.needs_operator {
                true => Verdict::NeedsPerson(self.waiting_lines(update)),
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

    /// Machines in maintenance, and the command that ends it.
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

    /// What an update waits for: its machines, or at the end of it the cluster as a whole.
    fn waiting_lines(&self, update: &UpdateStatus) -> Vec<String> {
        let of_machines = waiting_lines(update);
        let of_cluster = self.cluster.iter().filter(|_| of_machines.is_empty());
        let waits = of_cluster.filter_map(|cluster| Some((&cluster.metadata.name, self.cluster_wait()?)));
        let line = |(name, BlockedSince { blocked, .. }): (&String, &BlockedSince)| {
            let said = sentence(&format!("{}: {}", blocked.reason, blocked.message));
            printable(&format!("{name}: {said} Clears when {}", blocked.clears_when))
        };
        of_machines.iter().cloned().chain(waits.map(line)).collect()
    }

    /// Is an add-on of the cluster being installed?
    fn awaits_addon(&self) -> bool {
        let reason = self.cluster_wait().map(|wait| wait.blocked.reason);
        matches!(reason, Some(Reason::AddonInstalling | Reason::AddonNotApplied))
    }

    /// Does the whole cluster wait for a person, whatever the last known state of its machines?
    fn cluster_stands(&self) -> bool {
        self.cluster_wait().is_some_and(|wait| wait.blocked.reason.needs_operator())
    }

    /// Decisions for a person, by machine. What the whole cluster waits for appears once.
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
                // In an update the commands differ: its machines list them.
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

/// What an update waits for, by machine; machines that only wait for others are left out.
fn waiting_lines(update: &UpdateStatus) -> Vec<String> {
    let held = |wait: &&Waiting| wait.reason.severity() != Severity::Ordinary;
    let ordinary = !update.waiting.iter().any(|wait| held(&wait));
    // Machines with the same wait share one line.
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

/// Is it idle with a reason, or Ready?
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
