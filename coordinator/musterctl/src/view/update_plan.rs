//! The page of a planned update.

use muster_proto::{
    model::{REBOOT_ITEM, Scope},
    resource::{ChangedMachine, UpdatePlan},
};

use super::{
    Table, printable,
    text::{cut, folded},
};

/// Longest list of items in the table, in characters: the page fits a terminal of 120.
const ITEMS_CHARS_MAX: usize = 50;

/// The page: phases, machines, and obstacles.
pub(super) fn update_lines(cluster: &str, plan: &UpdatePlan) -> Vec<String> {
    let scope = if plan.scope == Scope::Os { ", scope os" } else { "" };
    let mut lines = vec![printable(&format!("An update of cluster {cluster} to release {}{scope}:", plan.release))];
    if let Some(refused) = &plan.refused {
        lines.push(printable(&format!("It cannot start: {refused}")));
        return lines;
    }
    let mut phases = Table::new(&["PHASE", "WHAT HAPPENS", "IMPACT", "CAN BE PAUSED"]);
    for phase in &plan.phases {
        phases.push(vec![phase.name.clone(), phase.what.clone(), phase.impact.clone(), phase.pause.clone()]);
    }
    lines.extend(indented(&phases));
    lines.push(String::new());
    let grouped = plan.machines.iter().any(|machine| machine.group.is_some());
    let headers: &[&str] =
        if grouped { &["MACHINE", "GROUP", "CHANGES", "WORKLOADS"] } else { &["MACHINE", "CHANGES", "WORKLOADS"] };
    let mut machines = Table::new(headers);
    for (names, machine) in folded(&plan.machines, is_alike, |machine| &machine.name) {
        machines.push(row(names, machine, grouped));
    }
    lines.extend(indented(&machines));
    if plan.unchanged > 0 {
        lines.push(format!("  Nothing changes on {} more.", plan.unchanged));
    }
    lines.extend(plan.notes.iter().map(|note| printable(&format!("Note: {note}"))));
    lines.extend(plan.warnings.iter().map(|warning| printable(&format!("It would wait: {warning}"))));
    lines
}

/// Do both machines have the same row?
fn is_alike(one: &ChangedMachine, other: &ChangedMachine) -> bool {
    let said = |machine: &ChangedMachine| (machine.machine_type, machine.group.clone(), machine.disruptive);
    said(one) == said(other) && one.items == other.items
}

fn row(names: String, machine: &ChangedMachine, grouped: bool) -> Vec<String> {
    let workloads = if machine.disruptive { "move away first" } else { "stay" };
    let group = grouped.then(|| machine.group.clone().unwrap_or_else(|| "-".to_owned()));
    // Put the most important item first, where it survives a cut.
    let (reboot, items): (Vec<&str>, Vec<&str>) =
        machine.items.iter().map(String::as_str).partition(|item| *item == REBOOT_ITEM);
    let items = [reboot, items].concat().join(", ");
    let rest = [cut(&items, ITEMS_CHARS_MAX), workloads.to_owned()];
    std::iter::once(names).chain(group).chain(rest).collect()
}

fn indented(table: &Table) -> impl Iterator<Item = String> {
    table.lines().into_iter().map(|line| format!("  {line}"))
}
