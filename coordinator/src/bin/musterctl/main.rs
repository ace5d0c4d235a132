//! `musterctl`: the operator's CLI.
fn main() {}
