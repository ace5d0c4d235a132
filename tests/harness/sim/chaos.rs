//! Random faults, and operators in the middle of them.

use muster_agent::core::Input as AgentInput;
use muster_coordinator::{core::Request, facts::MachineRow};
use muster_proto::model::{AuthCode, MachineId, MachineType, SwarmCall, SwarmOp};

use super::{
    Event, World,
    machine::{Machine, uuid_of},
    manifest,
    network::{Parcel, Said},
};
use crate::{invariants::Violation, rng::Rng};

/// Permille of events with a machine returning its request at which it is cut off.
const LATE_LISTS_PERMILLE: u64 = 20;

/// Permille of faults that also copy a ledger, or restore the copy.
const LEDGER_FAULTS_PERMILLE: u64 = 60;

/// Points at which a process may crash.
pub(crate) const AGENT_CRASH: &str = "agent crashed between effects";
pub(crate) const BEFORE_COMMIT: &str = "coordinator crashed before its commit";
pub(crate) const BETWEEN_EFFECTS: &str = "coordinator crashed between effects";

impl World {
    /// Does a process crash here? In chaos this is random.
    pub(crate) fn crash_now(&mut self, what: &'static str) -> bool {
        let due = self.crash_in.take();
        self.crash_in = due.and_then(|effects| effects.checked_sub(1));
        let crash = due == Some(0) || (self.chaos && self.rng.permille(self.plan.crash_permille));
        if crash {
            self.count(what);
        }
        crash
    }

    pub(crate) fn crash_agent(&mut self, index: usize) {
        self.drop_session(index);
        let delay = self.rng.between(10, 6_000);
        if let Some(machine) = self.machines.get_mut(index) {
            machine.crash_agent();
        }
        self.later(delay, Event::StartAgent(index));
    }

    pub(crate) fn cut_power(&mut self, index: usize, off_ms: u64) -> Result<(), Violation> {
        self.break_join(index)?;
        self.drop_session(index);
        if let Some(machine) = self.machines.get_mut(index) {
            machine.power_off();
        }
        self.later(off_ms, Event::PowerOn(index));
        Ok(())
    }

    pub(crate) fn live_through_chaos(&mut self) -> Result<(), Violation> {
        let until = self.at + self.plan.chaos_ms;
        let pause = self.rng.between(500, 20_000);
        self.later(pause, Event::Operate);
        while self.next_event(until)? {
            self.late_list();
            self.intervene()?;
            self.inject_targeted_fault()?;
            self.kubernetes_fault()?;
            if self.rng.permille(self.plan.fault_permille) {
                self.fault()?;
                self.engine_fault();
                self.ledger_fault();
                self.lose_commits()?;
            }
        }
        self.at = until;
        Ok(())
    }

    pub(crate) fn any_machine(&mut self) -> usize {
        let last = u64::try_from(self.machines.len().max(1) - 1).unwrap_or(0);
        usize::try_from(self.rng.between(0, last)).unwrap_or(0)
    }

    /// The Docker Engine of a control machine is down for a while during an update; its agent keeps running. Uses
    /// separate random numbers.
    fn engine_fault(&mut self) {
        let mut dice = Rng::new(self.rng.clone().next());
        let rollout = self.facts().and_then(|facts| facts.open_rollout(&manifest::cluster_name()));
        if rollout.is_none_or(|rollout| rollout.update.is_none()) {
            return;
        }
        let managers = self.machines.iter_mut().filter(|machine| machine.engine.as_ref().is_some_and(|at| at.manager));
        let mut managers: Vec<&mut Machine> = managers.collect();
        let last = u64::try_from(managers.len().max(1) - 1).unwrap_or(0);
        let chosen = usize::try_from(dice.between(0, last)).unwrap_or(0);
        let Some(machine) = managers.get_mut(chosen).filter(|_| dice.permille(150)) else { return };
        machine.engine_down_until = self.at + dice.between(5_000, 60_000);
        self.count("a manager's engine went down");
    }

    /// Copies the ledger of a machine, or restores the copy, while the files beside it stay. Uses separate random
    /// numbers.
    fn ledger_fault(&mut self) {
        let mut dice = Rng::new(!self.rng.clone().next());
        let last = u64::try_from(self.machines.len().max(1) - 1).unwrap_or(0);
        let index = usize::try_from(dice.between(0, last)).unwrap_or(0);
        let Some(machine) = self.machines.get_mut(index).filter(|_| dice.permille(LEDGER_FAULTS_PERMILLE)) else {
            return;
        };
        if machine.put_ledger_back() {
            let id = machine.id;
            self.watcher.ledger_put_back(id);
            self.count("ledger put back under newer attempts");
            self.crash_agent(index);
        }
    }

