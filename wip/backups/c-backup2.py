import os,re
os.chdir('/work/wt/c')
def sub(path, pairs):
    s=open(path).read()
    for a,b in pairs:
        assert a in s, (path,a)
        s=s.replace(a,b,1)
    open(path,'w').write(s)
B='coordinator/src/'
sub(B+'core/update/around.rs',[('''    let Some(update) = draft.update_mut(&rollout).filter(|_| !made.is_empty()) else { return };
''','''    if made.is_empty() {
        return;
    }
    let Some(update) = draft.update_mut(&rollout) else { return };
''')])
# tests and harness that build requests
sub(B+'plan/tests.rs',[("accept_control_plane_downtime: false }","accept_control_plane_downtime: false, skip_backup: false }")])
for p in ['core/tests/update_reboots.rs','core/tests/quorum.rs','core/tests/updates.rs']:
    s=open(B+p).read()
    s=re.sub(r"(Request::Update \{ cluster: cluster\(\), scope: Scope::\w+, accept_control_plane_downtime: (?:true|false)) \}",r"\1, skip_backup: false }",s)
    open(B+p,'w').write(s)
s=open(B+'core/tests/hooks.rs').read()
s=s.replace("        accept_control_plane_downtime: true,\n","        accept_control_plane_downtime: true,\n        skip_backup: false,\n")
open(B+'core/tests/hooks.rs','w').write(s)
sub('tests/harness/model/state.rs',[("Request::Update { cluster, scope: Scope::Drain, accept_control_plane_downtime: true }","Request::Update { cluster, scope: Scope::Drain, accept_control_plane_downtime: true, skip_backup: false }")])
sub('tests/harness/sim/updating.rs',[("        Request::Update { cluster: manifest::cluster_name(), scope, accept_control_plane_downtime }","        let skip_backup = Rng::new(self.rng.clone().next()).permille(200);\n        Request::Update { cluster: manifest::cluster_name(), scope, accept_control_plane_downtime, skip_backup }")])
for p,ind in [(B+'view/tests/documents.rs',12),(B+'core/tests/fleet.rs',8),('tests/harness/sim/manifest.rs',8)]:
    sp=' '*ind
    sub(p,[(sp+"update_hooks: UpdateHooks::default(),\n", sp+"update_hooks: UpdateHooks::default(),\n"+sp+"backups: Backups::default(),\n")])
