//! Limits on concurrent watches and on concurrent reads of the facts, for a watch or once. Reading a thousand machines
//! is work that would delay agents.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tonic::Status;

use super::{
    limiter::{Limiter, LimiterGuard},
    status::internal,
};

/// Most watches at once, of all peers.
const WATCHES_MAX: usize = 512;
/// Most watches at once of one peer. `musterctl watch` has three.
const WATCHES_OF_PEER_MAX: usize = 64;
/// Most concurrent reads.
const LOOKS_MAX: usize = 2;

/// Limiter of all watches.
#[derive(Clone)]
pub(super) struct Watches {
    limiter: Limiter,
    looks: Arc<Semaphore>,
}

impl Default for Watches {
    fn default() -> Self {
        Self { limiter: Limiter::default(), looks: Arc::new(Semaphore::new(LOOKS_MAX)) }
    }
}

/// One watch, while it lives.
pub(super) struct Watching {
    watches: Watches,
    _seats: (LimiterGuard, LimiterGuard),
}

impl Watches {
    /// Begin a watch of this peer.
    pub(super) fn begin(&self, peer: &str) -> Result<Watching, Status> {
        let too_many = |whose: &str, most: usize| {
            let message = format!("TooManyWatches: {whose} have {most} watches open; end one and try again");
            Status::resource_exhausted(message)
        };
        let own = self.limiter.take(format!("of {peer}"), WATCHES_OF_PEER_MAX);
        let own = own.ok_or_else(|| too_many("these credentials", WATCHES_OF_PEER_MAX))?;
        let one = self.limiter.take("all".to_owned(), WATCHES_MAX);
        let one = one.ok_or_else(|| too_many("all callers together", WATCHES_MAX))?;
        Ok(Watching { watches: self.clone(), _seats: (own, one) })
    }

    /// Run a read in its turn, on a blocking thread, so that agents are served meanwhile. If the caller goes away, a
    /// running read continues and keeps its turn to the end.
    pub(super) async fn look<T: Send + 'static>(&self, look: impl FnOnce() -> T + Send + 'static) -> Result<T, Status> {
        let turn = Arc::clone(&self.looks).acquire_owned().await.map_err(|error| internal(&error))?;
        let looked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            look()
        });
        looked.await.map_err(|error| internal(&error))
    }

    /// All turns: reads wait until this is dropped.
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
