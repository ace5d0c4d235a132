//! A storage operator, such as Rook: while the disks of one node are away, it lets those of no other node go.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use muster_tests::fleet::pause;

use super::{evidence::Observer, workers::*, *};

const NODES: [&str; 3] = ["worker-1", "worker-2", "worker-3"];
const LOOKS_EVERY: Duration = Duration::from_millis(50);
/// Time that the copies of its data take to be whole again, after the disks of a node are back.
const RECOVERS_IN: Duration = Duration::from_secs(3);
const BUDGETS: &str = "poddisruptionbudgets.policy";

/// The workload on a node's disks.
fn disks_of(node: &str) -> String {
    format!("disks-{node}")
}

fn budget(kubernetes: &Kubernetes, name: &str, labels: &Value, most: u32) -> Result<()> {
    let spec = json!({"maxUnavailable": most, "selector": {"matchLabels": labels}});
    kubernetes.put(BUDGETS, "shop", json!({"metadata": {"name": name}, "spec": spec}))
}

/// One pod for the disks of each worker. It runs nowhere else. One of them may be away.
fn add_disks(kubernetes: &Kubernetes) -> Result<()> {
    for worker in NODES {
        let traits = PodTraits {
            labels: vec![("storage".to_owned(), "disks".to_owned())],
            node_selector: vec![("kubernetes.io/hostname".to_owned(), worker.to_owned())],
            ..PodTraits::default()
        };
        kubernetes.deployment_with("shop", &disks_of(worker), 1, &traits)?;
    }
    budget(kubernetes, "disks", &json!({"storage": "disks"}), 1)?;
    all_ready(kubernetes)
}

/// Workers whose disks are away.
fn away(kubernetes: &Kubernetes) -> Vec<&'static str> {
    let replicas = kubernetes.ready_replicas();
    let is_away = |worker: &&str| {
        let name = disks_of(worker);
        replicas.iter().any(|replicas| replicas.workload.name == name && replicas.ready < replicas.wanted)
    };
    NODES.into_iter().filter(is_away).collect()
}

/// Holds the other nodes' disks while one's are away, until it is ended. Returns how often it did.
fn operate(kubernetes: &Kubernetes, ends: &AtomicBool, most_away: &AtomicUsize) -> Result<usize> {
    let mut holds = 0;
    let mut held: Vec<&str> = Vec::new();
    while !ends.load(Ordering::Relaxed) {
        let away = away(kubernetes);
        most_away.fetch_max(away.len(), Ordering::Relaxed);
        if held.is_empty() && !away.is_empty() {
            kubernetes.remove(BUDGETS, "shop", "disks")?;
            held = NODES.into_iter().filter(|worker| !away.contains(worker)).collect();
            for worker in &held {
                budget(kubernetes, &disks_of(worker), &json!({"app": disks_of(worker)}), 0)?;
            }
            holds += 1;
        } else if !held.is_empty() && away.is_empty() {
            pause(RECOVERS_IN);
            for worker in held.drain(..) {
                kubernetes.remove(BUDGETS, "shop", &disks_of(worker))?;
            }
            budget(kubernetes, "disks", &json!({"storage": "disks"}), 1)?;
        }
        pause(LOOKS_EVERY);
    }
    Ok(holds)
}

#[test]
fn storage_operator_holds_other_nodes() -> Result<()> {
    let kubernetes = Arc::new(start_kubernetes(Config::default(), &SMALL)?);
    add_disks(&kubernetes)?;
    let fleet = deployed_on("storage", &kubernetes)?;
    fleet.apply(&release(&fleet, 2, &["maxWorkerUpgradeCount: 3"]))?;
    let observer = Observer::start(&kubernetes);
    let (ends_now, most_away) = (AtomicBool::new(false), AtomicUsize::new(0));
    let holds = thread::scope(|scope| {
        let operator = scope.spawn(|| operate(&kubernetes, &ends_now, &most_away));
        let ended = start_update(&fleet).and_then(|update| ends(&fleet, update, 0));
        ends_now.store(true, Ordering::Relaxed);
        let holds = operator.join().ok().context("the storage operator panicked")?;
        ended.and(holds)
    })?;
    ensure!(holds == NODES.len(), "{holds}: once for each node");
    ensure!(most_away.load(Ordering::Relaxed) == 1, "the disks of two nodes were away at once");
    observer.end()?.ran_on_drained(&fleet, NODES.len())?;
    is_given_back(&kubernetes)?;
    budgets_held(&kubernetes)?;
    let log = fleet.log("update");
    ensure!(!log.contains("Deferred"), "no machine gave its turn back:\n{log}");
    fleet.done()
}