sub(B+'view/tests/documents.rs',[("        Blocked, ClusterName,","        Backups, Blocked, ClusterName,"),("        hooks: Vec::new(),\n","        hooks: Vec::new(),\n        backups: Vec::new(),\n        skip_backup: false,\n")])
sub(B+'core/tests/fleet.rs',[("        Assignment, ClusterName,","        Assignment, Backups, ClusterName,")])
sub('tests/harness/sim/manifest.rs',[("    ClusterName, ClusterSpec, Counts,","    Backups, ClusterName, ClusterSpec, Counts,")])
# documents
sub('proto/src/resource/update.rs',[('''    pub hooks: Vec<HookStatus>,
''','''    pub hooks: Vec<HookStatus>,
    /// Backups that were made for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backups: Vec<BackupStatus>,
    /// An operator did without backups.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skip_backup: bool,
'''),
("    /// What runs before and after it, in the order of machines. Empty: it has no hooks.","    /// What it adds to machines' lists, hooks and backups, in the order of machines."),
("/// How far a hook of an update is on one machine.","/// How far a hook of an update, or a backup, is on one machine."),
("    /// `before` or `after`.","    /// `before`, `after`, or `in its turn`."),
('''/// How far an update group is.
''','''/// A backup that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupStatus {
    /// The machine it lies on.
    pub machine: String,
    /// The item that made it.
    pub item: String,
    /// Its file there.
    pub path: String,
    /// How long it is.
    pub bytes: u64,
    /// Its digest.
    pub sha256: String,
    /// What was said of it: a copy may be hot though a consistent one was wanted.
    pub message: String,
    /// When, by the machine's clock.
    pub taken_at: Timestamp,
}

/// How far an update group is.
''')])
s=open('proto/src/resource.rs').read(); s=s.replace("update::{","update::{BackupStatus, ",1) if "update::{BackupStatus" not in s and "pub use update::{" in s else s
open('proto/src/resource.rs','w').write(s)
sub(B+'documents/hooks.rs',[
("//! Documents of the hooks around an update.","//! Documents of the hooks around an update, and of its backups."),
("    resource::HookStatus,","    resource::{BackupStatus, HookStatus},"),
('''use crate::{
    facts''','''use super::at;
use crate::{
    facts'''),
('''        let (name, when, stage) = match added {
            Added::HookBefore(name) => (name, "before", ClusterStage::HooksBefore),
            Added::HookAfter(name) => (name, "after", ClusterStage::HooksAfter),
        };
''','''        let (when, stage) = match added {
            Added::HookBefore(_) | Added::SwarmCopy | Added::MkeBackup => ("before", ClusterStage::HooksBefore),
            Added::ConsistentCopy => ("in its turn", ClusterStage::ControlUpgraded),
            Added::HookAfter(_) => ("after", ClusterStage::HooksAfter),
        };
        let name = added.item_name();
'''),
('''/// What runs in one of the two stages, in words. None: nothing.
pub(super) fn planned(update: &UpdateRow, stage: ClusterStage) -> Option<String> {''','''/// What was backed up.
pub(super) fn backups(update: &UpdateRow) -> Vec<BackupStatus> {
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

/// What will be backed up before an update, and how, in words. None: nothing.
pub(super) fn backups_planned(update: &UpdateRow) -> Option<String> {
    let on = |of: &Added| {
        let with = update.targets.iter().filter(|(_, target)| target.added.contains(of));
        with.map(|(name, _)| name.as_str()).collect::<Vec<_>>()
    };
    let said = |of: &Added, what: &str| {
        let names = on(of);
        (!names.is_empty()).then(|| format!("{what} {}", safety::some_names(names)))
    };
    let consistent = said(&Added::ConsistentCopy, "in its turn a consistent one, Docker stopped, of");
    let swarm = said(&Added::SwarmCopy, "Swarm: hot copies of");
    let mke = said(&Added::MkeBackup, "MKE: on");
    let all: Vec<String> = swarm.into_iter().chain(consistent).chain(mke).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// What runs in one of the two stages, in words. None: nothing.
pub(super) fn planned(update: &UpdateRow, stage: ClusterStage) -> Option<String> {'''),
('''                Added::HookAfter(_) => stage == ClusterStage::HooksAfter,
            };''','''                Added::HookAfter(_) => stage == ClusterStage::HooksAfter,
                Added::SwarmCopy | Added::MkeBackup | Added::ConsistentCopy => false,
            };'''),
])
sub(B+'documents/update.rs',[
("        hooks: hooks::statuses(survey, row, update),\n","        hooks: hooks::statuses(survey, row, update),\n        backups: hooks::backups(update),\n        skip_backup: update.skip_backup && update.kind == UpdateKind::Update,\n"),
("    if prepares {\n        let most","    if let Some(what) = hooks::backups_planned(update) {\n        phases.push(phase(\"backups\", what, \"none\", \"no, they end\"));\n    }\n    if prepares {\n        let most"),
("RebootWhy, RolloutRow, UpdateRow, Wish},","RebootWhy, RolloutRow, UpdateKind, UpdateRow, Wish},"),
("notes: notes(&survey, options.scope),","notes: notes(&survey, options),"),
("fn notes(survey: &Survey<'_>, scope: Scope) -> Vec<String> {\n","fn notes(survey: &Survey<'_>, options: Options) -> Vec<String> {\n    let mut notes = hooks::backup_notes(survey, options.skip_backup);\n"),
("    if scope == Scope::Os || names.is_empty() {\n        return Vec::new();\n    }","    if options.scope == Scope::Os || names.is_empty() {\n        return notes;\n    }"),
('''    vec![format!("{who} due to reboot ({names}); this update does not reboot, one with --scope os does")]''','''    notes.push(format!("{who} due to reboot ({names}); this update does not reboot, one with --scope os does"));
    notes'''),
])
s=open(B+'documents/hooks.rs').read()
s+='''
/// What is to be known of backups before an update is started.
pub(super) fn backup_notes(survey: &Survey<'_>, skip_backup: bool) -> Vec<String> {
    let swarm = added::has_swarm(survey.spec);
    if skip_backup && (swarm || survey.spec.lcm_type == LcmType::Mke) {
        return vec!["nothing is backed up (--skip-backup)".to_owned()];
    }
    let controls = survey.of_type(MachineType::Control).filter(|position| position.update().is_some()).count();
    if swarm && !added::spares_a_manager(controls) {
        return vec![format!("of {controls} managers none is stopped for a consistent copy: the Swarm's are hot")];
    }
    Vec::new()
}
'''
s=s.replace("    model::{MachineName, Standing},","    model::{LcmType, MachineName, MachineType, Standing},").replace("    plan::{\n        safety,","    plan::{\n        added, safety,")
open(B+'documents/hooks.rs','w').write(s)
sub(B+'view/describe.rs',[
("        page.section(\"Hooks\");\n        let mut hooks = Table::new(&[\"HOOK\",","        page.section(\"Hooks and backups\");\n        let mut hooks = Table::new(&[\"ITEM\","),
("    if !update.groups.is_empty() {",'''    if update.skip_backup {
        page.field("Backups", "none (--skip-backup)");
    }
    if !update.backups.is_empty() {
        page.section("Backups");
        let mut backups = Table::new(&["MACHINE", "FILE", "BYTES", "SHA-256", "WHAT"]);
        for made in &update.backups {
            let row = [&made.machine, &made.path, &made.bytes.to_string(), &made.sha256, &made.message];
            backups.push(row.map(String::clone).into());
        }
        page.table(&backups);
    }
    if !update.groups.is_empty() {'''),
])
sub(B+'facts/update_rows.rs',[('"Hooks before the update done"','"Hooks and backups before the update done"'),("    /// `Hooks before the update done`.","    /// `Hooks and backups before the update done`.")])
s=open('tests/e2e/hooks.rs').read()
s=s.replace('"Hooks before the update done"','"Hooks and backups before the update done"')
open('tests/e2e/hooks.rs','w').write(s)
