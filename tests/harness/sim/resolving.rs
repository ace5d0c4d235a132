//! The operator at rest: follows each reason's advice until every machine is Ready.

use std::collections::BTreeSet;

use muster_coordinator::core::{Request, update::Options};
use muster_coordinator::facts::{MachineRow, RemovalRow};
use muster_coordinator::plan::{
    blocked,
    drain::swarm::NOBODY_TO_ASK,
    snapshot::{ClusterSnapshot, MachineView, State},
};
use muster_proto::model::{Blocked, ItemName, ItemProgress, MachineName, MachineType, Reason, RemovalPolicy, Scope};

use super::{
    LIMITS, World,
    copies::{NOT_MANAGER, QUORUM_AT_RISK},
    fate::Fate,
    manifest,
    swarm::{FOREIGN, NotEntered},
};
use crate::invariants::Violation;

/// Most rounds of the operator.
const PATIENCE_ROUNDS: usize = 60;

impl World {
    /// The operator follows each reason's advice; then everything must become Ready.
    pub(crate) fn resolve_everything(&mut self) -> Result<(), Violation> {
        self.controllers_behave();
        self.rest()?;
        self.look_at_nodes();
        self.plan.fate = Fate { fail_permille: 0, hopeless_permille: 0, lost_permille: 0, ..self.plan.fate };
        for _ in 0..PATIENCE_ROUNDS {
            if !self.resolve_once()? {
                break;
            }
            self.rest()?;
        }
        self.watcher.settled(&self.machines, self.coordinator.as_ref())?;
        let now = self.now();
        let Some(core) = &self.coordinator else { return Ok(()) };
        self.watcher.nothing_is_held(core.facts())?;
        self.nodes_are_given_back()?;
        let Some(core) = &self.coordinator else { return Ok(()) };
        let limits = LIMITS;
        let Some(snapshot) = ClusterSnapshot::of(core.facts(), &manifest::cluster_name(), &limits, now) else {
            return Ok(());
        };
        for view in &snapshot.machines {
            if view.state() != State::Ready || view.row.update.is_some() {
                let reason = blocked::of_machine(&snapshot, view);
                let detail = format!("{} is {} for good: {reason:?}", view.row.name, view.state().as_str());
                return Err(self.watcher.violation("10", detail));
            }
        }
        self.no_cordon_is_left()?;
        self.handshake_is_over()
    }

    /// After a recovery, operators check the nodes of all machines outside of rollouts and maintenance.
    fn look_at_nodes(&mut self) {
        let rows = self.facts().map(|facts| facts.machines.values().cloned().collect::<Vec<_>>()).unwrap_or_default();
        let updating = self.plan.update;
        for row in rows.iter().filter(|row| updating && row.update.is_none() && !row.needs_review) {
            self.serve_again(&row.name);
        }
    }

    /// One round. Returns whether a person was needed.
    fn resolve_once(&mut self) -> Result<bool, Violation> {
        let now = self.now();
        let limits = LIMITS;
        let Some(core) = &self.coordinator else { return Ok(false) };
        let Some(snapshot) = ClusterSnapshot::of(core.facts(), &manifest::cluster_name(), &limits, now) else {
            return Ok(false);
        };
        if snapshot.of_type(MachineType::Control).next().is_none() {
            // All were removed before there was a cluster: one must return to make it.
            let control = self.machines.iter().position(|machine| machine.machine_type == MachineType::Control);
            return control.map_or(Ok(false), |index| self.come_again(index).map(|()| true));
        }
        let is_new = |row: &MachineRow| row.spec.machine_type == MachineType::Control && row.ready_at.is_none();
        let a_control_waits = snapshot.machines.iter().any(|view| is_new(view.row));
        let mut advice = Advice::default();
        for view in &snapshot.machines {
            let Some(blocked) = blocked::of_machine(&snapshot, view) else { continue };
            if self.trace {
                eprintln!("{} the operator reads: {}: {blocked:?}", self.at, view.row.name);
            }
            Reading { world: self, snapshot: &snapshot, view, blocked: &blocked, a_control_waits }.note(&mut advice);
        }
        let idle = snapshot.rollout.is_none();
        self.follow(advice, idle)
    }

