//! Machines leave their cluster for good: what the swarm's managers and the machines' own engines say afterwards.

use anyhow::{Result, ensure};
use muster_tests::{
    fleet::manifest::named_cluster,
    nodes::{Nodes, node::Node},
};

use crate::swarm::{join, leave, swarm_state, wait_swarm};

const CLUSTER: &str = "leaving";

fn machine(node: &Node) -> String {
    format!("{CLUSTER}-{}", node.name)
}

/// Three managers and two workers, all Ready.
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

/// A worker and the leader go of themselves, a dead worker is taken out; the leader's name is free again.
pub(crate) fn machines_leave_the_swarm_for_good(fleet: &Nodes) -> Result<()> {
    let [leader, second, third, worker, dead] = deploy(fleet)?;
    let removed = |node: &Node| format!("{}: removed", machine(node));
    fleet.ctl(&["remove", &machine(worker), "--yes"])?.exits(0)?.says(&[&removed(worker)])?;
    ensure!(swarm_state(worker)? == "inactive", "its engine is in the swarm still");
    let gave_up = |node: &Node| Ok(node.run(&["muster-agent", "status"])?.out.contains("the agent dials no more"));
    worker.wait_until("its agent has stopped dialling", || gave_up(worker))?;
    wait_swarm(second, &["control-1", "control-2", "control-3"], &["worker-2"])?;

    dead.cut_power()?;
    fleet.ctl(&["remove", &machine(dead), "--policy", "forced", "--yes"])?.exits(0)?.says(&[&removed(dead)])?;
    wait_swarm(second, &["control-1", "control-2", "control-3"], &[])?;
    dead.restore_power()?;
    dead.wait_until("its agent came, and has stopped dialling", || gave_up(dead))?;

    fleet.ctl(&["remove", &machine(leader), "--yes"])?.exits(0)?.says(&[&removed(leader)])?;
    ensure!(swarm_state(leader)? == "inactive", "its engine is in the swarm still");
    wait_swarm(third, &["control-2", "control-3"], &[])?;

    // Nobody knows them any more, and so nobody revokes them.
    [leader, worker, dead].iter().try_for_each(|node| node.forget())?;
    leader.enroll(&machine(leader), &fleet.token(CLUSTER, "control", 1)?)?.exits(0)?;
    [leader, second, third].iter().try_for_each(|node| fleet.wait_ready(&machine(node)))?;
    wait_swarm(second, &["control-1", "control-2", "control-3"], &[])
}
