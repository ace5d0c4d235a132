//! Pages: everything about one thing, with problems first, in the layout of `kubectl describe`.

mod page;
mod rollout;

use std::collections::BTreeMap;

use jiff::Timestamp;
use muster_proto::resource::{
    BlockedSince, Cluster, Hardware, HostInfo, Machine, MachineStatus, MaintenanceStatus, Metadata, RebootStatus,
    StageStatus, StateItemStatus, StuckStage,
};

use self::page::Page;
pub use self::rollout::describe_rollout;
pub(super) use self::rollout::under_way_lines;
use super::{
    Table, age, bytes,
    clusters::{due, missing, troubles},
    durations::moment,
    machines::{activity_text, address, note, outcome},
    printable_lines,
};

/// Most lines of an item's output on a machine's page.
const OUTPUT_LINES_MAX: usize = 10;

/// A machine's page.
#[must_use]
pub fn describe_machine(machine: &Machine, now: Timestamp) -> Vec<String> {
    let status = &machine.status;
    let mut page = Page::default();
    page.field("Name", &machine.metadata.name);
    page.field("Cluster", machine.spec.cluster_name.as_str());
    page.field("Type", machine.spec.machine_type.as_str());
    page.field("State", &status.state);
    let note = note(machine, now);
    if !note.is_empty() && (status.blocked.is_none() || status.two_agents) {
        page.field("Note", &note);
    }
    blocked(&mut page, status.blocked.as_ref(), now);
    stuck(&mut page, status.lcm_operation_stuck.as_ref());
    if let Some(next) = what_to_do(machine) {
        page.field("What to do", &next);
    }
    conditions(&mut page, status, now);
    page.field("Release", status.release.as_deref().unwrap_or("none yet"));
    if let Some(known) = &status.maintenance {
        page.field("Maintenance", &maintenance(known, now));
    }
    for forced in &status.forced_pods {
        let (pod, uid, by, ago) = (&forced.pod, &forced.uid, &forced.by, age(forced.since, now));
        page.field("Deleted pod", &format!("{pod} (UID {uid}), by word of {by} {ago} ago"));
    }
    if let Some(phase) = &status.prepare_deletion_phase {
        page.field("Removal", phase);
    }
    if let Some(reboot) = &status.reboot {
        page.field("Reboot", &reboot_asked(reboot));
    }
    page.field("Generation", &status.generation.to_string());
    page.field("Upgrade index", &machine.spec.upgrade_index.to_string());
    if let Some(group) = &machine.spec.update_group {
        page.field("Update group", group.as_str());
    }
    metadata(&mut page, &machine.metadata, now);
    overwrites(&mut page, machine);
    if let Some(activity) = &status.activity {
        page.section("Under way");
        page.line(&activity_text(activity, now));
    }
    page.section("Items");
    page.table(&items(machine));
    output(&mut page, machine);
    if !status.stages.is_empty() {
        page.section("Stages");
        page.table(&stages(&machine.status.stages));
    }
    host(&mut page, machine);
    page.lines
}

/// A cluster's page, with its machines.
#[must_use]
pub fn describe_cluster(cluster: &Cluster, machines: &[Machine], now: Timestamp) -> Vec<String> {
    let (spec, status) = (&cluster.spec, &cluster.status);
    let mut page = Page::default();
    page.field("Name", &cluster.metadata.name);
    page.field("Ready", &format!("{} of {} machines", status.ready_nodes, status.nodes));
    if let Some(missing) = missing(cluster) {
        page.field("Enrolled", &missing);
    }
    if let Some(who) = troubles(cluster) {
        page.field("In trouble", &who);
    }
    blocked(&mut page, status.blocked.as_ref(), now);
    stuck(&mut page, status.lcm_operation_stuck.as_ref());
    let releases = status.releases.join(", ");
    page.field("Release", if releases.is_empty() { "none yet" } else { &releases });
    page.field("Wanted release", &spec.release);
    if let Some(due) = due(cluster) {
        let name = &cluster.metadata.name;
        page.field("Note", &format!("{due} (`musterctl plan {name}` shows it, `musterctl update {name}` starts it)"));
    }
    page.field("Rollout", status.rollout.as_deref().unwrap_or("none under way"));
    page.field(
        "Declared machines",
        &match spec.machines {
            Some(counts) => format!("{} control, {} worker", counts.control, counts.worker),
            None => "not declared".to_owned(),
        },
    );
    let at_once = format!("prepare {}, deploy {} workers", spec.max_worker_prepare_count, spec.max_worker_deploy_count);
    page.field("At once, at most", &at_once);
    let failures = format!("{} control, {} worker", spec.max_failures.control, spec.max_failures.worker);
    page.field("Stops at failures", &failures);
    metadata(&mut page, &cluster.metadata, now);
    page.section("Phases");
    let mut phases = Table::new(&["PHASE", "DONE", "RUNNING", "FAILED", "TOTAL"]);
    for phase in &status.phases {
        let counts = [phase.done, phase.running, phase.failed, phase.total].map(|count| count.to_string());
        phases.push(std::iter::once(phase.phase.to_string()).chain(counts).collect());
    }
    page.table(&phases);
    page.section("Machines");
    let mut table = Table::new(&["NAME", "TYPE", "STATE", "NOTE"]);
    for machine in machines {
        let machine_type = machine.spec.machine_type.to_string();
        let row = [machine.metadata.name.clone(), machine_type, machine.status.state.clone(), note(machine, now)];
        table.push(row.into());
    }
    page.table(&table);
    page.lines
}

