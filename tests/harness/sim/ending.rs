//! The end of a world: the faults stop, and everything must come to rest with a reason.

use std::collections::{BTreeMap, BTreeSet};

use muster_agent::core::Input as AgentInput;
use muster_coordinator::{
    core::Request,
    documents,
    facts::MachineRow,
    plan::{
        blocked,
        snapshot::{ClusterSnapshot, MachineView, State},
    },
};
use muster_proto::{
    model::{ClusterSpec, Epoch, MachineName, Phase, Reason},
    resource::UpdateStatus,
};

use super::{Event, LIMITS, World, machine::Machine, manifest};
use crate::invariants::Violation;

/// Longest calm without a running process: it covers a few backoffs of a minute and Lost after half a minute, in a row.
const CALM_MS: u64 = 900_000;
/// The same in an update: a reboot item whose reboot never happens times out after half an hour.
const CALM_IN_UPDATE_MS: u64 = 2_400_000;
/// No event of interest for this long counts as still. Longer than the time until a machine is Lost, and than a
/// controller is away and then has to answer a removal.
const STILL_MS: u64 = 80_000;
/// The same with a Kubernetes: longer than an unanswered change of a node may still be carried out, and than a machine
/// that cannot be drained is looked at.
const STILL_WITH_KUBERNETES_MS: u64 = 110_000;
/// No commit for this long counts as quiet: longer than an agent's longest backoff and the longest answer together.
const QUIET_MS: u64 = 150_000;
/// Reasons that pass by themselves, and must be gone at rest.
const PASSES: &[Reason] =
    &[Reason::Disconnected, Reason::Gathering, Reason::LocksSettling, Reason::Rebooting, Reason::KubernetesPreflight];
/// Reasons of machines that wait for others.
const WAITS_FOR_OTHERS: &[&str] =
    &["FailureBudget", "RecoveryOpen", "UpdateInProgress", "WaitingForControl", "WaitingForGroup", "WaitingForTurn"];
/// The longest deadline of locks and drains, plus a margin.
const DEADLINE_MS: u64 = 25_000;
/// Most such deadlines that may pass one after another. A removed machine's node may take ten minutes to be gone.
const DEADLINES_MAX: usize = 40;

impl World {
    /// Faults stop; everything that was down comes back.
    pub(crate) fn calm_down(&mut self) -> Result<(), Violation> {
        self.chaos = false;
        self.loosen_tasks();
        self.calm_kubernetes();
        self.nobody_lies_any_more();
        for index in 0..self.machines.len() {
            if let Some(machine) = self.machines.get_mut(index) {
                machine.cut_off_until = 0;
                machine.engine_down_until = 0;
                machine.disk_full = false;
            }
            self.readdress(index, Some(format!("10.0.255.{}", index + 1)));
            self.happen(Event::PowerOn(index))?;
            self.happen(Event::StartAgent(index))?;
            self.agent_input(index, AgentInput::DiskFull(false))?;
            self.happen(Event::Connect(index))?;
        }
        self.happen(Event::StartCoordinator)?;
        self.rest()?;
        if self.facts().is_some_and(|facts| facts.live.older_than_fleet().is_some()) {
            self.recover()?;
            self.rest()?;
        }
        self.watcher.store_recovered();
        self.watcher.settled(&self.machines, self.coordinator.as_ref())?;
        self.everybody_has_a_reason()
    }

    /// Runs until everything is at rest, including targeted interventions: many updates reach their later stages only
    /// now. All of it may take long, for each attempt may use its whole time limit. Therefore the time since the last
    /// running process counts.
    pub(crate) fn rest(&mut self) -> Result<(), Violation> {
        let calm_ms = if self.plan.update { CALM_IN_UPDATE_MS } else { CALM_MS };
        let mut until = self.at + calm_ms;
        let still_ms = if self.kubernetes.is_some() { STILL_WITH_KUBERNETES_MS } else { STILL_MS };
        let mut still_since = None;
        let mut quiet = (self.commits, self.at);
        loop {
            // A running process may take long, longest for a reboot that never happens; its end is news too.
            let running = self.machines.iter().any(Machine::is_at_work);
            if running {
                until = self.at + calm_ms;
            }
            if !self.next_event(until)? {
                break;
            }
            self.intervene()?;
            self.inject_targeted_fault()?;
            if quiet.0 != self.commits || running {
                quiet = (self.commits, self.at);
                // An operator's request may have yet to start something.
                still_since = None;
            } else if self.at >= quiet.1 + QUIET_MS {
                break;
            }
            if !self.at_rest() {
                still_since = None;
            } else if self.at >= *still_since.get_or_insert(self.at) + still_ms {
                break;
            }
        }
        Ok(())
    }

