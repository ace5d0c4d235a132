//! The plan: the order in which machines go, and why they wait.

use std::collections::BTreeSet;

use muster_proto::{
    model::Blocked,
    resource::{Plan, PlannedMachine, Rollout, Wave},
};

use super::{LINE_CHARS_MAX, Table, describe::under_way_lines, printable, text::folded, update_plan::update_lines};

/// The plan of a cluster: the update, reboot or maintenance under way; else what an update would do; else the
/// deployment, wave by wave.
#[must_use]
pub fn plan_lines(plan: &Plan) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(blocked) = &plan.blocked {
        lines.push(printable(&format!("Cluster {} starts nothing now: {}", plan.cluster, said(blocked))));
        lines.push(printable(&format!("Clears when: {}", blocked.clears_when)));
    }
    if let Some(rollout) = &plan.rollout {
        lines.extend(under_way_lines(rollout));
        lines.extend(later_lines(plan, rollout));
        return lines;
    }
    if let Some(update) = &plan.update {
        lines.extend(update_lines(&plan.cluster, update));
        return lines;
    }
    let all_done = plan.waves.iter().all(|wave| wave.machines.iter().all(|machine| machine.items.is_empty()));
    if all_done && plan.blocked.is_none() {
        lines.push(printable(&format!("Cluster {} has nothing left to do.", plan.cluster)));
    }
    for wave in &plan.waves {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.push(title(wave));
        lines.extend(table_of(&wave.machines, plan));
    }
    lines
}

/// Machines outside the rollout under way, with work that begins after it.
fn later_lines(plan: &Plan, rollout: &Rollout) -> Vec<String> {
    let members = rollout.status.update.iter().flat_map(|update| &update.machines);
    let mut known: BTreeSet<&str> = members.map(|machine| machine.machine.as_str()).collect();
    let all = plan.waves.iter().flat_map(|wave| &wave.machines);
    // A machine with items of several phases is in several waves.
    let later = all.filter(|machine| !machine.items.is_empty() && known.insert(&machine.name));
    let later: Vec<PlannedMachine> = later.cloned().collect();
    if later.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![String::new(), "Not part of it:".to_owned()];
    lines.extend(table_of(&later, plan));
    lines
}

fn table_of(machines: &[PlannedMachine], plan: &Plan) -> Vec<String> {
    let mut table = Table::new(&["MACHINE", "STATE", "ITEMS", "WHY NOT NOW"]).within(LINE_CHARS_MAX - 2);
    for (names, machine) in folded(machines, is_alike, |machine| &machine.name) {
        table.push(row(names, machine, plan.blocked.as_ref()));
    }
    table.lines().into_iter().map(|line| format!("  {line}")).collect()
}

fn title(wave: &Wave) -> String {
    let machines = match wave.machines.len() {
        1 => "1 machine".to_owned(),
        count => format!("{count} machines"),
    };
    let at_once = match wave.at_once {
        1 => "one at a time".to_owned(),
        count => format!("at most {count} at once"),
    };
    format!("Wave {}: {} of {}, {machines}, {at_once}", wave.number, wave.phase, wave.machine_type)
}

/// Do both machines have the same row?
fn is_alike(one: &PlannedMachine, other: &PlannedMachine) -> bool {
    one.state == other.state && one.items == other.items && one.blocked == other.blocked
}

fn row(names: String, machine: &PlannedMachine, of_cluster: Option<&Blocked>) -> Vec<String> {
    let items = if machine.items.is_empty() { "all done".to_owned() } else { machine.items.join(", ") };
    let why = match &machine.blocked {
        Some(blocked) if of_cluster == Some(blocked) => format!("{}, as said above", blocked.reason),
        other => other.as_ref().map(said).unwrap_or_default(),
    };
    vec![names, machine.state.clone(), items, why]
}

fn said(blocked: &Blocked) -> String {
    format!("{}: {}", blocked.reason, blocked.message)
}
