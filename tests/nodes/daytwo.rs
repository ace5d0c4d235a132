//! A Swarm in service while its workers fail, are replaced and are reinstalled. One cluster of one manager and two
//! workers goes through all of it; Docker's own answers are the evidence.

use std::time::Duration;

use anyhow::{Result, ensure};
use muster_tests::{
    fleet::{manifest::named_cluster, wait_for},
    nodes::{Nodes, node::Node},
};

use crate::{
    drain::{IMAGE, MAKE_IMAGE, availability},
    site::item,
    swarm::{join, leave},
};

const CLUSTER: &str = "day-two";
const NODES: [&str; 3] = ["control-1", "worker-1", "worker-2"];
/// Fails while one file exists, and runs until the other is deleted.
const BODY: &str = "test ! -e /var/tmp/broken || exit 1; while test -e /var/tmp/wait; do sleep 0.2; done";
/// No step of an update takes this long here; a Swarm drain may wait for 30 minutes.
const AT_ONCE: Duration = Duration::from_secs(30);

fn manifest(version: u32) -> String {
    let install = item("install", "deploy", BODY, &[]);
    let install = install.replace("version: \"1\"", &format!("version: \"{version}\""));
    named_cluster(CLUSTER, (1, 2), &[join()], &[join(), install], &["maxWorkerUpgradeCount: 1"])
}

fn machine(node: &Node) -> String {
    format!("{CLUSTER}-{}", node.name)
}

fn enroll(fleet: &Nodes, node: &Node) -> Result<()> {
    let machine_type = if node.name.starts_with("control") { "control" } else { "worker" };
    node.enroll(&machine(node), &fleet.token(CLUSTER, machine_type, 1)?)?.exits(0).map(drop)
}

fn update_to(fleet: &Nodes, version: u32) -> Result<()> {
    fleet.apply(&manifest(version))?;
    fleet.ctl(&["update", CLUSTER, "--yes", "--detach"])?.ok()?;
    Ok(())
}

/// Waits until the drain is done and the item runs.
fn wait_running(fleet: &Nodes, node: &Node) -> Result<()> {
    let runs = |machine: &muster_proto::resource::Machine| {
        machine.status.state_item_statuses.get("install").is_some_and(|item| item.state == "Running")
    };
    fleet.wait_machine(&machine(node), "its item runs", runs).map(drop)
}

/// With one slot nothing moves after the worker in it has failed: an operator is requested at once, and nothing else.
pub(crate) fn failed_worker_wants_person_at_once(fleet: &Nodes) -> Result<()> {
    let nodes = NODES.map(|name| fleet.node(name));
    for node in nodes {
        let node = node?;
        fleet.begin_anew(node)?;
        leave(node)?;
        node.sh("rm -f /var/tmp/broken /var/tmp/wait")?;
    }
    fleet.apply(&manifest(1))?;
    for name in NODES {
        enroll(fleet, fleet.node(name)?)?;
    }
    NODES.iter().try_for_each(|name| fleet.wait_ready(&format!("{CLUSTER}-{name}")))?;

    let worker = fleet.node("worker-1")?;
    worker.sh("touch /var/tmp/broken")?;
    update_to(fleet, 2)?;
    fleet.wait_machine(&machine(worker), "Failed", |machine| machine.status.failed)?;
    let wants_person = || {
        let update = fleet.update_of(CLUSTER)?;
        Ok(update.is_some_and(|update| update.status.state == "Blocked").then_some(()))
    };
    wait_for("the update wants a person", AT_ONCE, wants_person)?;
    worker.sh("rm /var/tmp/broken")?;
    fleet.ctl(&["retry", &machine(worker)])?.ok()?;
    fleet.wait_update(CLUSTER, "Ready", |update| update.status.state == "Ready").map(drop)
}

/// It is replaced while its node is drained for the update, and enrols again with the same disk.
pub(crate) fn replaced_worker_serves_again(fleet: &Nodes) -> Result<()> {
    let (manager, worker) = (fleet.node("control-1")?, fleet.node("worker-1")?);
    worker.sh("touch /var/tmp/wait")?;
    update_to(fleet, 3)?;
    wait_running(fleet, worker)?;
    ensure!(availability(manager, worker)? == "drain", "it is not drained for the update");
    fleet.ctl(&["replace", &machine(worker), "--machine-is-off", "--yes"])?.ok()?;
    worker.sh("systemctl stop muster-agent 'muster-item-*'; rm -rf /var/lib/muster/agent/* /var/tmp/wait")?;
    enroll(fleet, worker)?;
    fleet.wait_update(CLUSTER, "Ready", |update| update.status.state == "Ready")?;
    fleet.wait_ready(&machine(worker))?;
    manager.wait_until("its node is given back", || Ok(availability(manager, worker)? == "active"))
}

/// A new disk under the old name: the old node's entry is removed, and the operator's settings for it are kept.
pub(crate) fn reinstalled_worker_keeps_its_labels(fleet: &Nodes) -> Result<()> {
    let manager = fleet.node("control-1")?;
    manager.sh("docker node update --availability pause --label-add disk=ssd worker-2")?;
    fleet.reinstall("worker-2")?;
    let worker = fleet.node("worker-2")?;
    fleet.ctl(&["replace", &machine(worker), "--yes"])?.ok()?;
    enroll(fleet, worker)?;
    fleet.wait_ready(&machine(worker))?;
    manager.wait_until("its new node has what the old one had", || {
        let spec =
            manager.look("docker node inspect worker-2 --format '{{json .Spec.Labels}} {{.Spec.Availability}}'")?;
        Ok(spec.trim() == r#"{"disk":"ssd"} pause"#)
    })?;
    manager.sh("docker node update --availability active worker-2").map(drop)
}

/// No drain moves a container started with `docker run`: `plan` reports it.
pub(crate) fn plain_containers_are_named(fleet: &Nodes) -> Result<()> {
    let worker = fleet.node("worker-1")?;
    worker.sh(&format!("{MAKE_IMAGE}{IMAGE} && docker run --detach --name by-hand {IMAGE} /usr/bin/sleep infinity"))?;
    fleet.apply(&manifest(4))?;
    let named = || Ok(fleet.ctl(&["plan", CLUSTER])?.out.contains("by-hand").then_some(()));
    wait_for("the plan names the container", AT_ONCE, named)?;
    worker.sh("docker rm --force by-hand").map(drop)
}
