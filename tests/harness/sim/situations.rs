//! What a run of the simulator has to live through: every fault must have fired and every situation that is worth its
//! risk must have been reached. A run without them proves less than it says.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use muster_agent::{
    attempt::record::{AttemptKey, Found},
    core::Input as AgentInput,
};
use muster_coordinator::facts::{Facts, MachineRow, MachineUpdate, Stage, UpdateKind};
use muster_proto::model::{CONSISTENT_COPY_ITEM, MachineType, Phase, SWARM_COPY_ITEM};

use super::{
    machine::Deed,
    manifest::{HOOK_AFTER, HOOK_BEFORE},
};

/// From so many seeds on a run must have reached everything in [`REQUIRED`]. Of fewer nothing is required: what is rare
/// may be missing by chance.
pub const SEEDS_REQUIRED: u64 = 1_000;

/// What every run reaches. A situation is named here or in [`RARE`], together with the line that counts it.
pub const REQUIRED: &[&str] = &[
    // Faults.
    "agent crashed between effects",
    "address changed",
    "address gone",
    "agent killed",
    "clock jumped",
    "coordinator crashed before its commit",
    "coordinator crashed between effects",
    "coordinator killed",
    "disk full",
    "message delivered twice",
    "old store restored",
    "partition",
    "power cut",
    "store copied",
    "stream broken",
    // What should be gone speaks.
    "a generation was used twice",
    "an old coordinator spoke",
    "an overtaken assignment arrived",
    "stream closed for a protocol error",
    // Operators.
    "accept",
    "deploy",
    "a removed machine came again",
    "a removed machine is gone",
    "a removal was taken back",
    "machine replaced",
    "removed by force",
    "removed gracefully",
    "removed unsafely",
    "machine revoked",
    "manifest edited",
    "retry",
    "skip",
    "store recovered",
    "store from before an update's end recovered",
    "update aborted",
    "update paused",
    "update resumed",
    "maintenance entered",
    "maintenance left",
    "rebooted by an update",
    "update started",
    "a hook ran after an update",
    "a hook ran before an update",
    "a manager was copied before an update",
    "a manager was left out of the swarm",
    "a manager was copied with Docker stopped",
    // The set of control machines changed.
    "a control machine that was Ready was reconfigured",
    "a worker that was Ready was reconfigured",
    // Tasks of services in the swarm.
    "a removed machine left its swarm",
    "a change of a node came late",
    "an operator set a node's availability",
    // Application controllers.
    "a list changed behind a machine that gives back",
    "a lock of an older release was reset",
    "a controller's stream followed another",
    "controller died",
    "controller failed",
    "controller failed to bring workloads back",
    "controller flapped",
    "controller stalled",
    "controller went away",
    "lock taken back",
    "permit ran out",
    // What an agent found of its item when it came back.
    "found exited",
    "found lost",
    "found not started",
    "found running",
    // Secrets.
    "deletion of a secret in use refused",
    "secret renewed",
    "secrets asked for without need",
    "secrets handed out",
    "secrets refused",
    // The swarm.
    "a join that only the managers know of",
    "a manager was let in",
    "a manager's engine went down",
    "a swarm was mended by hand",
    "a swarm without quorum was asked",
    "a worker was let in",
    "an engine did not answer",
    "managers were counted for an update",
    "managers were too few for an update",
    "no way into the swarm",
    "power cut during a swarm-join",
    "swarm answered",
    "told to make the swarm",
    "what a reinstalled machine left in the swarm was removed",
    // What ran.
    "an attempt after the first",
    "rebooted by its item",
    "phase deploy",
    "phase prepare",
    "phase reconfigure",
    // What came when time alone had changed a decision, or nothing had.
    "a deadline passed among heartbeats",
    "heartbeats came alone",
    // What the coordinator held while it decided.
    "a control machine with a slot is lost",
    "a worker with a slot is lost",
    "a deadline aborted an update",
    "a lock that did not come back paused an update",
    "a stage past its deadline",
    "two workers hold slots",
    // Reasons not to move.
    "blocked ControllerSilent",
    "blocked Disconnected",
    "blocked DiskFull",
    "blocked Failed",
    "blocked FailureBudget",
    "blocked Gathering",
    "blocked BeforeUpdate",
    "blocked Deferred",
    "blocked InMaintenance",
    "blocked Indeterminate",
    "blocked ServiceDegraded",
    "blocked SwarmDraining",
    "blocked SwarmUncordoning",
    "blocked LocksActive",
    "blocked LocksReturning",
    "blocked Lost",
    "blocked NotReported",
    "blocked RebootOverdue",
    "blocked Rebooting",
    "blocked Paused",
    "blocked Revoked",
    "blocked StoreOlderThanFleet",
    "blocked WaitingForControl",
    "blocked WaitingForGroup",
    "blocked WaitingForMachines",
    "blocked WaitingForSecret",
    "blocked WaitingForSwarm",
    "blocked WaitingForTurn",
    // How machines ended when the faults had stopped and nobody helped.
    "ended Failed",
    "ended FailureBudget",
    "ended Indeterminate",
    "ended Ready",
    "ended Revoked",
    "ended WaitingForControl",
];

