//! A machine's turn in an update: the states it goes through, and the one function that moves it on or says why it
//! waits. Decision and reason are the same computation, so that no machine waits without a reason.

use muster_proto::{
    model::{Blocked, DeadlineOutcome, ItemProgress, MachineName, MachineType, Now, Phase, Reason},
    seeded_bug::seeded_bug,
};

use super::{
    MachineStep, concerns,
    deadlines::{lock_deadline_ms, return_deadline_ms, returned_deadline_ms},
    earlier_on_its_way, frozen_set, hooks, is_at_work, is_untouched, maintenance, not_halted,
    renewal::{self, RenewalStep},
    stages,
    waits::{because, late_for},
};
use crate::{
    facts::{ClusterStage, DeferralCause, DesiredState, DrainKind, Facts, MachineUpdate, Stage, UpdateKind, UpdateRow},
    plan::{
        Limits, assign,
        drain::{self, DrainStep, kubernetes::forcing},
        locks, removal,
        safety::{self, blocked},
        snapshot::{ClusterSnapshot, MachineView, Progress},
    },
};

/// Where a machine is in its turn. It holds a slot from [`TurnState::Harmless`] on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TurnState {
    /// Only hooks and backups of the update run, before or after everything else.
    Hooks,
    /// Its list is still the one from before the update.
    Idle,
    /// Its prepare items run.
    Preparing,
    /// Ready for a slot.
    Prepared,
    /// It was refused its turn, and holds nothing.
    Deferred,
    /// It has a slot without a request: nothing that is due disturbs workloads.
    Harmless,
    /// Its maintenance is requested: its locks are to become inactive.
    Requested,
    /// Its locks were inactive, and its Swarm node is being drained.
    Draining,
    /// Its list has the disruptive items, and none of them has a permit yet.
    Entered,
    /// A disruptive item had a permit. From here on the only way is forward.
    Disturbed,
    /// It was disturbed, and goes out of service to be removed.
    Withdrawing,
    /// Its maintenance is requested, and pods of DaemonSets are renewed on its node.
    Renewing,
    /// Out of service until an operator wants it back or removes it.
    Out,
    /// Aborted, deferred or failed before its first permit. Running items end first, or a person decides.
    Stopping,
    /// Its Swarm node and its request are given back.
    GivingBack {
        /// Are all its items done?
        upgraded: bool,
    },
    /// Its request is removed: its locks are to become active again.
    Returning {
        /// Unix milliseconds of the removal.
        since_ms: u64,
    },
}

impl TurnState {
    /// The state of a machine by name. None: it has no part in an update.
    #[must_use]
    pub fn of(facts: &Facts, machine: &MachineName, limits: &Limits, now: Now) -> Option<Self> {
        let snapshot = ClusterSnapshot::of(facts, &facts.machines.get(machine)?.spec.cluster_name, limits, now)?;
        let view = snapshot.machines.iter().find(|view| view.row.name == *machine)?;
        Some(Participant::of(&snapshot, view)?.state())
    }
}

/// What becomes of a machine now.
pub enum Advance<'c> {
    /// This step is recorded.
    Move(MachineStep),
    /// Its items run.
    Working,
    /// It waits.
    Wait(Wait<'c>),
}

/// A wait, which always has a reason.
pub struct Wait<'c> {
    /// Unix milliseconds of the deadline that runs for what others have to do. None: no deadline runs.
    pub until_ms: Option<u64>,
    why: Box<dyn Fn() -> Result<(), Blocked> + 'c>,
}

impl Wait<'_> {
    /// The reason. Where everything it waited for holds, the next decision moves it.
    #[must_use]
    pub fn reason(&self) -> Blocked {
        (self.why)().err().unwrap_or_else(deciding)
    }
}

/// Its next step is about to be decided.
pub(super) fn deciding() -> Blocked {
    blocked(Reason::Deciding, "its next step is about to be taken", "the coordinator's next decision")
}

