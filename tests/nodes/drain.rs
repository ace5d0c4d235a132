//! A Swarm in service gets a new release: the tasks of a replicated service move, and at most one of them is missing at
//! any time. The evidence is what the machines' own engines run, independent of the swarm and of Muster.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use muster_tests::{
    fleet::{manifest::named_cluster, pause},
    nodes::{Nodes, node::Node},
};

use crate::{
    site::item,
    swarm::{join, leave},
};

/// Name of the cluster, which [`crate::update`] continues with.
pub(crate) const CLUSTER: &str = "drain";
/// Replicas of the service.
const WANTED: usize = 2;
/// Prints the ids of the tasks that run there.
const RUNNING: &str = "docker ps --no-trunc --filter label=com.docker.swarm.service.name=drain-web \
                       --format '{{.Label \"com.docker.swarm.task.id\"}}'";
/// An image of this program and its libraries only. Engines ask its registry before they use a local image: no registry
/// is at this address, so the request fails at once.
pub(crate) const IMAGE: &str = "localhost:9/sleeper:1";
pub(crate) const MAKE_IMAGE: &str = "tar --create --dereference --directory / usr/bin/sleep lib64/ld-linux-x86-64.so.2 \
                          lib/x86_64-linux-gnu/libc.so.6 | docker import - ";
/// Interval between two counts: a lost task comes back after three seconds at the earliest, and each count queries
/// three engines.
const SAMPLE_EVERY: Duration = Duration::from_millis(500);
/// Fewer samples prove nothing.
const SAMPLES_MIN: usize = 10;

/// The manifest with this version of the item.
fn manifest(version: &str) -> String {
    let install =
        item("install", "deploy", "sleep 2", &[]).replace("version: \"1\"", &format!("version: \"{version}\""));
    let items = [join(), install];
    named_cluster(CLUSTER, (3, 3), &items, &items, &["maxWorkerUpgradeCount: 1"])
}

/// Deploys every machine in a new swarm, until all are Ready.
fn deploy(fleet: &Nodes) -> Result<()> {
    fleet.on_every_node(|fleet, node| {
        fleet.begin_anew(node)?;
        leave(node)?;
        node.sh(&format!("{MAKE_IMAGE}{IMAGE}")).map(drop)
    })?;
    fleet.apply(&manifest("1"))?;
    let tokens = (fleet.token(CLUSTER, "control", 3)?, fleet.token(CLUSTER, "worker", 3)?);
    fleet.on_every_node(|_, node| {
        let token = if node.name.starts_with("control") { &tokens.0 } else { &tokens.1 };
        node.enroll(&machine(node), token)?.exits(0).map(drop)
    })?;
    fleet.all().try_for_each(|node| fleet.wait_ready(&machine(node)))
}

/// Name of a node's machine in the cluster.
pub(crate) fn machine(node: &Node) -> String {
    format!("{CLUSTER}-{}", node.name)
}

/// Running tasks on all workers, queried at once. A worker that does not answer is rebooting, and runs none.
fn running(workers: &[&Node]) -> BTreeSet<String> {
    let said: Vec<String> = thread::scope(|scope| {
        let asked: Vec<_> = workers.iter().map(|worker| scope.spawn(|| worker.look(RUNNING))).collect();
        asked.into_iter().filter_map(|answer| answer.join().ok()?.ok()).collect()
    });
    said.iter().flat_map(|said| said.lines()).map(|line| line.trim().to_owned()).collect()
}

/// Samples of a service during a test.
#[derive(Debug)]
pub(crate) struct Sampled {
    /// Smallest number of tasks that ran at the same time.
    fewest: usize,
    samples: usize,
    /// All tasks that ever ran.
    ever: BTreeSet<String>,
}

/// A replicated service of two tasks, at most one on each node. An operator has paused one of three workers: a task
/// lost by another finds no room until that worker is back.
pub(crate) struct Service<'a> {
    manager: &'a Node,
    workers: Vec<&'a Node>,
    /// Its tasks at the start.
    before: BTreeSet<String>,
}

