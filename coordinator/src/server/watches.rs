//! How many may watch at once, and how many of them look at the facts at a time: to look at a thousand machines is
//! work, and agents must not wait for it.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tonic::Status;

use super::{
    seats::{Seat, Seats},
    status::internal,
};

/// Watches at once, of all peers.
const WATCHES_MAX: usize = 512;
/// Watches of one peer at once. `musterctl watch` has three.
const WATCHES_OF_PEER_MAX: usize = 64;
/// Looks at once.
const LOOKS_MAX: usize = 2;

/// All watches there are.
#[derive(Clone)]
pub(super) struct Watches {
    seats: Seats,
    looks: Arc<Semaphore>,
}

impl Default for Watches {
    fn default() -> Self {
        Self { seats: Seats::default(), looks: Arc::new(Semaphore::new(LOOKS_MAX)) }
    }
}

/// One watch, as long as it lives.
pub(super) struct Watching {
    looks: Arc<Semaphore>,
    _seats: (Seat, Seat),
}

impl Watches {
    /// One more, of this peer.
    pub(super) fn begin(&self, peer: &str) -> Result<Watching, Status> {
        let too_many = |whose: &str, most: usize| {
            let message = format!("TooManyWatches: {whose} have {most} watches open; end one and try again");
            Status::resource_exhausted(message)
        };
        let own = self.seats.take(format!("of {peer}"), WATCHES_OF_PEER_MAX);
        let own = own.ok_or_else(|| too_many("these credentials", WATCHES_OF_PEER_MAX))?;
        let one = self.seats.take("all".to_owned(), WATCHES_MAX);
        let one = one.ok_or_else(|| too_many("all callers together", WATCHES_MAX))?;
        Ok(Watching { looks: Arc::clone(&self.looks), _seats: (own, one) })
    }
}

impl Watching {
    /// Looks, when it is its turn, where no agent waits for it.
    pub(super) async fn look<T: Send + 'static>(&self, look: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
        let turn = self.looks.acquire().await.map_err(|error| internal(&error))?;
        let looked = tokio::task::spawn_blocking(look).await.map_err(|error| internal(&error))?;
        drop(turn);
        Ok(looked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_all_the_watches() {
        let watches = Watches::default();
        let of = |peer: &str| (0..=WATCHES_OF_PEER_MAX).map_while(|_| watches.begin(peer).ok()).collect::<Vec<_>>();
        let hers = of("viewer/anna");
        assert_eq!(hers.len(), WATCHES_OF_PEER_MAX);
        let refused = watches.begin("viewer/anna").err().expect("too many");
        assert!(refused.message().contains("64 watches"), "{refused}");
        assert!(watches.begin("viewer/bo").is_ok(), "somebody else has not");
        let all: Vec<_> = (0..20).flat_map(|n| of(&format!("viewer/{n}"))).collect();
        assert_eq!(all.len() + hers.len(), WATCHES_MAX);
        drop(hers);
        assert!(watches.begin("viewer/anna").is_ok());
    }
}
