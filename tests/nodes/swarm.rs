//! Machines join their swarm: the evidence is `docker node ls` on a manager, independent of the coordinator.

use anyhow::{Context as _, Result, ensure};
use muster_tests::{
    fleet::manifest::{named_cluster, other},
    nodes::{Nodes, node::Node},
};

use crate::{places::nowhere, site::item};

/// Ends as soon as the machine's engine is joining a swarm, and stops the agent at once, so that it cannot tell of the
/// join's end. It polls on the machine itself, because that state lasts less than a second.
const JOINS: &str = "agent=$(systemctl show --property=MainPID --value muster-agent) || exit 1
timeout 500 sh -c '
while docker info --format {{.Swarm.LocalNodeState}} | grep --quiet --line-regexp inactive; do :; done' &&
kill -STOP $agent";

/// The item that joins a machine to the swarm.
pub(crate) fn join() -> String {
    other("swarm", "swarm-join", "deploy", &[("advertise", "${machine.internalIP}")], &[])
}

/// Every node as a manager lists it: hostname, state, and manager status.
fn nodes_of(manager: &Node) -> Result<Vec<String>> {
    let format = "{{.Hostname}} {{.Status}} {{.ManagerStatus}}";
    let ran = manager.run(&["docker", "node", "ls", "--format", format])?;
    let mut nodes: Vec<String> = ran.out.lines().map(|line| line.trim().to_owned()).collect();
    nodes.sort();
    Ok(nodes)
}

/// Waits until the swarm has exactly these managers, one of them its leader, and these workers.
pub(crate) fn wait_swarm(manager: &Node, managers: &[&str], workers: &[&str]) -> Result<()> {
    manager.wait_until("the swarm is whole", || {
        let nodes = nodes_of(manager)?;
        let leaders = nodes.iter().filter(|node| node.ends_with(" Ready Leader")).count();
        let plain: Vec<String> = nodes.iter().map(|node| node.replace(" Leader", " Reachable")).collect();
        let mut expected: Vec<String> = managers.iter().map(|name| format!("{name} Ready Reachable")).collect();
        expected.extend(workers.iter().map(|name| format!("{name} Ready")));
        Ok(leaders == 1 && plain == expected)
    })
}

/// The control machines form a swarm without other nodes.
pub(crate) fn managers_are_whole(fleet: &Nodes) -> Result<()> {
    wait_swarm(fleet.node("control-1")?, &["control-1", "control-2", "control-3"], &[])
}

