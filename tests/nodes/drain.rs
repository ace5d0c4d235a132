//! A release comes to a Swarm that serves: the tasks of a replicated service move, and never fewer run than it wants
//! less one. What runs is asked of the machines' own engines, not of the swarm or of Muster.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::{Context as _, Result, ensure};
use muster_tests::{
    fleet::manifest::named_cluster,
    nodes::{Nodes, node::Node},
};

use crate::{site::item, swarm::join};

const CLUSTER: &str = "drain";
/// Of the service.
const WANTED: usize = 2;
/// Prints the ids of the tasks whose container runs there.
const RUNNING: &str = "docker ps --no-trunc --filter label=com.docker.swarm.service.name=drain-web \
                       --format '{{.Label \"com.docker.swarm.task.id\"}}'";
/// An image of this program alone, with what it is linked against; nodes have no registry.
const IMAGE: &str = "tar --create --dereference --directory / usr/bin/sleep lib64/ld-linux-x86-64.so.2 \
                     lib/x86_64-linux-gnu/libc.so.6 | docker import - sleeper:1";

/// The version of the item that a release changes.
fn manifest(version: &str) -> String {
    let install =
        item("install", "deploy", "sleep 2", &[]).replace("version: \"1\"", &format!("version: \"{version}\""));
    let items = [join(), install];
    named_cluster(CLUSTER, (3, 3), &items, &items, &["maxWorkerUpgradeCount: 1"])
}

/// Every machine in a new swarm, and Ready.
fn deploy(fleet: &Nodes) -> Result<()> {
    fleet.on_every_node(|fleet, node| {
        fleet.begin_anew(node)?;
        node.sh("docker swarm leave --force || docker info --format '{{.Swarm.LocalNodeState}}' | grep -x inactive")?;
        node.sh(IMAGE).map(drop)
    })?;
    fleet.apply(&manifest("1"))?;
    let tokens = (fleet.token(CLUSTER, "control", 3)?, fleet.token(CLUSTER, "worker", 3)?);
    fleet.on_every_node(|_, node| {
        let token = if node.name.starts_with("control") { &tokens.0 } else { &tokens.1 };
        node.enroll(&machine(node), token)?.exits(0).map(drop)
    })?;
    fleet.all().try_for_each(|node| fleet.wait_ready(&machine(node)))
}

/// What a node is for the cluster.
fn machine(node: &Node) -> String {
    format!("{CLUSTER}-{}", node.name)
}

/// Tasks that run, wherever.
fn running(workers: &[&Node]) -> Result<BTreeSet<String>> {
    let mut tasks = BTreeSet::new();
    for worker in workers {
        tasks.extend(worker.sh(RUNNING)?.lines().map(|line| line.trim().to_owned()));
    }
    Ok(tasks)
}

/// Counts without a pause until it is told to end: the fewest that ran, of so many samples; and every task that ever
/// ran.
fn sample(workers: &[&Node], ended: &AtomicBool) -> Result<(usize, usize, BTreeSet<String>)> {
    let (mut fewest, mut samples, mut ever) = (usize::MAX, 0, BTreeSet::new());
    while !ended.load(Ordering::Relaxed) {
        let now = running(workers)?;
        // One that moved between two looks of the same sample may be missing from both.
        let again = if now.len() < WANTED - 1 { running(workers)? } else { BTreeSet::new() };
        fewest = fewest.min(now.len().max(again.len()));
        samples += 1;
        ever.extend(now);
    }
    Ok((fewest, samples, ever))
}

/// What a manager says of a node.
fn availability(manager: &Node, node: &Node) -> Result<String> {
    let said = manager.sh(&format!("docker node inspect --format '{{{{.Spec.Availability}}}}' {}", node.name))?;
    Ok(said.trim().to_owned())
}

/// Three workers, a service of two, never two on one node, one worker at a time. An operator has paused one worker:
/// what another one loses finds no room before that one is back.
pub(crate) fn a_service_keeps_all_tasks_but_one(fleet: &Nodes) -> Result<()> {
    deploy(fleet)?;
    let manager = fleet.node("control-1")?;
    let workers: Vec<&Node> = fleet.all().filter(|node| node.name.starts_with("worker")).collect();
    let create = format!(
        "docker service create --detach --quiet --name drain-web --replicas {WANTED} --no-resolve-image \
         --constraint node.role==worker --replicas-max-per-node 1 \
         --stop-signal KILL --restart-delay 3s sleeper:1 /usr/bin/sleep infinity"
    );
    manager.sh(&create)?;
    manager.wait_until("the service runs", || Ok(running(&workers)?.len() == WANTED))?;
    manager.sh("docker node update --availability pause worker-3")?;
    let before = running(&workers)?;

    fleet.apply(&manifest("2"))?;
    let ended = AtomicBool::new(false);
    let (fewest, samples, ever) = thread::scope(|scope| {
        let sampling = scope.spawn(|| sample(&workers, &ended));
        let updated = fleet.ctl(&["update", CLUSTER, "--yes"]).and_then(|ran| ran.exits(0).map(drop));
        ended.store(true, Ordering::Relaxed);
        let sampled = sampling.join().ok().context("the samples are lost")??;
        updated.map(|()| sampled)
    })?;
    ensure!(samples >= 20, "only {samples} samples");
    ensure!(fewest >= WANTED - 1, "{fewest} of {WANTED} tasks ran at some moment, in {samples} samples");
    ensure!(!ever.is_subset(&before), "no task moved: {ever:?}");
    for worker in &workers {
        let expected = if worker.name == "worker-3" { "pause" } else { "active" };
        let found = availability(manager, worker)?;
        ensure!(found == expected, "{} is {found}, and was {expected}", worker.name);
        ensure!(worker.story()? == "install/1 install/1. install/1 install/1.", "{}: {}", worker.name, worker.story()?);
    }
    manager.wait_until("the service runs again", || Ok(running(&workers)?.len() == WANTED))?;
    manager.sh("docker service rm drain-web").map(drop)
}
