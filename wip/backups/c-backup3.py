import os
os.chdir('/work/wt/c')
def sub(path, pairs):
    s=open(path).read()
    for a,b in pairs:
        assert a in s, (path,a)
        s=s.replace(a,b,1)
    open(path,'w').write(s)
B='coordinator/src/'
sub('tests/harness/invariants/hooks.rs',[
("//! What must hold of the hooks around an update:","//! What must hold of the hooks around an update and of its backups:"),
('''    /// Notes a process of an item that an update has added: its version is the update's name.
    pub fn added_started(&mut self, machine: &Machine, key: &AttemptKey) {
        let version = machine.disk.assigned(&key.item).map(|item| item.version.clone()).unwrap_or_default();
        if version.contains("-update-") {
            self.seen.hooks.started.insert((version, machine.name.clone(), key.item.clone()));
        }
    }
''','''    /// Notes a process of an item that an update has added: its version is the update's name. Docker is stopped on no
    /// manager of fewer than three.
    pub fn added_started(&mut self, machine: &Machine, key: &AttemptKey, facts: Option<&Facts>) -> Checked {
        let version = machine.disk.assigned(&key.item).map(|item| item.version.clone()).unwrap_or_default();
        if version.contains("-update-") {
            self.seen.hooks.started.insert((version, machine.name.clone(), key.item.clone()));
        }
        let control = |row: &&std::sync::Arc<MachineRow>| row.spec.machine_type == MachineType::Control;
        let controls = facts.map(|facts| facts.machines.values().filter(control).count());
        if key.item.as_str() == CONSISTENT_COPY_ITEM && controls.is_some_and(|count| count < 3) {
            let detail = format!("{}: Docker is stopped on one of {controls:?} managers", machine.name);
            return Err(self.violation("backup", detail));
        }
        Ok(())
    }

    /// No update begins in a swarm whose managers were not copied for it, unless an operator does without.
    fn swarm_is_copied(&self, facts: &Facts, rollout: &RolloutRow, update: &UpdateRow) -> Checked {
        let spec = facts.specs.get(&(rollout.cluster.clone(), update.version));
        let joins = |spec: &std::sync::Arc<ClusterSpec>| {
            spec.items(MachineType::Control).iter().any(|item| item.runner == RunnerKind::SwarmJoin)
        };
        let changes = update.targets.values().any(|target| target.disruptive || !target.changed.is_empty());
        if update.skip_backup || update.kind != UpdateKind::Update || !changes || !spec.is_some_and(joins) {
            return Ok(());
        }
        let rows = update.targets.keys().filter_map(|name| facts.machines.get(name));
        for row in rows.filter(|row| row.spec.machine_type == MachineType::Control) {
            let skipped = row.verdicts.get(SWARM_COPY_ITEM).is_some_and(|verdict| verdict.left_out.is_some());
            let copied = self.seen.hooks.started.iter().any(|(version, machine, item)| {
                *version == rollout.name && *machine == row.name && item.as_str() == SWARM_COPY_ITEM
            });
            if !copied && !skipped {
                let detail = format!("{} has begun, and {} was not copied", rollout.name, row.name);
                return Err(self.violation("backup", detail));
            }
        }
        Ok(())
    }
'''),
("                self.before_is_done(facts, rollout, update)?;\n","                self.before_is_done(facts, rollout, update)?;\n                self.swarm_is_copied(facts, rollout, update)?;\n"),
("use muster_coordinator::facts::{Added, Facts, MachineRow, RolloutRow, UpdateRow, Wish};","use muster_coordinator::facts::{Added, Facts, MachineRow, RolloutRow, UpdateKind, UpdateRow, Wish};"),
("use muster_proto::model::{ItemName, ItemState, MachineName, Phase};","use muster_proto::model::{\n    CONSISTENT_COPY_ITEM, ClusterSpec, ItemName, ItemState, MachineName, MachineType, Phase, RunnerKind,\n    SWARM_COPY_ITEM,\n};"),
])
sub('tests/harness/sim/act.rs',[
("                    self.watcher.added_started(machine, &key);\n",""),
("                    let facts = self.coordinator.as_ref().map(Core::facts);\n                    self.watcher.disturbed","                    let facts = self.coordinator.as_ref().map(Core::facts);\n                    self.watcher.added_started(machine, &key, facts)?;\n                    self.watcher.disturbed"),
])
sub('tests/harness/sim/situations.rs',[
("    /// A hook of an update runs.","    /// A hook or a backup of an update runs."),
('''            self.count("a hook ran after an update");
        }''','''            self.count("a hook ran after an update");
        } else if key.item.as_str() == SWARM_COPY_ITEM {
            self.count("a swarm was copied before an update");
        } else if key.item.as_str() == CONSISTENT_COPY_ITEM {
            self.count("a manager was copied with Docker stopped");
        }'''),
('''    "a hook ran before an update",
''','''    "a hook ran before an update",
    "a manager was copied with Docker stopped",
    "a swarm was copied before an update",
'''),
("use muster_proto::model::{MachineType, Phase};","use muster_proto::model::{CONSISTENT_COPY_ITEM, MachineType, Phase, SWARM_COPY_ITEM};"),
])
sub('tests/it/plants.rs',[('''    no_stage_deadline:''','''    no_backup: "no-backup" by "backup";
    consistent_copy_of_two: "consistent-copy-of-two" by "backup";
    no_stage_deadline:''')])
