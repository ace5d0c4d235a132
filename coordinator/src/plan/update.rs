//! The update: what has to be recorded, asked for, granted or given back next. Level-triggered like the deployment:
//! what is recorded is not asked for again.
//!
//! A **slot** begins with a machine's maintenance request and ends when the request is gone and its locks are active
//! again, so that no more machines are without their workloads than may hold a slot. A machine whose locks are not
//! granted in time is **put aside** and gives its slot to the next; those put aside are tried again at the end, as long
//! as that helps. The first **permit** is the point of no return: before it everything taken is given back on abort or
//! deferral, after it the machine goes on to its end.

mod cluster;
mod deadlines;
pub mod groups;
pub mod hooks;
pub mod maintenance;
pub mod renewal;
pub mod stages;
pub mod transitions;
pub mod turn;
pub mod waits;

use muster_proto::model::{DeadlineOutcome, ItemName, ItemProgress, MachineName, MachineType, Phase};

use super::{
    drain::DrainStep,
    items::complete_set,
    safety, secrets,
    snapshot::{ClusterSnapshot, MachineView, Progress},
    swarm,
};
use crate::facts::{ClusterRow, ClusterStage, ControlSet, DeferralCause, DesiredState, MachineRow, Stage, UpdateRow};

pub(in crate::plan) use cluster::{cluster_lets, halt};
pub use cluster::{is_cluster_moving, is_open, not_halted, overdue_stage, paused_too_long};
pub use deadlines::{are_locks_late, is_waiting_for_others, wakes_at_ms};
use renewal::RenewalStep;
pub use turn::wants_slot;
use turn::{Advance, Participant};

/// A deadline that has just passed is acted upon within so long, in milliseconds.
const DECISION_MS: u64 = 5_000;

/// Something to be recorded. The core applies it, and asks again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Of the rollout as a whole.
    Cluster {
        /// This one.
        rollout: String,
        /// What.
        step: ClusterStep,
    },
    /// Of one machine.
    Machine {
        /// This one.
        machine: MachineName,
        /// What.
        step: MachineStep,
    },
}

/// A step of the whole rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterStep {
    /// A ClusterMaintenanceRequest is made.
    Request,
    /// This stage has begun.
    Begin(ClusterStage),
    /// This stage has succeeded.
    End(ClusterStage),
    /// The deadline of this stage has passed, and its outcome is that the update pauses.
    Pause(ClusterStage),
    /// The newest template of a DaemonSet changes again and again while its pods are renewed: the update pauses.
    PauseUnsteady,
    /// A deadline has passed whose outcome is that the update is aborted.
    Abort(ClusterStage),
    /// Machines that were put aside are tried once more.
    TryAgain,
    /// The ClusterMaintenanceRequest is removed, and the rollout has ended.
    Close,
}

/// A step of one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MachineStep {
    /// Its list is the prepare items of the new version.
    Prepare(ControlSet),
    /// Its prepare items are done: it waits for its turn.
    Prepared,
    /// This stage takes longer than it may.
    Stuck {
        /// Which.
        stage: Stage,
        /// What then.
        outcome: DeadlineOutcome,
        /// What it waited for, in one sentence; empty: its items.
        message: String,
    },
    /// It holds a slot; a NodeMaintenanceRequest is made if something disruptive is ahead.
    TakeSlot {
        /// Is something disruptive ahead, as things are now?
        disruptive: bool,
    },
    /// Of the drain of its nodes.
    Drain(DrainStep),
    /// It may be disturbed: its list reaches this phase, disruptive items aside.
    Enter(Phase, ControlSet),
    /// It may start an attempt at an item.
    Permit {
        /// At this item.
        item: ItemName,
        /// From 1.
        attempt: u32,
        /// The item's.
        phase: Phase,
    },
    /// It was refused: out of the way of the others.
    Defer {
        /// The stage in which it waited.
        stage: Stage,
        /// In the controllers' words.
        message: String,
        /// What was decided about it.
        cause: DeferralCause,
    },
    /// It is out of service from now on.
    OutOfService,
    /// The deadline of its locks or of its drain has passed, and the cluster's policy is that an operator decides: the
    /// update pauses.
    PauseAll {
        /// The stage in which it waited.
        stage: Stage,
        /// In the words of what was waited for.
        message: String,
    },
    /// Of the renewal of pods on its node.
    Renew(RenewalStep),
    /// Its NodeMaintenanceRequest is removed.
    GiveBack {
        /// Is it at the new version now?
        upgraded: bool,
    },
    /// It is at the new version, and holds nothing any more.
    Finish,
    /// It holds nothing any more, and waits to be tried again.
    FreeSlot,
    /// It leaves the update at the version it had.
    Leave,
    /// It is lost, and holds nothing: a rollout that began by itself goes on without it.
    LeaveOut,
    /// It was put aside because it was lost, and is back before its rollout went on without it.
    IsBack,
}

