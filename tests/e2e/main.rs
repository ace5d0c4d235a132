//! End to end: the release binaries as separate processes over mTLS on loopback, as an operator uses them. No root, no
//! Docker. Needs `make build`, which `make test` runs.
#![cfg(test)]

mod access;
mod attacks;
mod canaries;
mod clock;
mod cluster;
mod damage;
mod damaged_ledger;
mod demo;
mod enrolment;
mod everyday;
mod failing;
mod floods;
mod growing;
mod happy;
mod hooks;
mod idle;
mod kills;
mod kubernetes;
mod liar;
mod moving;
mod old_copy;
mod partition;
mod screen;
mod tls;
mod updates;
