//! A node full of pods, a server that rejects a part of all requests for its load, and lists that expire.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use muster_kubernetes_stand_in::{Fault, FaultAction};
use muster_tests::fleet::pause;

use super::{
    evidence::{Observer, evicted_after_list, evicted_rarely, evictions},
    workers::*,
    *,
};

/// Pods on one node, beside the usual ones: the first lists of them have two pages.
const PODS: i64 = 560;
/// Pods of them that may be away.
const AWAY: i64 = 100;
/// One of so many requests is rejected.
const REJECTED: usize = 9;
/// Period in which the store changes and forgets its history, until a list has expired between two pages.
const FORGETS_EVERY: Duration = Duration::from_millis(15);

/// Lets a list expire.
fn expire_a_list(kubernetes: &Kubernetes, ends: &AtomicBool) -> Result<()> {
    let expired = || kubernetes.requests().iter().any(|request| request.status == Some(410));
    for round in 0.. {
        if ends.load(Ordering::Relaxed) || expired() {
            break;
        }
        kubernetes.modify("namespaces", "", "shop", |object| {
            object["metadata"]["annotations"] = json!({"round": round.to_string()});
        })?;
        kubernetes.compact();
        pause(FORGETS_EVERY);
    }
    Ok(())
}

#[test]
fn full_node_drains_under_rejections() -> Result<()> {
    let (fleet, kubernetes) = small("full-node")?;
    label(&kubernetes, &["worker-1"], "full")?;
    let traits = PodTraits { node_selector: only_on("full"), ..PodTraits::default() };
    kubernetes.deployment_with("shop", "many", PODS, &traits)?;
    kubernetes.budget("shop", "many", Allowance::MaxUnavailable(AWAY))?;
    all_ready(&kubernetes)?;
    // They leave for a machine that the update does not change.
    kubernetes.label_node("worker-1", "full", None)?;
    label(&kubernetes, &["control-1"], "full")?;
    kubernetes.reset_lowest_ready();
    fleet.apply(&release(&fleet, 2, &["  drain: {evictionsAtOnce: 50}"]))?;
    let observer = Observer::start(&kubernetes);
    kubernetes.inject(Fault::always(FaultAction::PriorityAndFairness).user(USER).every(REJECTED));
    let update = start_update(&fleet)?;
    let ends_now = AtomicBool::new(false);
    thread::scope(|scope| {
        let expired = scope.spawn(|| expire_a_list(&kubernetes, &ends_now));
        let ended = ends(&fleet, update, 0);
        ends_now.store(true, Ordering::Relaxed);
        expired.join().ok().context("the thread panicked")?.and(ended)
    })?;
    kubernetes.clear_faults();
    let seen = observer.end()?;
    seen.ran_on_drained(&fleet, WORKERS)?;
    is_given_back(&kubernetes)?;
    budgets_held(&kubernetes)?;
    kept_ready(&kubernetes, &[("many", usize::try_from(PODS - AWAY)?)])?;
    let refused = evicted_rarely(&kubernetes)?;
    evicted_after_list(&kubernetes, &seen)?;
    let many = evictions(&kubernetes).iter().filter(|eviction| eviction.name.starts_with("many")).count();
    ensure!(many >= usize::try_from(PODS)? && refused > 0, "{many} evictions, {refused} of all refused");
    let statuses: Vec<u16> = kubernetes.requests().iter().filter_map(|request| request.status).collect();
    let count = |wanted: u16| statuses.iter().filter(|status| **status == wanted).count();
    ensure!(count(410) > 0 && count(429) > refused, "{} expired, {} rejected", count(410), count(429));
    fleet.done()
}