/// What is to be recorded or granted next. Outcomes come before grants, so that a grant is decided on what is true.
#[must_use]
pub fn next_steps(snapshot: &ClusterSnapshot<'_>) -> Vec<Step> {
    let (Some(rollout), Some(update)) = (snapshot.rollout, snapshot.update()) else { return Vec::new() };
    // What an old store says of an update has long been overtaken: nothing follows from it.
    if safety::store_is_current(snapshot).is_err() || snapshot.facts.meta.recovering {
        return Vec::new();
    }
    let outcomes: Vec<Step> = targets(snapshot)
        // What becomes of one that departs is decided by its removal.
        .filter(|view| !view.is_let_go())
        .filter_map(|view| {
            let Advance::Move(step) = Participant::of(snapshot, view)?.advance() else { return None };
            Some(Step::Machine { machine: view.row.name.clone(), step })
        })
        .collect();
    if !outcomes.is_empty() {
        return outcomes;
    }
    let cluster = |step| vec![Step::Cluster { rollout: rollout.name.clone(), step }];
    if let Some(step) = cluster::cluster_step(snapshot, update) {
        return cluster(step);
    }
    let joining = renewal::joining(snapshot, update);
    if !joining.is_empty() {
        return joining;
    }
    let grants = grants(snapshot, update);
    if !grants.is_empty() {
        return grants;
    }
    if may_try_again(snapshot, update) { cluster(ClusterStep::TryAgain) } else { Vec::new() }
}

/// Machines that have not come to their end yet.
pub fn targets<'a, 's>(snapshot: &'s ClusterSnapshot<'a>) -> impl Iterator<Item = &'s MachineView<'a>> {
    snapshot.machines.iter().filter(|view| view.update().is_some())
}

