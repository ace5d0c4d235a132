//! Machines that invent numbers or change ledgers, and machines that were told more than the store has. The former stop
//! only themselves, the latter stop the whole fleet.

use muster_coordinator::core::{Input, Refusal, Reply};
use muster_proto::{
    convert::Hello,
    model::{Epoch, LedgerId, MachineId, Seq},
};

use super::{
    World,
    machine::{Machine, uuid_of},
};
use crate::{invariants::Violation, rng::Rng};

/// Permille of Hellos with a made-up number.
const LIES_PERMILLE: u64 = 20;
/// Largest excess of a made-up number.
const FAR: u64 = 1 << 40;

impl World {
    /// An attacker lets a machine's agent connect with a higher number, without a code for it; or with a ledger that
    /// begins there, and with the former ledger and its codes the next time. Uses separate random numbers.
    pub(crate) fn lie(&mut self, (id, session): (MachineId, u64), hello: &mut Hello) {
        let mut dice = Rng::new(self.rng.clone().next());
        if !self.chaos || !dice.permille(LIES_PERMILLE) {
            return;
        }
        let far = if dice.permille(500) { 1 } else { dice.between(1, FAR) };
        self.lies.insert(session);
        match dice.between(0, 3) {
            0 => hello.epoch.0 += far,
            1 => hello.generation.0 += far,
            // Its events do not begin with the new ledger, so that none is taken for an event of it.
            2 if hello.acked_seq > Seq(0) => return self.swap_ledger(id, hello, &mut dice),
            _ => hello.acked_seq.0 += far,
        }
        self.count("a machine made numbers up");
    }

    fn swap_ledger(&mut self, id: MachineId, hello: &mut Hello, dice: &mut Rng) {
        (hello.ledger_id, hello.acked_seq, hello.acked) = (LedgerId(uuid_of(dice)), Seq(0), None);
        if let Some(machine) = self.machines.iter_mut().find(|machine| machine.id == id) {
            machine.swapped_ledger = true;
        }
        self.count("a machine changed its ledger");
    }

    /// Faults stop: operators repair those machines, and they connect again.
    pub(crate) fn nobody_lies_any_more(&mut self) {
        let lies = |machine: &Machine| machine.session.is_some_and(|session| self.lies.contains(&session));
        let liars: Vec<usize> =
            (0..).zip(&self.machines).filter(|(_, machine)| lies(machine)).map(|(at, _)| at).collect();
        liars.into_iter().for_each(|index| self.drop_session(index));
    }

    /// A recovering store has asked a machine for its numbers, and got this Hello.
    pub(crate) fn recovery_asked(&mut self, (id, session): (MachineId, u64)) {
        let lied = self.lies.contains(&session);
        if let Some(machine) = self.machines.iter_mut().find(|machine| machine.id == id) {
            machine.withheld |= lied;
        }
    }

    /// Machines with a true Hello and numbers that the store lacks. A number from before a recovery does not count if
    /// its machine withheld it then.
    pub(crate) fn told_more(&self, input: &Input) -> Option<MachineId> {
        let Input::Hello { id, session, hello } = input else { return None };
        let facts = self.facts().filter(|facts| !facts.meta.recovering)?;
        let row = facts.by_id(*id).filter(|_| !self.lies.contains(session))?;
        let recorded = row.ledger.filter(|(ledger, _)| *ledger == hello.ledger_id).map_or(0, |(_, seq)| seq.0);
        let machine = self.machines.iter().find(|machine| machine.id == *id);
        let (swapped, withheld) = machine.map_or((false, false), |of| (of.swapped_ledger, of.withheld));
        let is_over =
            |issued: Option<Epoch>| withheld && issued.is_some_and(|epoch| epoch < facts.meta.recovered_epoch);
        let more = hello.epoch > facts.meta.epoch
            || (hello.generation > row.assigned.generation && !is_over(hello.list.map(|list| list.epoch)))
            || (hello.acked_seq.0 > recorded && !swapped && !is_over(hello.acked.map(|acked| acked.epoch)));
        more.then_some(*id)
    }

