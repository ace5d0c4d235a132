//! Reboots by items: when an update adds such an item, and how long a rebooting machine may be silent.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::{
    hash::item_hash,
    model::{
        AssignedItem, ClusterSpec, Generation, ItemName, ItemState, OnInterrupt, RETRIES_DEFAULT, RunnerKind,
        TIMEOUT_DEFAULT,
    },
};

use super::Limits;
use crate::facts::{AddedReboot, Facts, MachineRow, RebootWhy};

/// The param that makes a reboot ask the host first.
const WHEN: &str = "when";

/// Reason why this machine has to reboot in an update to `spec`. `disturbed`: its workloads move away in any case, so
/// the host can be asked when its items are done. Only the first reason counts.
#[must_use]
pub fn due(spec: &ClusterSpec, row: &MachineRow, disturbed: bool) -> Option<RebootWhy> {
    let asked = row.reboot.is_some_and(|asked| !asked.completed);
    let newer = row.ready_at.as_ref().is_some_and(|(release, _)| *release != spec.release);
    let group = spec.update_group(row.spec.update_group.as_ref());
    let says_so = disturbed || row.host.as_ref().is_some_and(|host| host.reboot_required);
    if asked {
        return Some(RebootWhy::Asked);
    }
    if spec.nodes_reboot_required && newer {
        return Some(RebootWhy::Release);
    }
    (says_so && group.is_some_and(|group| group.reboot_if_update_requires)).then_some(RebootWhy::Host)
}

/// Does this item of a manifest, which is about to run, reboot the machine as reliably as `why` requires?
#[must_use]
pub fn is_owner(item: &AssignedItem, why: RebootWhy) -> bool {
    let always = item.params.get(WHEN).is_none_or(|when| when == "always");
    is_reboot(item) && (always || why == RebootWhy::Host)
}

/// The added item.
#[must_use]
pub fn item(added: &AddedReboot) -> AssignedItem {
    let when = match added.why {
        RebootWhy::Asked | RebootWhy::Release => "always",
        RebootWhy::Host => "required",
    };
    let (name, runner) = (ItemName::of_reboot(), RunnerKind::Reboot.as_str());
    let params = BTreeMap::from([(WHEN.to_owned(), when.to_owned())]);
    AssignedItem {
        hash: item_hash(&name, runner, &added.version, &params, added.phase, &BTreeSet::new()),
        name,
        runner: runner.to_owned(),
        version: added.version.clone(),
        params,
        phase: added.phase,
        timeout_ms: u64::try_from(TIMEOUT_DEFAULT.as_millis()).unwrap_or(u64::MAX),
        retries: RETRIES_DEFAULT,
        on_interrupt: OnInterrupt::Rerun,
        cleared_attempts: 0,
        redo_up_to: Generation(0),
        ignore_changes: BTreeSet::new(),
        permit: None,
    }
}

pub(super) fn is_reboot(item: &AssignedItem) -> bool {
    item.runner == RunnerKind::Reboot.as_str()
}

/// The reboot item that is recorded as running.
pub(super) fn rebooting<'a>(row: &MachineRow, items: &'a [AssignedItem]) -> Option<&'a AssignedItem> {
    let runs = |item: &&AssignedItem| {
        let status = row.statuses.get(&item.name).filter(|status| status.hash == item.hash);
        status.is_some_and(|status| status.state == ItemState::Running)
    };
    items.iter().filter(|item| is_reboot(item)).find(runs)
}

/// Timeout of a silent machine. During a reboot that we asked for, it covers the time that the reboot may take.
pub(super) fn timeout_ms(rebooting: Option<&AssignedItem>, limits: &Limits) -> u64 {
    rebooting.map_or(0, |item| item.timeout_ms).max(limits.lost_after_ms)
}

/// When a machine counts as missing if it stays silent, monotonic milliseconds.
#[must_use]
pub fn missed_at(facts: &Facts, row: &MachineRow, limits: &Limits) -> u64 {
    let live = facts.live.machines.get(&row.name);
    let items = live.and_then(|live| live.items.as_deref()).and_then(|items| items.resolved.as_deref().ok());
    let heard = live.and_then(|live| live.heard_mono_ms).unwrap_or(facts.live.started_mono_ms);
    heard.saturating_add(timeout_ms(rebooting(row, items.unwrap_or_default()), limits))
}
