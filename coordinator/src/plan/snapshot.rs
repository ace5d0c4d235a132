//! Snapshot of a cluster: the status of each machine. Made once per decision, and read by everything in `plan`.

mod cache;
mod state;

use std::collections::BTreeMap;

use muster_proto::{
    model::{
        AssignedItem, ClusterName, ClusterSpec, Counts, ItemProgress, ItemState, ItemStatus, MachineName, MachineType,
        Now, Phase,
    },
    seeded_bug::seeded_bug,
};

pub use state::{Progress, State};

use cache::Cache;

use super::{
    Limits,
    locks::Locks,
    reboot::{rebooting, timeout_ms},
};
use crate::facts::{
    ClusterRow, Facts, MachineLive, MachineRow, MachineUpdate, RolloutRow, UnprovenClaim, Unresolved, UpdateRow,
};

/// Status of one machine.
#[derive(Clone, Debug)]
pub struct MachineView<'a> {
    /// Its row.
    pub row: &'a MachineRow,
    /// Its volatile facts, which last as long as the process.
    pub live: Option<&'a MachineLive>,
    /// Its items in execution order; if resolving them failed, the variable that lacks a value, and its place.
    pub items: Result<&'a [AssignedItem], &'a Unresolved>,
    /// Silent for longer than the limit; during a reboot that we asked for, for longer than the reboot may take.
    pub lost: bool,
    /// The reboot item that runs on it, as far as is known.
    pub rebooting: Option<&'a AssignedItem>,
}

/// Progress of an item on a machine, including an operator's verdicts.
#[must_use]
pub fn standing(row: &MachineRow, item: &AssignedItem) -> ItemProgress {
    let verdict = row.verdicts.get(&item.name).filter(|verdict| verdict.hash == item.hash);
    if verdict.is_some_and(|verdict| verdict.left_out.is_some()) {
        return ItemProgress::Done;
    }
    let cleared = verdict.map_or(0, |verdict| verdict.cleared_attempts);
    let status = row.statuses.get(&item.name).map(|status| &**status);
    ItemProgress::of(item.hash, item.retries, cleared, item.on_interrupt, row.redo_up_to(&item.name), status)
}

impl<'a> MachineView<'a> {
    /// Take the status of one machine.
    #[must_use]
    pub fn of(facts: &'a Facts, row: &'a MachineRow, limits: &Limits, now: Now) -> Self {
        let live = facts.live.machines.get(&row.name);
        let items = match live.and_then(|live| live.items.as_deref()) {
            None => Ok(&[][..]),
            Some(items) => items.resolved.as_ref().map(Vec::as_slice),
        };
        let connected = live.is_some_and(|live| live.session.is_some());
        let heard = live.and_then(|live| live.heard_mono_ms).unwrap_or(facts.live.started_mono_ms);
        let silent_ms = now.mono_ms.saturating_sub(heard);
        let rebooting = rebooting(row, items.unwrap_or_default());
        let timeout_ms = timeout_ms(rebooting, limits);
        let lost = row.host.is_some() && !row.revoked && silent_ms >= timeout_ms;
        debug_assert!(!connected || heard >= facts.live.started_mono_ms);
        Self { row, live, items, lost, rebooting }
    }

    /// Does it have a stream now?
    #[must_use]
    pub fn connected(&self) -> bool {
        self.live.is_some_and(|live| live.session.is_some())
    }

    /// Progress of an item, including an operator's verdicts.
    #[must_use]
    pub fn standing(&self, item: &AssignedItem) -> ItemProgress {
        standing(self.row, item)
    }

