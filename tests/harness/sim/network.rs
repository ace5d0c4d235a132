//! The simulated network: ordered streams that lag, break at any point, and may deliver late or twice.

use muster_agent::core::ToCoordinator;
use muster_proto::{
    convert::Hello,
    model::{AckProof, Assignment, AuthCode, Epoch, Generation, HostFacts, ItemName, MachineId, Seq, SwarmCall},
};

use super::{Event, World, swarm::Way};

/// A message in transit on one session.
#[derive(Clone, Debug)]
pub(crate) struct Parcel {
    /// The machine at one end.
    pub index: usize,
    /// The identity its session was opened with.
    pub id: MachineId,
    /// The session.
    pub session: u64,
    /// The content.
    pub what: Said,
}

/// Content of a message.
#[derive(Clone, Debug)]
pub(crate) enum Said {
    /// From the agent, first.
    Hello(Box<Hello>),
    /// From the agent.
    FromAgent(ToCoordinator),
    /// From the agent: a fact about the machine changed.
    HostChanged(Box<HostFacts>),
    /// From the coordinator, first.
    Welcome(Epoch, AuthCode),
    /// From the coordinator.
    Assignment(Box<Assignment>),
    /// From the coordinator.
    Ack(Seq, AckProof),
    /// From the agent, in a call of its own.
    Fetch(ItemName, Generation),
    /// The coordinator's answer to it.
    Fetched(ItemName, Generation, Result<Option<Way>, String>),
    /// From the coordinator: a call to the machine's swarm.
    SwarmCall(SwarmCall),
    /// From the coordinator, last.
    End,
}

impl Said {
    pub(crate) const fn to_coordinator(&self) -> bool {
        matches!(self, Self::Hello(_) | Self::FromAgent(_) | Self::HostChanged(_) | Self::Fetch(..))
    }
}

impl Parcel {
    /// Is it a call to the swarm, or an answer?
    pub(crate) const fn is_swarm_talk(&self) -> bool {
        matches!(self.what, Said::SwarmCall(_) | Said::FromAgent(ToCoordinator::Swarm(_)))
    }
}

impl World {
    pub(crate) fn index_of(&self, id: MachineId) -> Option<usize> {
        self.machines.iter().position(|machine| machine.id == id)
    }

    /// Sends a parcel: it arrives after earlier ones, with a lag, and occasionally twice, as if repeated on the next
    /// stream. Calls are never repeated: each has its own number, and a stream delivers it once.
    pub(crate) fn carry(&mut self, parcel: Parcel) {
        let direction = (parcel.session, parcel.what.to_coordinator());
        let lag =
            if self.chaos && self.rng.permille(50) { self.rng.between(100, 3_000) } else { self.rng.between(0, 8) };
        let arrives = (self.at + lag).max(self.arrivals.get(&direction).copied().unwrap_or(0));
        self.arrivals.insert(direction, arrives);
        let once = matches!(parcel.what, Said::Hello(_) | Said::Welcome(..) | Said::SwarmCall(_));
        let twice = self.chaos && self.rng.permille(10) && !once;
        if twice {
            self.count("message delivered twice");
            self.later(arrives - self.at, Event::Deliver(parcel.clone()));
        }
        self.later(arrives - self.at, Event::Deliver(parcel));
    }

    pub(crate) fn carry_assignment(&mut self, id: MachineId, assignment: Assignment) {
        let (Some(index), Some(session)) = (self.index_of(id), self.sessions.get(&id).copied()) else { return };
        self.carry(Parcel { index, id, session, what: Said::Assignment(Box::new(assignment)) });
    }

    pub(crate) fn carry_ack(&mut self, id: MachineId, session: u64, (seq, proof): (Seq, AckProof)) {
        let Some(index) = self.index_of(id).filter(|_| self.sessions.get(&id) == Some(&session)) else { return };
        self.carry(Parcel { index, id, session, what: Said::Ack(seq, proof) });
    }

    pub(crate) fn carry_end(&mut self, id: MachineId, session: u64) {
        let Some(index) = self.index_of(id) else { return };
        self.carry(Parcel { index, id, session, what: Said::End });
    }

    /// A stream breaks: the agent notices at once, the coordinator some time later.
    pub(crate) fn drop_session(&mut self, index: usize) {
        let Some(machine) = self.machines.get_mut(index) else { return };
        let Some(session) = machine.session.take() else { return };
        let id = machine.id;
        let effects = machine.input(muster_agent::core::Input::LinkDown, self.at);
        self.queue_effects(index, effects);
        let (notice, again) = (self.rng.between(0, 12_000), self.rng.between(50, 2_000));
        self.later(notice, Event::NoticeGone(id, session));
        self.later(again, Event::Connect(index));
    }

    /// An agent opens a stream, if both ends are up.
    pub(crate) fn connect(&mut self, index: usize) {
        let at = self.at;
        let again = self.rng.between(100, 2_000);
        let Some(machine) = self.machines.get_mut(index) else { return };
        if machine.session.is_some() || machine.agent.is_none() || !machine.enrolled {
            return;
        }
        let (id, until) = (machine.id, machine.cut_off_until);
        // The handshake rejects a denied machine; another store may admit it.
        if self.facts().is_some_and(|facts| facts.denied.contains_key(&id)) {
            if self.chaos {
                self.later(again, Event::Connect(index));
            }
            return;
        }
        if self.coordinator.is_none() || until > at {
            self.later(again, Event::Connect(index));
            return;
        }
        self.last_session += 1;
        let Some(machine) = self.machines.get_mut(index) else { return };
        let (session, id, facts) = (self.last_session, machine.id, machine.facts());
        machine.session = Some(session);
        let Some(mut hello) = machine.agent.as_ref().map(|core| core.hello(facts)) else { return };
        self.lie((id, session), &mut hello);
        self.carry(Parcel { index, id, session, what: Said::Hello(Box::new(hello)) });
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::model::{Epoch, SwarmOp};

    use super::*;
    use crate::{rng::Rng, sim::Plan};

    /// Seed 1009683: a change of a node was carried out twice, once late, after its end had been confirmed.
    #[test]
    fn calls_arrive_once_where_acknowledgements_repeat() {
        let mut rng = Rng::new(1);
        let plan = Plan { chaos_ms: 0, ..Plan::of(&mut rng) };
        let mut world = World::new(rng, plan).expect("a world");
        let mut arrivals = |what: Said| {
            let before = world.queue.len();
            for _ in 0..1_000 {
                let id = MachineId(uuid::Uuid::nil());
                world.carry(Parcel { index: 0, id, session: 1, what: what.clone() });
            }
            world.queue.len() - before
        };
        let call = SwarmCall { id: 1, epoch: Epoch(1), op: SwarmOp::Info };
        assert_eq!(arrivals(Said::SwarmCall(call)), 1_000);
        assert!(arrivals(Said::Ack(Seq(1), AckProof::NONE)) > 1_000);
    }
}
