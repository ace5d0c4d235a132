//! Changes of machines, clusters and rollouts, in plain lines.

use std::collections::BTreeMap;

use jiff::Timestamp;
use muster_proto::{
    model::{Blocked, Severity},
    resource::{BlockedSince, Cluster, HookStatus, Machine, Rollout},
};

use super::in_trouble;
use crate::view::{
    machines::{note, outcome, stuck_text},
    printable,
};

/// A machine's new state, if it changed.
#[must_use]
pub fn machine_move(old: Option<&Machine>, new: &Machine) -> Option<String> {
    let name = &new.metadata.name;
    let state = &new.status.state;
    match old.map(|machine| &machine.status.state) {
        None => Some(printable(&format!("{name}: {state}"))),
        Some(old) if old != state => Some(printable(&format!("{name}: {old} -> {state}"))),
        Some(_) => None,
    }
}

/// Problems of a machine that began or ended, one line each.
#[must_use]
pub fn machine_troubles(old: Option<&Machine>, new: &Machine, now: Timestamp) -> Vec<String> {
    let mut lines = Vec::new();
    let name = &new.metadata.name;
    for (item, status) in &new.status.state_item_statuses {
        let before = old.and_then(|machine| machine.status.state_item_statuses.get(item));
        let same = before.is_some_and(|was| (was.attempt, &was.state) == (status.attempt, &status.state));
        if !same && !matches!(status.state.as_str(), "Running" | "Succeeded") {
            let what = outcome(status);
            lines.push(format!("{name}: item {item} {}, attempt {}: {what}", status.state, status.attempt));
        }
    }
    let trouble = |machine: &Machine| (machine.status.lost, machine.status.failed, machine.status.indeterminate);
    if old.map_or((false, false, false), trouble) != trouble(new) {
        let what = if in_trouble(new) { note(new, now) } else { "no longer in trouble".to_owned() };
        lines.push(format!("{name}: {what}"));
    }
    let was_stuck = old.and_then(|machine| machine.status.lcm_operation_stuck.as_ref());
    if let Some(stuck) = new.status.lcm_operation_stuck.as_ref().filter(|stuck| was_stuck != Some(stuck)) {
        lines.push(format!("{name}: {}", stuck_text(stuck, now)));
    }
    let wait = new.status.blocked.as_ref().filter(|wait| wait.blocked.reason.severity() != Severity::Ordinary);
    let waited = old.and_then(|machine| machine.status.blocked.as_ref()).map(|wait| &wait.blocked);
    let is_new = |wait: &Blocked| waited.is_none_or(|was| was.reason != wait.reason || is_about_another(was, wait));
    if let Some(wait) = wait.filter(|wait| is_new(&wait.blocked) && !in_trouble(new)) {
        lines.push(format!("{name}: {}: {}", wait.blocked.reason, wait.blocked.message));
    }
    lines.iter().map(|line| printable(line)).collect()
}

/// For the same reason, is something else in the way now? What follows the subject of an error changes with progress.
fn is_about_another(was: &Blocked, now: &Blocked) -> bool {
    let subject = |blocked: &Blocked| {
        let error = blocked.message.strip_prefix("Error: ")?;
        Some(error.split(" - ").next()?.split(": ").next()?.to_owned())
    };
    subject(now).is_some_and(|now| subject(was) != Some(now))
}

/// Changes of a cluster.
#[must_use]
pub fn cluster_changes(old: Option<&Cluster>, new: &Cluster, now: Timestamp) -> Vec<String> {
    let mut lines = Vec::new();
    let name = &new.metadata.name;
    for phase in &new.status.phases {
        let before = old.and_then(|cluster| cluster.status.phases.iter().find(|was| was.phase == phase.phase));
        let was_open = before.is_none_or(|was| was.done < was.total || was.total < phase.total);
        if was_open && phase.total > 0 && phase.done == phase.total {
            lines.push(format!("cluster {name}: {} done on all machines ({})", phase.phase, phase.total));
        }
    }
    let was_stuck = old.and_then(|cluster| cluster.status.lcm_operation_stuck.as_ref());
    // A stuck machine is reported with the machine.
    let of_cluster = new.status.lcm_operation_stuck.as_ref().filter(|stuck| stuck.machine.is_none());
    if let Some(stuck) = of_cluster.filter(|stuck| was_stuck != Some(stuck)) {
        lines.push(format!("cluster {name}: {}", stuck_text(stuck, now)));
    }
    let old_wait = old.and_then(|cluster| cluster.status.blocked.as_ref()).map(|wait| &wait.blocked);
    lines.extend(wait_change(name, old_wait, new.status.blocked.as_ref()));
    lines.iter().map(|line| printable(line)).collect()
}