    /// Does what the reasons advise. `idle`: no rollout is open. Returns whether there was anything to do.
    fn follow(&mut self, advice: Advice, idle: bool) -> Result<bool, Violation> {
        let Advice {
            mut wishes,
            replaced,
            outside,
            foreign,
            adrift,
            dead,
            degraded,
            behind,
            doubted,
            without_secret,
            ..
        } = advice;
        let requests = advice.requests && self.mend_handshake();
        let undrained = advice.undrained && self.mend_kubernetes(&advice.uncordoned);
        if behind && idle {
            let options = Options { accept_control_plane_downtime: true, ..Options::of(Scope::Os) };
            wishes.push(Request::Update { cluster: manifest::cluster_name(), options });
        }
        for machine in doubted {
            self.serve_again(&machine);
            wishes.push(Request::LeaveMaintenance { machine });
        }
        let mended = !outside.is_empty() && self.mend_swarms();
        if wishes.is_empty() && replaced.is_empty() && !mended && !self.has_swarm() {
            // No machine is left that could create it: the cluster goes without.
            outside.iter().for_each(|_| self.count("went without a swarm"));
            let item = Some(manifest::join_name());
            wishes.extend(outside.into_iter().map(|machine| Request::Skip { machine, item: item.clone() }));
        }
        let scaled = degraded && self.scale_down();
        let something = scaled
            || undrained
            || requests
            || (!adrift.is_empty() && self.bring_home(&adrift))
            || !wishes.is_empty()
            || !replaced.is_empty()
            || !dead.is_empty()
            || !without_secret.is_empty()
            || mended;
        for machine_type in without_secret {
            self.count("a secret that the store had lost was created");
            self.create_secret(machine_type)?;
        }
        for name in foreign {
            self.leave_swarm(&name);
        }
        for desired in wishes {
            self.operator(desired)?.ok();
        }
        self.note_skips();
        for name in dead {
            if let Some(index) = self.machines.iter().position(|machine| machine.name == name) {
                self.remove(index, RemovalPolicy::Forced)?;
            }
        }
        for name in replaced {
            let index = self.machines.iter().position(|machine| machine.name == name);
            if let Some(index) = index {
                self.replace(index)?;
            }
        }
        Ok(something)
    }
}

/// What an operator is to do about all machines together.
#[derive(Default)]
struct Advice {
    wishes: Vec<Request>,
    /// Other machines take their places.
    replaced: Vec<MachineName>,
    /// They wait for a swarm.
    outside: Vec<MachineName>,
    /// They are in a swarm of others.
    foreign: Vec<MachineName>,
    /// Their nodes need a look, and whether the fleet does not know the node.
    adrift: Vec<(MachineName, bool)>,
    /// They are removed, and never come back.
    dead: Vec<MachineName>,
    /// Services have fewer tasks than they want.
    degraded: bool,
    /// A machine lacks what only an update brings about.
    behind: bool,
    /// They need review.
    doubted: Vec<MachineName>,
    /// Something may keep requests in Kubernetes.
    requests: bool,
    /// A Kubernetes node may not be drained as things are.
    undrained: bool,
    /// An operator uncordoned their nodes in the middle of an update, which paused.
    uncordoned: Vec<MachineName>,
    /// Machines of these types lack a secret.
    without_secret: BTreeSet<MachineType>,
}

/// One machine's reason, as its operator reads it.
struct Reading<'a> {
    world: &'a World,
    snapshot: &'a ClusterSnapshot<'a>,
    view: &'a MachineView<'a>,
    blocked: &'a Blocked,
    /// A control machine waits for its deployment.
    a_control_waits: bool,
}

