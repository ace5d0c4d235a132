//! The operator at rest: follows each reason's advice until every machine is Ready.

use std::collections::BTreeSet;

use muster_coordinator::core::{Request, update::Options};
use muster_coordinator::facts::{MachineRow, RemovalRow};
use muster_coordinator::plan::{
    blocked,
    survey::{State, Survey},
    update::drain::NOBODY_TO_ASK,
};
use muster_proto::model::{ItemName, MachineType, Reason, RemovalPolicy, Scope, Standing};

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
        let Some(survey) = Survey::of(core.facts(), &manifest::cluster_name(), &limits, now) else { return Ok(()) };
        for position in &survey.machines {
            if position.state() != State::Ready || position.row.update.is_some() {
                let reason = blocked::of_machine(&survey, position);
                let detail = format!("{} is {} for good: {reason:?}", position.row.name, position.state().as_str());
                return Err(self.watcher.violation("10", detail));
            }
        }
        Ok(())
    }

    /// After a recovery, operators check the nodes of all machines outside of rollouts and maintenance.
    fn look_at_nodes(&mut self) {
        let rows = self.facts().map(|facts| facts.machines.values().cloned().collect::<Vec<_>>()).unwrap_or_default();
        let updating = self.plan.update;
        for row in rows.iter().filter(|row| updating && row.update.is_none() && !row.in_doubt) {
            self.serve_again(&row.name);
        }
    }

    /// One round. Returns whether a person was needed.
    fn resolve_once(&mut self) -> Result<bool, Violation> {
        let now = self.now();
        let limits = LIMITS;
        let Some(core) = &self.coordinator else { return Ok(false) };
        let Some(survey) = Survey::of(core.facts(), &manifest::cluster_name(), &limits, now) else { return Ok(false) };
        if survey.of_type(MachineType::Control).next().is_none() {
            // All were removed before there was a cluster: one must return to make it.
            let control = self.machines.iter().position(|machine| machine.machine_type == MachineType::Control);
            return control.map_or(Ok(false), |index| self.come_again(index).map(|()| true));
        }
        let mut wishes = Vec::new();
        let is_new = |row: &MachineRow| row.spec.machine_type == MachineType::Control && row.ready_at.is_none();
        let a_control_waits = survey.machines.iter().any(|position| is_new(position.row));
        let (mut replaced, mut outside, mut foreign) = (Vec::new(), Vec::new(), Vec::new());
        let (mut adrift, mut dead) = (Vec::new(), Vec::new());
        let (mut degraded, mut behind, mut doubted) = (false, false, Vec::new());
        let mut without_secret = BTreeSet::new();
        for position in &survey.machines {
            let Some(blocked) = blocked::of_machine(&survey, position) else { continue };
            let machine = position.row.name.clone();
            if self.trace {
                eprintln!("{} the operator reads: {machine}: {blocked:?}", self.at);
            }
            match blocked.reason {
                Reason::RemovalNeedsAgent
                | Reason::LeavingSwarm
                | Reason::Revoked
                | Reason::Lost
                | Reason::LedgerBehind
                    if position.row.removal.is_some() =>
                {
                    dead.push(machine);
                }
                Reason::Quorum if blocked.clears_when.contains("maintenance leave") => {
                    wishes.push(Request::LeaveMaintenance { machine });
                }
                Reason::Quorum if blocked.clears_when.contains("--accept-control-plane-downtime") => {
                    match &position.row.removal {
                        Some(RemovalRow { policy, .. }) => {
                            let policy = *policy;
                            wishes.push(Request::Remove { machine, policy, accept_control_plane_downtime: true });
                        }
                        None => {
                            wishes
                                .extend(survey.rollout.map(|rollout| Request::Abort { rollout: rollout.name.clone() }));
                        }
                    }
                }
                Reason::Quorum if position.row.removal.is_some() => adrift.push((machine, false)),
                Reason::Failed | Reason::Indeterminate => {
                    let items = position.items.unwrap_or_default().iter();
                    let stuck = items
                        .filter(|item| matches!(position.standing(item), Standing::Failed | Standing::Held))
                        .map(|item| item.name.clone());
                    let said =
                        |what: &NotEntered| position.row.statuses.values().any(|status| status.message == what.message);
                    if said(&FOREIGN) {
                        foreign.push(machine.clone());
                    }
                    if said(&QUORUM_AT_RISK) {
                        adrift.push((machine.clone(), false));
                    }
                    let nothing_to_copy = |item: &ItemName| {
                        let status = position.row.statuses.get(item);
                        status.is_some_and(|status| status.message == NOT_MANAGER.message)
                    };
                    wishes.extend(stuck.map(|item| {
                        let (without, machine) = (nothing_to_copy(&item), machine.clone());
                        let item = Some(item);
                        if without { Request::Skip { machine, item } } else { Request::Retry { machine, item } }
                    }));
                }
                Reason::RecoveredInDoubt if position.row.in_doubt => doubted.push(machine),
                Reason::NotUpToDate => behind = true,
                Reason::InMaintenance => wishes.push(Request::LeaveMaintenance { machine }),
                // No manager could be spared, however long it waited: an operator accepts that.
                Reason::Deferred | Reason::Refused | Reason::Paused | Reason::Quorum
                    if blocked.message.contains("its swarm has only") =>
                {
                    wishes.extend(survey.rollout.map(|rollout| Request::Abort { rollout: rollout.name.clone() }));
                }
                // The replacement is deployed, and creates a swarm, when the update is over.
                Reason::Deferred | Reason::Refused
                    if a_control_waits && blocked.message.contains("no manager of the swarm") =>
                {
                    wishes.extend(survey.rollout.map(|rollout| Request::Abort { rollout: rollout.name.clone() }));
                }
                Reason::Deferred | Reason::Refused => {
                    degraded |= blocked.message.contains("services");
                    if blocked.message.contains("swarm") {
                        adrift.push((machine.clone(), nobody_knows_it(&blocked.message)));
                    }
                    wishes.push(Request::Retry { machine, item: None });
                }
                Reason::Paused if a_control_waits && blocked.message.contains("no manager of the swarm") => {
                    wishes.extend(survey.rollout.map(|rollout| Request::Abort { rollout: rollout.name.clone() }));
                }
                // Its managers have left the fleet: their replacement creates a swarm when the update is over.
                Reason::SwarmNoManager if a_control_waits => {
                    adrift.push((machine, true));
                    wishes.extend(survey.rollout.map(|rollout| Request::Abort { rollout: rollout.name.clone() }));
                }
                Reason::SwarmNoManager | Reason::SwarmNodeUnknown => {
                    adrift.push((machine, blocked.reason == Reason::SwarmNodeUnknown))
                }
                Reason::ServiceDegraded => degraded = true,
                // Reasons from before the pause are still reported.
                Reason::Paused | Reason::Quorum
                    if ["is not deployed", "the control plane is down"]
                        .iter()
                        .any(|why| blocked.message.contains(why)) =>
                {
                    wishes.extend(survey.rollout.map(|rollout| Request::Abort { rollout: rollout.name.clone() }));
                }
                Reason::Paused => {
                    degraded |= blocked.message.contains("services");
                    if blocked.message.contains("swarm") {
                        adrift.push((machine, nobody_knows_it(&blocked.message)));
                    }
                    wishes.extend(survey.rollout.map(|rollout| Request::Resume { rollout: rollout.name.clone() }))
                }
                Reason::BeforeUpdate if blocked.message.contains("has left") => {
                    wishes.extend(survey.rollout.map(|rollout| Request::Abort { rollout: rollout.name.clone() }))
                }
                Reason::ControlNotDeployed if blocked.clears_when.contains("--abort") => {
                    wishes.push(Request::AbortRemoval { machine });
                }
                Reason::ControlNotDeployed => {
                    wishes.extend(survey.rollout.map(|rollout| Request::Abort { rollout: rollout.name.clone() }))
                }
                // A machine revoked since the copy was made is revoked again.
                Reason::ControlsAtWork if position.row.id.is_some_and(|id| self.watcher.was_shut_out(id)) => {
                    wishes.push(Request::RevokeMachine { machine, machine_is_off: false });
                }
                Reason::WaitingForSwarm => outside.push(machine),
                // The store is older than the secret.
                Reason::VariableWithoutValue if blocked.message.contains("'secret.") => {
                    without_secret.insert(position.row.spec.machine_type);
                }
                Reason::WaitingForMachines | Reason::DeployNotStarted => {
                    wishes.push(Request::Deploy { cluster: manifest::cluster_name() });
                }
                Reason::Lost
                | Reason::RebootOverdue
                | Reason::Revoked
                | Reason::NotReported
                | Reason::NotEnrolled
                | Reason::LedgerBehind => {
                    replaced.push(machine);
                }
                // No operator repairs a ledger here: another machine replaces it, unless it is being removed.
                Reason::UnprovenLedger if self.machines.iter().any(|of| of.name == machine && of.swapped_ledger) => {
                    if position.row.removal.is_some() {
                        dead.push(machine)
                    } else {
                        replaced.push(machine)
                    }
                }
                _ => {}
            }
        }
        if behind && survey.rollout.is_none() {
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
        for wish in wishes {
            self.operator(wish)?.ok();
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

/// Is the worker's node unknown to the whole fleet?
fn nobody_knows_it(message: &str) -> bool {
    message.contains("do not know") || message.contains(NOBODY_TO_ASK)
}