    /// Cuts off a machine that was disturbed and returns its request; then its list changes with the address of the
    /// first control machine. Uses separate random numbers.
    fn late_list(&mut self) {
        let mut dice = Rng::new(self.rng.clone().next());
        let gives_back = |row: &MachineRow| {
            row.slot.is_some()
                && row.update.as_ref().is_some_and(|mine| mine.returned_at_ms.is_some() && mine.disturbed())
        };
        let facts = self.facts();
        let rows = facts.into_iter().flat_map(|facts| facts.machines.values());
        let Some(row) = rows.into_iter().find(|row| gives_back(row)) else { return };
        let Some(index) = row.id.and_then(|id| self.index_of(id)).filter(|_| dice.permille(LATE_LISTS_PERMILLE)) else {
            return;
        };
        let control = manifest::machine_name(MachineType::Control, 1);
        let control = self.machines.iter().position(|machine| machine.name == control && machine.session.is_some());
        let Some(control) = control.filter(|control| *control != index) else { return };
        if let Some(machine) = self.machines.get_mut(index) {
            machine.cut_off_until = self.at + dice.between(20_000, 60_000);
        }
        self.drop_session(index);
        self.readdress(control, Some(format!("10.1.{}.1", dice.between(1, 254))));
        self.count("a list changed behind a machine that gives back");
    }

    fn fault(&mut self) -> Result<(), Violation> {
        let index = self.any_machine();
        if self.rng.permille(self.plan.old_store_permille) {
            return self.old_store();
        }
        match self.rng.between(0, 13) {
            0 => {
                self.count("agent killed");
                self.crash_agent(index);
            }
            1 => {
                self.count("power cut");
                let off_ms = if self.rng.permille(200) {
                    self.rng.between(30_000, 90_000)
                } else {
                    self.rng.between(500, 9_000)
                };
                self.cut_power(index, off_ms)?;
            }
            2 => {
                self.count("partition");
                let until = self.at + self.rng.between(500, 50_000);
                if let Some(machine) = self.machines.get_mut(index) {
                    machine.cut_off_until = until;
                }
                self.drop_session(index);
            }
            3 => {
                self.count("stream broken");
                self.drop_session(index);
            }
            4 => {
                self.count("coordinator killed");
                self.crash_coordinator();
            }
            5 => {
                self.count("clock jumped");
                let skew = self.rng.between(0, 400 * 24 * 3600 * 1000);
                if let Some(machine) = self.machines.get_mut(index) {
                    machine.clock_skew_ms = skew;
                }
            }
            6 => {
                self.count("disk full");
                let noticed = Rng::new(self.rng.clone().next()).permille(500);
                if let Some(machine) = self.machines.get_mut(index) {
                    machine.disk_full = true;
                }
                if noticed {
                    self.agent_input(index, AgentInput::DiskFull(true))?;
                }
            }
            7 => {
                if let Some(machine) = self.machines.get_mut(index) {
                    machine.disk_full = false;
                }
                self.agent_input(index, AgentInput::DiskFull(false))?;
            }
            8..=10 => self.ghost(index)?,
            11 => self.ask_for_any(index),
            12 => {
                // Occasionally it loses its address for a while.
                let address = self.rng.permille(800).then(|| format!("10.0.{}.1", self.rng.between(1, 254)));
                self.count(if address.is_some() { "address changed" } else { "address gone" });
                self.readdress(index, address);
            }
            _ => self.operate()?,
        }
        Ok(())
    }

    /// The machine gets another address, and its agent reports it.
    pub(crate) fn readdress(&mut self, index: usize, address: Option<String>) {
        let Some(machine) = self.machines.get_mut(index) else { return };
        machine.address = address;
        let (id, facts) = (machine.id, machine.facts());
        let Some(session) = machine.session else { return };
        self.carry(Parcel { index, id, session, what: Said::HostChanged(Box::new(facts)) });
    }

    /// A stale message arrives: from a superseded coordinator unaware of it, or an overtaken one. The agent must refuse
    /// it.
    fn ghost(&mut self, index: usize) -> Result<(), Violation> {
        let Some(machine) = self.machines.get(index).filter(|m| m.session.is_some() && m.agent.is_some()) else {
            return Ok(());
        };
        let (id, epoch, generation) = (machine.id, machine.disk.epoch, machine.disk.generation());
        let sent: Vec<_> = self.past.iter().filter(|(to, _)| *to == id).map(|(_, assignment)| assignment).collect();
        let Some(mut assignment) = self.rng.pick(&sent).map(|assignment| (*assignment).clone()) else { return Ok(()) };
        self.ghostly = true;
        if assignment.epoch < epoch {
            self.count("an old coordinator spoke");
            assignment.generation = generation.next();
            let epoch = assignment.epoch;
            self.agent_input(index, AgentInput::LinkUp { epoch, code: AuthCode::NONE })?;
            let op = SwarmOp::Tokens;
            self.agent_input(index, AgentInput::SwarmCalled(SwarmCall { id: 1, epoch, op }))?;
        } else if assignment.generation < generation {
            self.count("an overtaken assignment arrived");
        } else if assignment.generation == generation {
            self.count("a generation was used twice");
            for item in &mut assignment.items {
                item.timeout_ms += 1;
            }
        }
        self.agent_input(index, AgentInput::Received(assignment))?;
        self.ghostly = false;
        self.drop_session(index);
        Ok(())
    }

