//! Pauses and aborts at every stage of an update. `steer` picks a random time; most stages are short, and it would miss
//! them. Therefore every seed with an update runs a second time. There an operator waits for a stage and interferes
//! then, and some controllers limit how many machines they release at once. The first run is independent of the second
//! run's random numbers.

use std::collections::BTreeSet;

use muster_coordinator::{
    core::Request,
    facts::{Added, ClusterStage, Facts, MachineRow, Stage, UpdateKind},
    plan::update::stages::current,
};
use muster_proto::model::{CONSISTENT_COPY_ITEM, ClusterName, ItemState, SWARM_COPY_ITEM};

use super::{World, controllers::Manner, manifest};
use crate::invariants::Violation;

/// Permille of events at the stage at which the operator acts.
const COMES_PERMILLE: u64 = 850;

/// Targets: the stages, the first of which triggers; the weight; and what an update needs to reach them. Stages that
/// few updates reach share a target.
const INTERVENTIONS: &[(&[&str], usize, Needs)] = &[
    (&["hooks before"], 4, Needs::HooksBefore),
    (&["backups"], 4, Needs::Swarm),
    (&["cluster locks"], 1, Needs::Controllers),
    (&["prepare"], 2, Needs::Nothing),
    (&["turn"], 1, Needs::Nothing),
    (&["locks"], 2, Needs::Nothing),
    (&["Swarm drain"], 3, Needs::Swarm),
    (&["Kubernetes drain"], 6, Needs::Kubernetes),
    (&["Kubernetes uncordon"], 6, Needs::Kubernetes),
    (&["harmless items"], 5, Needs::Nothing),
    (&["items"], 2, Needs::Nothing),
    (&["reboot"], 2, Needs::Nothing),
    (&["locks returning"], 2, Needs::Controllers),
    (&["hooks after"], 3, Needs::HooksAfter),
    (&["consistent copy", "uncordon", "return of a deferred machine"], 30, Needs::Nothing),
];

/// What an update needs to reach a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    Nothing,
    HooksBefore,
    HooksAfter,
    Swarm,
    Kubernetes,
    Controllers,
}

/// An operator's intervention when the update is at one of these stages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Intervention {
    stages: &'static [&'static str],
    aborts: bool,
}

/// Current stages of a cluster's update: one of each machine, and its own.
pub(crate) fn stages(facts: &Facts, cluster: &ClusterName) -> BTreeSet<&'static str> {
    let Some(rollout) = facts.open_rollout(cluster) else { return BTreeSet::new() };
    let Some(update) = rollout.update.as_ref().filter(|update| update.kind == UpdateKind::Update) else {
        return BTreeSet::new();
    };
    let mine = |row: &&std::sync::Arc<MachineRow>| row.rollout.as_ref() == Some(&rollout.name);
    let mut stages: BTreeSet<_> =
        facts.machines.values().filter(mine).flat_map(|row| [stage_of(row), added(row)]).flatten().collect();
    let is_open = |stage| update.stages.get(&stage).is_some_and(|row| row.finished_at_ms.is_none());
    let own = [(ClusterStage::LocksInactive, "cluster locks"), (ClusterStage::HooksAfter, "hooks after")];
    stages.extend(own.into_iter().filter(|(stage, _)| is_open(*stage)).map(|(_, name)| name));
    stages
}

/// Current stage of a machine.
fn stage_of(row: &MachineRow) -> Option<&'static str> {
    let mine = row.update.as_ref().filter(|mine| mine.maintenance.is_none() && !mine.hooks_only)?;
    // A machine that has released its slot may have left a stage unfinished.
    let (stage, _) = current(row).filter(|(stage, _)| row.slot.is_some() || *stage <= Stage::PreviousDeployed)?;
    match stage {
        Stage::PrepareDone => Some("prepare"),
        Stage::PreviousDeployed => Some("turn"),
        Stage::LocksInactive => Some("locks"),
        Stage::SwarmDrained => Some("Swarm drain"),
        Stage::DeployDone | Stage::ReconfigureDone if mine.disturbed() => Some("items"),
        Stage::DeployDone | Stage::ReconfigureDone => Some("harmless items"),
        Stage::RebootDone => Some("reboot"),
        Stage::SwarmUncordoned | Stage::RequestRemoved if mine.deferral.is_some() => {
            Some("return of a deferred machine")
        }
        Stage::SwarmUncordoned if mine.disturbed() => Some("uncordon"),
        Stage::RequestRemoved if mine.disturbed() => Some("locks returning"),
        Stage::KubernetesDrained => Some("Kubernetes drain"),
        Stage::KubernetesUncordoned => Some("Kubernetes uncordon"),
        // Its clusters have no such DaemonSets.
        Stage::PodsRenewed => None,
        Stage::SwarmUncordoned | Stage::RequestRemoved | Stage::NodeRequested | Stage::Upgraded => None,
    }
}