sub(B+'core/tests.rs',[("mod applying;\n","mod applying;\nmod backups;\n")])
open(B+'core/tests/backups.rs','w').write(open('/tmp/backups_test.rs').read())
sub('docs/MANIFEST.md',[
("| `maxFailures` | `{control","| `backups` | `{swarm: {...}, mke: {...}}` | `{}` | params of the backups that every update takes, see below |\n| `maxFailures` | `{control"),
("## StateItems\n","""**Backups.** Before an update changes or disturbs anything, each control machine of a cluster with a `swarm-join` copies its
Swarm state while Docker runs (`muster-backup-swarm`), and with `lcmType: mke` one of them backs up MKE (`muster-backup-mke`).
Of three or more managers each that is disturbed makes a consistent copy too, Docker stopped, first of all in its own turn
(`muster-backup-swarm-consistent`). `backups.swarm` and `backups.mke` hold params of the runners `swarm-backup` (but `mode`) and
`mke` (but `action`), such as `{path: /srv/backup/swarm, keep: "5"}`. `musterctl update --skip-backup` does without. These names
are Muster's own.

## StateItems
"""),
])
sub('docs/OPERATIONS.md',[
("| `BeforeUpdate` | the named hooks of `updateHooks.before` are not done;","| `BeforeUpdate` | the named hooks of `updateHooks.before`, or backups, are not done;"),
("| see its hooks | ","| see its backups | `musterctl describe rollout ROLLOUT`: machine, file, bytes, SHA-256, hot or consistent and why; kept on the machine (`/srv/backup/swarm`, `/srv/backup/ucp`). Copy them elsewhere: they hold keys. Without: `musterctl update --skip-backup` |\n| see its hooks | "),
])
sub('docs/ARCHITECTURE.md',[
("  needed. A hook has no lock,","  needed. Backups are such items too: hot copies and MKE's before, a consistent copy (Docker stopped) as first disruptive item\n  of each manager's own turn, so that rule 1 and the permit hold for it, and only where three or more are. What they left\n  (file, size, digest) is noted in the rollout, for later statuses take their place. A hook has no lock,"),
("  `safety::may_disturb`), backups, removal; and","  `safety::may_disturb`), removal; and"),
("| stages | a stage past","| backups | no update begins in a swarm that was not copied for it, unless an operator does without; no manager of fewer than three is stopped | `plan/added.rs` | `backup`: no-backup, consistent-copy-of-two |\n| stages | a stage past"),
])
sub('CHANGELOG.md',[("- Every stage of an update has a deadline with an outcome","""- Backups in updates: before anything else hot copies of the Swarm on every control machine and MKE's on one, in each manager's
  own turn a consistent copy (three or more managers); `backups` of a cluster, recorded with size and digest in `describe
  rollout`; `musterctl update --skip-backup` does without, and is audited.
- Every stage of an update has a deadline with an outcome""")])
