//! Invariants that must hold after every event, under any faults. Named after the rules of docs/explanation/safety.md.
//! They are independent of the code under test: none asks it whether it did right.

mod groups;
mod hooks;
mod kubernetes;
pub(crate) mod maintenance;
mod memory;
mod outcomes;
mod record;
mod redo;
mod removal;
pub mod swarm;
mod update;

use std::collections::{BTreeMap, BTreeSet};

use muster_agent::{
    attempt::record::AttemptKey,
    core::{LedgerState, ToCoordinator},
};
use muster_coordinator::{
    core::{Core, Input},
    facts::{Facts, MachineRow, Slot},
    plan::{
        blocked,
        snapshot::{ClusterSnapshot, State},
    },
    store::{Change, Table},
};
use muster_proto::model::{
    Assignment, Epoch, Generation, ItemHash, ItemName, MachineId, MachineName, MachineType, Now, Phase, Seq,
};

use crate::sim::{LIMITS, machine::Machine, manifest};
use record::{failed_for_good, has_outcome, waits_for_an_update};

/// A broken invariant.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Name of the invariant: the number of the safety rule, or a word.
    pub invariant: &'static str,
    /// What was observed.
    pub detail: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "invariant {}: {}", self.invariant, self.detail)
    }
}

/// Records what was observed, and checks each step against it.
#[derive(Clone, Default)]
pub struct Watcher {
    epoch: Epoch,
    /// Content by machine and generation, since the store was last restored.
    assigned: BTreeMap<(MachineId, Generation), String>,
    /// Content each agent has accepted.
    accepted: BTreeMap<(MachineId, Generation), String>,
    started: BTreeSet<(MachineId, AttemptKey)>,
    succeeded: BTreeSet<(MachineId, ItemName, ItemHash)>,
    /// Items that have succeeded, and have since been absent from their machine's list.
    dropped: BTreeSet<(MachineId, ItemName, ItemHash)>,
    /// Of each item that has left its machine's list since: the newest list under which it may have been begun.
    out_since: BTreeMap<(MachineId, ItemName), Generation>,
    /// Items that took a machine down: at most once for each generation.
    rebooted: BTreeSet<(MachineId, Generation, ItemName)>,
    /// Hashes of attempts, as recorded when they were started.
    hashes: BTreeMap<(MachineId, AttemptKey), ItemHash>,
    /// Epoch, generation and newest event of each ledger, as last seen.
    ledgers: BTreeMap<MachineId, (Epoch, Generation, Seq)>,
    slots: BTreeMap<MachineName, (MachineId, Slot)>,
    denied: BTreeSet<MachineId>,
    /// Machines that were ever denied: an old store may have lost them, its operators still know them.
    shut_out: BTreeSet<MachineId>,
    /// An old store is in place and has not been recovered: checks that need lost facts are off.
    restored: bool,
    /// Observations about updates.
    seen: update::Seen,
    /// A store is being recovered: slots that it shows now were granted by an earlier coordinator.
    recovering: bool,
}

type Checked = Result<(), Violation>;

impl Watcher {
    /// A violation found by the simulator itself.
    #[must_use]
    pub fn violation(&self, invariant: &'static str, detail: impl Into<String>) -> Violation {
        Violation { invariant, detail: detail.into() }
    }

    /// An old copy of the store has replaced the newest.
    pub fn store_restored(&mut self) {
        self.restored = true;
        self.assigned.clear();
        self.dropped.clear();
        self.out_since.clear();
        self.epoch = Epoch(0);
    }

    /// Has an operator ever denied this machine?
    #[must_use]
    pub fn was_shut_out(&self, id: MachineId) -> bool {
        self.shut_out.contains(&id)
    }

    /// An old copy of a machine's ledger has replaced the newest.
    pub fn ledger_put_back(&mut self, id: MachineId) {
        self.ledgers.remove(&id);
    }

    /// The store is complete again.
    pub fn store_recovered(&mut self) {
        self.restored = false;
    }

    /// Rule 6: no two coordinators share an epoch.
    pub fn coordinator_started(&mut self, epoch: Epoch) -> Checked {
        if epoch <= self.epoch {
            return Err(self.violation("6", format!("epoch {epoch} after {}", self.epoch)));
        }
        self.epoch = epoch;
        Ok(())
    }

    /// After a start the slots are those of the store: a lost step may have freed slots without a commit.
    pub fn forget_slots(&mut self, facts: Option<&Facts>) {
        self.slots = facts.map(slots).unwrap_or_default();
        facts.into_iter().for_each(|facts| self.forget_updates(facts));
        self.recovering = facts.is_some_and(|facts| facts.meta.recovering);
    }

