//! Workloads of every kind leave a node: in the order of their priorities, as their budgets allow it, with their
//! volumes.

use std::{sync::Arc, time::Duration};

use super::{
    evidence::{Observer, Seen, evicted_after_list, evicted_rarely, evictions},
    workers::*,
    *,
};

/// Time that a pod takes to start elsewhere.
const POD_START: Duration = Duration::from_secs(1);
/// Time until volumes are detached, after their pod.
const DETACH_AFTER: Duration = Duration::from_secs(3);
/// Pods of one budget that are all on one node.
const PINNED: i64 = 4;
/// Shorter than the drain of the node with all pods of one budget: it restarts when a pod leaves.
const DEADLINE: &str = "  kubernetesDrain: {after: 15s, outcome: fail}";
/// Workloads by the order in which their pods leave: lower priorities first, those that are labelled, the system's.
const IN_ORDER: [&str; 4] = ["low", "high", "last", "critical"];

/// Workloads beside the usual ones. All pods of `pinned` are on worker-1 at first.
fn add_workloads(kubernetes: &Kubernetes) -> Result<()> {
    let pinned = PodTraits { node_selector: only_on("room"), ..PodTraits::default() };
    label(kubernetes, &["worker-1"], "room")?;
    kubernetes.deployment_with("shop", "pinned", PINNED, &pinned)?;
    kubernetes.budget("shop", "pinned", Allowance::MaxUnavailable(1))?;
    for (name, allowance) in
        [("third", Allowance::MaxUnavailablePercent(30)), ("half", Allowance::MinAvailablePercent(50))]
    {
        kubernetes.deployment("shop", name, 4)?;
        kubernetes.budget("shop", name, allowance)?;
    }
    let last = PodTraits { labels: vec![("muster/drain".to_owned(), "last".to_owned())], ..PodTraits::default() };
    kubernetes.deployment_with("shop", "last", 5, &last)?;
    for (name, priority) in [("low", -5), ("high", 1_000), ("critical", 2_000_000_000)] {
        let traits = PodTraits { priority: Some(priority), ..PodTraits::default() };
        kubernetes.deployment_with("shop", name, 5, &traits)?;
    }
    // Its pods leave last, so that volumes are left.
    let priority = Some(2_000_000_500);
    let with_volume = PodTraits { claim: Some("data".to_owned()), priority, ..PodTraits::default() };
    kubernetes.statefulset_with("shop", "store", 3, &with_volume)?;
    kubernetes.budget("shop", "store", Allowance::MinAvailable(2))?;
    let skipped = PodTraits { labels: vec![("muster/drain".to_owned(), "skip".to_owned())], ..PodTraits::default() };
    kubernetes.bare_pod_with("shop", "stays", "stays", Some("worker-2"), &skipped)?;
    all_ready(kubernetes)?;
    label(kubernetes, &["control-1", "worker-2", "worker-3"], "room")?;
    ensure!(kubernetes.pods_on("worker-1").iter().filter(|pod| pod.contains("/pinned-")).count() == 4);
    Ok(())
}

#[test]
fn every_workload_leaves_in_order() -> Result<()> {
    let config = Config { pod_start: POD_START, detach_after: DETACH_AFTER, ..Config::default() };
    let kubernetes = Arc::new(start_kubernetes(config, &SMALL)?);
    add_workloads(&kubernetes)?;
    let fleet = deployed_on("workloads", &kubernetes)?;
    let settings = ["  drain: {evictionsAtOnce: 1}", "maxWorkerUpgradeCount: 2", "updateDeadlines:", DEADLINE];
    fleet.apply(&release(&fleet, 2, &settings))?;
    let observer = Observer::start(&kubernetes);
    let update = start_update(&fleet)?;
    // Its replacement takes a second: the next one is asked for when that is Ready.
    waits_for(
        &fleet,
        "worker-1",
        Reason::KubernetesDraining,
        &["pod shop/pinned-", "cannot be evicted: budget shop/pinned needs 3 healthy pods and has 3"],
    )?;
    let states = fleet.ctl(&["get", "clusterstates", "-o", "wide"])?.exits(0)?;
    states.says(&["cd-worker-1", "budget shop/pinned needs 3 healthy pods and has 3"])?;
    ends(&fleet, update, 0)?;
    let seen = observer.end()?;
    seen.ran_on_drained(&fleet, 3)?;
    ensure!(fleet.log("update").contains("waiting for volumes to be detached - pv-shop-data-store-"));
    is_given_back(&kubernetes)?;
    budgets_held(&kubernetes)?;
    kept_ready(&kubernetes, &[("pinned", 3), ("third", 2), ("half", 2), ("store", 2)])?;
    ensure!(kubernetes.object("pods", "shop", "stays").is_some(), "it was to stay");
    ensure!(evicted_rarely(&kubernetes)? > 0, "budgets refused nothing");
    evicted_after_list(&kubernetes, &seen)?;
    first_evictions_in_order(&kubernetes, &seen)?;
    fleet.done()
}

/// On each node the first evictions of pods are in their order, and each kind of them was there.
fn first_evictions_in_order(kubernetes: &Kubernetes, seen: &Seen) -> Result<()> {
    let mut places: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let evictions = evictions(kubernetes);
    for eviction in &evictions {
        let uid = eviction.body["deleteOptions"]["preconditions"]["uid"].as_str().context("a UID")?;
        let place = IN_ORDER.iter().position(|name| eviction.name.starts_with(name));
        if let (Some(place), Some(node)) = (place, seen.homes.get(uid)) {
            places.entry(node).or_default().push(place);
        }
    }
    ensure!(places.len() == 3, "every worker had such pods: {places:?}");
    for (node, places) in &places {
        ensure!(places.is_sorted(), "{node}: {places:?}");
    }
    let there: std::collections::BTreeSet<&usize> = places.values().flatten().collect();
    ensure!(there.len() == IN_ORDER.len(), "{places:?}");
    Ok(())
}
