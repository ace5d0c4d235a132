//! The plan: who goes when, and why not now.

use muster_proto::{
    model::Blocked,
    resource::{Plan, PlannedMachine, Wave},
};

use super::{Table, printable};

/// The plan of a cluster, wave by wave.
#[must_use]
pub fn plan_lines(plan: &Plan) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(blocked) = &plan.blocked {
        lines.push(printable(&format!("Cluster {} starts nothing now: {}", plan.cluster, said(blocked))));
        lines.push(printable(&format!("Clears when: {}", blocked.clears_when)));
    }
    if plan.waves.iter().all(|wave| wave.machines.iter().all(|machine| machine.items.is_empty())) {
        lines.push(printable(&format!("Cluster {} has nothing left to do.", plan.cluster)));
    }
    for wave in &plan.waves {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.push(title(wave));
        let mut table = Table::new(&["MACHINE", "STATE", "ITEMS", "WHY NOT NOW"]);
        for machine in &wave.machines {
            table.push(row(machine));
        }
        lines.extend(table.lines().into_iter().map(|line| format!("  {line}")));
    }
    lines
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

fn row(machine: &PlannedMachine) -> Vec<String> {
    let items = if machine.items.is_empty() { "all done".to_owned() } else { machine.items.join(", ") };
    let why = machine.blocked.as_ref().map(said).unwrap_or_default();
    vec![machine.name.clone(), machine.state.clone(), items, why]
}

fn said(blocked: &Blocked) -> String {
    format!("{}: {}", blocked.reason, blocked.message)
}
