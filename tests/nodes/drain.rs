//! The Swarm drain of an update, on real engines: a service's tasks move before a worker is disturbed, and every node
//! gets back what it had.

use anyhow::{Context as _, Result, ensure};
use muster_tests::{
    fleet::manifest::named_cluster,
    nodes::{Nodes, node::Node},
};

use crate::site::item;

/// The cluster.
const CLUSTER: &str = "drain";
/// Replicas of the service, at most one on a node: with three workers there is always one free.
const REPLICAS: usize = 2;
/// Docker mounts a node's control groups read-only; its own engine has to make groups for its containers.
const WRITABLE_GROUPS: &str =
    "for group in /sys/fs/cgroup/*; do ! mountpoint -q $group || mount -o remount,bind,rw $group; done";
/// An image of one program, made of the node's own files: there is no registry.
const IMAGE: &str = "libs=$(ldd /bin/sleep | grep -o '/lib[^ ]*' | cut -c2-)
    tar --create --dereference --directory / bin/sleep $libs | docker import - service:1";
/// One line for each look: replicas that run, and each node's availability.
const WATCH: &str = "while sleep 0.2; do echo $(docker service ls --format '{{.Replicas}}' | cut -d/ -f1) \
                     $(docker node ls --format '{{.Hostname}}={{.Availability}}'); done >/var/tmp/watch.log";

/// What a worker's item does: it writes down the containers that run while it disturbs the machine.
const DISTURB: &str = "sleep 2\ndocker ps --quiet >/var/tmp/containers";

fn manifest(release: &str) -> String {
    let control = item("configure", "deploy", ":", &[]);
    let worker = item("configure", "deploy", DISTURB, &[]);
    let text = named_cluster(CLUSTER, (1, 3), &[control], &[worker], &[]);
    let text = text.replace("lcmType: generic", "lcmType: swarm");
    text.replace("release: \"1.0\"", &format!("release: \"{release}\""))
        .replace("version: \"1\"", &format!("version: \"{release}\""))
}

/// A swarm of one manager and three workers, made with docker itself, and machines of a cluster of its own.
fn begin(fleet: &Nodes) -> Result<(&Node, Vec<&Node>)> {
    let manager = fleet.node("control-1")?;
    let workers: Vec<&Node> =
        ["worker-1", "worker-2", "worker-3"].map(|name| fleet.node(name)).into_iter().collect::<Result<_>>()?;
    let all = || workers.iter().copied().chain([manager]);
    for node in all() {
        fleet.begin_anew(node)?;
        node.sh("docker swarm leave --force || docker info --format '{{.Swarm.LocalNodeState}}' | grep -x inactive")?;
        node.sh(WRITABLE_GROUPS)?;
        node.sh(IMAGE)?;
    }
    manager.sh("docker swarm init --advertise-addr eth0")?;
    let token = manager.sh("docker swarm join-token worker --quiet")?;
    for worker in &workers {
        worker.sh(&format!("docker swarm join --token {} control-1:2377", token.trim()))?;
    }
    manager.sh(&format!(
        "docker service create --detach --no-resolve-image --name web --replicas {REPLICAS} --replicas-max-per-node 1 \
         --constraint node.role==worker service:1 /bin/sleep 100000"
    ))?;
    manager.wait_until("the service runs", || Ok(replicas(manager)? == REPLICAS))?;
    fleet.apply(&manifest("1"))?;
    for node in all() {
        let machine_type = if node.name == manager.name { "control" } else { "worker" };
        node.enroll(&node.name, &fleet.token(CLUSTER, machine_type, 1)?)?.exits(0)?;
    }
    all().try_for_each(|node| fleet.wait_ready(&node.name))?;
    Ok((manager, workers))
}

fn replicas(manager: &Node) -> Result<usize> {
    let shown = manager.sh("docker service ls --format '{{.Replicas}}'")?;
    Ok(shown.split('/').next().unwrap_or_default().trim().parse()?)
}

fn availability(manager: &Node, node: &str) -> Result<String> {
    let format = "{{.Spec.Availability}}";
    Ok(manager.run(&["docker", "node", "inspect", "--format", format, node])?.ok()?.trim().to_owned())
}

/// `worker-3` was set to pause by an operator; it is drained all the same, and paused again afterwards.
pub(crate) fn tasks_move_before_a_worker_is_disturbed(fleet: &Nodes) -> Result<()> {
    let (manager, workers) = begin(fleet)?;
    manager.sh("docker node update --availability pause worker-3")?;
    manager.run(&["systemd-run", "--quiet", "--unit", "watch", "sh", "-c", WATCH])?.exits(0)?;
    fleet.apply(&manifest("2"))?;
    fleet.ctl(&["update", CLUSTER, "--yes", "--accept-control-plane-downtime"])?.exits(0)?;
    for worker in &workers {
        let seen = worker.sh("cat /var/tmp/containers")?;
        ensure!(seen.trim().is_empty(), "{}: containers ran while it was disturbed: {seen}", worker.name);
        let expected = if worker.name == "worker-3" { "pause" } else { "active" };
        let got = availability(manager, &worker.name)?;
        ensure!(got == expected, "{} is {got}, and was {expected}", worker.name);
    }
    let watched = manager.sh("systemctl stop watch; cat /var/tmp/watch.log")?;
    for worker in &workers {
        let drained = format!("{}=Drain", worker.name);
        ensure!(watched.contains(&drained), "{} was never drained:\n{watched}", worker.name);
    }
    for line in watched.lines() {
        let running: usize = line.split(' ').next().context("a count")?.parse()?;
        ensure!(running + 1 >= REPLICAS, "only {running} of {REPLICAS} replicas ran:\n{watched}");
        let drained = line.matches("=Drain").count();
        ensure!(drained <= 1, "{drained} workers were drained at once:\n{line}");
    }
    let left = fleet.ctl(&["get", "clusterstates", "-o", "name"])?.ok()?;
    ensure!(left.trim().is_empty(), "cluster states are left: {left}");
    manager.sh("docker service rm web")?;
    Ok(())
}