    /// Copies the store; the next time the old copy replaces it, while the whole fleet is up.
    pub(crate) fn old_store(&mut self) -> Result<(), Violation> {
        let Some(old) = self.old_disk.take() else {
            self.count("store copied");
            self.old_disk = Some(self.disk.clone());
            return Ok(());
        };
        self.count("old store restored");
        self.crash_coordinator();
        self.disk = old;
        self.store_went_back()
    }

    /// The store is older than what the fleet was told, and the whole fleet is up when it starts.
    pub(crate) fn store_went_back(&mut self) -> Result<(), Violation> {
        self.undo.forget();
        self.was_restored = true;
        self.watcher.store_restored();
        for index in 0..self.machines.len() {
            if let Some(machine) = self.machines.get_mut(index) {
                machine.cut_off_until = 0;
            }
            self.happen(Event::PowerOn(index))?;
            self.happen(Event::StartAgent(index))?;
        }
        // No agent can prove whose workloads an update has moved: only a recovery is safe.
        if self.plan.update {
            self.count("store from before an update's end recovered");
            self.nobody_knows_of_nodes();
            self.recover()?;
        }
        Ok(())
    }

    /// An operator takes an action, sensible or not.
    pub(crate) fn operate(&mut self) -> Result<(), Violation> {
        let pause = self.rng.between(300, 8_000);
        if self.chaos {
            self.later(pause, Event::Operate);
        }
        let index = self.any_machine();
        let Some(machine) = self.machines.get(index).map(|machine| machine.name.clone()) else { return Ok(()) };
        let (what, request) = match self.rng.between(0, if self.plan.update { 34 } else { 21 }) {
            7 => return self.operate_removal(index),
            0..=6 => ("retry", Request::Retry { machine, item: None }),
            8 | 9 => ("skip", Request::Skip { machine, item: None }),
            10 | 11 if self.is_outside(index) => return Ok(()),
            10 | 11 => ("accept", Request::Accept { machine, item: None }),
            12 | 13 => ("deploy", Request::Deploy { cluster: manifest::cluster_name() }),
            14..=16 => return self.edit_manifest(),
            17 | 18 => return self.replace(index),
            22..=24 => {
                self.set_availability();
                return Ok(());
            }
            19 => ("machine revoked", Request::RevokeMachine { machine, machine_is_off: false }),
            20 | 21 => return self.operate_secrets(),
            _ => return self.steer(),
        };
        let whom = self.trace.then(|| format!("{request:?}"));
        let answer = self.operator(request)?;
        if let Some(request) = whom {
            eprintln!("{} {request}: {}", self.at, if answer.is_ok() { "done" } else { "refused" });
        }
        if answer.is_ok() {
            self.count(what);
        }
        self.note_skips();
        Ok(())
    }

    fn edit_manifest(&mut self) -> Result<(), Violation> {
        let name = manifest::cluster_name();
        let Some(spec) = self.facts().and_then(|facts| facts.spec(&name)).map(|spec| (**spec).clone()) else {
            return Ok(());
        };
        let spec = manifest::edit(&mut self.rng, &spec);
        self.count("manifest edited");
        let clusters = [(name, (spec, std::collections::BTreeMap::new()))].into();
        self.operator(Request::Apply { clusters, machines: std::collections::BTreeMap::new(), dry_run: false })?.ok();
        Ok(())
    }

    /// A machine is reinstalled: rejected under its name until an operator runs `replace`.
    pub(crate) fn replace(&mut self, index: usize) -> Result<(), Violation> {
        let id = MachineId(uuid_of(&mut self.rng));
        let Some(name) = self.machines.get(index).map(|machine| machine.name.clone()) else { return Ok(()) };
        if self.facts().is_none_or(|facts| !facts.machines.contains_key(&name)) {
            return Ok(());
        }
        // A restored store may know of the `replace`, and not of the enrolment after it.
        if self.enroll(index, id)? && !self.was_restored {
            let detail = format!("{name} enrolled twice without `replace`");
            return Err(self.watcher.violation("name-taken", detail));
        }
        if self.operator(Request::ReplaceMachine { machine: name, machine_is_off: true })?.is_err() {
            return Ok(());
        }
        self.count("machine replaced");
        if let Some(machine) = self.machines.get_mut(index) {
            machine.power_off();
            machine.reinstall(id, self.at, &mut self.rng);
            // In half of the cases it has another address than before.
            if id.0.as_u128().is_multiple_of(2) {
                machine.address = Some(format!("10.0.254.{}", id.0.as_u128() % 254 + 1));
            }
        }
        let Some(machine_type) = self.machines.get(index).map(|machine| machine.machine_type) else { return Ok(()) };
        self.create_token(machine_type)?;
        self.enroll(index, id)?;
        self.later(100, Event::StartAgent(index));
        Ok(())
    }
}