fn grants(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> Vec<Step> {
    if not_halted(snapshot, update).is_err() || safety::may_start_anything(snapshot).is_err() {
        return Vec::new();
    }
    let mut steps = prepare_grants(snapshot);
    steps.extend(slot_grant(snapshot));
    steps
}

/// Does a phase of its items concern the machine? Reconfigure items are for those that have been reconfigured before,
/// or were deployed when the set of control machines was another.
#[must_use]
pub fn concerns(cluster: &ClusterRow, row: &MachineRow, phase: Phase) -> bool {
    let seen = |phase| row.control_sets.get(&phase);
    phase != Phase::Reconfigure
        || seen(Phase::Reconfigure).is_some()
        || seen(Phase::Deploy).is_none_or(|set| cluster.is_other_than(set))
}

/// Is something disruptive to be done on it, as things are now? What was frozen is what was known at the start; a host
/// that has another name since has other items.
#[must_use]
pub fn disturbs(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    let maintained = view.update().is_some_and(|mine| mine.maintenance.is_some());
    let maintained = maintained && !view.is_let_go();
    let hooks_only = view.update().is_some_and(|mine| mine.hooks_only);
    let renews = view.update().is_some_and(|mine| mine.renewal.is_some());
    maintained
        || renews
        || !hooks_only
            && view.items.unwrap_or_default().iter().any(|item| {
                concerns(snapshot.cluster, view.row, item.phase)
                    && view.is_disruptive(item)
                    && view.standing(item) != ItemProgress::Done
            })
}

/// Is it at a manifest that asks the same of it as the newest, and has it the newest secrets?
#[must_use]
pub fn is_current(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, asks_the_same: bool) -> bool {
    asks_the_same
        && *view.row.overwrites() == view.row.spec.state_items_overwrites
        && !secrets::has_newer(snapshot.facts, view.row)
}

/// Has it yet to prepare for the version it goes to? Who goes into maintenance stays at the one it has.
fn is_untouched(view: &MachineView<'_>) -> bool {
    let stays = view.update().is_some_and(|mine| mine.maintenance.is_some() || mine.renewal.is_some());
    !stays && view.row.slot.is_none() && view.row.max_phase != Some(Phase::Prepare)
}

fn prepare_grants(snapshot: &ClusterSnapshot<'_>) -> Vec<Step> {
    let most = snapshot.spec.max_worker_prepare_count as usize;
    let mut free = most.saturating_sub(super::deploy::prepares_used(snapshot));
    let mut steps = Vec::new();
    for view in targets(snapshot).filter(|view| is_untouched(view) && view.available()) {
        let downloads = view.progress(Phase::Prepare) == Progress::Open;
        if view.row.spec.machine_type == MachineType::Worker && downloads {
            if free == 0 {
                continue;
            }
            free -= 1;
        }
        let set = frozen_set(snapshot, view, Phase::Prepare);
        steps.push(Step::Machine { machine: view.row.name.clone(), step: MachineStep::Prepare(set) });
    }
    steps
}

/// The control machines as the items of a phase saw them before: an unchanged item must not look changed.
fn frozen_set(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, phase: Phase) -> ControlSet {
    let known = view.row.control_sets.get(&phase).cloned();
    known.unwrap_or_else(|| complete_set(snapshot.facts, snapshot.cluster))
}

/// The next slot: at most one in a round, for the snapshot does not know of it yet.
fn slot_grant(snapshot: &ClusterSnapshot<'_>) -> Option<Step> {
    let has_worker_slot = safety::has_worker_slot(snapshot);
    let mut waiting = targets(snapshot).filter(|view| wants_slot(view) && view.available());
    let next = waiting.find(|view| {
        let has_turn = match view.row.spec.machine_type {
            MachineType::Control => earlier_on_its_way(snapshot, view).is_none(),
            MachineType::Worker => has_worker_slot,
            MachineType::Unassigned => false,
        };
        has_turn && safety::may_take_slot(snapshot, view).is_ok()
    })?;
    let step = MachineStep::TakeSlot { disruptive: disturbs(snapshot, next) };
    Some(Step::Machine { machine: next.row.name.clone(), step })
}

/// The control machine that comes before this one, has not had its turn and can take it. Then the order is kept; one
/// that cannot go on is passed over.
#[must_use]
pub fn earlier_on_its_way<'a>(snapshot: &ClusterSnapshot<'a>, view: &MachineView<'_>) -> Option<&'a MachineName> {
    // The machine with a broken pod goes first, wherever it is: the others wait for that pod.
    if view.update().is_some_and(|mine| mine.renewal.is_some()) {
        return None;
    }
    let mut earlier = targets(snapshot).take_while(|other| other.row.name != view.row.name);
    let earlier = earlier.find(|other| {
        let aside = other.update().is_some_and(|mine| mine.deferral.is_some());
        // Else both would wait: that one lets whoever makes the swarm go first.
        let waits = swarm::waits_for_maker(snapshot.facts, other.row).is_some();
        other.row.slot.is_none() && !aside && !waits && other.available() && !other.is_stopped()
    });
    earlier.map(|other| &other.row.name)
}

/// Nothing else can go on, some came to their end since the last time, and others wait aside.
fn may_try_again(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> bool {
    let deferred = |view: &&MachineView<'_>| {
        view.update().and_then(|mine| mine.deferral.as_ref()).is_some_and(|aside| aside.is_tried_again())
    };
    let is_wanted =
        update.desired == DesiredState::Go && update.finished_in_round > 0 && targets(snapshot).any(|p| deferred(&p));
    if !is_wanted || safety::may_start_anything(snapshot).is_err() || renewal::is_undecided(snapshot) {
        return false;
    }
    // Whoever waits for one that is aside does not move, nor does who keeps its slot until a person has mended it.
    let at_work = |view: &MachineView<'_>| view.row.slot.is_some() && !view.is_stopped();
    let gets_slot =
        |view: &MachineView<'_>| wants_slot(view) && view.available() && safety::may_take_slot(snapshot, view).is_ok();
    !targets(snapshot).any(|view| view.in_flight() || at_work(view) || gets_slot(view))
}

/// Is an item of the list running, or may it be started by the agent alone? One that is recorded as running and whose
/// permit is over never began: see [`MachineView::live_permit`].
pub(in crate::plan) fn is_at_work(view: &MachineView<'_>) -> bool {
    view.next_open().is_some_and(|item| match view.standing(item) {
        ItemProgress::Running { .. } | ItemProgress::Due { .. } => {
            !view.needs_permit(item) || view.live_permit(item).is_some()
        }
        ItemProgress::Done | ItemProgress::Failed | ItemProgress::Held => false,
    })
}
