import os
os.chdir('/work/wt/c')
def sub(path, pairs):
    s=open(path).read()
    for a,b in pairs:
        assert a in s, (path,a)
        s=s.replace(a,b,1)
    open(path,'w').write(s)
B='coordinator/src/'
# --- proto
sub('proto/src/model/ids.rs',[
('''/// Is `text` a DNS-1123''','''/// Name of the item that copies a manager's swarm state before an update.
pub const SWARM_COPY_ITEM: &str = "muster-backup-swarm";
/// Name of the item that copies it with Docker stopped, in the machine's own turn.
pub const CONSISTENT_COPY_ITEM: &str = "muster-backup-swarm-consistent";
/// Name of the item that backs up MKE before an update.
pub const MKE_BACKUP_ITEM: &str = "muster-backup-mke";
/// Names of the items that Muster adds by itself. No manifest may use one.
pub const OWN_ITEMS: &[&str] = &[REBOOT_ITEM, SWARM_COPY_ITEM, CONSISTENT_COPY_ITEM, MKE_BACKUP_ITEM];

/// Is `text` a DNS-1123'''),
("/// Name of the item by which an update reboots a machine. No manifest may use it.","/// Name of the item by which an update reboots a machine."),
])
sub('proto/src/model.rs',[
("    ClusterName, Epoch, Generation, InvalidName, ItemName, LABEL_BYTES_MAX, LedgerId, MachineId, MachineName,\n    REBOOT_ITEM, SecretName, Seq, UpdateGroupName, is_label,",
 "    CONSISTENT_COPY_ITEM, ClusterName, Epoch, Generation, InvalidName, ItemName, LABEL_BYTES_MAX, LedgerId,\n    MKE_BACKUP_ITEM, MachineId, MachineName, OWN_ITEMS, REBOOT_ITEM, SWARM_COPY_ITEM, SecretName, Seq,\n    UpdateGroupName, is_label,"),
("pub use hook::{Hook,","pub use hook::{Backups, Hook,"),
])
sub('proto/src/model/hook.rs',[
('''/// One item that runs around''','''/// How an update backs up what the machines form: params of the runners, beside those that the update sets itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backups {
    /// Of `swarm-backup`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub swarm: BTreeMap<String, String>,
    /// Of `mke`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mke: BTreeMap<String, String>,
}

impl Backups {
    /// Is nothing said of them?
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// One item that runs around'''),
])
sub('proto/src/model/spec.rs',[
("use super::{\n    ClusterName,","use super::{\n    Backups, ClusterName,"),
('''    pub update_hooks: UpdateHooks,
''','''    pub update_hooks: UpdateHooks,
    /// How an update backs up the Swarm and MKE.
    #[serde(default, skip_serializing_if = "Backups::is_default")]
    pub backups: Backups,
'''),
])
# --- manifest
sub(B+'manifest/cluster.rs',[
('        "updateHooks",\n','        "updateHooks",\n        "backups",\n'),
("    ClusterSpec, Counts,","    Backups, ClusterSpec, Counts,"),
("    Some(ClusterSpec {","    let backups = map.or(\"backups\", Backups::default(), |spot| hook::backups(&spot, secrets, faults));\n    Some(ClusterSpec {"),
("        update_hooks: hooks?,\n","        update_hooks: hooks?,\n        backups: backups?,\n"),
])
sub(B+'manifest/hook.rs',[
("//! `updateHooks`: items that run around every update.","//! `updateHooks`, items that run around every update, and `backups`, which it takes by itself."),
("    Hook, HookMachines,","    Backups, Hook, HookMachines,"),
("    params::Secrets,","    params::{self, Secrets},"),
("/// Hooks before or after","/// Fields of `backups`.\npub(super) const BACKUPS: Fields = Fields { known: &[\"swarm\", \"mke\"], later: &[] };\n/// Hooks before or after"),
])
s=open(B+'manifest/hook.rs').read()
s+='''
/// `backups`: params of the runners that an update uses for them.
pub(super) fn backups(spot: &Spot<'_>, secrets: Secrets<'_>, faults: &mut Faults<'_>) -> Option<Backups> {
    let map = spot.map(faults, &BACKUPS)?;
    let mut of = |name: &str, runner, own: &str| -> Option<BTreeMap<String, String>> {
        map.or(name, BTreeMap::new(), |spot| {
            if spot.keys().contains(&own) {
                spot.child(own).fault(faults, "a param that the update sets itself", "it left out");
                return None;
            }
            params::read(&spot, Some(runner), secrets, faults)
        })
    };
    let (swarm, mke) = (of("swarm", RunnerKind::SwarmBackup, "mode"), of("mke", RunnerKind::Mke, "action"));
    Some(Backups { swarm: swarm?, mke: mke? })
}
'''
open(B+'manifest/hook.rs','w').write(s)
sub(B+'manifest/item.rs',[
("INPUTS_PER_ITEM_MAX, ItemName, Phase, REBOOT_ITEM, RETRIES_DEFAULT,","INPUTS_PER_ITEM_MAX, ItemName, OWN_ITEMS, Phase, RETRIES_DEFAULT,"),
('''    if name.as_str() == REBOOT_ITEM {
        spot.fault(faults, "a name that is Muster's own", "another name: so is called the reboot that an update adds");''','''    if OWN_ITEMS.contains(&name.as_str()) {
        spot.fault(faults, "a name that is Muster's own", "another name: so is called what an update adds");'''),
])
s=open(B+'manifest/tests.rs').read()
s=s.replace("&HOOKS, &HOOK, &KINDS]","&HOOKS, &HOOK, &BACKUPS, &KINDS]").replace("    hook::{HOOK, HOOKS},","    hook::{BACKUPS, HOOK, HOOKS},")
open(B+'manifest/tests.rs','w').write(s)
# --- facts
sub(B+'facts/update_rows.rs',[
('''    HookAfter(ItemName),
}
''','''    HookAfter(ItemName),
    /// A hot copy of this manager's swarm state, before anything is requested or disturbed.
    SwarmCopy,
    /// A backup of MKE, likewise.
    MkeBackup,
    /// A copy with Docker stopped, first of what disturbs the machine in its own turn.
    ConsistentCopy,
}
'''),
("        matches!(self, Self::HookBefore(_))","        matches!(self, Self::HookBefore(_) | Self::SwarmCopy | Self::MkeBackup)"),
('''            Self::HookBefore(name) | Self::HookAfter(name) => name.as_str(),
''','''            Self::HookBefore(name) | Self::HookAfter(name) => name.as_str(),
            Self::SwarmCopy => SWARM_COPY_ITEM,
            Self::MkeBackup => MKE_BACKUP_ITEM,
            Self::ConsistentCopy => CONSISTENT_COPY_ITEM,
'''),
('''    /// Is it done when every machine''','''    /// Is it a backup?
    #[must_use]
    pub const fn is_backup(&self) -> bool {
        matches!(self, Self::SwarmCopy | Self::MkeBackup | Self::ConsistentCopy)
    }

    /// Is it done when every machine'''),
("    /// Steps of the cluster.\n    pub stages: BTreeMap<ClusterStage, StageRow>,\n","    /// Steps of the cluster.\n    pub stages: BTreeMap<ClusterStage, StageRow>,\n    /// An operator does without backups.\n    #[serde(default)]\n    pub skip_backup: bool,\n    /// Backups that were made for it.\n    #[serde(default, skip_serializing_if = \"Vec::is_empty\")]\n    pub backups: Vec<BackupRow>,\n"),
('''/// What a rollout is for that takes''','''/// A backup as its item left it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupRow {
    /// The machine it lies on.
    pub machine: MachineName,
    /// Of what.
    pub of: Added,
    /// Its file there; empty: the item did not say.
    pub path: String,
    /// How long it is.
    pub bytes: u64,
    /// Its digest, in hex.
    pub sha256: String,
    /// What the item said of it, in one line.
    pub message: String,
    /// Unix milliseconds, the machine's clock.
    pub taken_at_ms: u64,
}

/// What a rollout is for that takes'''),
("    ClusterName, ItemName, LockState, MachineName,","    CONSISTENT_COPY_ITEM, ClusterName, ItemName, LockState, MKE_BACKUP_ITEM, MachineName,"),
(" Phase, Scope, SecretName, SwarmAvailability,"," Phase, SWARM_COPY_ITEM, Scope, SecretName, SwarmAvailability,"),
])
sub(B+'facts.rs',[("    Added, AddedReboot, ClusterStage","    Added, AddedReboot, BackupRow, ClusterStage")])
open(B+'plan/added.rs','w').write('''//! Items that an update adds to machines' lists, beside those of their types: on whom, and as which item. Their version
//! is the rollout's name, so that each runs once in every rollout.

use std::collections::BTreeMap;

use muster_proto::{
    model::{
        ClusterSpec, Hook, ItemName, LcmType, MachineName, MachineType, OnInterrupt, Phase, RETRIES_DEFAULT, RunnerKind,
        StateItem,
    },
    plant::planted,
};

use crate::facts::{Added, Facts, MachineRow, Target};

/// Of fewer managers none is stopped for a consistent copy.
const MANAGERS_MIN: usize = 3;
/// Time limit of one attempt at a backup, in milliseconds.
const BACKUP_MS: u64 = 2 * 3600 * 1000;

type Targets = BTreeMap<MachineName, Target>;

/// What an update of these machines adds, in the order it runs.
#[must_use]
pub fn due(
    facts: &Facts,
    spec: &ClusterSpec,
    targets: &Targets,
    skip_backup: bool,
) -> BTreeMap<MachineName, Vec<Added>> {
    let of_machine = |name: &MachineName| -> Option<Vec<Added>> {
        let machine_type = facts.machines.get(name)?.spec.machine_type;
        let here = |hook: &&Hook| hook.runs_on(name, machine_type);
        let before = spec.update_hooks.before.iter().filter(here).map(|hook| Added::HookBefore(hook.name.clone()));
        Some(before.collect())
    };
    let mut all: BTreeMap<_, _> =
        targets.keys().filter_map(|name| Some((name.clone(), of_machine(name)?))).collect();
    let changes = targets.values().any(|target| target.disruptive || !target.changed.is_empty());
    // Planted: nothing is backed up, and nobody has said so.
    if changes && !skip_backup && !planted("no-backup") {
        for (name, added) in backups(facts, spec, targets) {
            all.entry(name).or_default().extend(added);
        }
    }
    for (name, added) in &mut all {
        let Some(row) = facts.machines.get(name) else { continue };
        let here = spec.update_hooks.after.iter().filter(|hook| hook.runs_on(name, row.spec.machine_type));
        added.extend(here.map(|hook| Added::HookAfter(hook.name.clone())));
    }
    all
}

/// Is there a Swarm whose managers are copied?
#[must_use]
pub fn has_swarm(spec: &ClusterSpec) -> bool {
    spec.items(MachineType::Control).iter().any(|item| item.runner == RunnerKind::SwarmJoin)
}

/// May managers of so many be stopped, one at a time?
#[must_use]
pub fn spares_a_manager(controls: usize) -> bool {
    // Planted: the copy of one of two managers is consistent, and the swarm without a majority meanwhile.
    controls >= MANAGERS_MIN || planted("consistent-copy-of-two")
}

fn backups(facts: &Facts, spec: &ClusterSpec, targets: &Targets) -> Vec<(MachineName, Vec<Added>)> {
    let rows = targets.iter().filter_map(|(name, target)| Some((facts.machines.get(name)?, target)));
    let mut controls: Vec<(&MachineRow, &Target)> = rows
        .map(|(row, target)| (&**row, target))
        .filter(|(row, _)| row.spec.machine_type == MachineType::Control)
        .collect();
    controls.sort_by_key(|(row, _)| (row.spec.upgrade_index, &row.name));
    let connected = |row: &MachineRow| facts.live.machines.get(&row.name).is_some_and(|live| live.session.is_some());
    let first = controls.iter().find(|(row, _)| connected(row)).or(controls.first()).map(|(row, _)| &row.name);
    let (swarm, spares) = (has_swarm(spec), spares_a_manager(controls.len()));
    let of = |(row, target): &(&MachineRow, &Target)| {
        let mke = spec.lcm_type == LcmType::Mke && first == Some(&row.name);
        let consistent = swarm && spares && target.disruptive;
        let all = [(swarm, Added::SwarmCopy), (mke, Added::MkeBackup), (consistent, Added::ConsistentCopy)];
        (row.name.clone(), all.into_iter().filter(|(wanted, _)| *wanted).map(|(_, added)| added).collect())
    };
    controls.iter().map(of).collect()
}

/// The items themselves, in this version. All of them are resolved and hashed like those of the machine's type.
pub fn items<'a>(spec: &'a ClusterSpec, added: &'a [Added], version: &'a str) -> impl Iterator<Item = StateItem> + 'a {
    let swarm = |mode: &str| (RunnerKind::SwarmBackup, with(&spec.backups.swarm, "mode", mode));
    added.iter().filter_map(move |added| {
        let (phase, (runner, params)) = match added {
            Added::HookBefore(name) | Added::HookAfter(name) => {
                return spec.update_hooks.all().find(|hook| hook.name == *name).map(|hook| hook.item(version));
            }
            Added::SwarmCopy => (Phase::Prepare, swarm("hot")),
            Added::ConsistentCopy => (Phase::Deploy, swarm("consistent")),
            Added::MkeBackup => (Phase::Prepare, (RunnerKind::Mke, with(&spec.backups.mke, "action", "backup"))),
        };
        Some(StateItem {
            name: ItemName::new(added.item_name()).ok()?,
            runner,
            version: version.to_owned(),
            params,
            phase,
            timeout_ms: BACKUP_MS,
            retries: RETRIES_DEFAULT,
            on_interrupt: OnInterrupt::Rerun,
            disruptive: None,
        })
    })
}

fn with(params: &BTreeMap<String, String>, name: &str, value: &str) -> BTreeMap<String, String> {
    let mut params = params.clone();
    params.insert(name.to_owned(), value.to_owned());
    params
}

/// What an operator reads of it: `hook silence`.
#[must_use]
pub fn said(added: &Added) -> String {
    match added {
        Added::HookBefore(name) | Added::HookAfter(name) => format!("hook {name}"),
        Added::SwarmCopy | Added::MkeBackup | Added::ConsistentCopy => added.item_name().to_owned(),
    }
}
''')
# --- core
sub(B+'core/update.rs',[
('''    pub accept_control_plane_downtime: bool,
}
''','''    pub accept_control_plane_downtime: bool,
    /// Without backups.
    pub skip_backup: bool,
}
'''),
("    let options = Options { scope: Scope::Os, accept_control_plane_downtime };","    let options = Options { scope: Scope::Os, accept_control_plane_downtime, skip_backup: true };"),
])
sub(B+'core/update/maintenance.rs',[("Options { scope: Scope::Os, accept_control_plane_downtime }","Options { scope: Scope::Os, accept_control_plane_downtime, skip_backup: true }")])
sub(B+'core/operators.rs',[("        Request::Update { cluster, scope, accept_control_plane_downtime } => {\n            let options = update::Options { scope, accept_control_plane_downtime };","        Request::Update { cluster, scope, accept_control_plane_downtime, skip_backup } => {\n            let options = update::Options { scope, accept_control_plane_downtime, skip_backup };")])
sub(B+'core/io.rs',[('''        scope: Scope,
        /// With one or two control machines: the control plane may be down for a while.
        accept_control_plane_downtime: bool,
''','''        scope: Scope,
        /// With one or two control machines: the control plane may be down for a while.
        accept_control_plane_downtime: bool,
        /// Without the backups that come before everything else.
        skip_backup: bool,
''')])
sub(B+'core/update/freeze.rs',[
("    add(draft, cluster, start.kind, &mut targets);","    add(draft, cluster, start, &mut targets);"),
("    kind: UpdateKind,\n    targets: &mut","    start: &Start<'_>,\n    targets: &mut"),
(".filter(|_| kind == UpdateKind::Update)",".filter(|_| start.kind == UpdateKind::Update)"),
("added::due(draft, spec, targets)","added::due(draft, spec, targets, start.options.skip_backup)"),
("            stages: BTreeMap::new(),\n        }),","            stages: BTreeMap::new(),\n            skip_backup: start.options.skip_backup,\n            backups: Vec::new(),\n        }),"),
('''        UpdateKind::Update => format!(
            "cluster {cluster}: {name} started; {changed} of {} machines change, {disturbed} of them are disturbed",
            targets.len()
        ),''','''        UpdateKind::Update => format!(
            "cluster {cluster}: {name} started{}; {changed} of {} machines change, {disturbed} of them are disturbed",
            if start.options.skip_backup { " without backups (--skip-backup)" } else { "" },
            targets.len()
        ),'''),
])
sub(B+'core/update/around.rs',[
("//! How the hooks before and after an update are recorded.","//! How the hooks before and after an update are recorded, and the backups that it takes."),
("use muster_proto::model::{MachineName, Now, Phase};","use muster_proto::model::{AssignedItem, ItemState, ItemStatus, MachineName, Now, Phase};\nuse serde::Deserialize;"),
("    facts::{Added, ClusterStage,","    facts::{Added, BackupRow, ClusterStage,"),
("    for (name, _) in members(draft, rollout, Added::is_before) {\n        let Some(row) = draft.machine_mut(&name) else { continue };\n        if let","    for (name, _) in members(draft, rollout, Added::is_before) {\n        keep_backups(draft, &name);\n        let Some(row) = draft.machine_mut(&name) else { continue };\n        if let"),
])
s=open(B+'core/update/around.rs').read()
s+='''
/// What an item that made a backup leaves as its result.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Made {
    path: String,
    bytes: u64,
    sha256: String,
}

/// Notes in its update what was backed up on a machine: later statuses take the place of these.
pub(super) fn keep_backups(draft: &mut Draft<'_>, machine: &MachineName) {
    let Some(row) = draft.machines.get(machine) else { return };
    let (Some(rollout), Some(mine)) = (row.rollout.clone(), &row.update) else { return };
    let items = draft.live.machines.get(machine).and_then(|live| live.items.as_deref());
    let resolved: &[AssignedItem] = items.and_then(|items| items.resolved.as_deref().ok()).unwrap_or_default();
    let made = mine.added.iter().filter(|added| added.is_backup()).filter_map(|added| {
        let item = resolved.iter().find(|item| item.name.as_str() == added.item_name())?;
        let status = row.statuses.get(&item.name).filter(|status| status.hash == item.hash)?;
        (status.state == ItemState::Succeeded).then(|| backup(machine, added, status))
    });
    let made: Vec<BackupRow> = made.collect();
    let Some(update) = draft.update_mut(&rollout).filter(|_| !made.is_empty()) else { return };
    for backup in made {
        let known = |row: &BackupRow| row.machine == backup.machine && row.of == backup.of;
        if !update.backups.iter().any(known) {
            update.backups.push(backup);
        }
    }
}

fn backup(machine: &MachineName, of: &Added, status: &ItemStatus) -> BackupRow {
    let result = status.result_json.as_deref().and_then(|json| serde_json::from_str(json).ok());
    let Made { path, bytes, sha256 } = result.unwrap_or_default();
    let taken_at_ms = status.finished_at_ms.unwrap_or(status.started_at_ms);
    let (machine, message) = (machine.clone(), status.message.clone());
    BackupRow { machine, of: of.clone(), path, bytes, sha256, message, taken_at_ms }
}
'''
open(B+'core/update/around.rs','w').write(s)
sub(B+'core/update/record.rs',[("    let ready_secrets = secrets_in_use(draft, machine);\n    let Some(row) = draft.machine_mut(machine) else { return };\n    let Some(mine)","    let ready_secrets = secrets_in_use(draft, machine);\n    around::keep_backups(draft, machine);\n    let Some(row) = draft.machine_mut(machine) else { return };\n    let Some(mine)")])
# --- wire, server, ctl
s=open('proto/muster/v1/fleet.proto').read()
s=s.replace('''  string scope = 2;             // of an update: drain (or empty), os
  bool accept_control_plane_downtime = 3;
''','''  string scope = 2;             // of an update: drain (or empty), os
  bool accept_control_plane_downtime = 3;
  bool skip_backup = 4;
''',1)
s=s.replace('''  string scope = 2;             // drain, os
  bool accept_control_plane_downtime = 3;
''','''  string scope = 2;             // drain, os
  bool accept_control_plane_downtime = 3;
  bool skip_backup = 4;         // audited
''',1)
open('proto/muster/v1/fleet.proto','w').write(s)
sub(B+'server/fleet.rs',[
("        let options = Options { scope: scope(&request.scope)?, accept_control_plane_downtime };","        let skip_backup = request.skip_backup;\n        let options = Options { scope: scope(&request.scope)?, accept_control_plane_downtime, skip_backup };"),
("        let wish = Wish::Update { cluster, scope: scope(&request.scope)?, accept_control_plane_downtime };","        let (scope, skip_backup) = (scope(&request.scope)?, request.skip_backup);\n        let wish = Wish::Update { cluster, scope, accept_control_plane_downtime, skip_backup };"),
])
sub(B+'bin/musterctl/plan.rs',[
("    accept_control_plane_downtime: bool,\n","    accept_control_plane_downtime: bool,\n    /// For an update: without backups of the Swarm and of MKE\n    #[arg(long)]\n    skip_backup: bool,\n"),
("        accept_control_plane_downtime: args.accept_control_plane_downtime,\n","        accept_control_plane_downtime: args.accept_control_plane_downtime,\n        skip_backup: args.skip_backup,\n"),
])
sub(B+'bin/musterctl/update.rs',[
("    scope: Scope,\n    #[command(flatten)]","    scope: Scope,\n    /// Make no backups of the Swarm and of MKE before it (recorded: musterctl get audit)\n    #[arg(long)]\n    skip_backup: bool,\n    #[command(flatten)]"),
("    let Args { cluster, scope, start } = args;","    let Args { cluster, scope, skip_backup, start } = args;"),
("        let request = PlanRequest { cluster: cluster.clone(), scope: scope.clone(), accept_control_plane_downtime };","        let (cluster, scope) = (cluster.clone(), scope.clone());\n        let request = PlanRequest { cluster, scope, accept_control_plane_downtime, skip_backup };"),
("        let answer = coordinator.call_on(Kind::Clusters, &cluster, coordinator.fleet().plan(request)).await?;\n        let plan","        let answer = coordinator.call_on(Kind::Clusters, &request.cluster.clone(), coordinator.fleet().plan(request)).await?;\n        let plan"),
("UpdateRequest { cluster: cluster.clone(), scope, accept_control_plane_downtime }","UpdateRequest { cluster: cluster.clone(), scope, accept_control_plane_downtime, skip_backup }"),
])
