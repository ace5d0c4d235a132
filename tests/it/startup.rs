//! Startup cost of every program, commands included.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use rustls::crypto::aws_lc_rs::default_provider;

/// CPU time; AWS-LC's own entropy source takes five times as long on the fastest machine seen.
const FIRST_RANDOM_MAX: Duration = Duration::from_millis(5);

/// See .cargo/config.toml.
#[test]
fn the_first_random_number_is_not_worked_for() {
    let worked = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("every kernel has it"));
    let before = worked();
    default_provider().secure_random.fill(&mut [0; 32]).expect("the kernel has some");
    let took = worked() - before;
    assert!(took < FIRST_RANDOM_MAX, "{took:?}");
}
