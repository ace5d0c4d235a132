//! Outcomes of simulated programs.

use muster_agent::attempt::record::Exit;
use muster_proto::model::{ItemState, Now};

use super::swarm::Entered;
use crate::rng::Rng;

/// Distribution of durations and outcomes.
#[derive(Clone, Copy, Debug)]
pub struct Fate {
    /// Shortest run.
    pub shortest_ms: u64,
    /// Longest run.
    pub longest_ms: u64,
    /// Permille of attempts that fail, and may be retried.
    pub fail_permille: u64,
    /// Permille of attempts that fail permanently.
    pub hopeless_permille: u64,
    /// Permille of attempts that lose their exec-item.
    pub lost_permille: u64,
}

pub(super) fn exit(rng: &mut Rng, fate: &Fate, now: Now, entered: Option<Entered>) -> Exit {
    let mut state = if rng.permille(fate.hopeless_permille) {
        ItemState::Failed { exit_code: 2, retryable: false }
    } else if rng.permille(fate.fail_permille) {
        ItemState::Failed { exit_code: 1, retryable: true }
    } else {
        ItemState::Succeeded
    };
    let (mut message, mut result_json) = ("as the dice fell", None);
    match entered.filter(|_| state == ItemState::Succeeded) {
        Some(Ok(member)) => result_json = serde_json::to_string(&member).ok(),
        Some(Err(not)) => {
            state = ItemState::Failed { exit_code: -1, retryable: not.retryable };
            message = not.message;
        }
        None => {}
    }
    Exit {
        state,
        message: message.to_owned(),
        output_tail: "output".to_owned(),
        result_json,
        started_at_ms: now.wall_ms,
        finished_at_ms: now.wall_ms,
    }
}
