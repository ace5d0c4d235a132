//! Outcomes of attempts, as they are recorded. Every status made here passes the checks of the wire protocol, for any
//! result of the runner: a refused status would block all events behind it.

use muster_proto::{
    OUTPUT_TAIL_BYTES_MAX,
    convert::{RESULT_BYTES_MAX, as_line, keep_end},
    model::{ItemState, ItemStatus, Now},
    seeded_bug::seeded_bug,
};

use crate::attempt::record::{Exit, NO_EXIT_CODE};

/// An outcome from the agent itself. [`status`] fills in its times.
const fn exit(state: ItemState, message: String) -> Exit {
    Exit { state, message, output_tail: String::new(), result_json: None, started_at_ms: 0, finished_at_ms: 0 }
}

/// The start failed; another attempt may help.
pub(super) fn start_failed(message: String) -> Exit {
    exit(ItemState::Failed { exit_code: NO_EXIT_CODE, retryable: true }, message)
}

/// The agent stopped before the start, and the assignment has changed since.
pub(super) fn never_started() -> Exit {
    start_failed("it was never started: the agent stopped first, and the assignment has changed since".to_owned())
}

/// The attempt is impossible here, so a retry is useless.
pub(super) const fn hopeless(message: String) -> Exit {
    exit(ItemState::Failed { exit_code: NO_EXIT_CODE, retryable: false }, message)
}

/// The boot differs from the one in which the attempt was started.
pub(super) fn rebooted() -> Exit {
    exit(ItemState::Succeeded, "rebooted".to_owned())
}

/// The requested or imminent reboot did not happen.
pub(super) fn still_up() -> Exit {
    start_failed("the machine did not go down: it is still in the boot in which the reboot was asked for".to_owned())
}

/// Its process ended without an outcome.
pub(super) fn lost(rebooted: bool) -> Exit {
    // Seeded bug: treat an unknown outcome as success.
    if seeded_bug("agent-indeterminate-is-success") {
        return exit(ItemState::Succeeded, String::new());
    }
    let what = if rebooted { "the machine rebooted while it ran" } else { "its process ended without an outcome" };
    exit(ItemState::Indeterminate, what.to_owned())
}

/// The final status of the attempt `running`.
pub(crate) fn status(running: &ItemStatus, exit: Exit, now: Now) -> ItemStatus {
    let state = match exit.state {
        ItemState::Succeeded => ItemState::Succeeded,
        ItemState::Failed { exit_code: 0, retryable } => ItemState::Failed { exit_code: NO_EXIT_CODE, retryable },
        ItemState::Failed { exit_code, retryable } => ItemState::Failed { exit_code, retryable },
        // "Running" is an invalid outcome.
        ItemState::Indeterminate | ItemState::Running => ItemState::Indeterminate,
    };
    let is_json = |json: &String| {
        json.len() <= RESULT_BYTES_MAX
            && !json.contains('\0')
            && serde_json::from_str::<serde_json::Value>(json).is_ok()
    };
    let (result_json, dropped) = match exit.result_json.filter(|json| !json.is_empty()) {
        Some(json) if is_json(&json) => (Some(json), false),
        Some(_) => (None, true),
        None => (None, false),
    };
    let note = if dropped { " (its result was left out: over 16 KiB, or not JSON)" } else { "" };
    let tail = exit.output_tail.replace('\0', " ");
    ItemStatus {
        name: running.name.clone(),
        hash: running.hash,
        state,
        attempt: running.attempt,
        generation: running.generation,
        message: as_line(&format!("{}{note}", exit.message)),
        output_tail: keep_end(&tail, OUTPUT_TAIL_BYTES_MAX).to_owned(),
        result_json,
        started_at_ms: if exit.started_at_ms == 0 { running.started_at_ms } else { exit.started_at_ms },
        finished_at_ms: Some(if exit.finished_at_ms == 0 { now.wall_ms.max(1) } else { exit.finished_at_ms }),
    }
}
