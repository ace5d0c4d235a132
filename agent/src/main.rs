//! `muster-agent`: the daemon on every machine.
fn main() {}
