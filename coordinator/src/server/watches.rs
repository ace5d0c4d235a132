//! How many may watch at once, and how many look at the facts at a time, for a watch or once: to look at a thousand
//! machines is work, and agents must not wait for it.

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
    watches: Watches,
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
        Ok(Watching { watches: self.clone(), _seats: (own, one) })
    }

    /// Looks, when it is its turn, where no agent waits for it. Whoever goes away meanwhile ends no look that has
    /// begun, so it keeps its turn until it is over.
    pub(super) async fn look<T: Send + 'static>(&self, look: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
        let turn = Arc::clone(&self.looks).acquire_owned().await.map_err(|error| internal(&error))?;
        let looked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            look()
        });
        looked.await.map_err(|error| internal(&error))
    }

    /// All turns, until they are dropped: nobody looks.
    #[cfg(test)]
    pub(super) async fn stopped(&self) -> tokio::sync::OwnedSemaphorePermit {
        let all = u32::try_from(LOOKS_MAX).expect("a small number");
        Arc::clone(&self.looks).acquire_many_owned(all).await.expect("open")
    }
}

impl Watching {
    /// As [`Watches::look`].
    pub(super) async fn look<T: Send + 'static>(&self, look: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
        self.watches.look(look).await
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

    #[tokio::test]
    async fn who_goes_away_gives_no_turn_to_another_before_its_look_is_over() {
        let watches = Watches::default();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let ended = Arc::new(std::sync::Mutex::new(ended));
        for _ in 0..LOOKS_MAX {
            let ended = Arc::clone(&ended);
            let look = watches.look(move || ended.lock().expect("lock").recv().is_ok());
            let gone = tokio::time::timeout(std::time::Duration::from_millis(20), look).await;
            assert!(gone.is_err(), "it goes away while it looks");
        }
        let next = tokio::time::timeout(std::time::Duration::from_millis(20), watches.look(|| ())).await;
        assert!(next.is_err(), "the looks go on");
        drop(end);
        watches.look(|| ()).await.expect("they are over");
    }
}
