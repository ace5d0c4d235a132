//! What every start of a program costs, a command's too.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use rustls::crypto::aws_lc_rs::default_provider;

/// Processor time; entropy of AWS-LC's own takes five times as long on the fastest machine seen.
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