    /// Rule 6: one generation of one machine has one content. A coordinator that has found its store older than the
    /// fleet sends nothing.
    pub fn assigned(&mut self, id: MachineId, assignment: &Assignment, facts: Option<&Facts>) -> Checked {
        if facts.is_some_and(|facts| facts.live.older_than_fleet().is_some()) {
            return Err(self.violation("old-store", format!("{id} was assigned something by an old store")));
        }
        self.refused_get_nothing(id, facts)?;
        let digest = content(assignment);
        let known = self.assigned.insert((id, assignment.generation), digest.clone());
        if known.is_some_and(|known| known != digest) {
            let detail = format!("generation {} of {id} was sent with two contents", assignment.generation);
            return Err(self.violation("6", detail));
        }
        Ok(())
    }

    /// Rule 7: at most one process for an attempt, and none for an item that has succeeded.
    pub fn started(&mut self, machine: &Machine, key: &AttemptKey, phase: Phase, claimed: bool) -> Checked {
        let at = (machine.id, key.clone());
        if claimed || !self.started.insert(at.clone()) {
            return Err(self.violation("7", format!("{}: attempt {key} ({phase}) was started twice", machine.name)));
        }
        let Some(slot) = machine.disk.slots.get(&key.item).filter(|slot| slot.key() == *key) else {
            let detail = format!("{}: attempt {key} was started before it was recorded", machine.name);
            return Err(self.violation("7", detail));
        };
        let hash = slot.status.hash;
        self.hashes.insert(at, hash);
        if self.succeeded.contains(&(machine.id, key.item.clone(), hash)) {
            let detail = format!("{}: item {} runs again after it succeeded ({hash:?})", machine.name, key.item);
            return Err(self.violation("7", detail));
        }
        Ok(())
    }

    /// A process ended.
    pub fn ended(&mut self, machine: &Machine, key: &AttemptKey, succeeded: bool) {
        if succeeded && let Some(hash) = self.hashes.get(&(machine.id, key.clone())).copied() {
            self.joined(machine.id, &key.item);
            self.copy_ended(machine.id, &key.item, hash);
            let done = (machine.id, key.item.clone(), hash);
            self.dropped.remove(&done);
            // It began before it was dropped and ended after that: it may count, and may run again.
            if !self.was_out_since(machine.id, key) {
                self.succeeded.insert(done);
            }
        }
    }

    /// Rule 6 on the agent's side: epoch, generation and events of a ledger never go back.
    pub fn recorded(&mut self, machine: &Machine) -> Checked {
        let LedgerState { epoch, last_seq, .. } = &machine.disk;
        let now = (*epoch, machine.disk.generation(), *last_seq);
        let before = self.ledgers.insert(machine.id, now).unwrap_or((Epoch(0), Generation(0), Seq(0)));
        let back = now.0 < before.0 || now.1 < before.1 || now.2 < before.2;
        let accepted = machine.disk.assignment.as_ref().map_or(Epoch(0), |assignment| assignment.epoch);
        if back || accepted > *epoch || (now.1 > before.1 && accepted < before.0) {
            let detail = format!("{}: ledger at {now:?} after {before:?}, assignment of {accepted}", machine.name);
            return Err(self.violation("6", detail));
        }
        if let Some(assignment) = &machine.disk.assignment {
            let digest = content(assignment);
            let known = self.accepted.insert((machine.id, assignment.generation), digest.clone());
            if known.is_some_and(|known| known != digest) {
                let detail = format!("{}: generation {} changed its content", machine.name, assignment.generation);
                return Err(self.violation("6", detail));
            }
        }
        self.forget_overwritten(machine);
        self.successes_are_true(machine)
    }

    /// Rule 11: an event is in the ledger before the agent reports it.
    pub fn said(&self, machine: &Machine, what: &ToCoordinator) -> Checked {
        match what {
            ToCoordinator::Event { seq, .. } if *seq > machine.disk.last_seq => {
                Err(self.violation("11", format!("{}: event {seq} was sent before it was recorded", machine.name)))
            }
            _ => Ok(()),
        }
    }

    /// Rule 11: an acknowledged event is durable.
    pub fn acked(
        &mut self,
        id: MachineId,
        seq: Seq,
        disk: &BTreeMap<(Table, String), Vec<u8>>,
        machines: &[Machine],
    ) -> Checked {
        let Some(machine) = machines.iter().find(|machine| machine.id == id) else { return Ok(()) };
        let stored = disk
            .get(&(Table::Machines, machine.name.to_string()))
            .and_then(|row| serde_json::from_slice::<MachineRow>(row).ok());
        let recorded = stored.filter(|row| row.id == Some(id)).and_then(|row| row.ledger);
        let covered = recorded.is_some_and(|(ledger, newest)| ledger == machine.disk.ledger_id && newest >= seq);
        if covered || self.restored || self.denied.contains(&id) {
            return Ok(());
        }
        Err(self.violation("11", format!("{}: event {seq} acknowledged, the store has {recorded:?}", machine.name)))
    }

