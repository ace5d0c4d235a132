//! Decisions of the core, driven by simulated agents ([`Fleet`]).

mod agents;
mod applying;
mod audit;
mod backups;
mod deleting;
mod enrolling;
mod fleet;
mod format;
mod groups;
mod hooks;
mod operators;
mod quorum;
mod quotas;
mod reboots;
mod renewals;
mod rollout;
mod rules;
mod secrets;
mod stages;
mod standstill;
mod swarm;
pub(crate) mod update_reboots;
pub(crate) mod updates;

pub(crate) use fleet::{Fleet, apply, cluster, machine, machine_spec, proof_key, spec};

use super::{Refusal, Reply};

/// The reason code of a refusal.
fn reason(answer: Result<Reply, Refusal>) -> &'static str {
    match answer.expect_err("a refusal") {
        Refusal::State { reason, .. } => reason,
        Refusal::Protocol { code, .. } => code,
        Refusal::NotFound { .. } => "NotFound",
        Refusal::Token { .. } => "Token",
        Refusal::TooFast { .. } => "TooFast",
    }
}

/// The report lines of a success.
fn done(answer: Result<Reply, Refusal>) -> String {
    match answer.expect("it is done") {
        Reply::Done(lines) => lines.join("\n"),
        other => panic!("{other:?}"),
    }
}