/// The running item of a machine that the update added.
fn added(row: &MachineRow) -> Option<&'static str> {
    let runs = |added: &&Added| {
        let status = row.statuses.iter().find(|(name, _)| name.as_str() == added.item_name());
        status.is_some_and(|(_, status)| status.state == ItemState::Running)
    };
    let running = row.update.as_ref()?.added.iter().find(runs)?;
    match running.item_name() {
        SWARM_COPY_ITEM => Some("backups"),
        CONSISTENT_COPY_ITEM => Some("consistent copy"),
        _ => running.is_before().then_some("hooks before"),
    }
}

impl World {
    /// In a second run an operator targets a stage of the update that begins.
    pub(crate) fn plan_intervention(&mut self) {
        let Some(mut dice) = self.second_life.clone() else { return };
        let possible = INTERVENTIONS.iter().filter(|(_, _, needs)| self.has(*needs));
        let weighed: Vec<_> = possible.flat_map(|(stages, often, _)| std::iter::repeat_n(*stages, *often)).collect();
        let aborts = dice.permille(500);
        self.intervention = dice.pick(&weighed).map(|stages| Intervention { stages, aborts });
        self.second_life = Some(dice);
    }

    /// In a second run, controllers that would release all machines may release only some at once.
    pub(crate) fn limit_controllers(&mut self) {
        let Some(dice) = &mut self.second_life else { return };
        for controller in self.controllers.iter_mut().filter(|controller| controller.manner == Manner::Willing) {
            if dice.permille(700) {
                controller.manner = Manner::Grants(if dice.permille(700) { 2 } else { 3 });
            }
        }
    }

    fn has(&self, needs: Needs) -> bool {
        let hooks = self.facts().and_then(|facts| facts.spec(&manifest::cluster_name())).map(|spec| &spec.update_hooks);
        match needs {
            Needs::Nothing => true,
            Needs::HooksBefore => hooks.is_some_and(|hooks| !hooks.before.is_empty()),
            Needs::HooksAfter => hooks.is_some_and(|hooks| !hooks.after.is_empty()),
            Needs::Swarm => self.plan.swarm,
            Needs::Kubernetes => self.kubernetes.is_some(),
            Needs::Controllers => !self.controllers.is_empty(),
        }
    }

    /// The operator acts if the update is at the targeted stage.
    pub(crate) fn intervene(&mut self) -> Result<(), Violation> {
        let Some(Intervention { stages: awaited, aborts }) = self.intervention else { return Ok(()) };
        let name = manifest::cluster_name();
        let at = self.facts().map(|facts| stages(facts, &name)).unwrap_or_default();
        let there = awaited.iter().any(|stage| at.contains(stage));
        let comes = there && self.second_life.as_mut().is_some_and(|dice| dice.permille(COMES_PERMILLE));
        let rollout = self.facts().and_then(|facts| facts.open_rollout(&name)).map(|rollout| rollout.name.clone());
        let Some(rollout) = rollout.filter(|_| comes) else { return Ok(()) };
        let (what, request) = if aborts {
            ("update aborted", Request::Abort { rollout })
        } else {
            ("update paused", Request::Pause { rollout })
        };
        if self.operator(request)?.is_ok() {
            self.intervention = None;
            self.count(what);
            self.count_at(what, &at);
        }
        Ok(())
    }

    /// Counts an operator's action at these stages of an update.
    pub(crate) fn count_at(&mut self, what: &str, stages: &BTreeSet<&'static str>) {
        if matches!(what, "update paused" | "update aborted") {
            stages.iter().for_each(|stage| self.reached.count_named(&format!("{what} at"), stage));
        }
    }
}
