//! Documents of the backups of an update.

use muster_proto::{
    model::{LcmType, MachineType, RunnerKind},
    resource::{BackupStatus, UpdatePhase},
};

use super::at;
use crate::{
    facts::{Added, UpdateRow},
    plan::{added, snapshot::ClusterSnapshot},
};

/// The backups that were made.
pub(super) fn made(update: &UpdateRow) -> Vec<BackupStatus> {
    let made = update.backups.iter().map(|backup| BackupStatus {
        machine: backup.machine.to_string(),
        item: backup.of.item_name().to_owned(),
        path: backup.path.clone(),
        bytes: backup.bytes,
        sha256: backup.sha256.clone(),
        message: backup.message.clone(),
        taken_at: at(backup.taken_at_ms),
    });
    made.collect()
}

/// Machines that run this addition.
fn on<'a>(update: &'a UpdateRow, of: &Added) -> Vec<&'a str> {
    let with = update.targets.iter().filter(|(_, target)| target.added.contains(of));
    with.map(|(name, _)| name.as_str()).collect()
}

/// The phase of a plan for hot copies and MKE's backup, if it has any.
pub(super) fn first(update: &UpdateRow) -> Option<UpdatePhase> {
    let swarm = match on(update, &Added::SwarmCopy)[..] {
        [] => None,
        [name] => Some(format!("Swarm (hot) on {name}")),
        ref names => Some(format!("Swarm (hot) on {} managers", names.len())),
    };
    let mke = on(update, &Added::MkeBackup).into_iter().map(|name| format!("MKE on {name}"));
    let all: Vec<String> = swarm.into_iter().chain(mke).collect();
    (!all.is_empty()).then(|| phase("backups", &all.join("; "), "none", "no, they end"))
}

/// The phase in which managers are copied with Docker stopped, each in its turn, if any are.
pub(super) fn in_turn(update: &UpdateRow) -> Option<UpdatePhase> {
    let any = !on(update, &Added::ConsistentCopy).is_empty();
    let what = "each manager but the leader, in its turn";
    any.then(|| phase("consistent copy", what, "Docker stops there", "yes, between two"))
}

fn phase(name: &str, what: &str, impact: &str, pause: &str) -> UpdatePhase {
    let [name, what, impact, pause] = [name, what, impact, pause].map(str::to_owned);
    UpdatePhase { name, what, impact, pause }
}

/// Notes about its backups, shown before an update starts.
pub(super) fn notes(snapshot: &ClusterSnapshot<'_>, update: &UpdateRow) -> Vec<String> {
    let members = || snapshot.machines.iter().filter(|view| view.update().is_some());
    let has = |runner| members().any(|view| added::has(snapshot.facts, view.row, runner));
    if update.skip_backup && (has(RunnerKind::SwarmJoin) || has(RunnerKind::Mke)) {
        return vec!["nothing is backed up (--skip-backup)".to_owned()];
    }
    let managers = on(update, &Added::SwarmCopy).len();
    let joined = snapshot.spec.items(MachineType::Control).iter().any(|item| item.runner == RunnerKind::SwarmJoin);
    if managers == 0 && !joined && matches!(snapshot.spec.lcm_type, LcmType::Swarm | LcmType::Mke) {
        let why = "its control machines have no `swarm-join` item";
        return vec![format!("the Swarm is not backed up, for {why}: copy it yourself before you start")];
    }
    let few = (1..added::MANAGERS_MIN).contains(&managers);
    let least = added::MANAGERS_MIN;
    let note =
        format!("the Swarm's copies are hot only: of fewer than {least} managers none is stopped for a consistent one");
    few.then_some(note).into_iter().collect()
}
