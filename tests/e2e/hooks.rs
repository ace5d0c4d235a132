//! Hooks around an update, with real processes.

use anyhow::{Context as _, Result};
use muster_tests::fleet::{
    Fleet,
    effects::Effect,
    manifest::{bash, cluster, hook},
};

/// The cluster in a release: its deploy item, and the hooks around an update.
fn release(fleet: &Fleet, release: &str) -> String {
    let effects = fleet.effects_log();
    let item = [bash("configure", "deploy", &effects, &format!("echo {release}"), &[])];
    let before = hook("silence", "worker-2", &effects) + &hook("check", "control-1", &effects);
    let hooks = format!("updateHooks:\n    before:{before}\n    after:{}", hook("smoke", "worker-1", &effects));
    cluster(1, 2, &item, &item, &[&hooks])
}

#[test]
fn hooks_run_once_before_and_after_everything() -> Result<()> {
    let mut fleet = Fleet::start("hooks", &[])?;
    fleet.apply(&release(&fleet, "one"))?;
    fleet.add_machines(1, 2)?;
    fleet.wait_ready(3)?;
    assert!(fleet.effects()?.iter().all(|effect| effect.item == "configure"), "a deployment runs no hooks");
    let deployed = fleet.effects()?.len();

    fleet.apply(&release(&fleet, "two"))?;
    let downtime = "--accept-control-plane-downtime";
    let next = format!("What it would do: musterctl plan e2e {downtime}");
    fleet.ctl(&["plan", "e2e"])?.exits(0)?.says(&["It cannot start: Quorum: ", &next])?;
    let plan = fleet.ctl(&["plan", "e2e", downtime])?.exits(0)?;
    plan.says(&["hooks before", "silence on worker-2", "hooks after", "smoke on worker-1"])?;
    fleet.ctl(&["update", "e2e", "--yes", downtime])?.exits(0)?.says(&["Ready"])?;

    let effects = fleet.effects()?;
    let ran: Vec<&Effect> = effects.iter().skip(deployed).collect();
    let times = |name: &'static str| ran.iter().filter(move |effect| effect.item == name).map(|effect| effect.at_ms);
    for (name, machines) in [("silence", 1), ("check", 1), ("configure", 3), ("smoke", 1)] {
        assert_eq!(times(name).count(), 2 * machines, "{name}: a start and an end on each machine");
    }
    let first = times("configure").min().context("configured")?;
    let last = times("configure").max().context("configured")?;
    assert!(times("silence").chain(times("check")).all(|at| at <= first), "{ran:?}");
    assert!(times("smoke").all(|at| at >= last), "{ran:?}");
    let page = fleet.ctl(&["describe", "rollout", "e2e-update-2"])?.exits(0)?;
    page.says(&["Hooks and backups before the update done", "silence   worker-2    before   done"])?;
    fleet.done()
}
