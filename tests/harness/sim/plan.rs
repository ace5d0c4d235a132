//! Parameters of a seed's world: its size, its fault rates, and what happens in it.

use muster_proto::model::Counts;

use super::fate::Fate;
use crate::rng::Rng;

/// Parameters of a seed's world.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Number of machines at the start.
    pub counts: Counts,
    /// Duration of the chaos.
    pub chaos_ms: u64,
    /// Permille of events with a fault.
    pub fault_permille: u64,
    /// Permille of faults that copy the store, or restore the copy.
    pub old_store_permille: u64,
    /// Permille of effects cut off by a crash.
    pub crash_permille: u64,
    /// Outcomes of programs.
    pub fate: Fate,
    /// The faults occur while a deployed cluster is updated.
    pub update: bool,
    /// The machines join a swarm.
    pub swarm: bool,
}

impl Plan {
    /// The plan of a seed: small clusters, every mixture of faults.
    pub fn of(rng: &mut Rng) -> Self {
        let narrow = |n| u32::try_from(n).unwrap_or(1);
        let calm = rng.permille(150);
        let update = rng.permille(500);
        let swarm = rng.permille(400);
        // It takes four managers to have one missing, a majority, and one more to join.
        let control = if swarm && rng.permille(300) { rng.between(4, 5) } else { rng.between(1, 3) };
        Self {
            counts: Counts { control: narrow(control), worker: narrow(rng.between(0, 5)) },
            chaos_ms: rng.between(5_000, 60_000),
            fault_permille: if calm { 0 } else { rng.between(2, 40) },
            old_store_permille: match rng.permille(250) {
                true if update => rng.between(20, 200),
                false if update => 0,
                true => rng.between(50, 500),
                false => 10,
            },
            crash_permille: if calm { 0 } else { rng.between(0, 15) },
            fate: Fate {
                shortest_ms: 5,
                longest_ms: rng.between(50, 4_000),
                fail_permille: if calm { 0 } else { rng.between(0, 200) },
                hopeless_permille: if calm { 0 } else { rng.between(0, 30) },
                lost_permille: if calm { 0 } else { rng.between(0, 30) },
            },
            update,
            swarm,
        }
    }
}
