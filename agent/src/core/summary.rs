//! Summary of the machine in one line, from the ledger alone. `musterctl get machines` also shows the coordinator's
//! view.

use muster_proto::model::{AssignedItem, Assignment, ItemProgress, ItemStatus, Phase, Reason, RunnerKind};

use crate::core::{AgentBlocked, LedgerState, Slot};

/// The line. `started`: the attempt that has begun; `blocked`: why the agent itself is blocked.
pub(super) fn of(ledger: &LedgerState, started: Option<&Slot>, blocked: Option<AgentBlocked>) -> String {
    // A ledger that is behind lacks the current state.
    if let Some(AgentBlocked { reason, message }) =
        blocked.as_ref().filter(|blocked| blocked.reason == Reason::LedgerBehind)
    {
        return format!("{reason}: {message}");
    }
    let assignment = ledger.assignment.as_deref();
    let state = assignment.map_or("Pending", |assignment| state(ledger, assignment));
    let note = match (started, blocked) {
        (Some(slot), _) => running(&slot.status),
        (None, Some(blocked)) => Some(format!("{}: {}", blocked.reason, blocked.message)),
        (None, None) => assignment.and_then(|assignment| next(ledger, assignment)),
    };
    note.map_or_else(|| state.to_owned(), |note| format!("{state}: {note}"))
}

/// Name of the state. A Ready machine stays so while new prepare items run; only the coordinator knows that.
fn state(ledger: &LedgerState, assignment: &Assignment) -> &'static str {
    match assignment.max_phase() {
        None => "Pending",
        Some(Phase::Prepare) => "Prepare",
        Some(_) if ledger.running().is_none() && next(ledger, assignment).is_none() => "Ready",
        Some(_) if only_a_reboot_is_left(ledger, assignment) => "Reboot",
        Some(Phase::Deploy) => "Deploy",
        Some(Phase::Reconfigure) => "Reconfigure",
    }
}

fn only_a_reboot_is_left(ledger: &LedgerState, assignment: &Assignment) -> bool {
    let standing = |item: &AssignedItem| item.standing(ledger.slots.get(&item.name).map(|slot| &*slot.status));
    let mut left = assignment.items.iter().filter(|item| standing(item) != ItemProgress::Done);
    left.all(|item| item.runner == RunnerKind::Reboot.as_str())
}

/// Note on the first unfinished item.
fn next(ledger: &LedgerState, assignment: &Assignment) -> Option<String> {
    assignment.items.iter().find_map(|item| {
        let status = ledger.slots.get(&item.name).map(|slot| &*slot.status);
        let said = status.map(said).unwrap_or_default();
        match item.standing(status) {
            ItemProgress::Done => None,
            ItemProgress::Running { .. } => status.and_then(running),
            ItemProgress::Due { attempt: 1 } => Some(format!("item {} is next", item.name)),
            ItemProgress::Due { .. } => Some(format!("Retrying: item {}{said}", item.name)),
            ItemProgress::Failed => Some(format!("Failed: item {}{said}", item.name)),
            ItemProgress::Held => Some(format!("Indeterminate: item {}{said}", item.name)),
        }
    })
}

fn said(status: &ItemStatus) -> String {
    format!(": {} (attempt {})", status.message, status.attempt)
}

fn running(status: &ItemStatus) -> Option<String> {
    Some(match status.attempt {
        1 => format!("item {}", status.name),
        attempt => format!("item {}, attempt {attempt}", status.name),
    })
}

#[cfg(test)]
mod tests {
    use muster_proto::model::{ItemState, Now, OnInterrupt};

    use crate::{
        attempt::record::{AttemptKey, Found},
        core::{
            Core, DISK_FULL, Input,
            tests::{assignment, config, empty, exit, item, key},
        },
    };

    #[test]
    fn every_turn_of_a_deployment_has_its_line() {
        let ended = |key: AttemptKey, state| Input::Ended { key, found: Found::Exited(exit(state)) };
        let failed = ItemState::Failed { exit_code: 3, retryable: true };
        let mut held = item("b", "1");
        held.on_interrupt = OnInterrupt::Hold;
        let disk_full = format!("Ready: DiskFull: {}", DISK_FULL.message);
        let steps = [
            (Input::Started { boot_id: "b".to_owned() }, "Pending"),
            (Input::Received(assignment(1, 1, vec![item("a", "1")])), "Deploy: item a"),
            (ended(key("a", 1, 1), failed), "Deploy: Retrying: item a: said (attempt 1)"),
            (Input::Tick, "Deploy: item a, attempt 2"),
            (Input::DiskFull(true), "Deploy: item a, attempt 2"),
            (ended(key("a", 1, 2), ItemState::Succeeded), &*disk_full),
            (Input::DiskFull(false), "Ready"),
            (Input::Received(assignment(1, 2, vec![held])), "Deploy: item b"),
            (
                Input::Ended { key: key("b", 2, 1), found: Found::Lost },
                "Deploy: Indeterminate: item b: its process ended without an outcome (attempt 1)",
            ),
        ];
        let mut core = Core::new(config(), empty());
        for (number, (input, line)) in steps.into_iter().enumerate() {
            let mono_ms = 10_000 * number as u64;
            drop(core.step(input, Now { wall_ms: mono_ms, mono_ms }));
            assert_eq!(core.summary(), line, "after step {number}");
        }
    }
}
