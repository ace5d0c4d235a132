//! Calls under way to agents, and their answers. Only the caller sees a call's content; nothing of it is stored.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use muster_proto::model::{Epoch, MachineId};
use tokio::{sync::oneshot, time::timeout};

/// Most calls under way, over all askers.
pub(super) const CALLS_MAX: usize = 256;
/// Bits of a call's id for the count within one epoch. The higher bits hold the epoch, so a late answer matches only a
/// call of its own coordinator.
pub(super) const COUNT_BITS: u32 = 32;

/// Calls of one kind under way: what each asks, and who gets its answer.
pub(super) struct Relay<Q, A>(Mutex<Calls<Q, A>>);

struct Calls<Q, A> {
    made: u64,
    open: BTreeMap<(MachineId, u64), (Q, oneshot::Sender<A>)>,
}

impl<Q, A> Default for Relay<Q, A> {
    fn default() -> Self {
        Self(Mutex::new(Calls { made: 0, open: BTreeMap::new() }))
    }
}

/// A call under way. Dropping it ends the wait.
pub(super) struct Pending<'a, Q, A> {
    relay: &'a Relay<Q, A>,
    to: MachineId,
    /// The call's id.
    pub(super) id: u64,
    answered: oneshot::Receiver<A>,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// Its time is over.
    Late,
    /// The machine is not connected, or the call was not sent.
    NotConnected,
}

impl<Q, A> Pending<'_, Q, A> {
    /// Wait for the answer, or what a missing one becomes.
    pub(super) async fn answer(mut self, time_limit: Duration, missing: impl FnOnce(NoAnswer, Duration) -> A) -> A {
        match timeout(time_limit, &mut self.answered).await {
            Ok(answer) => answer.unwrap_or_else(|_| missing(NoAnswer::NotConnected, time_limit)),
            Err(_) => missing(NoAnswer::Late, time_limit),
        }
    }

    /// Record that sending the call failed.
    pub(super) fn unsent(&self) {
        self.relay.calls().open.remove(&(self.to, self.id));
    }
}

impl<Q, A> Drop for Pending<'_, Q, A> {
    fn drop(&mut self) {
        self.unsent();
    }
}

impl<Q, A> Relay<Q, A> {
    fn calls(&self) -> MutexGuard<'_, Calls<Q, A>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Open a new call to a machine; the caller sends it. `refusal` looks at the calls under way.
    pub(super) fn open<E>(
        &self,
        (to, epoch): (MachineId, Epoch),
        question: Q,
        refusal: impl FnOnce(&[(MachineId, &Q)]) -> Option<E>,
    ) -> Result<Pending<'_, Q, A>, E> {
        let mut calls = self.calls();
        let under_way: Vec<_> = calls.open.iter().map(|((to, _), (question, _))| (*to, question)).collect();
        if let Some(refusal) = refusal(&under_way) {
            return Err(refusal);
        }
        calls.made += 1;
        let id = (epoch.0 << COUNT_BITS) + calls.made;
        let (caller, answered) = oneshot::channel();
        calls.open.insert((to, id), (question, caller));
        Ok(Pending { relay: self, to, id, answered })
    }

    /// Deliver an answer from an agent, made from what was asked. An unexpected one is dropped.
    pub(super) fn came(&self, from: MachineId, id: u64, answer: impl FnOnce(&Q) -> A) {
        let Some((question, caller)) = self.calls().open.remove(&(from, id)) else { return };
        // The caller may have given up.
        drop(caller.send(answer(&question)));
    }

    /// End the calls on the machine's stream, which is over.
    pub(super) fn end_of_session(&self, id: MachineId) {
        self.calls().open.retain(|(machine, _), _| *machine != id);
    }
}