impl Reading<'_> {
    /// The first group of reasons that knows this one gives the advice.
    fn note(&self, advice: &mut Advice) {
        let groups = [
            Self::of_removal,
            Self::of_items,
            Self::of_state,
            Self::of_kubernetes,
            Self::of_swarm,
            Self::of_pause,
            Self::of_others,
            Self::of_record,
        ];
        groups.iter().any(|group| group(self, advice));
    }

    fn abort(&self) -> Option<Request> {
        self.snapshot.rollout.map(|rollout| Request::Abort { rollout: rollout.name.clone() })
    }

    /// Removals, and what needs the quorum.
    fn of_removal(&self, advice: &mut Advice) -> bool {
        let machine = self.view.row.name.clone();
        match self.blocked.reason {
            Reason::RemovalNeedsAgent
            | Reason::LeavingSwarm
            | Reason::LeavingKubernetes
            | Reason::Revoked
            | Reason::Lost
            | Reason::LedgerBehind
                if self.view.row.removal.is_some() =>
            {
                advice.dead.push(machine);
            }
            // Nobody says whose its node is.
            Reason::KubernetesNodeUnclear | Reason::KubernetesUnavailable if self.view.row.departs() => {
                advice.dead.push(machine);
            }
            // The swarm's managers have left the fleet.
            Reason::SwarmNoManager if self.blocked.clears_when.contains("--policy forced") => advice.dead.push(machine),
            Reason::Quorum if self.blocked.clears_when.contains("maintenance leave") => {
                advice.wishes.push(Request::LeaveMaintenance { machine });
            }
            Reason::Quorum if self.blocked.clears_when.contains("--accept-control-plane-downtime") => {
                match &self.view.row.removal {
                    Some(RemovalRow { policy, .. }) => {
                        let policy = *policy;
                        advice.wishes.push(Request::Remove { machine, policy, accept_control_plane_downtime: true });
                    }
                    None => {
                        advice.wishes.extend(self.abort());
                    }
                }
            }
            Reason::Quorum if self.view.row.removal.is_some() => advice.adrift.push((machine, false)),
            _ => return false,
        }
        true
    }

    /// Items that failed, or whose end is unknown.
    fn of_items(&self, advice: &mut Advice) -> bool {
        let machine = self.view.row.name.clone();
        match self.blocked.reason {
            Reason::Failed | Reason::Indeterminate => {
                let items = self.view.items.unwrap_or_default().iter();
                let stuck = items
                    .filter(|item| matches!(self.view.standing(item), ItemProgress::Failed | ItemProgress::Held))
                    .map(|item| item.name.clone());
                let said =
                    |what: &NotEntered| self.view.row.statuses.values().any(|status| status.message == what.message);
                if said(&FOREIGN) {
                    advice.foreign.push(machine.clone());
                }
                if said(&QUORUM_AT_RISK) {
                    advice.adrift.push((machine.clone(), false));
                }
                let nothing_to_copy = |item: &ItemName| {
                    let status = self.view.row.statuses.get(item);
                    status.is_some_and(|status| status.message == NOT_MANAGER.message)
                };
                advice.wishes.extend(stuck.map(|item| {
                    let (without, machine) = (nothing_to_copy(&item), machine.clone());
                    let item = Some(item);
                    if without { Request::Skip { machine, item } } else { Request::Retry { machine, item } }
                }));
            }
            _ => return false,
        }
        true
    }

    /// Machines that need review, maintenance or an update.
    fn of_state(&self, advice: &mut Advice) -> bool {
        let machine = self.view.row.name.clone();
        match self.blocked.reason {
            Reason::RecoveredInDoubt if self.view.row.needs_review => advice.doubted.push(machine),
            Reason::NotUpToDate => advice.behind = true,
            Reason::InMaintenance => advice.wishes.push(Request::LeaveMaintenance { machine }),
            _ => return false,
        }
        true
    }

    /// Kubernetes nodes that could not be drained. The first group of reasons that follows knows what else to do.
    fn of_kubernetes(&self, advice: &mut Advice) -> bool {
        let machine = self.view.row.name.clone();
        if self.world.kubernetes.is_none() {
            return false;
        }
        match self.blocked.reason {
            Reason::KubernetesUnavailable if self.blocked.message.contains("there is no secret") => {
                advice.without_secret.insert(MachineType::Control);
            }
            Reason::KubernetesNodeNotRestored
                if self.view.row.owed_cordon.as_ref().is_some_and(|owed| owed.needs_review) =>
            {
                advice.wishes.push(Request::LeaveMaintenance { machine });
            }
            Reason::KubernetesUndrainable => {
                advice.undrained = true;
                advice.wishes.push(Request::Retry { machine, item: None });
            }
            Reason::KubernetesUncordoned => {
                advice.undrained = true;
                if self.view.row.slot.is_some() {
                    advice.uncordoned.push(machine.clone());
                }
                advice.wishes.push(Request::Retry { machine, item: None });
            }
            Reason::KubernetesPreflight
            | Reason::LocksReturning
            | Reason::ForeignRequest
            | Reason::ControllerCannotSee => advice.requests = true,
            Reason::KubernetesDraining
            | Reason::KubernetesNodeNotFound
            | Reason::KubernetesNodeUnclear
            | Reason::KubernetesPodStuck
            | Reason::KubernetesPodReturns
            | Reason::KubernetesUnavailable
            | Reason::KubernetesUncordoning => advice.undrained = true,
            Reason::Deferred | Reason::Refused | Reason::Paused => {
                advice.undrained = true;
                if self.blocked.message.contains("maintenance leave") {
                    advice.wishes.push(Request::LeaveMaintenance { machine: machine.clone() });
                }
                if self.blocked.reason == Reason::Paused && self.blocked.message.contains("schedulable while") {
                    advice.uncordoned.push(machine);
                }
                return false;
            }
            _ => return false,
        }
        true
    }

    /// Drains that were refused, and swarms without managers.
    fn of_swarm(&self, advice: &mut Advice) -> bool {
        let machine = self.view.row.name.clone();
        match self.blocked.reason {
            // No manager could be spared, however long it waited: an operator accepts that.
            Reason::Deferred | Reason::Refused | Reason::Paused | Reason::Quorum
                if self.blocked.message.contains("its swarm has only") =>
            {
                advice.wishes.extend(self.abort());
            }
            // The replacement is deployed, and creates a swarm, when the update is over.
            Reason::Deferred | Reason::Refused
                if self.a_control_waits && self.blocked.message.contains("no manager of the swarm") =>
            {
                advice.wishes.extend(self.abort());
            }
            Reason::Deferred | Reason::Refused => {
                advice.degraded |= self.blocked.message.contains("services");
                if self.blocked.message.contains("swarm") {
                    advice.adrift.push((machine.clone(), nobody_knows_it(&self.blocked.message)));
                }
                advice.wishes.push(Request::Retry { machine, item: None });
            }
            Reason::Paused if self.a_control_waits && self.blocked.message.contains("no manager of the swarm") => {
                advice.wishes.extend(self.abort());
            }
            // Its managers have left the fleet: their replacement creates a swarm when the update is over.
            Reason::SwarmNoManager if self.a_control_waits => {
                advice.adrift.push((machine, true));
                advice.wishes.extend(self.abort());
            }
            Reason::SwarmNoManager | Reason::SwarmNodeUnknown => {
                advice.adrift.push((machine, self.blocked.reason == Reason::SwarmNodeUnknown))
            }
            _ => return false,
        }
        true
    }

    /// Pauses, and services without enough tasks.
    fn of_pause(&self, advice: &mut Advice) -> bool {
        let machine = self.view.row.name.clone();
        match self.blocked.reason {
            Reason::ServiceDegraded => advice.degraded = true,
            // Reasons from before the pause are still reported.
            Reason::Paused | Reason::Quorum
                if ["is not deployed", "the control plane is down"]
                    .iter()
                    .any(|why| self.blocked.message.contains(why)) =>
            {
                advice.wishes.extend(self.abort());
            }
            Reason::Paused => {
                advice.degraded |= self.blocked.message.contains("services");
                if self.blocked.message.contains("swarm") {
                    advice.adrift.push((machine, nobody_knows_it(&self.blocked.message)));
                }
                advice
                    .wishes
                    .extend(self.snapshot.rollout.map(|rollout| Request::Resume { rollout: rollout.name.clone() }))
            }
            _ => return false,
        }
        true
    }

    /// What others have to do first.
    fn of_others(&self, advice: &mut Advice) -> bool {
        let machine = self.view.row.name.clone();
        match self.blocked.reason {
            Reason::BeforeUpdate if self.blocked.message.contains("has left") => advice.wishes.extend(self.abort()),
            Reason::ControlNotDeployed if self.blocked.clears_when.contains("--abort") => {
                advice.wishes.push(Request::AbortRemoval { machine });
            }
            Reason::ControlNotDeployed => advice.wishes.extend(self.abort()),
            // A machine revoked since the copy was made is revoked again.
            Reason::ControlsAtWork if self.view.row.id.is_some_and(|id| self.world.watcher.was_shut_out(id)) => {
                advice.wishes.push(Request::RevokeMachine { machine, machine_is_off: false });
            }
            // What makes the swarm is deployed after the update, which waits for this machine.
            Reason::WaitingForSwarm if self.blocked.message.contains("musterctl skip") => {
                advice.wishes.push(Request::Skip { machine, item: Some(manifest::join_name()) });
            }
            Reason::WaitingForSwarm => advice.outside.push(machine),
            // The store is older than the secret.
            Reason::VariableWithoutValue if self.blocked.message.contains("'secret.") => {
                advice.without_secret.insert(self.view.row.spec.machine_type);
            }
            _ => return false,
        }
        true
    }

    /// Machines that are missing from the record or from the fleet.
    fn of_record(&self, advice: &mut Advice) -> bool {
        let machine = self.view.row.name.clone();
        match self.blocked.reason {
            Reason::WaitingForMachines | Reason::DeployNotStarted => {
                advice.wishes.push(Request::Deploy { cluster: manifest::cluster_name() });
            }
            Reason::Lost
            | Reason::RebootOverdue
            | Reason::Revoked
            | Reason::NotReported
            | Reason::NotEnrolled
            | Reason::LedgerBehind => {
                advice.replaced.push(machine);
            }
            // No operator repairs a ledger here: another machine replaces it, unless it is being removed.
            Reason::UnprovenLedger
                if self.world.machines.iter().any(|of| of.name == machine && of.may_be_doubted()) =>
            {
                if self.view.row.removal.is_some() { advice.dead.push(machine) } else { advice.replaced.push(machine) }
            }
            _ => return false,
        }
        true
    }
}

/// Is the worker's node unknown to the whole fleet?
fn nobody_knows_it(message: &str) -> bool {
    message.contains("do not know") || message.contains(NOBODY_TO_ASK)
}
