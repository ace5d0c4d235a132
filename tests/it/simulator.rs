//! Seeds through the simulator. `MUSTER_SIM_SEEDS` says how many (`make full` asks for more), `MUSTER_SIM_SEED` replays
//! one.

use std::collections::BTreeMap;

use muster_tests::sim;

const SEEDS_DEFAULT: u64 = 2_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn every_seed_keeps_the_invariants() {
    let seeds = match number("MUSTER_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("MUSTER_SIM_SEEDS").unwrap_or(SEEDS_DEFAULT),
    };
    let mut counted: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in seeds {
        match sim::run(seed) {
            Ok(counts) => {
                for (what, count) in counts {
                    *counted.entry(what).or_default() += count;
                }
            }
            Err(violation) => {
                panic!("seed {seed}: {violation}\nreplay it with MUSTER_SIM_SEED={seed}\nso far {counted:#?}")
            }
        }
    }
    println!("{counted:#?}");
}
