//! Machines leave their cluster permanently: the evidence is what the swarm's managers and the machines' own engines
//! report afterwards.

use anyhow::{Context as _, Result, ensure};
use muster_tests::{
    fleet::manifest::named_cluster,
    nodes::{Nodes, node::Node},
};

use crate::{
    site::all_of,
    swarm::{join, leave, swarm_state, wait_swarm},
};

const CLUSTER: &str = "leaving";
/// Counts connection attempts to the coordinator from now on. The rule has no other effect.
const COUNT_DIALS: &str = "iptables -I OUTPUT -p tcp --syn --dport 7443";
const DIALS: &str = "iptables -L OUTPUT --verbose --numeric --exact | awk '/dpt:7443/ {print $1}'";

fn machine(node: &Node) -> String {
    format!("{CLUSTER}-{}", node.name)
}

/// Deploys three managers and two workers, until all are Ready.
fn deploy(fleet: &Nodes) -> Result<[&Node; 5]> {
    let nodes = ["control-1", "control-2", "control-3", "worker-1", "worker-2"];
    for node in nodes {
        fleet.begin_anew(fleet.node(node)?)?;
        leave(fleet.node(node)?)?;
    }
    fleet.apply(&named_cluster(CLUSTER, (3, 2), &[join()], &[join()], &[]))?;
    for name in nodes {
        let node = fleet.node(name)?;
        let machine_type = if name.starts_with("control") { "control" } else { "worker" };
        node.enroll(&machine(node), &fleet.token(CLUSTER, machine_type, 1)?)?.exits(0)?;
    }
    nodes.iter().try_for_each(|name| fleet.wait_ready(&machine(fleet.node(name)?)))?;
    let [a, b, c, d, e] = nodes.map(|name| fleet.node(name));
    Ok([a?, b?, c?, d?, e?])
}

/// A worker and the leader leave by themselves, a dead worker is removed; the leader's name is free again.
pub(crate) fn machines_leave_the_swarm_for_good(fleet: &Nodes) -> Result<()> {
    let [leader, second, third, worker, dead] = deploy(fleet)?;
    let removed = |node: &Node| format!("{}: removed", machine(node));
    fleet.ctl(&["remove", &machine(worker), "--yes"])?.exits(0)?.says(&[&removed(worker)])?;
    ensure!(swarm_state(worker)? == "inactive", "its engine is in the swarm still");
    let gave_up = |node: &Node| Ok(node.run(&["muster-agent", "status"])?.out.contains("the agent dials no more"));
    worker.wait_until("its agent has stopped dialling", || gave_up(worker))?;
    worker.sh("rm /var/lib/muster/agent/link.json && systemctl restart muster-agent")?;
    worker.wait_until("its next agent has stopped too", || gave_up(worker))?;
    worker.sh(COUNT_DIALS)?;
    wait_swarm(second, &["control-1", "control-2", "control-3"], &["worker-2"])?;

    dead.cut_power()?;
    fleet.ctl(&["remove", &machine(dead), "--policy", "forced", "--yes"])?.exits(0)?.says(&[&removed(dead)])?;
    wait_swarm(second, &["control-1", "control-2", "control-3"], &[])?;
    dead.restore_power()?;
    dead.wait_until("its agent came, and has stopped dialling", || gave_up(dead))?;

    let left = fleet.ctl(&["remove", &machine(leader), "--yes"])?.exits(0)?.says(&[&removed(leader)])?;
    ensure!(swarm_state(leader)? == "inactive", "its engine is in the swarm still");
    wait_swarm(third, &["control-2", "control-3"], &[])?;

    let dials = worker.sh(&format!("{DIALS}; iptables -D{}", COUNT_DIALS.trim_start_matches("iptables -I")))?;
    let log = fleet.coordinator_log()?;
    let refusals = |node: &Node| {
        let refused = |line: &&str| line.contains("refused; for an hour") && line.contains(&machine(node));
        log.lines().filter(refused).count()
    };
    let refused = [worker, dead].map(refusals);
    let is_so = |is_so: bool, what: String| is_so.then_some(()).context(what);
    let seen = [
        is_so(dials.trim() == "0", format!("the agent of a machine that was removed dialled {dials} times")),
        is_so(refused == [1, 1], format!("said of these machines that they were refused: {refused:?}")),
        is_so(!left.out.contains("Error:"), format!("a removal that goes its way:\n{}", left.out)),
    ];

    // The coordinator has forgotten them: revocation is needless.
    [leader, worker, dead].iter().try_for_each(|node| node.forget())?;
    leader.enroll(&machine(leader), &fleet.token(CLUSTER, "control", 1)?)?.exits(0)?;
    [leader, second, third].iter().try_for_each(|node| fleet.wait_ready(&machine(node)))?;
    wait_swarm(second, &["control-1", "control-2", "control-3"], &[])?;
    all_of(seen)
}
