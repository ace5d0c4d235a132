//! The scenarios: updates of three control machines and three workers by real processes.

mod controllers;

use anyhow::{Result, ensure};

use super::{
    ClusterUnderTest, is_cordoned,
    stage::{Stage, Way},
};

/// The coordinator is killed at this many points, and the rest of the update goes on undisturbed.
const KILLS_MAX: usize = 12;
/// Fewer kills prove too little: every node is patched twice.
const KILLS_MIN: usize = 8;
/// Updates that are aborted, each a change later than the one before.
const ABORTS_MAX: usize = 6;
const ABORTS_MIN: usize = 3;

/// One scenario of the suite.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    run: fn(&ClusterUnderTest) -> Result<()>,
}

impl Scenario {
    /// Run it in a cluster. Whatever it made there is gone afterwards.
    ///
    /// # Errors
    /// What is not as it should be.
    pub fn run(&self, cluster: &ClusterUnderTest) -> Result<()> {
        (self.run)(cluster)
    }
}

/// All scenarios.
pub const SCENARIOS: &[Scenario] = &[
    Scenario { name: "check_misses_no_right", run: check_misses_no_right },
    Scenario { name: "update_honours_budgets", run: update_honours_budgets },
    Scenario { name: "operators_cordon_stays", run: operators_cordon_stays },
    Scenario { name: "undrainable_machine_is_deferred", run: undrainable_machine_is_deferred },
    Scenario { name: "kills_leave_no_node_cordoned", run: kills_leave_no_node_cordoned },
    Scenario { name: "aborts_give_back", run: aborts_give_back },
    Scenario { name: "controller_releases_machines", run: controllers::release_machines },
    Scenario { name: "daemon_pods_are_renewed", run: controllers::renew_daemon_pods },
];

/// The check speaks TLS with the API server itself. It finds every right, node and control machine, and changes
/// nothing.
fn check_misses_no_right(cluster: &ClusterUnderTest) -> Result<()> {
    let (stage, fleet) = Stage::deployed(cluster, "check", Way::Plain)?;
    // Nothing is pinned by a check: the second one says the same.
    let words = ["the first update pins it", "all 3 are ready", "6 of 6 machines", "Nothing stands in the way"];
    let checked = || fleet.ctl(&["kubernetes", "check", "e2e"])?.exits(0)?.says(&words);
    let (first, second) = (checked()?, checked()?);
    ensure!(!first.out.contains("missing:"), "{}", first.out);
    stage.is_given_back(None)?;
    stage.budgets_held(&fleet, &[&first, &second])?;
    ensure!(stage.cluster.observer().evicted().is_empty(), "a check evicts nothing");
    stage.end(fleet)
}

/// Every machine is cordoned once, drained by guarded evictions alone, and given back.
fn update_honours_budgets(cluster: &ClusterUnderTest) -> Result<()> {
    let (stage, fleet) = Stage::deployed(cluster, "update", Way::Recorded)?;
    stage.add_bare_pod("bare")?;
    stage.sample();
    fleet.apply(&stage.manifest(&fleet, 2, &["  drain:", "    unmanagedPods: delete"]))?;
    let ran = fleet.ctl(&["update", "e2e", "--yes"])?.exits(0)?;
    fleet.wait_ready(6)?;
    stage.is_given_back(None)?;
    stage.budgets_held(&fleet, &[&ran])?;
    let changes = stage.relay.changes();
    for machine in &stage.machines {
        let patches = changes.iter().filter(|change| change.patched_node() == Some(machine));
        let patches: Vec<bool> = patches.map(|change| change.body["spec"]["unschedulable"] == true).collect();
        ensure!(patches == [true, false], "{machine} is cordoned and uncordoned once: {patches:?}");
        let cordons = stage.cluster.observer().cordons(machine);
        ensure!(cordons == [false, true, false], "{machine} was cordoned: {cordons:?}");
    }
    let evicted = stage.cluster.observer().evicted();
    ensure!(evicted.contains("bare"), "the pod without a controller was evicted: {evicted:?}");
    ensure!(evicted.len() > 1, "pods of the workloads were on the machines: {evicted:?}");
    fleet.ctl(&["kubernetes", "check", "e2e"])?.exits(0)?.says(&["the cluster that was there first"])?;
    stage.end(fleet)
}

