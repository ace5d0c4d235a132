//! Nodes that are not what they seem: no machine is disturbed by them, each reason is named, and all ends well after it
//! is set right.

use super::{
    evidence::{Observer, cordons},
    workers::*,
    *,
};

/// A node object is made anew: another UID, without a cordon.
fn make_anew(kubernetes: &Kubernetes, machine: &str) -> Result<()> {
    let number = SMALL.iter().position(|known| *known == machine).context("a machine")?;
    kubernetes.remove("nodes", "", machine)?;
    kubernetes.add_node(machine, &address(number), &boot_id(number))
}

fn set_cluster_uid(kubernetes: &Kubernetes, uid: &Value) -> Result<Value> {
    let mut before = Value::Null;
    kubernetes.modify("namespaces", "", "kube-system", |object| before = object["metadata"]["uid"].take())?;
    kubernetes.modify("namespaces", "", "kube-system", |object| object["metadata"]["uid"] = uid.clone())?;
    Ok(before)
}

/// No item ran on this machine in the release.
fn ran_nothing(fleet: &Fleet, machine: &str) -> Result<()> {
    let starts = fleet.effects()?.iter().filter(|effect| effect.is_start && effect.machine == machine).count();
    ensure!(starts == 1, "{machine}: {starts} starts, the first in its deployment");
    Ok(())
}

#[test]
fn unclear_nodes_are_left_alone() -> Result<()> {
    let (fleet, kubernetes) = small("identity")?;
    let mut holds = Holds::on_workers(&kubernetes)?;
    make_anew(&kubernetes, "worker-1")?;
    // It bears the machine's name and address, and not its boot id.
    let unclear = "worker-2";
    kubernetes.set_boot_id(unclear, "another boot")?;
    let observer = Observer::start(&kubernetes);
    fleet.apply(&release(&fleet, 2, &[]))?;
    let update = start_update(&fleet)?;

    // In the middle of a drain: another cluster behind the same address.
    let (worker, held) = holds.next(&kubernetes)?;
    let uid = set_cluster_uid(&kubernetes, &json!("another"))?;
    waits_for(&fleet, worker, Reason::KubernetesUnavailable, &["another cluster", "kube-system has UID another"])?;
    let before = changes(&kubernetes).len();
    held.let_go(&kubernetes)?;
    let words = ["it belongs to another cluster", "leads to the cluster that was there first"];
    fleet.ctl(&["describe", "machine", worker])?.exits(0)?.says(&words)?;
    ensure!(changes(&kubernetes).len() == before, "something was changed in another cluster");
    ran_nothing(&fleet, worker)?;
    set_cluster_uid(&kubernetes, &uid)?;
    is_at(&fleet, worker, "2.0")?;

    // In the middle of a drain: the node is made anew, without a cordon.
    let (worker, held) = holds.next(&kubernetes)?;
    make_anew(&kubernetes, worker)?;
    wait_for("the new node cordoned", UPDATE_MAX, || Ok((cordons(&kubernetes, worker).len() == 2).then_some(())))?;
    ran_nothing(&fleet, worker)?;
    held.let_go(&kubernetes)?;
    is_at(&fleet, worker, "2.0")?;

    // The rest is complete, and a person is needed.
    ends(&fleet, update, 4)?;
    let words = "worker-2: KubernetesNodeUnclear: Error: Kubernetes node worker-2 has its name or address, and was \
                 started in another boot";
    ensure!(fleet.log("update").contains(words), "{}", fleet.log("update"));
    ran_nothing(&fleet, unclear)?;
    ensure!(cordons(&kubernetes, unclear).is_empty(), "{unclear} was cordoned");
    kubernetes.set_boot_id(unclear, &boot_id(2))?;
    holds.next(&kubernetes)?.1.let_go(&kubernetes)?;
    fleet.ctl(&["watch", "e2e"])?.exits(0)?;
    observer.end()?.ran_on_drained(&fleet, WORKERS)?;
    is_given_back(&kubernetes)?;
    budgets_held(&kubernetes)?;
    fleet.done()
}