    /// Are all pending events idle?
    fn at_rest(&self) -> bool {
        let moving = self.queue.values().any(|event| {
            let talk = matches!(event, Event::Deliver(parcel) if parcel.is_swarm_talk());
            let idle = matches!(
                event,
                Event::Decide
                    | Event::Operate
                    | Event::Controller(_)
                    | Event::ObjectController(_)
                    | Event::NoticeGone(..)
                    | Event::QuestionSilent(_)
                    | Event::KubernetesAsked(_)
                    | Event::KubernetesAnswered(_)
            );
            !idle && !talk
        });
        !moving && self.inbox.is_empty()
    }

    /// The operator recovers a store that is older than its fleet.
    pub(crate) fn recover(&mut self) -> Result<(), Violation> {
        self.count("store recovered");
        self.crash_coordinator();
        let recovered = muster_coordinator::core::recover(self.rows(), Epoch(0), "coordinator", self.now());
        let (_, changes) = recovered.map_err(|error| self.watcher.violation("codec", error.to_string()))?;
        self.commit(&changes);
        self.happen(Event::StartCoordinator)?;
        self.declare_controllers()
    }

    /// The operator applies the newest manifest again, with every application controller in it, as the manual asks: the
    /// recovered store may know neither a controller's locks nor its declaration, and then waits for none of it.
    fn declare_controllers(&mut self) -> Result<(), Violation> {
        let Some(newest) = self.manifest.clone() else { return Ok(()) };
        let workload_controllers: Vec<String> = self.controllers.iter().map(|guard| guard.name.clone()).collect();
        let known = self.facts().and_then(|facts| facts.spec(&manifest::cluster_name()));
        if known.is_none_or(|known| known.workload_controllers == workload_controllers) {
            return Ok(());
        }
        self.count("controllers declared after recovery");
        let newest = ClusterSpec { workload_controllers, ..newest };
        let clusters = [(manifest::cluster_name(), (newest, BTreeMap::new()))].into();
        let applied = self.operator(Request::Apply { clusters, machines: BTreeMap::new(), dry_run: false })?;
        applied.map(drop).map_err(|error| self.watcher.violation("sim", error))
    }

    /// Rule 10: every machine is Ready, or has a named reason that needs a person.
    pub(crate) fn everybody_has_a_reason(&mut self) -> Result<(), Violation> {
        let now = self.now();
        let limits = LIMITS;
        let Some(core) = &self.coordinator else { return Ok(()) };
        let Some(snapshot) = ClusterSnapshot::of(core.facts(), &manifest::cluster_name(), &limits, now) else {
            return Ok(());
        };
        // After a recovery an operator decides about missing machines.
        let recovering = core.facts().meta.recovering;
        let passes = |reason: Reason| PASSES.contains(&reason) && !(reason == Reason::Gathering && recovering);
        let mut reasons = Vec::new();
        for view in &snapshot.machines {
            let reason = blocked::of_machine(&snapshot, view).map(|blocked| blocked.reason);
            match (view.state(), reason) {
                (State::Ready, None) => {
                    knows_the_controls(&snapshot, view).map_err(|detail| self.watcher.violation("set", detail))?;
                    reasons.push("Ready".to_owned());
                }
                (_, Some(Reason::Deciding)) => {
                    let detail = format!("{} is about to go on, and does not: {:?}", view.row.name, view.row);
                    return Err(self.watcher.violation("10", detail));
                }
                (_, Some(reason)) if passes(reason) => {
                    let detail = format!("{} says {reason} though everything is at rest", view.row.name);
                    return Err(self.watcher.violation("10", detail));
                }
                (_, Some(reason)) => reasons.push(reason.to_string()),
                (state, None) => {
                    let (name, state) = (&view.row.name, state.as_str());
                    let detail = format!("{name} is {state} and nothing moves it, for no reason: {:?}", view.row);
                    return Err(self.watcher.violation("10", detail));
                }
            }
        }
        let moved_by_others = |reason: &String| WAITS_FOR_OTHERS.contains(&reason.as_str());
        if reasons.iter().any(moved_by_others)
            && reasons.iter().all(|reason| reason == "Ready" || moved_by_others(reason))
        {
            let detail = format!("everybody waits for another: {reasons:?}");
            return Err(self.watcher.violation("10", detail));
        }
        for reason in reasons {
            self.reached.count_named("ended", &reason);
        }
        self.updates_want_a_person()
    }

