//! The real `muster-agent` in normal operation, over mTLS on loopback, against a coordinator that the test simulates.
#![expect(clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod cli;
mod coordinator;
mod enrolment;
mod facts;
mod ledger;
mod machine;
mod secrets;
mod service_manager;
mod session;
