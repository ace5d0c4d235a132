//! End to end: the release binaries as separate processes over mTLS on loopback, as an operator meets them. No root, no
//! Docker. `make build` first; `make test` does.
#![cfg(test)]

mod demo;
mod happy;