fn blocked(page: &mut Page, wait: Option<&BlockedSince>, now: Timestamp) {
    let Some(wait) = wait else { return };
    page.field("Blocked", &format!("{}: {}", wait.blocked.reason, wait.blocked.message));
    page.field("  since", &format!("{} ({} ago)", moment(wait.since), age(wait.since, now)));
    page.field("  clears when", &wait.blocked.clears_when);
}

fn stuck(page: &mut Page, stuck: Option<&StuckStage>) {
    let Some(stuck) = stuck else { return };
    let of = stuck.machine.as_ref().map(|name| format!("{name} ")).unwrap_or_default();
    page.field("Stuck", &format!("{of}at \"{}\" since {}", stuck.stage, moment(stuck.since)));
}

/// For a machine that needs a person: the commands that resolve it.
fn what_to_do(machine: &Machine) -> Option<String> {
    let name = &machine.metadata.name;
    let of = |standing: &str| machine.status.items.iter().find(|item| item.standing == standing);
    if let Some(item) = of("failed") {
        let item = &item.name;
        return Some(format!(
            "read `musterctl logs {name} {item}`, mend the cause, then `musterctl retry {name} {item}` \
             (or leave the item out: `musterctl skip {name} {item}`)"
        ));
    }
    let item = &of("held")?.name;
    Some(format!(
        "nobody knows whether the item came about: look on the machine, then `musterctl accept {name} {item}` if it \
         did, `musterctl retry {name} {item}` to run it again"
    ))
}

fn conditions(page: &mut Page, status: &MachineStatus, now: Timestamp) {
    page.section("Conditions");
    let mut table = Table::new(&["CONDITION", "STATUS", "DETAIL"]);
    let seen =
        status.last_seen.map_or_else(|| "never heard of".to_owned(), |at| format!("heard of {} ago", age(at, now)));
    let enrolled = status.machine_id.clone().unwrap_or_else(|| "declared; waits for `muster-agent enroll`".to_owned());
    let slot = status.slot_since.map_or_else(String::new, |since| format!("for {}", age(since, now)));
    for (name, is, detail) in [
        ("Enrolled", status.machine_id.is_some(), enrolled),
        ("Connected", status.connected, seen),
        ("TwoAgents", status.two_agents, String::new()),
        ("Lost", status.lost, String::new()),
        ("Failed", status.failed, String::new()),
        ("Indeterminate", status.indeterminate, String::new()),
        ("HoldsSlot", status.slot_since.is_some(), slot),
    ] {
        table.push(vec![name.to_owned(), if is { "True" } else { "False" }.to_owned(), detail]);
    }
    page.table(&table);
    page.end_section();
}

fn metadata(page: &mut Page, metadata: &Metadata, now: Timestamp) {
    let created = metadata.creation_timestamp;
    page.field("Created", &format!("{} ({} ago)", moment(created), age(created, now)));
    pairs(page, "Annotations", &metadata.annotations);
}

fn pairs(page: &mut Page, title: &str, pairs: &BTreeMap<String, String>) {
    if !pairs.is_empty() {
        page.section(title);
        for (key, value) in pairs {
            page.line(&format!("{key}={value}"));
        }
        page.end_section();
    }
}

fn overwrites(page: &mut Page, machine: &Machine) {
    for (item, params) in &machine.spec.state_items_overwrites {
        pairs(page, &format!("Overwrites of item {item}"), params);
    }
}

fn items(machine: &Machine) -> Table {
    let mut table =
        Table::new(&["PHASE", "ITEM", "RUNNER", "VERSION", "STANDING", "ATTEMPT", "EXIT", "TOOK", "MESSAGE"]);
    for item in &machine.status.items {
        let mut row = vec![
            item.phase.to_string(),
            item.name.clone(),
            item.runner.clone(),
            item.version.clone(),
            item.standing.clone(),
        ];
        if let Some(status) = machine.status.state_item_statuses.get(&item.name) {
            row.push(status.attempt.to_string());
            row.push(status.exit_code.map_or_else(String::new, |code| code.to_string()));
            row.push(status.finished_at.map_or_else(String::new, |end| took(status, end)));
            row.push(if item.standing == "done" { status.message.clone() } else { outcome(status) });
        } else {
            row.extend([const { String::new() }; 4]);
        }
        table.push(row);
    }
    table
}