    /// Rule 10, as shown to operators: an update at rest needs a person. Running deadlines are awaited, one after
    /// another: machines are deferred one by one.
    fn updates_want_a_person(&mut self) -> Result<(), Violation> {
        for _ in 0..DEADLINES_MAX {
            if self.everything_wants_a_person().is_ok() {
                break;
            }
            let until = self.at + DEADLINE_MS;
            while self.next_event(until)? {}
            self.at = until;
        }
        self.everything_wants_a_person()
    }

    /// A machine out of service is where its operator wants it.
    fn everything_wants_a_person(&self) -> Result<(), Violation> {
        let Some(core) = &self.coordinator else { return Ok(()) };
        let rollouts = documents::rollouts(core.facts(), |_| true, core.limits(), self.now());
        for rollout in rollouts.iter().filter(|rollout| rollout.status.finished_at.is_none()) {
            let rests =
                |update: &&UpdateStatus| update.waiting.iter().all(|waiting| waiting.reason == Reason::InMaintenance);
            if let Some(update) =
                rollout.status.update.as_ref().filter(|update| !update.needs_operator && !rests(update))
            {
                let detail = format!("{} is at rest and wants nobody: {:?}", rollout.metadata.name, update.waiting);
                return Err(self.watcher.violation("person", detail));
            }
        }
        Ok(())
    }
}

/// A machine with items for a changed control set, and without a reason, has seen the whole set. It may have replaced
/// another machine at the same address after the set was complete.
fn knows_the_controls(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Result<(), String> {
    let (row, sets) = (view.row, &view.row.control_sets);
    let items = view.items.unwrap_or_default();
    let Some(seen) = sets.get(&Phase::Reconfigure).or_else(|| sets.get(&Phase::Deploy)) else { return Ok(()) };
    let cluster = snapshot.cluster;
    let told = items.iter().any(|item| item.phase == Phase::Reconfigure) && !cluster.control_set.is_empty();
    if !told || snapshot.rollout.is_some() {
        return Ok(());
    }
    let controls = cluster.control_set.iter().map(|name| snapshot.facts.machines.get(name));
    let there = |row: &MachineRow| row.ready_at.is_some() && !row.revoked && row.removal.is_none();
    let controls: Vec<&MachineRow> = controls.flatten().map(|row| &**row).filter(|row| there(row)).collect();
    if controls.len() < cluster.control_set.len() {
        return Ok(()); // the others wait until the set is whole
    }
    let names = |names: &[MachineName]| names.iter().cloned().collect::<BTreeSet<_>>();
    let unknown = controls.iter().find(|control| {
        let (then, now) = (seen.members.get(&control.name), cluster.control_members.get(&control.name));
        let recorded = now.is_some_and(|now| Some(now.id) == control.id);
        let same = then.zip(now).is_some_and(|(then, now)| then.id == now.id || seen.addresses.contains(&now.address));
        !recorded || !same
    });
    match unknown {
        Some(control) => Err(format!("{} saw {seen:?}, and not {} in {cluster:?}", row.name, control.name)),
        None if names(&seen.names) != names(&cluster.control_set) => Err(format!("{} saw only {seen:?}", row.name)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use muster_coordinator::core::Request;
    use muster_proto::model::Counts;

    use super::*;
    use crate::{
        rng::Rng,
        sim::{Plan, fate::Fate},
    };

    #[test]
    fn whoever_is_still_at_work_is_waited_for() {
        let mut rng = Rng::new(1);
        let plan = Plan::of(&mut rng);
        let fate = Fate { fail_permille: 0, hopeless_permille: 0, lost_permille: 0, ..plan.fate };
        let plan = Plan { counts: Counts { control: 1, worker: 0 }, update: true, swarm: false, fate, ..plan };
        let spec = manifest::spec(&mut rng, plan);
        let mut world = World::with_spec(rng, plan, spec).expect("a world");
        world.rest().expect("deployed");
        let (cluster, machines) = (manifest::cluster_name(), BTreeSet::new());
        let reboot = Request::Reboot { cluster, machines, accept_control_plane_downtime: true };
        world.operator(reboot).expect("no violation").expect("started");
        // Every attempt fails, and each times out after half an hour.
        world.plan.fate.lost_permille = 1_000;
        world.rest().expect("no violation");
        world.everybody_has_a_reason().expect("it has failed");
        let known = world.facts().and_then(|facts| facts.machines.values().next()?.blocked_since);
        assert_eq!(known.map(|(reason, _)| reason), Some(Reason::Failed));
    }
}
