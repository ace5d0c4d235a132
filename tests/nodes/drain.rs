//! A release comes to a Swarm that serves: the tasks of a replicated service move, and never fewer run than it wants
//! less one. What runs is asked of the machines' own engines, not of the swarm or of Muster.

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

/// The cluster, which [`crate::update`] goes on with.
pub(crate) const CLUSTER: &str = "drain";
/// Of the service.
const WANTED: usize = 2;
/// Prints the ids of the tasks whose container runs there.
const RUNNING: &str = "docker ps --no-trunc --filter label=com.docker.swarm.service.name=drain-web \
                       --format '{{.Label \"com.docker.swarm.task.id\"}}'";
/// An image of this program alone, with what it is linked against. Engines ask its registry before they take what they
/// have: there is none at this address, and they hear so at once.
pub(crate) const IMAGE: &str = "localhost:9/sleeper:1";
pub(crate) const MAKE_IMAGE: &str = "tar --create --dereference --directory / usr/bin/sleep lib64/ld-linux-x86-64.so.2 \
                          lib/x86_64-linux-gnu/libc.so.6 | docker import - ";
/// Between two counts of what runs: a task that is lost comes again after three seconds at the earliest, and each count
/// asks three engines.
const SAMPLE_EVERY: Duration = Duration::from_millis(500);
/// Fewer are no proof.
const SAMPLES_MIN: usize = 10;

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

/// What a node is for the cluster.
pub(crate) fn machine(node: &Node) -> String {
    format!("{CLUSTER}-{}", node.name)
}

/// Tasks that run, wherever; all workers are asked at once. None run on one that does not answer: it is rebooting.
fn running(workers: &[&Node]) -> BTreeSet<String> {
    let said: Vec<String> = thread::scope(|scope| {
        let asked: Vec<_> = workers.iter().map(|worker| scope.spawn(|| worker.look(RUNNING))).collect();
        asked.into_iter().filter_map(|answer| answer.join().ok()?.ok()).collect()
    });
    said.iter().flat_map(|said| said.lines()).map(|line| line.trim().to_owned()).collect()
}

/// What was seen of a service while something went on.
#[derive(Debug)]
pub(crate) struct Sampled {
    /// Tasks that ran at the same time, at least.
    fewest: usize,
    samples: usize,
    /// Every task that ever ran.
    ever: BTreeSet<String>,
}

/// A replicated service of two tasks, never two on one node. An operator has paused one of three workers: what another
/// one loses finds no room before that one is back.
pub(crate) struct Service<'a> {
    manager: &'a Node,
    workers: Vec<&'a Node>,
    /// Its tasks at the beginning.
    before: BTreeSet<String>,
}

impl<'a> Service<'a> {
    /// Makes it, and waits until it runs.
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

    /// Counts again and again until it is told to end.
    pub(crate) fn sample(&self, ended: &AtomicBool) -> Sampled {
        let (mut fewest, mut samples, mut ever) = (usize::MAX, 0, BTreeSet::new());
        while !ended.load(Ordering::Relaxed) {
            let now = running(&self.workers);
            // One that moved between two looks of the same sample may be missing from both.
            let again = if now.len() < WANTED - 1 { running(&self.workers) } else { BTreeSet::new() };
            fewest = fewest.min(now.len().max(again.len()));
            samples += 1;
            ever.extend(now);
            pause(SAMPLE_EVERY);
        }
        Sampled { fewest, samples, ever }
    }

    /// It never ran less than it may, it moved, and it is whole again.
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

/// What a manager says of a node.
pub(crate) fn availability(manager: &Node, node: &Node) -> Result<String> {
    availabilities(manager, [node])?.pop().context("an answer")
}

/// What a manager says of these nodes.
pub(crate) fn availabilities<'a>(manager: &Node, nodes: impl IntoIterator<Item = &'a Node>) -> Result<Vec<String>> {
    let names: Vec<&str> = nodes.into_iter().map(|node| node.name.as_str()).collect();
    let ask = format!("docker node inspect --format '{{{{.Spec.Availability}}}}' {}", names.join(" "));
    Ok(manager.look(&ask)?.lines().map(str::to_owned).collect())
}

/// Three workers, one at a time. Nobody watches, so that a moment in which a person is wanted ends nothing.
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