/// A machine with its part in the update under way.
#[derive(Clone, Copy)]
pub struct Participant<'c, 's> {
    pub(super) snapshot: &'c ClusterSnapshot<'s>,
    pub(super) update: &'c UpdateRow,
    pub(super) view: &'c MachineView<'s>,
    pub(super) mine: &'c MachineUpdate,
}

impl<'c, 's> Participant<'c, 's> {
    /// None: the machine has no part in an update.
    #[must_use]
    pub fn of(snapshot: &'c ClusterSnapshot<'s>, view: &'c MachineView<'s>) -> Option<Self> {
        Some(Self { snapshot, update: snapshot.update()?, view, mine: view.update()? })
    }

    /// The state that follows from what is recorded.
    #[must_use]
    pub fn state(self) -> TurnState {
        if self.view.row.slot.is_none() {
            return before_slot(self.view, self.mine);
        }
        if let Some(since_ms) = self.mine.returned_at_ms {
            return TurnState::Returning { since_ms };
        }
        if let Some(upgraded) = self.gives_back() {
            return TurnState::GivingBack { upgraded };
        }
        if self.mine.renewal.is_some() {
            return TurnState::Renewing;
        }
        let out = self.mine.maintenance.is_some_and(|row| row.since_ms.is_some());
        match (self.mine.disturbed(), self.mine.maintenance.is_some()) {
            _ if out => TurnState::Out,
            (true, true) => TurnState::Withdrawing,
            (true, false) => TurnState::Disturbed,
            (false, _) if !self.mine.disruptive => TurnState::Harmless,
            (false, _) if self.is_stopping() => TurnState::Stopping,
            (false, false) if self.view.row.max_phase > Some(Phase::Prepare) => TurnState::Entered,
            (false, _) if self.mine.drains.any_begun() => TurnState::Draining,
            (false, _) => TurnState::Requested,
        }
    }

