//! Runs seeds through the simulator. `MUSTER_SIM_SEEDS` sets their number (`make full` runs more). Half of them are the
//! first seeds, half start at `MUSTER_SIM_START`, which the Makefile derives from the commit. `MUSTER_SIM_SEED` replays
//! one. `make soak` (tests/soak) runs other seeds for a given time.

use std::ops::Range;

use muster_tests::sim::{
    self,
    coverage::{REQUIRED, REQUIRED_OF_MANY, Reached, SEEDS_REQUIRED, SEEDS_REQUIRED_OF_MANY},
};

const SEEDS_DEFAULT: u64 = 2_000;
/// Seeds that once broke an invariant, one a line with the finding.
const ONCE_BROKEN: &str = include_str!("seeds.txt");

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    let number = text.parse().ok();
    assert!(number.is_some(), "{name} is a number, not {text:?}");
    number
}

/// The first seeds, and those that depend on the commit: without a start they follow the first.
fn halves() -> [Range<u64>; 2] {
    if let Some(seed) = number("MUSTER_SIM_SEED") {
        return [seed..seed + 1, 0..0];
    }
    let half = number("MUSTER_SIM_SEEDS").unwrap_or(SEEDS_DEFAULT).div_ceil(2);
    let start = number("MUSTER_SIM_START").unwrap_or(half);
    [0..half, start..start + half]
}

/// Coverage reached by these seeds, none of which breaks an invariant.
fn live_through(seeds: impl IntoIterator<Item = u64>) -> Reached {
    let mut reached = Reached::default();
    for seed in seeds {
        let broken = sim::run(seed).map(|other| reached.add(&other)).err();
        let said = broken.as_ref().map(ToString::to_string).unwrap_or_default();
        assert!(broken.is_none(), "seed {seed}: {said}\nreplay it with MUSTER_SIM_SEED={seed}\nso far:\n{reached}");
    }
    reached
}

#[test]
fn every_seed_keeps_the_invariants() {
    let [first, _] = halves();
    let count = first.end - first.start;
    println!("seeds {first:?}");
    let reached = live_through(first);
    println!("{reached}");
    let gaps = reached.gaps(count);
    assert!(gaps.is_empty(), "{gaps:#?}");
}

/// Rare goals may be missed here by chance, so none is required.
#[test]
fn seeds_of_commit_keep_invariants() {
    let [_, moving] = halves();
    println!("seeds {moving:?}");
    println!("{}", live_through(moving));
}

#[test]
fn seeds_once_broken_keep_invariants() {
    let lines = ONCE_BROKEN.lines().filter(|line| !line.starts_with('#'));
    let listed = lines.map(|line| match line.split_once(' ') {
        Some((seed, why)) if !why.trim().is_empty() => seed.parse().unwrap_or_else(|_| panic!("no seed: {line}")),
        _ => panic!("a seed, and a word of what it found: {line}"),
    });
    let listed: Vec<u64> = listed.collect();
    assert!(listed.is_sorted_by(|one, next| one < next), "in order, each once");
    live_through(listed.into_iter().filter(|_| number("MUSTER_SIM_SEED").is_none()));
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