/// After the deployment: three managers, three workers, all Ready; and no token is found anywhere.
pub(crate) fn three_managers_and_three_workers(fleet: &Nodes) -> Result<()> {
    let (managers, workers) = (["control-1", "control-2", "control-3"], ["worker-1", "worker-2", "worker-3"]);
    let manager = fleet.node("control-2")?;
    wait_swarm(manager, &managers, &workers)?;
    let tokens = tokens(manager)?;
    nowhere(fleet, "worker-1", &tokens.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The secret part of a swarm's tokens: the last one.
pub(crate) fn tokens(manager: &Node) -> Result<Vec<String>> {
    let secret = |role: &str| {
        let token = manager.sh(&format!("docker swarm join-token --quiet {role}"))?;
        Ok(token.trim().rsplit_once('-').context("a token")?.1.to_owned())
    };
    ["manager", "worker"].map(secret).into_iter().collect()
}

/// Makes a node's engine leave its swarm, whichever it is.
pub(crate) fn leave(node: &Node) -> Result<()> {
    node.sh("docker swarm leave --force")
        .map(drop)
        .or_else(|_| node.wait_until("its engine is in no swarm", || Ok(swarm_state(node)? == "inactive")))
}

/// Swarm state that a node's engine reports.
pub(crate) fn swarm_state(node: &Node) -> Result<String> {
    Ok(node.sh("docker info --format '{{.Swarm.LocalNodeState}}'")?.trim().to_owned())
}

/// The control machines, reset and outside of any swarm.
pub(crate) fn fresh(fleet: &Nodes) -> Result<Vec<&Node>> {
    let nodes = ["control-1", "control-2", "control-3"].map(|name| fleet.node(name));
    let nodes: Vec<&Node> = nodes.into_iter().collect::<Result<_>>()?;
    for node in &nodes {
        fleet.begin_anew(node)?;
        leave(node)?;
    }
    Ok(nodes)
}

/// Makes them a cluster of this name, with machines named after it, and with these items after the join.
pub(crate) fn begin<'a>(
    fleet: &Nodes,
    cluster: &str,
    nodes: Vec<&'a Node>,
    more: &[String],
) -> Result<Vec<(String, &'a Node)>> {
    let items = [&[join()], more].concat();
    fleet.apply(&named_cluster(cluster, (3, 0), &items, &[], &[]))?;
    let token = fleet.token(cluster, "control", 3)?;
    let named = nodes.into_iter().enumerate().map(|(n, node)| {
        let name = format!("{cluster}-{}", n + 1);
        node.enroll(&name, &token)?.exits(0)?;
        Ok((name, node))
    });
    named.collect()
}

/// The power of a machine is cut while it joins; later it is reinstalled. Each time it is in the swarm again, once.
pub(crate) fn power_cut_in_join_and_reinstalled(fleet: &Nodes) -> Result<()> {
    let machines = begin(fleet, "joining", fresh(fleet)?, &[item("after", "deploy", ":", &["onInterrupt: rerun"])])?;
    let [_, _, (last, node)] = machines.as_slice() else { anyhow::bail!("three machines") };
    node.sh(JOINS).context("it joins")?;
    node.cut_power()?;
    let join = || {
        let machine = fleet.machines()?.remove(last).context("the machine")?;
        machine.status.state_item_statuses.get("swarm").cloned().context("its join")
    };
    let cut = join()?;
    ensure!(cut.state == "Running", "its join was not cut off but {} when the power went", cut.state);
    node.restore_power()?;
    machines.iter().try_for_each(|(name, _)| fleet.wait_ready(name))?;
    ensure!(join()?.attempt > cut.attempt, "its join ended before the agent was stopped, and nobody had heard of it");
    managers_are_whole(fleet)?;
    let story = node.story()?;
    ensure!(story.ends_with("after/1.") || story.ends_with("after/2."), "{story}");

    // A fresh disk under the old name: its old node is removed from the swarm before it joins.
    fleet.reinstall("control-3")?;
    fleet.ctl(&["replace", last, "--yes"])?.ok()?;
    let token = fleet.token("joining", "control", 1)?;
    fleet.node("control-3")?.enroll(last, &token)?.exits(0)?;
    fleet.wait_ready(last)?;
    managers_are_whole(fleet)
}

/// An engine in a foreign swarm stays there until an operator makes it leave.
pub(crate) fn foreign_swarm(fleet: &Nodes) -> Result<()> {
    let nodes = fresh(fleet)?;
    nodes.last().context("three machines")?.sh("docker swarm init --advertise-addr 127.0.0.1")?;
    let machines = begin(fleet, "foreign", nodes, &[])?;
    let [.., (last, node)] = machines.as_slice() else { anyhow::bail!("three machines") };
    fleet.wait_machine(last, "Failed", |machine| machine.status.failed)?;
    fleet.ctl(&["describe", "machine", last])?.exits(0)?.says(&["ForeignSwarm", "docker swarm leave --force"])?;
    ensure!(nodes_of(node)?.len() == 1, "somebody took it out of its swarm");
    node.sh("docker swarm leave --force")?;
    fleet.ctl(&["retry", last])?.ok()?;
    machines.iter().try_for_each(|(name, _)| fleet.wait_ready(name))?;
    managers_are_whole(fleet)
}
