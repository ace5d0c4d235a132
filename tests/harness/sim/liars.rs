//! Machines that make numbers up or change ledgers, and machines that were told more than the store has: the first
//! stop nobody but themselves, the others stop everybody.

use muster_coordinator::core::{Input, Refusal, Reply};
use muster_proto::{
    convert::Hello,
    model::{LedgerId, MachineId, Seq},
};

use super::{
    World,
    machine::{Machine, uuid_of},
};
use crate::{invariants::Violation, rng::Rng};

/// So many of a thousand greetings make a number up.
const LIES_PERMILLE: u64 = 20;
/// A number that is made up is at most so much too high.
const FAR: u64 = 1 << 40;

impl World {
    /// Whoever has got hold of a machine lets its agent greet with a higher number, and has no code for that; or with a
    /// ledger that begins there, and goes back to the former one, and to its codes, the next time. Dice of their own.
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
            // Its events do not begin with the new ledger, so none of them is taken for one of it.
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

    /// Faults stop: those machines are looked after, and greet again.
    pub(crate) fn nobody_lies_any_more(&mut self) {
        let lies = |machine: &Machine| machine.session.is_some_and(|session| self.lies.contains(&session));
        let liars: Vec<usize> =
            (0..).zip(&self.machines).filter(|(_, machine)| lies(machine)).map(|(at, _)| at).collect();
        liars.into_iter().for_each(|index| self.drop_session(index));
    }

    /// Machines whose greeting is true and has numbers that the store does not have.
    pub(crate) fn told_more(&self, input: &Input) -> Option<MachineId> {
        let Input::Hello { id, session, hello } = input else { return None };
        let facts = self.facts().filter(|facts| !facts.meta.recovering)?;
        let row = facts.by_id(*id).filter(|_| !self.lies.contains(session))?;
        let recorded = row.ledger.filter(|(ledger, _)| *ledger == hello.ledger_id).map_or(0, |(_, seq)| seq.0);
        let swapped = self.machines.iter().any(|machine| machine.id == *id && machine.swapped_ledger);
        let more = hello.epoch > facts.meta.epoch
            || hello.generation > row.assigned.generation
            || (hello.acked_seq.0 > recorded && !swapped);
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

    /// A machine that makes numbers up, or changes ledgers, stops nobody else.
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
    use super::*;
    use crate::sim::Plan;

    /// Seed 5395689248059: the faults stopped while such a greeting was on its way.
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
}
