//! Two machines whose evicted pods can run on one another only.

use std::{sync::Arc, time::Duration};

use muster_kubernetes_stand_in::{Fault, FaultAction};

use super::{
    evidence::{Observer, cordons},
    workers::*,
    *,
};

const EVICTED_AFTER: Duration = Duration::from_secs(4);

/// Both are cordoned at once, since their pods share no budget. Neither comes to its end before the other gives its
/// node back.
#[test]
fn mutually_dependent_machines_both_end() -> Result<()> {
    let kubernetes = Arc::new(start_nodes(Config::default(), &SMALL[..3])?);
    for (name, node) in [("one", "worker-1"), ("other", "worker-2")] {
        label(&kubernetes, &[node], name)?;
        let traits = PodTraits { node_selector: only_on(name), ..PodTraits::default() };
        kubernetes.deployment_with("shop", name, 2, &traits)?;
        kubernetes.budget("shop", name, Allowance::MaxUnavailable(1))?;
    }
    all_ready(&kubernetes)?;
    label(&kubernetes, &["worker-2"], "one")?;
    label(&kubernetes, &["worker-1"], "other")?;
    let fleet = deployed_with("one-another", &kubernetes, 2)?;
    let deadline = "  kubernetesDrain: {after: 12s}";
    fleet.apply(&release_for(&fleet, (2, 2), &["maxWorkerUpgradeCount: 2", "updateDeadlines:", deadline]))?;
    let observer = Observer::start(&kubernetes);
    // Both nodes are cordoned before the first pod leaves: on each node both pods are evicted at once.
    let late = Fault::next(4, FaultAction::Delay(EVICTED_AFTER)).user(USER).verb("create").resource("pods/eviction");
    kubernetes.inject(late);
    let update = start_update(&fleet)?;
    for (machine, name) in [("worker-1", "one"), ("worker-2", "other")] {
        let words = [&format!("pod shop/{name}-"), &format!("budget shop/{name} needs 1 healthy pods and has 1")];
        waits_for(&fleet, machine, Reason::KubernetesDraining, &words.map(String::as_str))?;
    }
    ends(&fleet, update, 0)?;
    observer.end()?.ran_on_drained(&fleet, 2)?;
    is_given_back(&kubernetes)?;
    kept_ready(&kubernetes, &[("one", 1), ("other", 1)])?;
    let turns = ["worker-1", "worker-2"].map(|node| cordons(&kubernetes, node).len() / 2);
    ensure!(turns.iter().sum::<usize>() == 3, "one of them gave its node back once: {turns:?}");
    fleet.done()
}
