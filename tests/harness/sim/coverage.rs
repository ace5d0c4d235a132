//! Coverage goals of a simulator run: every fault must have fired, and every situation worth a check must have been
//! reached. A run without them proves less than it claims.

mod names;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use muster_agent::{
    attempt::record::{AttemptKey, Found},
    core::Input as AgentInput,
};
use muster_coordinator::facts::{Facts, MachineRow, MachineUpdate, Stage, UpdateKind};
use muster_proto::model::{CONSISTENT_COPY_ITEM, MachineType, Phase, Reason, SWARM_COPY_ITEM};

use super::{
    machine::Deed,
    manifest::{HOOK_AFTER, HOOK_BEFORE},
};
use names::RARE;
pub use names::{REQUIRED, REQUIRED_OF_MANY};

/// From this many seeds on, a run must reach everything in [`REQUIRED`]. Shorter runs have no such requirement: rare
/// goals may be missed by chance.
pub const SEEDS_REQUIRED: u64 = 1_000;
/// From this many seeds on, everything in [`REQUIRED_OF_MANY`] too.
pub const SEEDS_REQUIRED_OF_MANY: u64 = 10_000;

/// All names.
fn all() -> impl Iterator<Item = &'static str> {
    REQUIRED.iter().chain(REQUIRED_OF_MANY).chain(RARE).copied()
}

/// How often each coverage goal was reached.
#[derive(Clone, Debug, Default)]
pub struct Reached {
    counts: BTreeMap<&'static str, u64>,
    /// Counted under an undeclared name.
    unnamed: BTreeSet<String>,
}

impl Reached {
    /// Counts one more occurrence.
    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Adds the counts of another world.
    pub fn add(&mut self, other: &Self) {
        for (what, count) in &other.counts {
            *self.counts.entry(what).or_default() += count;
        }
        self.unnamed.extend(other.unnamed.iter().cloned());
    }

    /// Gaps of a run of this many seeds, one line each: goals never reached, and counts under an undeclared name.
    #[must_use]
    pub fn gaps(&self, seeds: u64) -> Vec<String> {
        let of_few = REQUIRED.iter().filter(|_| seeds >= SEEDS_REQUIRED);
        let of_many = REQUIRED_OF_MANY.iter().filter(|_| seeds >= SEEDS_REQUIRED_OF_MANY);
        let missing = of_few.chain(of_many).filter(|what| !self.counts.contains_key(*what));
        let counted = self.counts.keys().copied().filter(|what| !all().any(|name| name == *what));
        let unnamed = self.unnamed.iter().map(String::as_str).chain(counted);
        missing
            .map(|what| format!("never reached in {seeds} seeds: {what}"))
            .chain(unnamed.map(|what| format!("counted, but named neither in REQUIRED nor in RARE: {what}")))
            .collect()
    }

    /// Counts a composed name: its kind, and a word from the code under test.
    pub(super) fn count_named(&mut self, kind: &str, name: &str) {
        let whole = |what: &&str| what.strip_prefix(kind).and_then(|rest| rest.strip_prefix(' ')) == Some(name);
        match all().find(whole) {
            Some(what) => self.count(what),
            None => drop(self.unnamed.insert(format!("{kind} {name}"))),
        }
    }

    /// Coverage of the coordinator's facts after a decision.
    pub(super) fn look_at(&mut self, facts: &Facts) {
        let newest = facts.audit.values().filter_map(|chain| chain.lines().next_back());
        let last = newest.max_by_key(|line| line.seq);
        if last.is_some_and(|line| line.actor == "muster" && line.action == "abort") {
            self.count("a deadline aborted an update");
        }
        let mut workers = 0;
        for machine in facts.machines.values() {
            let reason = machine.blocked_since.map(|(reason, _)| reason);
            if let Some(reason) = reason {
                self.count_named("blocked", reason.as_str());
            }
            if let Some(stuck) = machine.update.as_ref().and_then(|part| part.stuck.as_ref()) {
                self.count(match stuck.stage {
                    Stage::RequestRemoved => "a lock that did not come back paused an update",
                    _ => "a stage past its deadline",
                });
            }
            if is_reconfigured(facts, machine) {
                self.count(match machine.spec.machine_type {
                    MachineType::Worker => "a worker that was Ready was reconfigured",
                    MachineType::Control | MachineType::Unassigned => {
                        "a control machine that was Ready was reconfigured"
                    }
                });
            }
            if machine.slot.is_none() {
                continue;
            }
            match machine.spec.machine_type {
                MachineType::Control if reason == Some(Reason::Lost) => {
                    self.count("a control machine with a slot is lost")
                }
                MachineType::Worker if reason == Some(Reason::Lost) => self.count("a worker with a slot is lost"),
                MachineType::Control | MachineType::Worker | MachineType::Unassigned => {}
            }
            workers += u32::from(machine.spec.machine_type == MachineType::Worker);
        }
        if workers > 1 {
            self.count("two workers hold slots");
        }
    }

    /// Coverage of the hooks and backups of an update.
    pub(super) fn look_at_hook(&mut self, key: &AttemptKey) {
        if key.item.as_str().starts_with(HOOK_BEFORE) {
            self.count("a hook ran before an update");
        } else if key.item.as_str().starts_with(HOOK_AFTER) {
            self.count("a hook ran after an update");
        } else if key.item.as_str() == SWARM_COPY_ITEM {
            self.count("a manager was copied before an update");
        } else if key.item.as_str() == CONSISTENT_COPY_ITEM {
            self.count("a manager was copied with Docker stopped");
        }
    }

    /// Coverage of a machine's actions, and of their answers.
    pub(super) fn look_at_machine(&mut self, deed: Option<&Deed>, answer: Option<&AgentInput>) {
        if let Some(Deed::Started { key, phase, claimed: false, .. }) = deed {
            if key.attempt > 1 {
                self.count("an attempt after the first");
            }
            self.count(match phase {
                Phase::Prepare => "phase prepare",
                Phase::Deploy => "phase deploy",
                Phase::Reconfigure => "phase reconfigure",
            });
        }
        if matches!(answer, Some(AgentInput::NoRoom { .. })) {
            self.count("no room to begin an attempt");
        }
        if let Some(AgentInput::Inspected { found, .. }) = answer {
            self.count(match found {
                Found::NotStarted => "found not started",
                Found::Running => "found running",
                Found::Exited(_) => "found exited",
                Found::Lost => "found lost",
            });
        }
    }
}

/// Has it had a permit in a rollout that began because the set of control machines changed?
fn is_reconfigured(facts: &Facts, machine: &MachineRow) -> bool {
    let rollout = machine.rollout.as_ref().filter(|_| machine.update.as_ref().is_some_and(MachineUpdate::disturbed));
    let update = rollout.and_then(|name| facts.rollouts.get(name)?.update.as_ref());
    update.is_some_and(|update| update.kind == UpdateKind::Reconfigure)
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for what in all() {
            writeln!(f, "{:>9}  {what}", self.counts.get(what).copied().unwrap_or(0))?;
        }
        Ok(())
    }
}