    /// Move the machine on, or say that it works, or why it waits. What machines compete for (slots, places in
    /// prepare) is granted separately, after this has been asked of every machine.
    #[must_use]
    pub fn advance(self) -> Advance<'c> {
        let next = match self.state() {
            TurnState::Hooks | TurnState::Idle | TurnState::Preparing | TurnState::Prepared | TurnState::Deferred => {
                self.without_slot()
            }
            TurnState::Harmless => self.harmless(),
            TurnState::Requested | TurnState::Draining | TurnState::Entered => self.approaches(),
            TurnState::Disturbed => self.goes_forward(),
            TurnState::Withdrawing => self.withdraws(),
            TurnState::Renewing => self.renews(),
            TurnState::Out => self.stays_out(),
            TurnState::Stopping => self.waits(None, move || self.before_first_permit()),
            TurnState::GivingBack { upgraded } => self.gives_back_next(upgraded),
            TurnState::Returning { since_ms } => self.returns(since_ms),
        };
        match (next, stages::overdue(self)) {
            (Advance::Move(step), _) => Advance::Move(step),
            (Advance::Wait(wait), Some(overdue)) => Advance::Move(overdue.stuck(|| wait.reason().message)),
            (Advance::Working, Some(overdue)) => Advance::Move(overdue.stuck(String::new)),
            (next, None) => next,
        }
    }

    fn waits(self, until_ms: Option<u64>, why: impl Fn() -> Result<(), Blocked> + 'c) -> Advance<'c> {
        Advance::Wait(Wait { until_ms, why: Box::new(why) })
    }

    /// Is this moment, Unix milliseconds, past?
    fn is_past(self, at_ms: Option<u64>) -> bool {
        at_ms.is_some_and(|at_ms| self.snapshot.now.wall_ms >= at_ms)
    }

    fn is_stopping(self) -> bool {
        self.update.desired == DesiredState::Abort || self.mine.deferral.is_some() || self.view.is_stopped()
    }

    /// Does it give back what it holds, and as an upgraded machine? A harmless item that runs when the machine is
    /// refused before its first disruptive item ends first.
    pub(in crate::plan) fn gives_back(self) -> Option<bool> {
        let Self { update, view, mine, .. } = self;
        if let Some(row) = &mine.renewal {
            return renewal::gives_back(self, row.evicted.as_ref()).then_some(false);
        }
        if let Some(row) = &mine.maintenance {
            return maintenance::gives_back(view, mine, row).then_some(false);
        }
        if self.is_complete() {
            return Some(true);
        }
        let failed = seeded_bug("give-back-after-failure") && view.failed() && mine.request.is_some();
        let at_work = view.row.max_phase > Some(Phase::Prepare) && is_at_work(view);
        let refused = update.desired == DesiredState::Abort || mine.deferral.is_some();
        (failed || (mine.disruptive && !mine.disturbed() && refused && !at_work)).then_some(false)
    }

    /// Are all its items done, and has its agent accepted the very list that says so?
    fn is_complete(self) -> bool {
        let reached = self.view.row.max_phase >= Some(top(self.snapshot, self.view));
        reached && self.view.all_done() && assign::is_accepted(self.snapshot.facts, self.view)
    }

    /// Its nodes first, then the request.
    fn gives_back_next(self, upgraded: bool) -> Advance<'c> {
        let Self { snapshot, update, view, mine } = self;
        let Some(orchestrator) = drain::to_restore(view) else {
            let finished = upgraded && mine.request.is_none();
            return Advance::Move(if finished { MachineStep::Finish } else { MachineStep::GiveBack { upgraded } });
        };
        let of = orchestrator.kind();
        if !view.row.stages.contains_key(&drain::restored_stage(of)) {
            return Advance::Move(MachineStep::Drain(DrainStep::Uncordon { of, upgraded }));
        }
        if orchestrator.restored(snapshot, view).is_ok() {
            return Advance::Move(MachineStep::Drain(DrainStep::Uncordoned(of)));
        }
        let until_ms = drain::deadline_ms(snapshot, update, view);
        self.waits(until_ms, move || orchestrator.restored(snapshot, view))
    }

    /// It holds nothing: it is done if nothing is left to do, leaves if the update was aborted, or waits for its turn.
    fn without_slot(self) -> Advance<'c> {
        if let Some(step) = self.ends_without_slot() {
            return Advance::Move(step);
        }
        let Self { snapshot, update, view, .. } = self;
        let until_ms = return_deadline_ms(snapshot, update, view);
        let until_ms = until_ms.or_else(|| renewal::turn_deadline_ms(snapshot, update, view));
        if self.is_past(until_ms)
            && view.available()
            && let Err(blocked) = safety::may_take_slot(snapshot, view)
            && matches!(blocked.reason, Reason::LockNotYetActive | Reason::ForeignRequest | Reason::LocksReturning)
        {
            let outcome = snapshot.spec.update_deadlines.node_locks.outcome;
            return Advance::Move(give_up(Stage::LocksInactive, outcome, &blocked));
        }
        if let Some(message) = self.undrainable() {
            let (stage, cause) = (Stage::KubernetesDrained, DeferralCause::Undrainable);
            return Advance::Move(MachineStep::Defer { stage, message, cause });
        }
        self.waits(until_ms, move || self.has_no_turn())
    }

    /// Why its turn would be in vain: its workloads cannot be moved away.
    fn undrainable(self) -> Option<String> {
        let Self { snapshot, update, view, .. } = self;
        let asked = snapshot.spec.kubernetes.is_some() && wants_slot(view) && view.available();
        if !asked || not_halted(snapshot, update).is_err() {
            return None;
        }
        let blocked = safety::may_take_slot(snapshot, view).err()?;
        (blocked.reason == Reason::KubernetesUndrainable).then_some(blocked.message)
    }

    fn ends_without_slot(self) -> Option<MachineStep> {
        let Self { snapshot, update, view, mine } = self;
        if view.row.revoked || mine.maintenance.is_some_and(|row| row.leaving) {
            return Some(MachineStep::Leave);
        }
        if mine.hooks_only {
            if hooks::is_called_off(snapshot.facts, view.row) {
                return maintenance::will_run_nothing(snapshot, view).is_ok().then_some(MachineStep::Leave);
            }
            let after = update.stages.contains_key(&ClusterStage::HooksAfter) && hooks::is_complete(snapshot, view);
            return after.then_some(MachineStep::Finish);
        }
        if update.desired != DesiredState::Abort && safety::before_update_done(snapshot).is_err() {
            return None;
        }
        let done = |phase| !concerns(snapshot.cluster, view.row, phase) || view.progress(phase) == Progress::Done;
        let untouched = view.row.max_phase != Some(Phase::Prepare) || !view.in_flight();
        if mine.renewal.is_some() && update.desired != DesiredState::Abort {
            return (renewal::next(snapshot, view) == Ok(None)).then_some(MachineStep::Finish);
        }
        let nothing_left = Phase::ALL.iter().all(|phase| done(*phase)) && mine.maintenance.is_none();
        if nothing_left && untouched && !mine.disturbed() {
            return Some(MachineStep::Finish);
        }
        if update.desired == DesiredState::Abort {
            return Some(MachineStep::Leave);
        }
        if self.is_left_out() {
            return Some(MachineStep::LeaveOut);
        }
        if mine.deferral.as_ref().is_some_and(|aside| aside.cause == DeferralCause::Lost) {
            return Some(MachineStep::IsBack);
        }
        let prepared = view.row.max_phase == Some(Phase::Prepare) && view.progress(Phase::Prepare) == Progress::Done;
        (prepared && !view.row.stages.contains_key(&Stage::PreviousDeployed)).then_some(MachineStep::Prepared)
    }

    /// Why it has no slot, and no place in prepare.
    fn has_no_turn(self) -> Result<(), Blocked> {
        let Self { snapshot, update, view, mine } = self;
        let name = &view.row.name;
        if let Some(aside) = &mine.deferral {
            let retry = format!("`musterctl retry {name}` once what it says has passed");
            let (reason, clears) = match aside.cause {
                DeferralCause::Failed => (Reason::Refused, retry),
                // No pod is deleted in a renewal: its budget has to change.
                DeferralCause::Undrainable if mine.renewal.is_some() => (Reason::KubernetesUndrainable, retry),
                DeferralCause::Undrainable => {
                    let last_resort = forcing::last_resort_for(view);
                    (Reason::KubernetesUndrainable, format!("{retry}; {last_resort}"))
                }
                DeferralCause::Uncordoned => (Reason::KubernetesUncordoned, retry),
                DeferralCause::Late | DeferralCause::Lost => {
                    (Reason::Deferred, format!("it is tried again after the others, or {retry}"))
                }
            };
            return Err(blocked(reason, aside.message.clone(), clears));
        }
        hooks::nobody_is_gone(snapshot)?;
        let before = safety::before_update_done(snapshot);
        let control = view.row.spec.machine_type == MachineType::Control;
        let spared = if wants_slot(view) { safety::others_can_spare(snapshot, view) } else { Ok(()) };
        let waited = before.as_ref().err().or(spared.as_ref().err()).map(|waited| waited.message.as_str());
        not_halted(snapshot, update).map_err(|halt| because(halt, late_for(mine).or(waited)))?;
        if mine.hooks_only {
            return before;
        }
        safety::may_start_anything(snapshot)?;
        if is_untouched(view) {
            let most = snapshot.spec.max_worker_prepare_count;
            let message = format!("{most} workers are in prepare (maxWorkerPrepareCount)");
            return Err(blocked(Reason::WaitingForTurn, message, "one of them is through with it"));
        }
        safety::may_take_slot(snapshot, view)?;
        let Some(earlier) = earlier_on_its_way(snapshot, view).filter(|_| control) else { return Ok(()) };
        let message = format!("control machines go in order (upgradeIndex, then name), and {earlier} comes before it");
        Err(blocked(Reason::WaitingForTurn, message, format!("{earlier} has had its turn")))
    }

    /// Does its rollout go on without it? A rollout that began by itself waits for no lost worker: the worker gets a
    /// rollout of its own when it is back. It waits for a control machine: no worker is disturbed while one is missing.
    fn is_left_out(self) -> bool {
        let Self { update, view, mine, .. } = self;
        let worker = view.row.spec.machine_type == MachineType::Worker;
        let in_service = mine.maintenance.is_none() && !mine.disturbed() && view.row.removal.is_none();
        update.kind == UpdateKind::Reconfigure && worker && view.lost && in_service
    }

    /// It has a slot and no request.
    fn harmless(self) -> Advance<'c> {
        let Self { snapshot, update, view, mine } = self;
        // Something disruptive became due since: it needs a request, and takes its turn with one. Or it stands still,
        // and operators do not want it to continue.
        let aborted = update.desired == DesiredState::Abort && !is_at_work(view);
        let free = match mine.maintenance {
            Some(_) => maintenance::will_run_nothing(snapshot, view).is_ok(),
            None => (view.is_withheld() || aborted) && !view.in_flight(),
        };
        if free {
            return Advance::Move(MachineStep::FreeSlot);
        }
        if mine.maintenance.is_none() && view.row.max_phase < Some(top(snapshot, view)) {
            return Advance::Move(self.enters());
        }
        if view.in_flight() && mine.maintenance.is_none() {
            return Advance::Working;
        }
        self.waits(None, move || self.before_first_permit())
    }

    /// Its list reaches as far as it will.
    fn enters(self) -> MachineStep {
        let Self { snapshot, view, .. } = self;
        MachineStep::Enter(top(snapshot, view), frozen_set(snapshot, view, Phase::Reconfigure))
    }

    /// Its maintenance is requested, and nothing disruptive was started.
    fn approaches(self) -> Advance<'c> {
        let Self { snapshot, update, view, mine } = self;
        if self.is_left_out() {
            let stage = stages::current(view.row).map_or(Stage::LocksInactive, |(stage, _)| stage);
            let message = "it is lost, and was not disturbed yet".to_owned();
            return Advance::Move(MachineStep::Defer { stage, message, cause: DeferralCause::Lost });
        }
        let deadlines = &snapshot.spec.update_deadlines;
        if let Err(blocked) = safety::locks_granted(snapshot, view) {
            let until_ms = lock_deadline_ms(snapshot, update, view, mine);
            return self.refused(until_ms, (Stage::LocksInactive, deadlines.node_locks.outcome), &blocked);
        }
        if not_halted(snapshot, update).is_err() || safety::may_begin(snapshot, view).is_err() {
            return self.waits(None, move || self.before_first_permit());
        }
        if let Some(step) = drain::step(snapshot, view) {
            return Advance::Move(MachineStep::Drain(step));
        }
        if let Some(orchestrator) = drain::at_it(snapshot, view)
            && let Err(blocked) = safety::drained(snapshot, view)
        {
            let (stage, outcome) = drain::stage_of(orchestrator.kind(), deadlines);
            if blocked.reason == Reason::KubernetesUncordoned {
                let (message, cause) = (blocked.message, DeferralCause::Uncordoned);
                return Advance::Move(MachineStep::Defer { stage, message, cause });
            }
            let until_ms = drain::deadline_ms(snapshot, update, view);
            return self.refused(until_ms, (stage, outcome), &blocked);
        }
        if mine.maintenance.is_some() {
            return match maintenance::may_enter(snapshot, view) {
                Ok(()) => Advance::Move(MachineStep::OutOfService),
                Err(_) => self.waits(None, move || self.before_first_permit()),
            };
        }
        if view.row.max_phase < Some(top(snapshot, view)) {
            return Advance::Move(self.enters());
        }
        self.next_permit().map_or_else(|| self.waits(None, move || self.before_first_permit()), Advance::Move)
    }

    /// It may not be disturbed yet. Past the deadline it makes room, as the cluster's policy wants it.
    fn refused(
        self,
        until_ms: Option<u64>,
        (stage, outcome): (Stage, DeadlineOutcome),
        blocked: &Blocked,
    ) -> Advance<'c> {
        if self.is_past(until_ms) {
            return Advance::Move(give_up(stage, outcome, blocked));
        }
        self.waits(until_ms, move || self.before_first_permit())
    }

    /// What it waits for before its first permit.
    fn before_first_permit(self) -> Result<(), Blocked> {
        let Self { snapshot, update, view, mine } = self;
        let locks = safety::locks_granted(snapshot, view).err().filter(|_| mine.disruptive);
        let waits = locks.or_else(|| safety::others_can_spare(snapshot, view).err());
        let waited = waits.as_ref().map(|waits| waits.message.as_str());
        not_halted(snapshot, update).map_err(|halt| because(halt, waited.or_else(|| late_for(mine))))?;
        if mine.disruptive {
            safety::locks_granted(snapshot, view)?;
        }
        safety::may_begin(snapshot, view)?;
        if mine.maintenance.is_some() {
            return maintenance::may_enter(snapshot, view);
        }
        if mine.drains_nodes() { safety::drained(snapshot, view) } else { Ok(()) }
    }

    /// It was disturbed: its next item gets a permit when rule 4 holds again.
    fn goes_forward(self) -> Advance<'c> {
        let Self { snapshot, view, .. } = self;
        if let Some(step) = self.next_permit() {
            return Advance::Move(step);
        }
        if !view.awaits_permit() && view.in_flight() {
            return Advance::Working;
        }
        self.waits_for_person(move || safety::may_disturb_again(snapshot, view))
    }

    /// Pods on its node are renewed, one after another. What was evicted comes to its end, whatever operators want.
    fn renews(self) -> Advance<'c> {
        let Self { snapshot, update, view, mine } = self;
        let step = |step| Advance::Move(MachineStep::Renew(step));
        if let Some(evicted) = mine.renewal.as_ref().and_then(|row| row.evicted.as_ref()) {
            return match renewal::renewed(snapshot, view, evicted) {
                Ok(()) => step(RenewalStep::Renewed),
                Err(_) => self.waits(stages::late_at_ms(self), move || renewal::renewed(snapshot, view, evicted)),
            };
        }
        if let Err(blocked) = safety::locks_granted(snapshot, view) {
            let until_ms = lock_deadline_ms(snapshot, update, view, mine);
            let outcome = snapshot.spec.update_deadlines.node_locks.outcome;
            return self.refused(until_ms, (Stage::LocksInactive, outcome), &blocked);
        }
        if !view.row.stages.contains_key(&Stage::PodsRenewed) {
            return step(RenewalStep::Begin);
        }
        match renewal::next(snapshot, view) {
            Ok(Some(pod)) if self.before_first_permit().is_ok() => step(RenewalStep::Evict(pod)),
            _ => self.waits(stages::late_at_ms(self), move || {
                self.before_first_permit()?;
                renewal::next(snapshot, view).map(drop)
            }),
        }
    }

    /// It was disturbed, and is to be removed before the update has ended: its workloads are away already.
    fn withdraws(self) -> Advance<'c> {
        let Self { snapshot, view, .. } = self;
        if let Some(step) = drain::step(snapshot, view) {
            return Advance::Move(MachineStep::Drain(step));
        }
        if maintenance::may_enter(snapshot, view).is_ok() {
            return Advance::Move(MachineStep::OutOfService);
        }
        self.waits_for_person(move || maintenance::may_enter(snapshot, view))
    }

    /// Its locks were taken back between two permits, or tasks came back to its node. There is no way back for it: past
    /// the deadline a person decides.
    fn waits_for_person(self, why: impl Fn() -> Result<(), Blocked> + 'c) -> Advance<'c> {
        let Self { snapshot, update, view, mine } = self;
        let held_up = view.awaits_permit() || mine.maintenance.is_some();
        let until_ms = match safety::locks_granted(snapshot, view) {
            _ if !held_up => None,
            Err(_) => lock_deadline_ms(snapshot, update, view, mine),
            Ok(()) => drain::deadline_ms(snapshot, update, view),
        };
        let taken_back = held_up && self.is_uncordoned_by_others();
        if (self.is_past(until_ms) || taken_back)
            && let Err(Blocked { message, .. }) = safety::may_disturb(snapshot, view)
        {
            let stage = stages::current(view.row).map_or(Stage::DeployDone, |(stage, _)| stage);
            return Advance::Move(MachineStep::PauseAll { stage, message });
        }
        self.waits(until_ms, why)
    }

    /// Did an operator take its Kubernetes node back while it is disturbed? The update pauses, once.
    fn is_uncordoned_by_others(self) -> bool {
        let why = safety::may_disturb(self.snapshot, self.view).err();
        self.update.desired == DesiredState::Go && why.is_some_and(|why| why.reason == Reason::KubernetesUncordoned)
    }

    /// Out of service. One that is to be removed waits there until its controllers and the swarm let it leave for good.
    /// They may refuse although they let it go for its maintenance: nothing is given back, and a person decides.
    fn stays_out(self) -> Advance<'c> {
        let Self { snapshot, update, view, mine } = self;
        if !removal::takes_turn(view) {
            return self.waits(None, move || maintenance::out_of_service(snapshot, view).map_or(Ok(()), Err));
        }
        if let Some(step) = drain::step(snapshot, view) {
            return Advance::Move(MachineStep::Drain(step));
        }
        let deadlines = &snapshot.spec.update_deadlines;
        let (stage, until_ms, outcome) = match safety::locks_let_leave(snapshot, view) {
            Err(_) => {
                let until_ms = lock_deadline_ms(snapshot, update, view, mine);
                (Stage::LocksInactive, until_ms, deadlines.node_locks.outcome)
            }
            Ok(()) => {
                let kind = drain::at_it(snapshot, view).map_or(DrainKind::Swarm, |orchestrator| orchestrator.kind());
                let (stage, outcome) = drain::stage_of(kind, deadlines);
                (stage, drain::deadline_ms(snapshot, update, view), outcome)
            }
        };
        let known = mine.stuck.as_ref().is_some_and(|stuck| stuck.stage == stage);
        if !known
            && self.is_past(until_ms)
            && let Err(Blocked { message, .. }) = safety::may_leave(snapshot, view)
        {
            return Advance::Move(match outcome {
                DeadlineOutcome::Pause => MachineStep::PauseAll { stage, message },
                DeadlineOutcome::Fail | DeadlineOutcome::Defer => {
                    MachineStep::Stuck { stage, outcome: DeadlineOutcome::Defer, message }
                }
            });
        }
        self.waits(until_ms, move || safety::may_leave(snapshot, view))
    }

    /// Rule 9, its end: the request is removed; the locks are active again, or have had their time.
    fn returns(self, since_ms: u64) -> Advance<'c> {
        let Self { snapshot, update, view, mine } = self;
        let back = locks::returned(snapshot, view.row);
        let until_ms = back.is_err().then(|| returned_deadline_ms(snapshot, update, since_ms));
        let waits = move |until_ms| self.waits(until_ms, move || locks::returned(snapshot, view.row));
        if let Err(Blocked { message, .. }) = back {
            let outcome = snapshot.spec.update_deadlines.locks_returned.outcome;
            let known = mine.stuck.as_ref().is_some_and(|stuck| stuck.stage == Stage::RequestRemoved);
            match outcome {
                // An operator looks at it, and the time of a pause does not count. The machine continues with the
                // update.
                DeadlineOutcome::Pause if matches!(update.desired, DesiredState::Pause { .. }) => {
                    return waits(until_ms);
                }
                _ if known => {}
                _ if !self.is_past(until_ms) => return waits(until_ms),
                DeadlineOutcome::Pause if update.desired == DesiredState::Go => {
                    return Advance::Move(MachineStep::Stuck { stage: Stage::RequestRemoved, outcome, message });
                }
                DeadlineOutcome::Pause | DeadlineOutcome::Fail | DeadlineOutcome::Defer => {}
            }
        }
        if let Some(row) = &mine.maintenance {
            let over = maintenance::is_wanted_back(row);
            return Advance::Move(if over { MachineStep::Finish } else { MachineStep::FreeSlot });
        }
        if mine.renewal.is_some() {
            return Advance::Move(if mine.deferral.is_some() { MachineStep::FreeSlot } else { MachineStep::Finish });
        }
        let complete = self.is_complete();
        // Seeded bug: free the slot although the agent may have an older list.
        if mine.disturbed() && !seeded_bug("free-slot-before-accepted") {
            // A disturbed machine has done its items. Its slot is held until its agent has accepted the very list that
            // says so. What became due since is for the next update.
            let left = view.is_withheld() && assign::is_accepted(snapshot.facts, view);
            return if complete || left { Advance::Move(MachineStep::Finish) } else { waits(until_ms) };
        }
        let finished = complete && mine.deferral.is_none();
        Advance::Move(if finished { MachineStep::Finish } else { MachineStep::FreeSlot })
    }

    /// The next item that needs a permit gets it, if rule 4 holds now. What a machine has begun it may end, whatever
    /// operators want of the update.
    fn next_permit(self) -> Option<MachineStep> {
        let Self { snapshot, view, .. } = self;
        let item = view.next_open().filter(|_| view.awaits_permit())?;
        let (ItemProgress::Due { attempt } | ItemProgress::Running { attempt }) = view.standing(item) else {
            return None;
        };
        if let Some(step) = drain::step(snapshot, view) {
            return Some(MachineStep::Drain(step));
        }
        let free = view.available() && safety::may_disturb_again(snapshot, view).is_ok();
        free.then(|| MachineStep::Permit { item: item.name.clone(), attempt, phase: item.phase })
    }
}

