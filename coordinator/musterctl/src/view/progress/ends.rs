//! The end of a rollout, in a line.

use muster_proto::listing::some_names;
use muster_proto::resource::{Machine, Rollout};

use crate::view::{age, printable};

/// `all 9 machines are Ready, after 4m`, in words for this kind of rollout, with machines outside it that are
/// `not_ready`.
pub(super) fn ended<'a>(rollout: &Rollout, not_ready: impl Iterator<Item = &'a Machine>) -> String {
    match named(rollout, not_ready) {
        None => reached(rollout, NOW),
        Some(others) => {
            let name = &rollout.metadata.name;
            printable(&format!("{name} has ended: {}; not Ready by now: {others}", reached(rollout, THEN)))
        }
    }
}

/// Machines with their reasons, and the command that shows more. None: the list is empty.
fn named<'a>(rollout: &Rollout, machines: impl Iterator<Item = &'a Machine>) -> Option<String> {
    let reason = |machine: &'a Machine| match &machine.status.blocked {
        _ if machine.status.lost => Some("Lost"),
        wait => wait.as_ref().map(|wait| wait.blocked.reason.as_str()),
    };
    let named = |machine: &'a Machine| {
        format!("{} ({})", machine.metadata.name, reason(machine).unwrap_or(&machine.status.state))
    };
    let all: Vec<String> = machines.map(named).collect();
    let look = || format!("musterctl get machines --cluster {}", rollout.spec.cluster_name);
    (!all.is_empty()).then(|| format!("{} (why: {})", some_names(all.iter().map(String::as_str)), look()))
}

/// Verbs for one machine and several, present and past.
const NOW: [&str; 2] = ["is", "are"];
const THEN: [&str; 2] = ["was", "were"];

fn reached(rollout: &Rollout, are: [&str; 2]) -> String {
    let status = &rollout.status;
    let end = status.finished_at.unwrap_or(rollout.metadata.creation_timestamp);
    let took = age(rollout.metadata.creation_timestamp, end);
    let kind = rollout.spec.kind.as_str();
    if status.machines == 0 {
        return printable(&format!("the {kind} has ended, after {took}"));
    }
    let reached = match (kind, &status.update) {
        ("update", Some(update)) => format!("Ready at release {}", update.release),
        ("reboot", _) => "through the reboot".to_owned(),
        ("reconfigure", _) => "reconfigured".to_owned(),
        ("maintenance", _) => "back in service".to_owned(),
        _ => "Ready".to_owned(),
    };
    // Every machine of an ended deployment was Ready.
    let ready = if status.update.is_some() { status.ready } else { status.machines };
    printable(&format!("{} {reached}, after {took}", who(rollout, ready, are)))
}

/// `the update was aborted: 6 of 8 machines are at release 1.3, the rest is as it was`, with machines that are
/// `not_ready`.
pub(super) fn aborted<'a>(rollout: &Rollout, not_ready: impl Iterator<Item = &'a Machine>) -> String {
    let status = &rollout.status;
    let kind = rollout.spec.kind.as_str();
    let who = who(rollout, status.ready, NOW);
    let rest = if status.ready < status.machines { ", the rest is as it was" } else { "" };
    let how = match (kind, &status.update) {
        ("update", Some(update)) => {
            let again = match rest.is_empty() {
                true => String::new(),
                false => format!("; `musterctl update {}` takes it up again", rollout.spec.cluster_name),
            };
            format!("the update was aborted: {who} at release {}{rest}{again}", update.release)
        }
        ("reboot" | "reconfigure", _) => format!("the {kind} was aborted: {who} through it{rest}"),
        _ => format!("the {kind} was aborted; what it had taken is given back"),
    };
    let others = named(rollout, not_ready).map(|others| format!("; not Ready: {others}")).unwrap_or_default();
    printable(&format!("{how}{others}"))
}

/// `all 9 machines are`, `6 of 9 machines are`, or `worker-1 is`.
fn who(rollout: &Rollout, ready: u32, [is, are]: [&str; 2]) -> String {
    let status = &rollout.status;
    let known = status.update.as_ref().map(|update| update.machines.as_slice()).unwrap_or_default();
    match (ready, status.machines, known) {
        (1, 1, [one]) => format!("{} {is}", one.machine),
        (1, 1, _) => format!("the machine {is}"),
        (ready, all, _) if ready == all => format!("all {all} machines {are}"),
        (0, all, _) => format!("none of {all} machines {is}"),
        (1, all, _) => format!("1 of {all} machines {is}"),
        (ready, all, _) => format!("{ready} of {all} machines {are}"),
    }
}
