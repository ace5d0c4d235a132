//! The connection between one agent and the coordinator is cut while an item runs.

use anyhow::{Context as _, Result};
use muster_proto::model::Reason;
use muster_tests::fleet::{
    Fleet, TIME_LIMIT,
    effects::{Promise, examine},
    manifest::{bash, cluster},
    wait_for,
};

#[test]
fn a_cut_agent_is_lost_and_its_outcome_arrives_once() -> Result<()> {
    let mut fleet = Fleet::start("partition", &["--lost-after", "2s", "--heartbeat", "500ms"])?;
    let effects = fleet.effects_log();
    let items = [bash("work", "deploy", &effects, "sleep 4", &[]), bash("after", "deploy", &effects, ":", &[])];
    let quick = [bash("work", "deploy", &effects, ":", &[])];
    fleet.apply(&cluster(1, 1, &quick, &items, &[]))?;
    let machines = fleet.add_machines(1, 1)?;
    let wrote = |fleet: &Fleet, item: &str, is_start: bool| {
        let found = fleet.effects()?;
        let found = found.iter().any(|e| e.machine == "worker-1" && e.item == item && e.is_start == is_start);
        Ok(found.then_some(()))
    };
    wait_for("the worker's item", TIME_LIMIT, || wrote(&fleet, "work", true))?;
    fleet.proxy("worker-1")?.cut();
    let lost = fleet.wait_machine("worker-1", "Lost", |machine| machine.status.lost)?;
    assert_eq!(lost.status.blocked.context("blocked")?.blocked.reason, Reason::Lost);
    fleet.ctl(&["get", "machines"])?.exits(0)?.says(&["Lost"])?;

    wait_for("the end of all its items, in the dark", TIME_LIMIT, || wrote(&fleet, "after", false))?;
    let machine = fleet.machines()?.remove("worker-1").context("worker-1")?;
    assert!(machine.status.lost && machine.status.state == "Deploy", "nobody can know: {:?}", machine.status);
    fleet.proxy("worker-1")?.mend();
    fleet.wait_ready(2)?;
    let machine = fleet.machines()?.remove("worker-1").context("worker-1")?;
    assert!(!machine.status.lost && machine.status.connected, "{:?}", machine.status);
    let attempts: Vec<u32> = machine.status.state_item_statuses.values().map(|item| item.attempt).collect();
    assert_eq!(attempts, [1, 1]);
    let promise = Promise {
        machines: &machines,
        control_items: &["work"],
        worker_items: &["work", "after"],
        reconfigure_items: &[],
        workers_max: 1,
    };
    assert_eq!(examine(&fleet.effects()?, &promise).violations, Vec::<String>::new());
    fleet.done()
}