/// Changes of a rollout. Its waits are its cluster's, and reported there.
#[must_use]
pub fn rollout_changes(old: Option<&Rollout>, new: &Rollout) -> Vec<String> {
    let mut lines = Vec::new();
    let name = &new.metadata.name;
    if old.is_none() && new.status.state != "Ready" {
        let machines = if new.status.machines == 1 { "machine" } else { "machines" };
        lines.push(format!(
            "rollout {name}: {} of {} {machines}, started by {}",
            new.spec.kind, new.status.machines, new.spec.started_by
        ));
    }
    let stages = |rollout: &Rollout| rollout.status.update.as_ref().map(|update| update.stages.clone());
    let before = old.and_then(stages).unwrap_or_default();
    for stage in stages(new).unwrap_or_default().iter().filter(|stage| stage.status == "Success") {
        if old.is_some() && before.iter().all(|was| was.name != stage.name || was.status != stage.status) {
            lines.push(format!("rollout {name}: {}", stage.name));
        }
    }
    let backups = |rollout: &Rollout| rollout.status.update.as_ref().map(|update| update.backups.clone());
    let made = old.map(|old| backups(old).unwrap_or_default());
    for backup in backups(new).unwrap_or_default() {
        if made.as_ref().is_some_and(|made| !made.contains(&backup)) {
            lines.push(format!("rollout {name}: {} on {}: {}", backup.item, backup.machine, backup.message));
        }
    }
    for group in new.status.update.iter().flat_map(|update| &update.groups).filter(|group| group.done == group.total) {
        let was = old.and_then(|old| old.status.update.as_ref()?.groups.iter().find(|was| was.name == group.name));
        if was.is_some_and(|was| was.done < was.total) {
            lines.push(format!("rollout {name}: update group {} is through (workers: {})", group.name, group.total));
        }
    }
    lines.extend(left_out(old, new));
    let warned = |rollout: &Rollout| rollout.status.update.as_ref().is_some_and(|update| update.paused_too_long);
    if warned(new) && !old.is_some_and(warned) {
        let risk = if new.spec.kind == "update" { "; a cluster between two releases is a risk" } else { "" };
        lines.push(format!("rollout {name}: paused for over a day{risk}"));
    }
    let old_state = old.map(|rollout| rollout.status.state.as_str());
    if old_state.is_some_and(|state| state != new.status.state) {
        lines.push(format!("rollout {name}: {}", new.status.state));
    }
    lines.iter().map(|line| printable(line)).collect()
}

/// Hooks after it that are now skipped: a person must do their work.
fn left_out(old: Option<&Rollout>, new: &Rollout) -> Vec<String> {
    let hooks =
        |rollout: &Rollout| rollout.status.update.as_ref().map(|update| update.hooks.clone()).unwrap_or_default();
    let before = old.map(hooks).unwrap_or_default();
    let open = |hook: &HookStatus| {
        let was = before.iter().find(|was| (&was.name, &was.machine) == (&hook.name, &hook.machine));
        was.is_some_and(|was| was.state != hook.state)
    };
    let mut machines: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for hook in hooks(new).into_iter().filter(|hook| hook.when == "after" && hook.state == "not run" && open(hook)) {
        machines.entry(hook.name).or_default().push(hook.machine);
    }
    let line = |(hook, names): (String, Vec<String>)| {
        let who = match names.as_slice() {
            [name] => name.clone(),
            names => format!("{} machines, {} first", names.len(), names.first().map_or("", String::as_str)),
        };
        format!("rollout {}: hook {hook} is not run any more ({who}); do by hand what it is for", new.metadata.name)
    };
    machines.into_iter().map(line).collect()
}

fn wait_change(cluster: &str, old: Option<&Blocked>, new: Option<&BlockedSince>) -> Option<String> {
    match (old, new) {
        (old, Some(wait)) if old.map(|old| &old.reason) != Some(&wait.blocked.reason) => {
            let blocked = &wait.blocked;
            Some(format!("cluster {cluster}: {}: {}", blocked.reason, blocked.message))
        }
        (Some(old), None) => Some(format!("cluster {cluster}: no longer {}", old.reason)),
        _ => None,
    }
}
