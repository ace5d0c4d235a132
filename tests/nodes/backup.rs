//! Managers copy their part of the swarm while the cluster deploys itself: the first two hot, since none can be spared
//! yet, the third with its Docker stopped. Then an update does the same by itself.

use anyhow::{Context as _, Result, ensure};
use muster_proto::resource::UpdateStatus;
use muster_tests::{
    fleet::manifest::{named_cluster, other},
    nodes::{Nodes, node::Node},
};

use crate::{
    site::item,
    swarm::{begin, fresh, join, managers_are_whole},
};

const CLUSTER: &str = "backup";
const DIR: &str = "/srv/backup/swarm";

/// When the node's Docker was last started, by the machine's own clock.
fn docker_since(node: &Node) -> Result<String> {
    node.sh("systemctl show --property ActiveEnterTimestampMonotonic --value docker.service")
}

fn copy() -> String {
    other("copy", "swarm-backup", "deploy", &[("mode", "consistent")], &[])
}

/// A manifest of this release; every manager has an item to run in it.
fn manifest(release: &str) -> String {
    let install = item("install", "deploy", ":", &[]).replace("version: \"1\"", &format!("version: \"{release}\""));
    named_cluster(CLUSTER, (3, 0), &[join(), copy(), install], &[], &[])
        .replace("release: \"1.0\"", &format!("release: \"{release}\""))
}

/// Updates the cluster to this release. Returns the final status of the update.
fn update(fleet: &Nodes, release: &str, more: &[&str]) -> Result<UpdateStatus> {
    fleet.apply(&manifest(release))?;
    fleet.ctl(&[&["update", CLUSTER, "--yes", "--detach"], more].concat())?.exits(0)?;
    let updated = fleet.wait_update(CLUSTER, release, |update| {
        let to = update.status.update.as_ref().is_some_and(|update| update.release == release);
        to && update.status.state == "Ready"
    })?;
    updated.status.update.context("an update")
}

pub(crate) fn managers_copy_the_swarm(fleet: &Nodes) -> Result<()> {
    let nodes = fresh(fleet)?;
    for node in &nodes {
        node.sh(&format!("rm -rf {DIR}"))?;
    }
    let before: Vec<String> = nodes.iter().map(|node| docker_since(node)).collect::<Result<_>>()?;
    let machines = begin(fleet, CLUSTER, nodes, &[copy()])?;
    let expected = [
        ("hot", "hot copy, not a consistent one: this manager leads the swarm"),
        ("hot", "hot copy, not a consistent one: the swarm has 2 managers"),
        ("consistent", "consistent copy; "),
    ];
    for (((name, node), (mode, message)), before) in machines.iter().zip(expected).zip(before) {
        fleet.wait_ready(name)?;
        let machine = fleet.machine(name)?;
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

/// Continues after [`managers_copy_the_swarm`]. Every manager is copied hot before the update starts, and each except
/// the leader again with its Docker stopped before its items. Then an operator skips the backups.
pub(crate) fn an_update_backs_up_first(fleet: &Nodes) -> Result<()> {
    let nodes = ["control-1", "control-2", "control-3"].map(|name| fleet.node(name));
    let nodes: Vec<&Node> = nodes.into_iter().collect::<Result<_>>()?;
    let before: Vec<String> = nodes.iter().map(|node| docker_since(node)).collect::<Result<_>>()?;
    let made = update(fleet, "2.0", &[])?.backups;
    let (mut leaders, mut stopped) = (0, 0);
    for (n, (node, before)) in nodes.iter().zip(before).enumerate() {
        let name = format!("{CLUSTER}-{}", n + 1);
        let of = |item: &str| made.iter().find(|backup| backup.machine == name && backup.item == item);
        let hot = of("muster-backup-swarm").with_context(|| format!("{name}: a hot copy in {made:?}"))?;
        let second = of("muster-backup-swarm-consistent").with_context(|| format!("{name}: a second in {made:?}"))?;
        ensure!(hot.message.starts_with("hot copy; "), "{name}: {}", hot.message);
        let leads = second.message.starts_with("hot copy, not a consistent one: this manager leads the swarm");
        ensure!(leads || second.message.starts_with("consistent copy; "), "{name}: {}", second.message);
        (leaders, stopped) = (leaders + u32::from(leads), stopped + u32::from(!leads));
        let restarted = docker_since(node)? != before;
        ensure!(restarted != leads, "{name}: Docker restarted: {restarted}");
        for backup in [hot, second] {
            let found = node.sh(&format!("stat -c %a {0}; stat -c %s {0}; sha256sum <{0}", backup.path))?;
            ensure!(found == format!("600\n{}\n{}  -\n", backup.bytes, backup.sha256), "{name}: {found}");
        }
        let story = node.story()?;
        ensure!(story.ends_with("install/1 install/1."), "{name}: {story}");
    }
    ensure!((made.len(), leaders, stopped) == (6, 1, 2), "{made:?}");
    managers_are_whole(fleet)?;

    let without = update(fleet, "3.0", &["--skip-backup"])?;
    ensure!(without.skip_backup && without.backups.is_empty(), "{without:?}");
    fleet.ctl(&["get", "audit", "-o", "json"])?.exits(0)?.says(&["without backups (--skip-backup)"])?;
    managers_are_whole(fleet)
}
