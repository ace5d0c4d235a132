//! Seeds through the simulator. `MUSTER_SIM_SEEDS` says how many (`make full` asks for more), `MUSTER_SIM_SEED` replays
//! one.

use muster_tests::sim::{
    self,
    situations::{REQUIRED, REQUIRED_OF_MANY, Reached, SEEDS_REQUIRED, SEEDS_REQUIRED_OF_MANY},
};

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
    let count = seeds.end - seeds.start;
    let mut reached = Reached::default();
    for seed in seeds {
        match sim::run(seed) {
            Ok(other) => reached.add(&other),
            Err(violation) => {
                panic!("seed {seed}: {violation}\nreplay it with MUSTER_SIM_SEED={seed}\nso far:\n{reached}")
            }
        }
    }
    println!("{reached}");
    let gaps = reached.gaps(count);
    assert!(gaps.is_empty(), "{gaps:#?}");
}

#[test]
fn a_situation_that_is_never_reached_is_told() {
    let mut reached = Reached::default();
    REQUIRED[1..].iter().for_each(|what| reached.count(what));
    assert_eq!(reached.gaps(SEEDS_REQUIRED), [format!("never reached in {SEEDS_REQUIRED} seeds: {}", REQUIRED[0])]);
    assert!(reached.gaps(SEEDS_REQUIRED - 1).is_empty(), "too few seeds to require anything");
    reached.count(REQUIRED[0]);
    assert!(reached.gaps(SEEDS_REQUIRED).is_empty());
    assert_eq!(reached.gaps(SEEDS_REQUIRED_OF_MANY).len(), REQUIRED_OF_MANY.len(), "of many seeds more is required");
    REQUIRED_OF_MANY.iter().for_each(|what| reached.count(what));
    assert!(reached.gaps(SEEDS_REQUIRED_OF_MANY).is_empty());
    reached.count("mistyped");
    assert_eq!(reached.gaps(1), ["counted, but named neither in REQUIRED nor in RARE: mistyped"]);
}