    /// Progress of the items of `phase`.
    #[must_use]
    pub fn progress(&self, phase: Phase) -> Progress<'a> {
        let Ok(items) = self.items else { return Progress::Open };
        let mut open = false;
        for item in items.iter().filter(|item| item.phase == phase) {
            match self.standing(item) {
                ItemProgress::Done => {}
                ItemProgress::Due { .. } | ItemProgress::Running { .. } => open = true,
                ItemProgress::Failed => return Progress::Failed(item),
                ItemProgress::Held => return Progress::Held(item),
            }
        }
        if open { Progress::Open } else { Progress::Done }
    }

    /// The first item that needs an operator's decision, among the phases that its list covers.
    #[must_use]
    pub fn trouble(&self) -> Option<Progress<'a>> {
        let max_phase = self.row.max_phase?;
        Phase::ALL
            .iter()
            .filter(|phase| **phase <= max_phase)
            .map(|phase| self.progress(*phase))
            .find(|progress| matches!(progress, Progress::Failed(_) | Progress::Held(_)))
    }

    /// Is it stopped until an operator decides about an item? False while it goes out of service, because it then runs
    /// no items.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.trouble().is_some() && self.update().is_none_or(|mine| mine.maintenance.is_none())
    }

    /// Did an item fail permanently?
    #[must_use]
    pub fn failed(&self) -> bool {
        matches!(self.trouble(), Some(Progress::Failed(_)))
    }

    /// Does it count against the failure budget of its rollout? A late machine that only waits for a permit is exempt.
    #[must_use]
    pub fn counts_as_failure(&self) -> bool {
        let given_up = self.update().and_then(|update| update.deferral.as_ref()).is_some_and(|aside| aside.failed());
        let late = |mine: &&MachineUpdate| mine.stuck.as_ref().is_some_and(|stuck| stuck.counts);
        let overdue = self.update().filter(late).is_some_and(|mine| mine.disturbed() || !self.awaits_permit());
        let lost = self.lost && self.row.slot.is_some() && !self.in_maintenance();
        (self.failed() || lost || given_up || overdue) && self.row.removal.is_none()
    }

    /// Has it stopped at a permanently failed item? A failed item behind a changed one does not stop it: the agent runs
    /// the changed item first.
    #[must_use]
    pub fn has_given_up(&self) -> bool {
        let running = self.running().next().is_some();
        let items = self.items.unwrap_or_default().iter().filter(|item| Some(item.phase) <= self.row.max_phase);
        let first = items.map(|item| self.standing(item)).find(|standing| *standing != ItemProgress::Done);
        !running && first == Some(ItemProgress::Failed)
    }

    /// Are all items of the covered phases done, and is every running item in the list? A manifest may drop an item
    /// while it runs.
    #[must_use]
    pub fn all_done(&self) -> bool {
        let max_phase = self.row.max_phase;
        let running = self.running().next().is_some();
        !running
            && max_phase.is_some()
            && Phase::ALL.iter().all(|p| Some(*p) > max_phase || self.progress(*p) == Progress::Done)
    }

    /// Has it been Ready with its current deployment?
    #[must_use]
    pub const fn ready_once(&self) -> bool {
        self.row.ready_at.is_some()
    }

    /// Is it Ready, with all work done?
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state() == State::Ready
    }

    /// Its unproven claim beyond the record of this store.
    #[must_use]
    pub fn unproven(&self) -> Option<&'a UnprovenClaim> {
        self.live?.unproven.as_ref()
    }

    /// Are its reports refused or distrusted? That needs a person, regardless of what runs there.
    #[must_use]
    pub fn is_unheeded(&self) -> bool {
        self.live.is_some_and(|live| live.event_refused.is_some()) || self.unproven().is_some()
    }

    /// Can it receive work now: enrolled, known, connected, and free of problems of its own?
    #[must_use]
    pub fn available(&self) -> bool {
        self.row.reported()
            && self.connected()
            && !self.lost
            && self.items.is_ok()
            && self.row.assigned.refused.is_none()
            && !self.is_unheeded()
            && (self.live.is_none_or(|live| live.agent_blocked.is_none()) || self.waits_in_vain())
    }

    /// The first item of the covered phases that is still open.
    #[must_use]
    pub fn next_open(&self) -> Option<&'a AssignedItem> {
        let max_phase = self.row.max_phase?;
        let items = self.items.ok()?;
        items.iter().find(|item| item.phase <= max_phase && self.standing(item) != ItemProgress::Done)
    }

    /// Would this item disturb workloads? Only a machine that has been Ready has workloads.
    #[must_use]
    pub fn is_disruptive(&self, item: &AssignedItem) -> bool {
        let templates = self.live.and_then(|live| live.items.as_ref());
        let template =
            templates.and_then(|items| items.spec.items(items.machine_type).iter().find(|own| own.name == item.name));
        let harmless = template.is_some_and(|template| template.disruptive == Some(false));
        self.ready_once() && item.phase > Phase::Prepare && !harmless
    }

    /// Does a start of this item need its own permit? In an update, a disruptive item does. In maintenance every item
    /// does, and while only added items may run, every other item does; these get none. In a slot for reconfigure
    /// items, a disruptive deploy item waits for a permit in vain: only an update may run it.
    #[must_use]
    pub fn needs_permit(&self, item: &AssignedItem) -> bool {
        // Seeded bug: run open items on a machine in maintenance.
        let none_runs = |mine: &MachineUpdate| mine.maintenance.is_some() && !seeded_bug("run-in-maintenance");
        let not_yet = |mine: &MachineUpdate| mine.hooks_only && !mine.adds(&item.name);
        let waits = |mine: &MachineUpdate| none_runs(mine) || not_yet(mine) || self.is_disruptive(item);
        let behind = || self.row.slot.is_some() && item.phase == Phase::Deploy && self.is_disruptive(item);
        self.row.removal.is_some() || self.update().map_or_else(behind, waits)
    }

    /// Permit for the due attempt of this item, or the one under which its attempt runs. A permit that the agent
    /// reports as over is void, even if the attempt is recorded as running: the agent stopped before it began.
    #[must_use]
    pub fn live_permit(&self, item: &AssignedItem) -> Option<u64> {
        let permit = self.row.update.as_ref()?.permit.as_ref().filter(|permit| permit.item == item.name)?;
        let valid = match self.standing(item) {
            ItemProgress::Due { attempt } => permit.attempt == attempt,
            ItemProgress::Running { .. } => true,
            ItemProgress::Done | ItemProgress::Failed | ItemProgress::Held => false,
        };
        (valid && !permit.expired).then_some(permit.number)
    }

    /// Is this attempt recorded as running although its agent stopped before it began? It then needs another permit.
    #[must_use]
    pub fn has_not_begun(&self, status: &ItemStatus) -> bool {
        let permit = self.row.update.as_ref().and_then(|mine| mine.permit.as_ref()).filter(|permit| permit.expired);
        permit.is_some_and(|permit| permit.item == status.name && permit.attempt == status.attempt)
    }

    /// Is this item recorded as running, and does its agent wait for a permit or for inputs before it begins it? An
    /// agent requests neither while an item runs.
    #[must_use]
    pub fn waits_to_begin(&self, item: &AssignedItem) -> bool {
        let status = self.row.statuses.get(&item.name).filter(|status| status.hash == item.hash);
        let recorded = status.filter(|status| status.state == ItemState::Running);
        recorded.is_some_and(|status| self.waits_for_inputs() || self.has_not_begun(status))
    }

    /// Items that run on it, in its list or outside it: recorded as running, and begun.
    pub fn running(&self) -> impl Iterator<Item = &'a ItemStatus> {
        let recorded = self.row.statuses.values().map(|status| &**status);
        recorded.filter(|status| status.state == ItemState::Running && !self.has_not_begun(status))
    }

    /// Permit that its list shows. An item recorded as running stays in the list regardless of its permit. The
    /// exception is a permit dropped in transit: its item has not begun, and a late delivery would start the permit's
    /// time.
    #[must_use]
    pub fn listed_permit(&self, item: &AssignedItem) -> Option<u64> {
        let permit = self.row.update.as_ref()?.permit.as_ref().filter(|permit| permit.item == item.name)?;
        match self.standing(item) {
            ItemProgress::Running { .. } => {
                let accepted = self.row.assigned.accepted;
                let dropped = permit.expired && permit.listed.is_some_and(|listed| accepted < listed);
                (!dropped).then_some(permit.number)
            }
            ItemProgress::Due { .. } | ItemProgress::Done | ItemProgress::Failed | ItemProgress::Held => {
                self.live_permit(item)
            }
        }
    }

    /// Does its next item start only with a permit, and is that permit missing?
    #[must_use]
    pub fn is_withheld(&self) -> bool {
        self.next_open().is_some_and(|item| self.needs_permit(item) && self.live_permit(item).is_none())
    }

    /// Does its next item wait for a permit alone? A failed item waits for a person instead.
    #[must_use]
    pub fn awaits_permit(&self) -> bool {
        let may_run = |item| matches!(self.standing(item), ItemProgress::Due { .. } | ItemProgress::Running { .. });
        self.is_withheld() && self.next_open().is_some_and(may_run)
    }

    /// Does its agent wait for the inputs of an item in its list?
    #[must_use]
    pub fn waits_for_inputs(&self) -> bool {
        self.live.is_some_and(MachineLive::waits_for_inputs)
    }

    /// Does its agent wait for the inputs of an item that must not start any more? Its list is from an update aborted
    /// since; another list ends the wait.
    #[must_use]
    pub fn waits_in_vain(&self) -> bool {
        let may_start = self.row.slot.is_some() || self.row.max_phase == Some(Phase::Prepare);
        self.waits_for_inputs() && !may_start
    }

    /// Is the machine at work, as far as is known? False for a revoked machine: it stays silent for good.
    #[must_use]
    pub fn in_flight(&self) -> bool {
        let max_phase = self.row.max_phase;
        let may_run = self.row.slot.is_some() || max_phase == Some(Phase::Prepare);
        let unanswered = self.row.slot.is_some() && self.row.assigned.accepted != self.row.assigned.generation;
        let at_work = (!self.all_done() && !self.is_withheld()) || unanswered;
        let known = self.trouble().is_none() && !self.lost && !self.row.revoked && !self.in_maintenance();
        may_run && at_work && known
    }

    /// Is it out of service, and not yet wanted back?
    #[must_use]
    pub fn in_maintenance(&self) -> bool {
        self.row.slot.is_some() && self.update().is_some_and(MachineUpdate::in_maintenance)
    }

    /// Is it under removal, and released from the rules of updates?
    #[must_use]
    pub fn is_let_go(&self) -> bool {
        self.row.removal.as_ref().is_some_and(|row| !row.aborting && (!row.by_turn || row.departure.is_some()))
    }

    /// Its part in an update.
    #[must_use]
    pub const fn update(&self) -> Option<&'a MachineUpdate> {
        self.row.update.as_ref()
    }
}