    /// A machine that was told more than the store has is believed.
    pub(crate) fn is_believed(
        &self,
        told_more: Option<MachineId>,
        answer: &Result<Reply, Refusal>,
    ) -> Result<(), Violation> {
        let Some(id) = told_more.filter(|_| answer.is_ok()) else { return Ok(()) };
        match self.facts() {
            Some(facts) if facts.live.older_than_fleet().is_none() => Err(self
                .watcher
                .violation("proof", format!("{id} was told more than the store has, and nothing stops"))),
            Some(_) | None => Ok(()),
        }
    }

    /// A machine that invents numbers, or changes ledgers, stops only itself.
    pub(crate) fn no_liar_is_believed(&self) -> Result<(), Violation> {
        let evidence = self.facts().and_then(|facts| facts.live.older_than_fleet());
        match evidence.filter(|_| !self.was_restored) {
            Some(evidence) => {
                Err(self.watcher.violation("liar", format!("the store is the newest, and yet: {evidence}")))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::model::{Counts, Generation};

    use super::*;
    use crate::sim::{Event, Plan, fate::Fate, manifest};

    /// Seed 5395689248059: the faults stopped while such a Hello was in transit.
    #[test]
    fn greeting_on_its_way_stays_a_lie() {
        let mut rng = Rng::new(1);
        let plan = Plan { chaos_ms: 0, ..Plan::of(&mut rng) };
        let mut world = World::new(rng, plan).expect("a world");
        world.rest().expect("deployed");
        let machine = &world.machines[0];
        let mut hello = machine.agent.as_ref().expect("it runs").hello(machine.facts());
        (hello.epoch.0, hello.acked_seq) = (1 << 40, Seq(0));
        let id = machine.id;
        let greets = |session| Input::Hello { id, session, hello: Box::new(hello.clone()) };
        world.lies.insert(1);
        world.nobody_lies_any_more();
        assert_eq!((world.told_more(&greets(1)), world.told_more(&greets(2))), (None, Some(id)));
    }

    /// Seed 19937088089091: it made a number up while the store recovered, and later showed its true list.
    #[test]
    fn number_withheld_from_recovery_is_over() {
        let mut rng = Rng::new(1);
        let plan = Plan::of(&mut rng);
        let fate = Fate { fail_permille: 0, hopeless_permille: 0, lost_permille: 0, ..plan.fate };
        let plan = Plan { counts: Counts { control: 1, worker: 1 }, update: false, swarm: false, fate, ..plan };
        let spec = manifest::spec(&mut rng, plan);
        let mut world = World::with_spec(rng, plan, spec).expect("a world");
        world.rest().expect("deployed");
        let beyond = |machine: &Machine| {
            let hello = machine.agent.as_ref().expect("it runs").hello(machine.facts());
            (machine.id, Hello { generation: Generation(1 << 40), ..hello })
        };
        let (liar, other) = (beyond(&world.machines[0]), beyond(&world.machines[1]));
        let greets = |session, (id, hello): &(MachineId, Hello)| {
            let (id, hello) = (*id, Box::new(hello.clone()));
            Input::Hello { id, session, hello }
        };
        world.store_went_back().expect("no violation");
        world.recover().expect("no violation");
        world.last_session += 1;
        world.lies.insert(world.last_session);
        world.tell(greets(world.last_session, &liar));
        world.happen(Event::Decide).expect("no violation");
        world.rest().expect("recovered");
        assert_eq!((world.told_more(&greets(0, &liar)), world.told_more(&greets(0, &other))), (None, Some(other.0)));
        let (id, mut newer) = liar;
        newer.list.as_mut().expect("a list").epoch = world.facts().expect("it runs").meta.recovered_epoch;
        assert_eq!(world.told_more(&greets(0, &(id, newer))), Some(id), "issued since");
    }
}
