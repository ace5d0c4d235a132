//! Machines that are turned away with a certificate of ours: each is logged by name once an hour. Agents retry every
//! few seconds, and logging every attempt would be noise.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use muster_proto::model::MachineId;

/// Interval after which a machine is logged again.
const SAID_AGAIN_MS: u64 = 3_600_000;
/// Most machines remembered: as many as one coordinator manages. Further ones stay out of the log.
const MACHINES_MAX: usize = 10_000;

/// Time of each machine's last log line.
#[derive(Default)]
pub(super) struct Refusals(Mutex<BTreeMap<MachineId, u64>>);

impl Refusals {
    /// Record a refusal. True: log it.
    pub(super) fn is_news(&self, id: MachineId, now_ms: u64) -> bool {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        said.retain(|_, at_ms| now_ms.saturating_sub(*at_ms) < SAID_AGAIN_MS);
        let news = said.len() < MACHINES_MAX && !said.contains_key(&id);
        if news {
            said.insert(id, now_ms);
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_machine_is_said_once_an_hour() {
        let refusals = Refusals::default();
        let id = |number| MachineId(Uuid::from_u128(number));
        assert_eq!([0, 1, SAID_AGAIN_MS - 1].map(|at_ms| refusals.is_news(id(1), at_ms)), [true, false, false]);
        assert!(refusals.is_news(id(2), SAID_AGAIN_MS - 1), "another");
        assert!(refusals.is_news(id(1), SAID_AGAIN_MS));
        assert_eq!(refusals.0.lock().expect("lock").len(), 2);
        let count = (10..20_000).filter(|number| refusals.is_news(id(*number), SAID_AGAIN_MS)).count();
        assert_eq!(count, MACHINES_MAX - 2);
    }
}