/// Snapshot of a cluster.
#[derive(Debug)]
pub struct ClusterSnapshot<'a> {
    /// The facts it was made from.
    pub facts: &'a Facts,
    /// The cluster.
    pub cluster: &'a ClusterRow,
    /// The spec that the open update targets; otherwise the newest.
    pub spec: &'a ClusterSpec,
    /// The open rollout.
    pub rollout: Option<&'a RolloutRow>,
    /// The locks of its application controllers.
    pub locks: Locks<'a>,
    /// Its machines in processing order: control before worker, then `upgradeIndex`, then name.
    pub machines: Vec<MachineView<'a>>,
    /// Worker slots in use.
    pub worker_slots_used: usize,
    /// Failures that count against the budget.
    pub failures: Counts,
    /// Machines enrolled before this start that have yet to say Hello and are awaited: of this cluster, or of all
    /// clusters while the store is recovered.
    pub gathering: Vec<&'a MachineName>,
    /// Time of the snapshot.
    pub now: Now,
    /// Cached answers to questions that all machines ask.
    pub(in crate::plan) cache: Cache,
}

impl<'a> ClusterSnapshot<'a> {
    /// Take a snapshot of one cluster. None: the cluster is unknown.
    #[must_use]
    pub fn of(facts: &'a Facts, cluster: &ClusterName, limits: &Limits, now: Now) -> Option<Self> {
        let row = &**facts.clusters.get(cluster)?;
        let rollout = facts.open_rollout(cluster).map(|rollout| &**rollout);
        let frozen = rollout.and_then(|rollout| rollout.update.as_ref()).map(|update| update.version);
        let spec = &**facts.specs.get(&(cluster.clone(), frozen.unwrap_or(row.spec_version)))?;
        let mut machines: Vec<_> =
            facts.machines_of(&row.name).map(|machine| MachineView::of(facts, machine, limits, now)).collect();
        machines.sort_by_key(|p| (p.row.spec.machine_type, p.row.spec.upgrade_index, &p.row.name));
        let is_worker = |view: &&MachineView<'_>| view.row.spec.machine_type == MachineType::Worker;
        let worker_slots_used = machines.iter().filter(is_worker).filter(|worker| worker.row.slot.is_some()).count();
        let mut failures = Counts { control: 0, worker: 0 };
        for view in machines.iter().filter(|p| rollout.is_some_and(|r| p.row.rollout.as_ref() == Some(&r.name))) {
            if view.counts_as_failure() {
                match view.row.spec.machine_type {
                    MachineType::Control => failures.control += 1,
                    MachineType::Worker => failures.worker += 1,
                    MachineType::Unassigned => {}
                }
            }
        }
        let locks = Locks::of(facts, cluster);
        let young = now.mono_ms.saturating_sub(facts.live.started_mono_ms) < limits.lost_after_ms;
        // Only the whole fleet knows what a recovered store lacks.
        let ours = |row: &MachineRow| facts.meta.recovering || (young && row.spec.cluster_name == *cluster);
        let awaited = facts.live.awaited.iter();
        let gathering = awaited.filter(|name| facts.machines.get(*name).is_some_and(|row| ours(row))).collect();
        Some(Self {
            facts,
            cluster: row,
            spec,
            rollout,
            locks,
            machines,
            worker_slots_used,
            failures,
            gathering,
            now,
            cache: Cache::default(),
        })
    }