/// A node that an operator cordoned before stays cordoned throughout. Muster speaks TLS with the API server itself.
fn operators_cordon_stays(cluster: &ClusterUnderTest) -> Result<()> {
    let (stage, fleet) = Stage::deployed(cluster, "cordon", Way::Plain)?;
    let kept = stage.machines[4].clone();
    stage.cordon(&kept)?;
    stage.sample();
    fleet.apply(&stage.manifest(&fleet, 2, &[]))?;
    let ran = fleet.ctl(&["update", "e2e", "--yes"])?.exits(0)?;
    fleet.wait_ready(6)?;
    stage.is_given_back(Some(&kept))?;
    stage.budgets_held(&fleet, &[&ran])?;
    for machine in &stage.machines {
        let cordons = stage.cluster.observer().cordons(machine);
        let wanted: &[bool] = if *machine == kept { &[true] } else { &[false, true, false] };
        ensure!(cordons == wanted, "{machine} was cordoned: {cordons:?}");
    }
    stage.end(fleet)
}

/// A machine with a pod whose budget never lets it go is named before, never touched, and completed once the budget is
/// gone. The rest is updated.
fn undrainable_machine_is_deferred(cluster: &ClusterUnderTest) -> Result<()> {
    let (stage, fleet) = Stage::deployed(cluster, "undrainable", Way::Recorded)?;
    let node = stage.add_undrainable("alone")?;
    let budget = format!("{}/alone", stage.namespace());
    stage.sample();
    fleet.apply(&stage.manifest(&fleet, 2, &[]))?;
    fleet.ctl(&["plan", "e2e"])?.exits(0)?.says(&[&node, "cannot be drained", &budget])?;
    let ran = fleet.ctl(&["update", "e2e", "--yes"])?.exits(4)?;
    ran.clone().says(&["KubernetesUndrainable", &node, &budget])?;
    let touched = stage.relay.changes().iter().any(|change| change.patched_node() == Some(&node));
    ensure!(!touched, "{node} was never cordoned");
    stage.is_given_back(None)?;
    stage.remove_budget("alone")?;
    fleet.ctl(&["retry", &node])?.exits(0)?;
    let watched = fleet.ctl(&["watch", "e2e"])?.exits(0)?;
    fleet.wait_ready(6)?;
    stage.is_given_back(None)?;
    stage.budgets_held(&fleet, &[&ran, &watched])?;
    ensure!(stage.cluster.observer().cordons(&node) == [false, true, false], "{node} was cordoned once");
    stage.end(fleet)
}

/// The coordinator is killed after each of the first changes that it makes in the cluster.
fn kills_leave_no_node_cordoned(cluster: &ClusterUnderTest) -> Result<()> {
    let (stage, mut fleet) = Stage::deployed(cluster, "kills", Way::Recorded)?;
    let kept = stage.machines[4].clone();
    stage.cordon(&kept)?;
    stage.sample();
    fleet.apply(&stage.manifest(&fleet, 2, &[]))?;
    let mut update = fleet.start_ctl(&["--config", "operator.toml", "update", "e2e", "--yes"], "update")?;
    let mut kills = 0;
    while kills < KILLS_MAX {
        let before = stage.relay.changes().len();
        if fleet.changed_or_at("2.0", || stage.relay.changes().len() > before)? {
            break;
        }
        fleet.kill_coordinator()?;
        kills += 1;
        fleet.start_coordinator()?;
    }
    ensure!(kills >= KILLS_MIN, "{kills} kills: it was not killed at every kind of point");
    update.kill()?;
    update.wait()?;
    fleet.wait_rollout()?;
    fleet.wait_ready(6)?;
    stage.is_given_back(Some(&kept))?;
    stage.budgets_held(&fleet, &[])?;
    stage.end(fleet)
}

/// The update is aborted after its first change in the cluster, the next one after its second, and so on.
fn aborts_give_back(cluster: &ClusterUnderTest) -> Result<()> {
    let (stage, fleet) = Stage::deployed(cluster, "aborts", Way::Recorded)?;
    fleet.apply(&stage.manifest(&fleet, 2, &[]))?;
    let mut aborts = 0;
    for after in 1..=ABORTS_MAX {
        stage.relay.clear();
        fleet.ctl(&["update", "e2e", "--yes", "--detach"])?.exits(0)?;
        if fleet.changed_or_at("2.0", || stage.relay.changes().len() >= after)? {
            break;
        }
        fleet.ctl(&["abort", "e2e", "--yes"])?.exits(0)?;
        aborts += 1;
        fleet.ctl(&["watch", "e2e"])?;
        stage.is_given_back(None)?;
        stage.budgets_held(&fleet, &[])?;
        if fleet.are_at("2.0") {
            break;
        }
    }
    ensure!(aborts >= ABORTS_MIN, "{aborts} aborts: not at every stage");
    let seen = stage.cluster.observer().seen();
    ensure!(
        !stage.machines.iter().any(|machine| seen.nodes.get(machine).is_some_and(is_cordoned)),
        "a node is cordoned"
    );
    drop(seen);
    stage.end(fleet)
}
