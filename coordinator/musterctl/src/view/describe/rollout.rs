//! The page of a rollout, and its progress on each machine.

use std::collections::BTreeMap;

use jiff::Timestamp;
use muster_proto::resource::{MachineProgress, Rollout, UpdateStatus, Waiting};

use super::{blocked, metadata, page::Page, stages};
use crate::view::{
    LINE_CHARS_MAX, Table, age,
    durations::moment,
    printable,
    text::{folded, sentence},
};

/// A rollout's page.
#[must_use]
pub fn describe_rollout(rollout: &Rollout, now: Timestamp) -> Vec<String> {
    let (spec, status) = (&rollout.spec, &rollout.status);
    let mut page = Page::default();
    page.field("Name", &rollout.metadata.name);
    page.field("Cluster", &spec.cluster_name);
    page.field("Kind", &spec.kind);
    page.field("State", &status.state);
    blocked(&mut page, status.blocked.as_ref(), now);
    page.field("Ready", &format!("{} of {} machines", status.ready, status.machines));
    let failures = format!("{} control, {} worker", status.failures.control, status.failures.worker);
    page.field("Failures", &failures);
    page.field("Started by", &spec.started_by);
    if let Some(end) = status.finished_at {
        let took = age(rollout.metadata.creation_timestamp, end);
        page.field("Finished", &format!("{}, after {took}", moment(end)));
    }
    metadata(&mut page, &rollout.metadata, now);
    if let Some(details) = &status.update {
        update(&mut page, &spec.kind, details, now);
    }
    page.lines
}

/// Kinds of rollouts that keep machines at their release.
const AT_THEIR_RELEASE: [&str; 4] = ["reconfigure", "reboot", "maintenance", "removal"];

fn update(page: &mut Page, kind: &str, update: &UpdateStatus, now: Timestamp) {
    if !AT_THEIR_RELEASE.contains(&kind) {
        page.field("To release", &update.release);
    }
    page.field("Scope", update.scope.as_str());
    if let Some(since) = update.paused_since {
        let risk =
            if update.paused_too_long && kind == "update" { "; a cluster between two releases is a risk" } else { "" };
        page.field("Paused", &format!("{} ({} ago){risk}", moment(since), age(since, now)));
    }
    if update.skip_backup {
        page.field("Backups", "none (--skip-backup)");
    }
    page.section("Stages");
    page.table(&stages(&update.stages));
    if !update.hooks.is_empty() {
        page.section("Hooks and backups");
        let mut hooks = Table::new(&["ITEM", "MACHINE", "WHEN", "STATE"]);
        for hook in &update.hooks {
            hooks.push([&hook.name, &hook.machine, &hook.when, &hook.state].map(String::clone).into());
        }
        page.table(&hooks);
    }
    if !update.backups.is_empty() {
        page.section("Backups that were made");
        let mut backups = Table::new(&["MACHINE", "BYTES", "SHA-256", "WHAT"]);
        for made in &update.backups {
            let (machine, bytes) = (made.machine.clone(), made.bytes.to_string());
            backups.push(vec![machine, bytes, made.sha256.clone(), made.message.clone()]);
        }
        page.table(&backups);
    }
    if !update.groups.is_empty() {
        page.section("Update groups");
        let mut groups = Table::new(&["GROUP", "INDEX", "DONE", "TOTAL"]);
        for group in &update.groups {
            let counts = [group.index, group.done, group.total].map(|count| count.to_string());
            groups.push(std::iter::once(group.name.clone()).chain(counts).collect());
        }
        page.table(&groups);
    }
    if !update.machines.is_empty() {
        page.section("Machines");
        page.table(&machines(update));
    }
}

/// Summary of a rollout under way: its progress on each machine, and what it waits for.
pub(in crate::view) fn under_way_lines(rollout: &Rollout) -> Vec<String> {
    let (name, status) = (&rollout.metadata.name, &rollout.status);
    let Some(update) = &status.update else { return Vec::new() };
    let kind = match rollout.spec.kind.as_str() {
        "update" => format!("update to release {}", update.release),
        kind => kind.to_owned(),
    };
    let (state, ready, count) = (&status.state, status.ready, status.machines);
    let mut lines = vec![format!("Rollout {name} ({kind}) is {state}, {ready} of {count} machines through.")];
    lines.extend(machines(update).within(LINE_CHARS_MAX - 2).lines().into_iter().map(|line| format!("  {line}")));
    lines.push(format!("Its stages, hooks and groups: musterctl describe rollout {name}"));
    lines.iter().map(|line| printable(line)).collect()
}

/// Its machines: complete, at work, or waiting with the reason.
fn machines(update: &UpdateStatus) -> Table {
    let waits: BTreeMap<&str, &Waiting> = update.waiting.iter().map(|wait| (wait.machine.as_str(), wait)).collect();
    let why = |machine: &MachineProgress| match (waits.get(machine.machine.as_str()), &machine.item) {
        (Some(Waiting { reason, message, clears_when, .. }), _) => {
            format!("{} Clears when {clears_when}", sentence(&format!("{reason}: {message}")))
        }
        (None, Some(item)) => format!("item {item}"),
        (None, None) => String::new(),
    };
    let rows: Vec<_> = update.machines.iter().map(|machine| (machine, why(machine))).collect();
    let is_alike = |(one, why_one): &(&MachineProgress, String), (other, why_other): &(&MachineProgress, String)| {
        one.progress == other.progress && why_one == why_other
    };
    let mut table = Table::new(&["MACHINE", "PROGRESS", "WHY"]);
    for (names, (machine, why)) in folded(&rows, is_alike, |(machine, _)| &machine.machine) {
        table.push(vec![names, machine.progress.clone(), why.clone()]);
    }
    table
}
