//! What an update would do, as a page.

use muster_proto::resource::{ChangedMachine, UpdatePlan};

use super::{Table, printable};

/// So many machines in a row of which the same is to be said become one line.
const FOLDED_MIN: usize = 4;

/// The page: phases, machines, and what would be in the way.
pub(super) fn update_lines(cluster: &str, plan: &UpdatePlan) -> Vec<String> {
    let mut lines = vec![printable(&format!("An update of cluster {cluster} to release {}:", plan.release))];
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
    let mut machines = Table::new(&["MACHINE", "CHANGES", "WORKLOADS"]);
    for alike in plan.machines.chunk_by(is_alike) {
        match alike {
            [first, .., last] if alike.len() >= FOLDED_MIN => {
                machines.push(row(format!("{} … {} ({})", first.name, last.name, alike.len()), first));
            }
            few => few.iter().for_each(|machine| machines.push(row(machine.name.clone(), machine))),
        }
    }
    lines.extend(indented(&machines));
    if plan.unchanged > 0 {
        lines.push(format!("  Nothing changes on {} more.", plan.unchanged));
    }
    lines.extend(plan.warnings.iter().map(|warning| printable(&format!("It would wait: {warning}"))));
    lines.push(printable(&format!("Start it: musterctl update {cluster} --scope {}", plan.scope)));
    lines
}

/// Does the same stand to be said of both?
fn is_alike(one: &ChangedMachine, other: &ChangedMachine) -> bool {
    one.machine_type == other.machine_type && one.items == other.items && one.disruptive == other.disruptive
}

fn row(names: String, machine: &ChangedMachine) -> Vec<String> {
    let workloads = if machine.disruptive { "move away first" } else { "stay" };
    vec![names, machine.items.join(", "), workloads.to_owned()]
}

fn indented(table: &Table) -> impl Iterator<Item = String> {
    table.lines().into_iter().map(|line| format!("  {line}"))
}