    /// The open update.
    #[must_use]
    pub fn update(&self) -> Option<&'a UpdateRow> {
        self.rollout?.update.as_ref()
    }

    /// Is the machine part of the open rollout?
    #[must_use]
    pub fn joined(&self, view: &MachineView<'_>) -> bool {
        self.rollout.is_some_and(|rollout| view.row.rollout.as_ref() == Some(&rollout.name))
    }

    /// Machines of a type in this cluster, in order.
    pub fn of_type(&self, machine_type: MachineType) -> impl Iterator<Item = &MachineView<'a>> {
        let first = self.machines.partition_point(|view| view.row.spec.machine_type < machine_type);
        self.machines[first..].iter().take_while(move |view| view.row.spec.machine_type == machine_type)
    }

    /// Number of machines of each type that have reported.
    #[must_use]
    pub fn reported(&self) -> Counts {
        self.count(|view| view.row.reported())
    }

    /// Number of machines of each type declared by their own documents.
    #[must_use]
    pub fn declared(&self) -> Counts {
        self.count(|view| view.row.declared)
    }

    fn count(&self, of: impl Fn(&&MachineView<'a>) -> bool) -> Counts {
        let count = |machine_type| u32::try_from(self.of_type(machine_type).filter(&of).count()).unwrap_or(u32::MAX);
        Counts { control: count(MachineType::Control), worker: count(MachineType::Worker) }
    }
}

/// Snapshots of all clusters, by name.
#[must_use]
pub fn all<'a>(facts: &'a Facts, limits: &Limits, now: Now) -> BTreeMap<&'a ClusterName, ClusterSnapshot<'a>> {
    facts.clusters.keys().filter_map(|name| Some((name, ClusterSnapshot::of(facts, name, limits, now)?))).collect()
}
