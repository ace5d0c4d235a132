//! Managers copy their part of the swarm while the cluster deploys itself: the first two hot, for nobody can be spared
//! yet, the third with its Docker stopped.

use anyhow::{Context as _, Result, ensure};
use muster_tests::{
    fleet::manifest::other,
    nodes::{Nodes, node::Node},
};

use crate::swarm::{begin, fresh, managers_are_whole};

const CLUSTER: &str = "backup";
const DIR: &str = "/srv/backup/swarm";

/// When its Docker was last started, on the machine's own clock.
fn docker_since(node: &Node) -> Result<String> {
    node.sh("systemctl show --property ActiveEnterTimestampMonotonic --value docker.service")
}

pub(crate) fn managers_copy_the_swarm(fleet: &Nodes) -> Result<()> {
    let nodes = fresh(fleet)?;
    for node in &nodes {
        node.sh(&format!("rm -rf {DIR}"))?;
    }
    let before: Vec<String> = nodes.iter().map(|node| docker_since(node)).collect::<Result<_>>()?;
    let copy = other("copy", "swarm-backup", "deploy", &[("mode", "consistent")], &[]);
    let machines = begin(fleet, CLUSTER, nodes, &[copy])?;
    let expected = [
        ("hot", "hot copy, not a consistent one: this manager leads the swarm"),
        ("hot", "hot copy, not a consistent one: the swarm has 2 managers"),
        ("consistent", "consistent copy; "),
    ];
    for (((name, node), (mode, message)), before) in machines.iter().zip(expected).zip(before) {
        fleet.wait_ready(name)?;
        let machine = fleet.machines()?.remove(name).context("the machine")?;
        let status = machine.status.state_item_statuses.get("copy").context("its copy")?;
        ensure!(status.message.starts_with(message), "{name}: {}", status.message);
        let result = status.result.as_ref().context("a result")?;
        let path = node.sh(&format!("ls {DIR}/swarm-{name}-{mode}-*.tar"))?.trim().to_owned();
        ensure!(result["path"] == path.as_str(), "{name}: {path} is not in {result}");
        let found = node.sh(&format!("stat -c %a {path}; sha256sum <{path}"))?;
        let sum = result["sha256"].as_str().context("a digest")?;
        ensure!(found == format!("600\n{sum}  -\n"), "{name}: {found}, not {sum}");
        let listed = node.sh(&format!("tar --list --file {path}"))?;
        let whole = listed.starts_with("muster-backup.json\n") && listed.contains("swarm/raft/");
        ensure!(whole, "{name}: {listed}");
        let restarted = docker_since(node)? != before;
        ensure!(restarted == (mode == "consistent"), "{name}: Docker restarted: {restarted}");
    }
    managers_are_whole(fleet)
}