/// The state of a machine without a slot.
fn before_slot(view: &MachineView<'_>, mine: &MachineUpdate) -> TurnState {
    match view.row.max_phase {
        _ if mine.hooks_only => TurnState::Hooks,
        _ if mine.deferral.is_some() => TurnState::Deferred,
        _ if mine.maintenance.is_some() || mine.renewal.is_some() => TurnState::Prepared,
        Some(Phase::Prepare) if view.progress(Phase::Prepare) == Progress::Done => TurnState::Prepared,
        Some(Phase::Prepare) => TurnState::Preparing,
        Some(Phase::Deploy | Phase::Reconfigure) | None => TurnState::Idle,
    }
}

/// Could it take a slot as far as it itself is concerned?
#[must_use]
pub fn wants_slot(view: &MachineView<'_>) -> bool {
    let Some(mine) = view.update().filter(|_| view.row.slot.is_none()) else { return false };
    let leaves = mine.maintenance.is_some_and(|row| row.leaving);
    before_slot(view, mine) == TurnState::Prepared && !leaves && !view.is_let_go() && !view.is_stopped()
}

/// How far its list reaches in the end.
pub(in crate::plan) fn top(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Phase {
    let items = view.items.unwrap_or_default();
    let phases = items.iter().map(|item| item.phase).filter(|phase| concerns(snapshot.cluster, view.row, *phase));
    phases.max().unwrap_or(Phase::Deploy).max(Phase::Deploy)
}

/// The deadline of this stage passed: what the cluster's policy wants then.
fn give_up(stage: Stage, outcome: DeadlineOutcome, blocked: &Blocked) -> MachineStep {
    let message = blocked.message.clone();
    match outcome {
        DeadlineOutcome::Fail | DeadlineOutcome::Defer => {
            MachineStep::Defer { stage, message, cause: DeferralCause::of(outcome) }
        }
        DeadlineOutcome::Pause => MachineStep::PauseAll { stage, message },
    }
}