    /// Processes and slots: a deploy or reconfigure item runs under a slot, and on one control machine at a time.
    pub fn processes(&mut self, machines: &[Machine], core: Option<&Core>) -> Checked {
        let mut controls = Vec::new();
        for machine in machines {
            if machine.attempts.values().filter(|attempt| attempt.ends_at.is_some()).count() > 1 {
                return Err(self.violation("one-at-a-time", format!("two items run on {}", machine.name)));
            }
            self.nothing_runs_in_maintenance(machine, core.map(Core::facts))?;
        }
        // An old store admits denied machines again, and this cannot be prevented at once. Operators deny them again
        // after the recovery.
        let is_out = |id| self.denied.contains(id) || (self.restored && self.shut_out.contains(id));
        for machine in machines.iter().filter(|machine| !is_out(&machine.id)) {
            let running = machine.attempts.values().find(|a| a.ends_at.is_some() && a.request.phase > Phase::Prepare);
            let Some(running) = running else { continue };
            let row = core.and_then(|core| core.facts().by_id(machine.id));
            // A restored store lacks the slots granted after it was copied.
            if !self.restored && row.is_some_and(|row| row.slot.is_none()) {
                let detail = format!("{}: item {} runs without a slot", machine.name, running.request.key);
                return Err(self.violation("5", detail));
            }
            if machine.machine_type == MachineType::Control {
                controls.push(machine.name.as_str());
            }
        }
        if controls.len() > 1 {
            return Err(self.violation("1", format!("control machines at work at once: {}", controls.join(", "))));
        }
        Ok(())
    }

    /// Checks of the coordinator's facts after a step.
    pub fn after_step(&mut self, core: &mut Core, machines: &[Machine], now: Now) -> Checked {
        let again = core.step(vec![Input::Tick], now);
        if !again.changes.is_empty() || !again.effects.is_empty() {
            let first = again.changes.first().map(|change| match change {
                Change::Put { table, key, value } => {
                    format!("{} {key} {}", table.name(), String::from_utf8_lossy(value))
                }
                Change::Delete { table, key } => format!("{} {key} deleted", table.name()),
            });
            let detail = format!("deciding again brought {first:?} {:?}", again.effects.first());
            return Err(self.violation("idempotent", detail));
        }
        let facts = core.facts();
        self.denied = facts.denied.keys().copied().collect();
        self.shut_out.extend(&self.denied);
        self.slots_are_right(facts, now)?;
        self.dropped_runs_again(facts, now)?;
        self.nobody_waits_for_nothing(facts, machines, now)
    }

    fn slots_are_right(&mut self, facts: &Facts, now: Now) -> Checked {
        let limits = LIMITS;
        let Some(snapshot) = ClusterSnapshot::of(facts, &manifest::cluster_name(), &limits, now) else { return Ok(()) };
        let new = slots(facts);
        let held =
            |of: MachineType| facts.machines.values().filter(move |m| m.slot.is_some() && m.spec.machine_type == of);
        let granted: Vec<&MachineRow> = facts
            .machines
            .values()
            .map(|m| &**m)
            .filter(|m| m.slot.is_some() && !self.slots.contains_key(&m.name))
            .collect();
        let granted = if self.recovering { Vec::new() } else { granted };
        let new_workers = granted.iter().any(|m| m.spec.machine_type == MachineType::Worker);
        // Rule 1. After a recovery two machines may hold a slot, until one is recorded as long done.
        let new_controls = granted.iter().any(|m| m.spec.machine_type == MachineType::Control);
        if new_controls && held(MachineType::Control).count() > 1 {
            return Err(self.violation("1", "a second control machine was granted a slot"));
        }
        // Rule 2.
        let workers = held(MachineType::Worker).count();
        let updating = snapshot.rollout.is_some_and(|rollout| rollout.update.is_some());
        let spec = snapshot.spec;
        let configured = if updating { spec.max_worker_upgrade_count } else { spec.max_worker_deploy_count } as usize;
        if workers > 50 || (new_workers && workers > configured) {
            return Err(self.violation("2", format!("{workers} workers hold a slot; {configured} are configured")));
        }
        // Rule 3. The grant also sees a control machine that joined in the same step.
        let behind = |m: &&std::sync::Arc<MachineRow>| {
            let in_rollout = m.rollout.is_some() && m.id.is_some() && !m.revoked;
            m.spec.machine_type == MachineType::Control
                && in_rollout
                && (m.ready_at.is_none() || m.slot.is_some() || m.update.is_some())
        };
        if new_workers && let Some(control) = facts.machines.values().find(behind) {
            return Err(
                self.violation("3", format!("a worker was granted a slot while {} was not Ready", control.name))
            );
        }
        if updating {
            self.groups_in_order(&snapshot, &granted)?;
        }
        // The failure budget, counted from the statuses themselves.
        if !granted.is_empty() {
            self.budget_is_kept(facts, &snapshot)?;
        }
        // Rule 5.
        for (name, (id, _)) in &self.slots {
            let Some(row) = facts.machines.get(name) else { continue };
            let kept = row.slot.is_some() || row.id != Some(*id) || row.revoked;
            let rollout = row.rollout.as_ref().and_then(|name| facts.rollouts.get(name));
            let updating = rollout.is_some_and(|rollout| rollout.update.is_some());
            let undisturbed = updating && !self.had_permit(row);
            let for_an_update = !updating && waits_for_an_update(row);
            // A deployed one that is removed starts nothing any more, and a replaced one may have to go first.
            let control = row.spec.machine_type == MachineType::Control && row.ready_at.is_some();
            let leaves = control && !updating && row.removal.as_ref().is_some_and(|removal| !removal.by_turn);
            let given_up = kept || undisturbed || for_an_update || leaves;
            if !self.recovering && !given_up && !has_outcome(facts, row) {
                return Err(self.violation("5", format!("{name} lost its slot without an outcome")));
            }
        }
        self.slots = new;
        self.recovering = facts.meta.recovering;
        Ok(())
    }

