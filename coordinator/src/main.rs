//! `muster-coordinator`: the daemon.
fn main() {}