impl<'a> Service<'a> {
    /// Creates the service, and waits until it runs.
    pub(crate) fn create(fleet: &'a Nodes) -> Result<Self> {
        let manager = fleet.node("control-1")?;
        let workers: Vec<&Node> = fleet.all().filter(|node| node.name.starts_with("worker")).collect();
        manager.sh("docker node update --availability pause worker-3")?;
        let create = format!(
            "docker service create --detach --quiet --name drain-web --replicas {WANTED} --no-resolve-image \
             --constraint node.role==worker --replicas-max-per-node 1 \
             --stop-signal KILL --restart-delay 3s {IMAGE} /usr/bin/sleep infinity"
        );
        manager.sh(&create)?;
        manager.wait_until("the service runs", || Ok(running(&workers).len() == WANTED))?;
        let before = running(&workers);
        Ok(Self { manager, workers, before })
    }

    /// Samples until told to end.
    pub(crate) fn sample(&self, ended: &AtomicBool) -> Sampled {
        let (mut fewest, mut samples, mut ever) = (usize::MAX, 0, BTreeSet::new());
        while !ended.load(Ordering::Relaxed) {
            let now = running(&self.workers);
            // A task that moved between two queries of the same sample may be missing from both.
            let again = if now.len() < WANTED - 1 { running(&self.workers) } else { BTreeSet::new() };
            fewest = fewest.min(now.len().max(again.len()));
            samples += 1;
            ever.extend(now);
            pause(SAMPLE_EVERY);
        }
        Sampled { fewest, samples, ever }
    }

    /// Checks that enough tasks always ran, that a task moved, and that the service is complete again.
    pub(crate) fn held(&self, sampled: &Sampled) -> Result<()> {
        let Sampled { fewest, samples, ever } = sampled;
        ensure!(*samples >= SAMPLES_MIN, "only {samples} samples");
        ensure!(*fewest >= WANTED - 1, "{fewest} of {WANTED} tasks ran at some moment, in {samples} samples");
        ensure!(!ever.is_subset(&self.before), "no task moved: {ever:?}");
        self.manager.wait_until("the service runs again", || Ok(running(&self.workers).len() == WANTED))
    }

    pub(crate) fn remove(&self) -> Result<()> {
        self.manager.sh("docker service rm drain-web").map(drop)
    }
}

/// Availability of a node, as its manager reports it.
pub(crate) fn availability(manager: &Node, node: &Node) -> Result<String> {
    availabilities(manager, [node])?.pop().context("an answer")
}

/// Availability of these nodes, as a manager reports it.
pub(crate) fn availabilities<'a>(manager: &Node, nodes: impl IntoIterator<Item = &'a Node>) -> Result<Vec<String>> {
    let names: Vec<&str> = nodes.into_iter().map(|node| node.name.as_str()).collect();
    let ask = format!("docker node inspect --format '{{{{.Spec.Availability}}}}' {}", names.join(" "));
    Ok(manager.look(&ask)?.lines().map(str::to_owned).collect())
}

/// Three workers, one at a time. The update runs detached, so that a brief need for an operator does not end it.
pub(crate) fn a_service_keeps_all_tasks_but_one(fleet: &Nodes) -> Result<()> {
    deploy(fleet)?;
    let service = Service::create(fleet)?;
    fleet.apply(&manifest("2"))?;
    fleet.ctl(&["update", CLUSTER, "--yes", "--detach"])?.exits(0)?;
    let ended = AtomicBool::new(false);
    let sampled = thread::scope(|scope| {
        let sampling = scope.spawn(|| service.sample(&ended));
        let updated = fleet.wait_update(CLUSTER, "Ready", |update| update.status.state == "Ready");
        ended.store(true, Ordering::Relaxed);
        let sampled = sampling.join().ok().context("the samples are lost")?;
        updated.map(|_| sampled)
    })?;
    service.held(&sampled)?;
    for worker in &service.workers {
        let expected = if worker.name == "worker-3" { "pause" } else { "active" };
        let found = availability(service.manager, worker)?;
        ensure!(found == expected, "{} is {found}, and was {expected}", worker.name);
        ensure!(worker.story()? == "install/1 install/1. install/1 install/1.", "{}: {}", worker.name, worker.story()?);
    }
    service.remove()
}