/// Both times are from the machine's clock, so their difference is right even if the clock is wrong.
fn took(status: &StateItemStatus, end: Timestamp) -> String {
    let ms = end.as_millisecond().saturating_sub(status.started_at.as_millisecond()).max(0);
    if ms < 10_000 { format!("{}.{}s", ms / 1000, ms % 1000 / 100) } else { age(status.started_at, end) }
}

/// The end of the output of the relevant item: the one that failed or is held, else the newest.
fn output(page: &mut Page, machine: &Machine) {
    let status = &machine.status;
    let wrong = status.items.iter().find(|item| matches!(item.standing.as_str(), "failed" | "held" | "retrying"));
    let statuses = &status.state_item_statuses;
    let found = match wrong {
        Some(item) => statuses.get_key_value(&item.name),
        None => statuses.iter().max_by_key(|(_, status)| status.started_at),
    };
    let Some((item, status)) = found.filter(|(_, status)| !status.output_tail.is_empty()) else { return };
    page.section(&format!("Last output of item {item} (whole: musterctl logs {} {item})", machine.metadata.name));
    let lines: Vec<&str> = status.output_tail.lines().collect();
    for line in lines.iter().skip(lines.len().saturating_sub(OUTPUT_LINES_MAX)) {
        page.line(&printable_lines(line));
    }
}

fn stages(stages: &[StageStatus]) -> Table {
    let mut table = Table::new(&["STAGE", "STATUS", "STARTED", "FINISHED"]);
    for stage in stages {
        let at = |moment_of: Option<Timestamp>| moment_of.map(moment).unwrap_or_default();
        table.push(vec![stage.name.clone(), stage.status.clone(), at(stage.started_at), at(stage.finished_at)]);
    }
    table
}

fn host(page: &mut Page, machine: &Machine) {
    let Some(host) = &machine.status.host_info else { return };
    page.section("Host");
    let ip = Some(address(machine, "InternalIP")).filter(|ip| !ip.is_empty());
    let Hardware { cpu, memory, storage, network } = &host.hardware;
    for (name, value) in [
        ("Hostname", address(machine, "Hostname")),
        ("InternalIP", ip.unwrap_or_else(|| "none found".to_owned())),
        ("Agent", machine.status.agent_version.clone().unwrap_or_default()),
        ("OS", host.os.clone()),
        ("Kernel", format!("{} {}", host.kernel_version, host.architecture)),
        ("Booted", format!("{} ({})", moment(host.boot_time), host.boot_id)),
        (
            "Time zone",
            Some(&host.timezone).filter(|zone| !zone.is_empty()).cloned().unwrap_or_else(|| "none set".to_owned()),
        ),
        ("CPU", format!("{} x {}", cpu.count, cpu.model)),
        ("Memory", bytes(memory.size_bytes)),
        ("Wants reboot", reboot(host)),
    ] {
        page.field(name, &value);
    }
    for nic in network {
        page.field("Interface", &format!("{} {} {}", nic.name, nic.mac, nic.addresses.join(" ")));
    }
    for disk in storage {
        let place = if disk.mount_point.is_empty() { "not mounted" } else { &format!("at {}", disk.mount_point) };
        page.field("Disk", &format!("{} {} {place}", disk.name, bytes(disk.size_bytes)));
    }
}

fn maintenance(known: &MaintenanceStatus, now: Timestamp) -> String {
    match (known.since, known.leaving) {
        (Some(since), false) => format!("out of service since {} ({} ago)", moment(since), age(since, now)),
        (Some(since), true) => format!("out of service since {}, on its way back", moment(since)),
        (None, false) => "on its way out of service".to_owned(),
        (None, true) => "on its way back before it was out of service".to_owned(),
    }
}

fn reboot_asked(reboot: &RebootStatus) -> String {
    let asked = format!("asked for {}", moment(reboot.requested_at));
    match (reboot.completed, reboot.error_message.as_str()) {
        (true, _) => format!("{asked}, done"),
        (false, "") => format!("{asked}, not done yet"),
        (false, error) => format!("{asked}, failed: {error}"),
    }
}

fn reboot(host: &HostInfo) -> String {
    match (host.reboot_required, host.reboot_reason.as_str()) {
        (false, _) => "no".to_owned(),
        (true, "") => "yes".to_owned(),
        (true, why) => format!("yes: {why}"),
    }
}
