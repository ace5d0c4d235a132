//! Limits the connections of one peer.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::{Notify, futures::Notified};

/// Number of connections of each peer.
#[derive(Clone, Default)]
pub(super) struct Limiter(Arc<Taken>);

#[derive(Default)]
struct Taken {
    by_peer: Mutex<BTreeMap<String, usize>>,
    /// Told whenever a seat becomes free.
    freed: Notify,
}

/// One connection of a peer, while it lives.
pub(super) struct LimiterGuard {
    limiter: Limiter,
    peer: String,
}

impl Limiter {
    /// Take a seat for a new connection of `peer`. None: all `seats_max` are taken.
    pub(super) fn take(&self, peer: String, seats_max: usize) -> Option<LimiterGuard> {
        let mut taken = self.0.by_peer.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(peer.clone()).or_default();
        if *count >= seats_max {
            return None;
        }
        *count += 1;
        Some(LimiterGuard { limiter: self.clone(), peer })
    }

    /// Ends when a seat becomes free after this call, whoever had it.
    pub(super) fn freed(&self) -> Notified<'_> {
        self.0.freed.notified()
    }
}

impl Drop for LimiterGuard {
    fn drop(&mut self) {
        let mut taken = self.limiter.0.by_peer.lock().unwrap_or_else(PoisonError::into_inner);
        match taken.get_mut(&self.peer) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) | None => {
                taken.remove(&self.peer);
            }
        }
        drop(taken);
        self.limiter.0.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_so_many_seats_and_no_more() {
        let limiter = Limiter::default();
        let take = |peer: &str| limiter.take(peer.to_owned(), 2);
        let (first, second) = (take("a"), take("a"));
        assert!(first.is_some() && second.is_some());
        assert!(take("a").is_none());
        assert!(take("b").is_some(), "another peer has its own");
        drop(first);
        let third = take("a");
        assert!(third.is_some() && take("a").is_none());
        drop((second, third));
        assert!(limiter.0.by_peer.lock().expect("lock").is_empty(), "what is over is forgotten");
    }
}