/// What a run may or may not reach: only several faults together lead there.
const RARE: &[&str] = &[
    "blocked Deciding",
    "blocked LeavingSwarm",
    "blocked RemovalNeedsAgent",
    "ended LeavingSwarm",
    "ended RemovalNeedsAgent",
    "a foreign swarm was left",
    "assignment refused",
    "blocked Aborting",
    "blocked AssignmentRefused",
    "blocked ControlNotDeployed",
    "blocked ControlNotHeard",
    "blocked ControlsAtWork",
    "blocked ItemRunning",
    "blocked LockFailed",
    "blocked LockNotYetActive",
    "blocked LocksSettling",
    "blocked MaintenanceInProgress",
    "blocked NoInternalIP",
    "blocked NotUpToDate",
    "blocked Quorum",
    "blocked RecoveredInDoubt",
    "blocked RecoveryOpen",
    "blocked Refused",
    "blocked SwarmNoManager",
    "blocked SwarmNodeUnknown",
    "blocked UpdateInProgress",
    "ended Aborting",
    "ended ControlNotDeployed",
    "ended ControlNotHeard",
    "ended ControlsAtWork",
    "ended Deferred",
    "ended Gathering",
    "ended BeforeUpdate",
    "ended InMaintenance",
    "ended LockNotYetActive",
    "ended LocksActive",
    "ended LocksReturning",
    "ended Lost",
    "ended MaintenanceInProgress",
    "ended NotReported",
    "ended NotUpToDate",
    "ended Paused",
    "ended Quorum",
    "ended RebootOverdue",
    "ended RecoveredInDoubt",
    "ended RecoveryOpen",
    "ended Refused",
    "ended ServiceDegraded",
    "ended SwarmDraining",
    "ended SwarmNoManager",
    "ended SwarmNodeUnknown",
    "ended SwarmUncordoning",
    "ended UpdateInProgress",
    "ended WaitingForGroup",
    "reboot started",
    "ended WaitingForMachines",
    "ended WaitingForSecret",
    "ended WaitingForSwarm",
    "ended WaitingForTurn",
    "went without a swarm",
];

/// How often each situation was reached.
#[derive(Clone, Debug, Default)]
pub struct Reached {
    counts: BTreeMap<&'static str, u64>,
    /// Counted, and named nowhere.
    unnamed: BTreeSet<String>,
}

impl Reached {
    /// Once more.
    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Takes over what another world reached.
    pub fn add(&mut self, other: &Self) {
        for (what, count) in &other.counts {
            *self.counts.entry(what).or_default() += count;
        }
        self.unnamed.extend(other.unnamed.iter().cloned());
    }

    /// What is wrong with a run of so many seeds, one line each: a situation that was never reached, and a count under
    /// a name that stands nowhere.
    #[must_use]
    pub fn gaps(&self, seeds: u64) -> Vec<String> {
        let missing = REQUIRED.iter().filter(|what| seeds >= SEEDS_REQUIRED && !self.counts.contains_key(*what));
        let counted = self.counts.keys().copied().filter(|what| !REQUIRED.contains(what) && !RARE.contains(what));
        let unnamed = self.unnamed.iter().map(String::as_str).chain(counted);
        missing
            .map(|what| format!("never reached in {seeds} seeds: {what}"))
            .chain(unnamed.map(|what| format!("counted, but named neither in REQUIRED nor in RARE: {what}")))
            .collect()
    }

    /// Counts a name that is put together: its kind, and a word from the code under test.
    pub(super) fn count_named(&mut self, kind: &str, name: &str) {
        let whole = |what: &&str| what.strip_prefix(kind).and_then(|rest| rest.strip_prefix(' ')) == Some(name);
        match REQUIRED.iter().chain(RARE).copied().find(whole) {
            Some(what) => self.count(what),
            None => drop(self.unnamed.insert(format!("{kind} {name}"))),
        }
    }

    /// What the coordinator holds when it has decided.
    pub(super) fn look_at(&mut self, facts: &Facts) {
        let last = facts.audit.values().next_back();
        if last.is_some_and(|line| line.actor == "muster" && line.action == "abort") {
            self.count("a deadline aborted an update");
        }
        let mut workers = 0;
        for machine in facts.machines.values() {
            let reason = machine.blocked_since.as_ref().map(|(reason, _)| reason.as_str());
            if let Some(reason) = reason {
                self.count_named("blocked", reason);
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
                MachineType::Control if reason == Some("Lost") => self.count("a control machine with a slot is lost"),
                MachineType::Worker if reason == Some("Lost") => self.count("a worker with a slot is lost"),
                MachineType::Control | MachineType::Worker | MachineType::Unassigned => {}
            }
            workers += u32::from(machine.spec.machine_type == MachineType::Worker);
        }
        if workers > 1 {
            self.count("two workers hold slots");
        }
    }

    /// A hook or a backup of an update runs.
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

    /// What a machine did, and what its agent learns from it.
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
        for what in REQUIRED.iter().chain(RARE) {
            writeln!(f, "{:>9}  {what}", self.counts.get(what).copied().unwrap_or(0))?;
        }
        Ok(())
    }
}
