//! Rows of machines: LCM's columns first, then problems and activity.

use jiff::Timestamp;
use muster_proto::model::Reason;
use muster_proto::resource::{Activity, Machine, StateItemStatus, StuckStage};

use super::{Look, age, bytes};

pub(super) const HEADERS: &[&str] = &["NAME", "CLUSTERNAME", "TYPE", "STATE", "NOTE"];
pub(super) const HEADERS_WIDE: &[&str] =
    &["NAME", "CLUSTERNAME", "TYPE", "STATE", "RELEASE", "INTERNALIP", "HOSTNAME", "AGENTVERSION", "NOTE"];

/// Note for a machine that shares its identity with another agent.
const TWO_AGENTS: &str = "TwoAgents: another machine has its identity too, as from a copied disk (`muster-agent \
                          enroll --force` on one of them)";

pub(super) fn row(machine: &Machine, look: Look) -> Vec<String> {
    let mut row = vec![
        machine.metadata.name.clone(),
        machine.spec.cluster_name.to_string(),
        machine.spec.machine_type.to_string(),
        machine.status.state.clone(),
    ];
    if look.wide {
        row.push(machine.status.release.clone().unwrap_or_default());
        row.push(address(machine, "InternalIP"));
        row.push(address(machine, "Hostname"));
        row.push(machine.status.agent_version.clone().unwrap_or_default());
    }
    row.push(note(machine, look.now));
    row
}

/// Its address of one kind, `Hostname` or `InternalIP`, or an empty text.
pub(super) fn address(machine: &Machine, kind: &str) -> String {
    let found = machine.status.addresses.iter().find(|address| address.kind == kind);
    found.map(|address| address.address.clone()).unwrap_or_default()
}

/// The machine's problem, else what it waits for, else its activity. May be empty.
#[must_use]
pub fn note(machine: &Machine, now: Timestamp) -> String {
    let mut said = plain_note(machine, now);
    if machine.status.two_agents {
        said = if said.is_empty() { TWO_AGENTS.to_owned() } else { format!("{TWO_AGENTS}; {said}") };
    }
    match &machine.status.lcm_operation_stuck {
        Some(stuck) if said.is_empty() => stuck_text(stuck, now),
        Some(stuck) => format!("{}; {said}", stuck_text(stuck, now)),
        None => said,
    }
}

/// `Stuck at "Deploy phase done" for 5h`; for a machine among others, `worker-3 is stuck at "Deploy phase done" for
/// 5h`.
pub(super) fn stuck_text(stuck: &StuckStage, now: Timestamp) -> String {
    let who = stuck.machine.as_ref().map_or_else(|| "Stuck".to_owned(), |name| format!("{name} is stuck"));
    format!("{who} at \"{}\" for {}", stuck.stage, age(stuck.since, now))
}

fn plain_note(machine: &Machine, now: Timestamp) -> String {
    let status = &machine.status;
    if let Some(wait) = status.blocked.as_ref().filter(|_| status.prepare_deletion_phase.is_some()) {
        return format!("{}: {}", wait.blocked.reason, wait.blocked.message);
    }
    let mut parts = Vec::new();
    if status.lost {
        parts.push(match status.last_seen {
            Some(seen) => format!("Lost: not heard of for {}", age(seen, now)),
            None => "Lost: not heard of".to_owned(),
        });
    }
    if status.failed {
        parts.push(format!("Failed: {}", items_that(machine, "failed")));
    }
    if status.indeterminate {
        parts.push(format!("Indeterminate: {}", items_that(machine, "held")));
    }
    if !parts.is_empty() {
        return parts.join("; ");
    }
    if let Some(activity) = &status.activity {
        let disconnected = status.blocked.as_ref().is_some_and(|wait| wait.blocked.reason == Reason::Disconnected);
        let unheard = if disconnected { "Disconnected; when last heard of: " } else { "" };
        return format!("{unheard}{}", activity_text(activity, now));
    }
    let out_since = status.maintenance.filter(|known| !known.leaving).and_then(|known| known.since);
    match &status.blocked {
        Some(wait) if let Some(since) = out_since => {
            format!("{} for {}: {}", wait.blocked.reason, age(since, now), wait.blocked.message)
        }
        Some(wait) => format!("{}: {}", wait.blocked.reason, wait.blocked.message),
        None => match items_that(machine, "retrying").as_str() {
            "" if !status.connected && status.host_info.is_some() => {
                "Disconnected: it has no connection to the coordinator now".to_owned()
            }
            "" => String::new(),
            retrying => format!("Retrying: {retrying}"),
        },
    }
}

/// `item api: exit status 3 (attempt 4)` for the items in one state.
fn items_that(machine: &Machine, standing: &str) -> String {
    let items = machine.status.items.iter().filter(|item| item.standing == standing);
    let said: Vec<String> = items
        .map(|item| match machine.status.state_item_statuses.get(&item.name) {
            Some(status) => format!("item {}: {} (attempt {})", item.name, outcome(status), status.attempt),
            None => format!("item {}", item.name),
        })
        .collect();
    said.join(", ")
}

/// The outcome of an attempt, in a few words.
pub(super) fn outcome(status: &StateItemStatus) -> String {
    match (status.message.as_str(), status.exit_code) {
        ("", Some(code)) if code > 0 => format!("exit status {code}"),
        ("", _) => status.state.clone(),
        (message, _) => message.to_owned(),
    }
}

/// `item images, attempt 2, 12s, 45 MiB of 64 MiB at 30 MiB/s`.
pub(super) fn activity_text(activity: &Activity, now: Timestamp) -> String {
    let mut text = format!("item {}", activity.item);
    if activity.attempt > 1 {
        text.push_str(&format!(", attempt {}", activity.attempt));
    }
    text.push_str(&format!(", {}", age(activity.started_at, now)));
    if let Some(task) = &activity.task {
        text.push_str(&format!(", task \"{task}\""));
    }
    if let Some(progress) = activity.progress {
        text.push_str(&format!(", {}", bytes(progress.done)));
        if progress.total > 0 {
            text.push_str(&format!(" of {}", bytes(progress.total)));
        }
        text.push_str(&format!(" at {}/s", bytes(progress.per_second)));
    }
    text
}
