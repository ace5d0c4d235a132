//! Machines that can never be drained as things are: named before the start and at its end, untouched, and complete
//! once the cause is gone.

use super::{workers::*, *};

const BUDGETS: &str = "poddisruptionbudgets.policy";

/// One pod, on this node alone.
fn alone_on(kubernetes: &Kubernetes, node: &str) -> Result<()> {
    let here = vec![("kubernetes.io/hostname".to_owned(), node.to_owned())];
    kubernetes.deployment_with("shop", "alone", 1, &PodTraits { node_selector: here, ..PodTraits::default() })
}

/// The machine was left as it was: no request, no cordon, none of its pods moved.
fn is_untouched(fleet: &Fleet, kubernetes: &Kubernetes, machine: &str, pod: &str) -> Result<()> {
    ensure!(evidence::cordons(kubernetes, machine).is_empty(), "{machine} was cordoned");
    let stages = fleet.machine(machine)?.status.stages;
    let requested = stages.iter().find(|stage| stage.name == "Node maintenance requested");
    ensure!(requested.is_none_or(|stage| stage.status == "NotStarted"), "{machine}: {requested:?}");
    let stays = kubernetes.pods_on(machine).iter().any(|there| there.starts_with(pod));
    ensure!(stays, "{pod} left {machine}");
    Ok(())
}

/// Two budgets on one pod, and a budget that cannot be evaluated. The third worker completes.
#[test]
fn undrainable_workers_complete_after_retry() -> Result<()> {
    let (fleet, kubernetes) = small("two-budgets")?;
    alone_on(&kubernetes, "worker-1")?;
    for name in ["alone", "alone-too"] {
        kubernetes.budget_over("shop", name, "alone", Allowance::MaxUnavailable(1))?;
    }
    let clone = json!({
        "metadata": {
            "name": "clone-0",
            "labels": {"app": "clone"},
            "ownerReferences": [
                {"apiVersion": "example.com/v1", "kind": "CloneSet", "name": "clone", "uid": "c", "controller": true},
            ],
        },
        "spec": {"nodeName": "worker-2", "containers": [{"name": "c", "image": "fake/img:1"}]},
    });
    kubernetes.put("pods", "shop", clone)?;
    kubernetes.budget("shop", "clone", Allowance::MaxUnavailable(1))?;
    wait_for("the budget that fails", TIME_LIMIT, || {
        let budget = kubernetes.object(BUDGETS, "shop", "clone").context("the budget")?;
        Ok((budget["status"]["conditions"][0]["reason"] == "SyncFailed").then_some(()))
    })?;
    all_ready(&kubernetes)?;
    let causes = [
        ("worker-1", "shop/alone-", "has more than one disruption budget (shop/alone, shop/alone-too)"),
        ("worker-2", "pod shop/clone-0: disruption budget shop/clone cannot be evaluated", "scale subresource"),
    ];
    fleet.apply(&release(&fleet, 2, &["maxWorkerUpgradeCount: 2"]))?;
    let plan = fleet.ctl(&["plan", "e2e"])?.exits(0)?;
    for (machine, pod, words) in causes {
        plan.clone().says(&[&format!("{machine}: it cannot be drained: pod shop/"), pod, words])?;
    }
    let ran = fleet.ctl(&["update", "e2e", "--yes"])?.exits(4)?;
    for (machine, pod, words) in causes {
        ran.clone().says(&[machine, "KubernetesUndrainable", pod, words, &format!("musterctl retry {machine}")])?;
        fleet.ctl(&["describe", "machine", machine])?.exits(0)?.says(&["KubernetesUndrainable", pod, words])?;
    }
    is_at(&fleet, "worker-3", "2.0")?;
    is_untouched(&fleet, &kubernetes, "worker-1", "shop/alone-")?;
    is_untouched(&fleet, &kubernetes, "worker-2", "shop/clone-0")?;
    is_given_back(&kubernetes)?;
    kubernetes.remove(BUDGETS, "shop", "alone-too")?;
    kubernetes.remove(BUDGETS, "shop", "clone")?;
    // It may run elsewhere from now on.
    kubernetes.modify("deployments.apps", "shop", "alone", |deployment| {
        deployment["spec"]["template"]["spec"]["nodeSelector"] = json!({});
    })?;
    for (machine, ..) in causes {
        fleet.ctl(&["retry", machine])?.exits(0)?;
    }
    fleet.ctl(&["watch", "e2e"])?.exits(0)?;
    fleet.wait_ready(SMALL.len())?;
    is_given_back(&kubernetes)?;
    budgets_held(&kubernetes)?;
    fleet.done()
}

/// A control machine that cannot be drained holds the workers, and they say so.
#[test]
fn undrainable_control_machine_holds_workers() -> Result<()> {
    let (fleet, kubernetes) = deployed("undrainable-control")?;
    alone_on(&kubernetes, "control-2")?;
    kubernetes.budget("shop", "alone", Allowance::MinAvailable(1))?;
    all_ready(&kubernetes)?;
    let words = "disruption budget shop/alone needs 1 healthy pods of 1, so it never allows one less";
    fleet.apply(&manifest(&fleet, 2, &[]))?;
    fleet.ctl(&["plan", "e2e"])?.exits(0)?.says(&["control-2: it cannot be drained: pod shop/alone-", words])?;
    let ran = fleet.ctl(&["update", "e2e", "--yes"])?.exits(4)?;
    ran.says(&["control-2: KubernetesUndrainable", words, "musterctl retry control-2"])?;
    is_untouched(&fleet, &kubernetes, "control-2", "shop/alone-")?;
    let machines = fleet.machines()?;
    for (name, machine) in &machines {
        let at = machine.status.release.as_deref();
        let done = matches!(name.as_str(), "control-1" | "control-3");
        ensure!(at == Some(if done { "2.0" } else { "1.0" }), "{name} is at {at:?}");
    }
    let says = ["WaitingForControl", "not yet: control-2"];
    for worker in ["worker-1", "worker-2", "worker-3"] {
        waits_for(&fleet, worker, Reason::WaitingForControl, &["not yet: control-2"])?;
        fleet.ctl(&["describe", "machine", worker])?.exits(0)?.says(&says)?;
    }
    let pages = [fleet.ctl(&["get", "machines", "-o", "wide"])?.exits(0)?, fleet.ctl(&["watch", "e2e"])?.exits(4)?];
    for page in pages {
        page.says(&says)?.says(&["KubernetesUndrainable", words])?;
    }
    is_given_back(&kubernetes)?;
    kubernetes.remove(BUDGETS, "shop", "alone")?;
    fleet.ctl(&["retry", "control-2"])?.exits(0)?;
    fleet.ctl(&["watch", "e2e"])?.exits(0)?;
    fleet.wait_ready(MACHINES.len())?;
    ensure!(fleet.are_at("2.0"));
    is_given_back(&kubernetes)?;
    kept_ready(&kubernetes, &[])?;
    fleet.done()
}