    fn budget_is_kept(&self, facts: &Facts, snapshot: &ClusterSnapshot<'_>) -> Checked {
        let failed = |of: MachineType| {
            let machines = facts.machines.values().filter(|m| m.spec.machine_type == of && !m.revoked);
            // A failure of a rollout that has ended was given up with it: it does not count in the next.
            let joined = machines.filter(|m| m.rollout.as_ref() == snapshot.rollout.map(|rollout| &rollout.name));
            joined.filter(|m| m.max_phase.is_some() && m.removal.is_none() && failed_for_good(facts, m)).count()
        };
        let most = snapshot.spec.max_failures;
        if failed(MachineType::Control) >= most.control as usize || failed(MachineType::Worker) >= most.worker as usize
        {
            return Err(self.violation("budget", "a slot was granted though the failure budget was used up"));
        }
        Ok(())
    }

    /// A stalled machine always has a reason.
    fn nobody_waits_for_nothing(&self, facts: &Facts, _: &[Machine], now: Now) -> Checked {
        let limits = LIMITS;
        let Some(snapshot) = ClusterSnapshot::of(facts, &manifest::cluster_name(), &limits, now) else { return Ok(()) };
        for view in &snapshot.machines {
            let still = view.state() != State::Ready && !view.in_flight();
            if still && blocked::of_machine(&snapshot, view).is_none() {
                let detail = format!(
                    "{} is {} and says nothing: slot {:?}, connected {}, lost {}, trouble {:?}, assigned {:?}",
                    view.row.name,
                    view.state().as_str(),
                    view.row.slot,
                    view.connected(),
                    view.lost,
                    view.trouble(),
                    view.row.assigned,
                );
                return Err(self.violation("reason", detail));
            }
        }
        Ok(())
    }

    /// Rule 11 at rest: the coordinator has exactly the statuses that the ledgers hold.
    pub fn settled(&self, machines: &[Machine], core: Option<&Core>) -> Checked {
        let Some(facts) = core.map(Core::facts) else { return Ok(()) };
        if let Err(gaps) = facts.verify_audit() {
            return Err(self.violation("audit", format!("{gaps:?}")));
        }
        let knows = |of: &&Machine| !self.denied.contains(&of.id) && !of.rolled_back && !of.may_be_doubted();
        for machine in machines.iter().filter(knows) {
            let Some(row) = facts.by_id(machine.id) else { continue };
            if !machine.disk.outbox.is_empty() {
                let detail = format!("{}: events wait though everything is at rest", machine.name);
                return Err(self.violation("11", detail));
            }
            for (item, slot) in &machine.disk.slots {
                let known = row.statuses.get(item);
                let same = known.is_some_and(|known| {
                    known.hash == slot.status.hash
                        && known.state == slot.status.state
                        && known.attempt == slot.status.attempt
                });
                if !same {
                    let detail = format!("{}: item {item} is {:?}, recorded {known:?}", machine.name, slot.status);
                    return Err(self.violation("11", detail));
                }
            }
        }
        Ok(())
    }
}

/// Content of an assignment, without its fences.
fn content(assignment: &Assignment) -> String {
    serde_json::to_string(&(&assignment.items, &assignment.variables)).unwrap_or_default()
}

fn slots(facts: &Facts) -> BTreeMap<MachineName, (MachineId, Slot)> {
    facts.machines.values().filter_map(|row| Some((row.name.clone(), (row.id?, row.slot?)))).collect()
}
