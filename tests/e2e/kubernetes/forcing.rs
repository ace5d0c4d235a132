//! An operator's word that a pod is deleted: the last resort for one that cannot be evicted.

use super::*;

/// The right of packaging/kubernetes/rbac-delete.yaml.
fn right_to_delete() -> Result<Vec<Rule>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/kubernetes/rbac-delete.yaml");
    Rule::of_cluster_roles(&fs::read_to_string(path)?)
}

fn deletions(kubernetes: &Kubernetes) -> Vec<LoggedRequest> {
    let requests = kubernetes.requests().into_iter();
    requests.filter(|request| request.user == USER && request.verb == "delete").collect()
}

/// The word is recorded before the coordinator is killed. The account may not delete, which is said; then it may, and
/// this one pod is deleted, by its UID, after the cordon.
#[test]
fn forced_pod_is_deleted_by_uid() -> Result<()> {
    let (mut fleet, kubernetes) = deployed("forced")?;
    let (machine, pod) = pod_that_stays(&kubernetes)?;
    fleet.apply(&manifest(&fleet, 2, &[]))?;
    let last_resort = format!("musterctl drain-force {machine} --pod {pod}");
    fleet.ctl(&["update", "e2e", "--yes"])?.exits(4)?.says(&["KubernetesUndrainable"])?;
    fleet.ctl(&["describe", "machine", machine])?.exits(0)?.says(&[&last_resort])?;
    let (namespace, name) = pod.split_once('/').context("namespace/name")?;
    let object = kubernetes.object("pods", namespace, name).context("the pod")?;
    let uid = object["metadata"]["uid"].as_str().context("its UID")?.to_owned();
    fleet.ctl(&["drain-force", machine, "--pod", "shop/none", "--yes"])?.exits(4)?.says(&["NoSuchPod", &pod])?;
    fleet.ctl(&["drain-force", machine, "--pod", &pod])?.exits(2)?.says(&["--yes"])?;
    ensure!(deletions(&kubernetes).is_empty());
    fleet.ctl(&["drain-force", machine, "--pod", &pod, "--yes"])?.exits(0)?.says(&[&uid, "again"])?;
    fleet.kill_coordinator()?;
    fleet.start_coordinator()?;
    fleet.wait_machine(machine, "a refused deletion", |machine| {
        let blocked = machine.status.blocked.as_ref();
        blocked.is_some_and(|since| since.blocked.clears_when.contains("rbac --with-delete"))
    })?;
    fleet.ctl(&["describe", "machine", machine])?.exits(0)?.says(&["Deleted pod", &uid, "operator/"])?;
    let refused = deletions(&kubernetes);
    ensure!(refused.iter().all(|request| request.status == Some(403)) && !refused.is_empty(), "{refused:?}");
    ensure!(kubernetes.object("pods", namespace, name).is_some());
    kubernetes.revoke_token(TOKEN);
    kubernetes.add_token(TOKEN, USER, [rights()?, right_to_delete()?].concat());
    fleet.ctl(&["watch", "e2e"])?.exits(0)?;
    fleet.wait_ready(6)?;
    is_given_back(&kubernetes)?;
    let deletions = deletions(&kubernetes);
    let done: Vec<&LoggedRequest> = deletions.iter().filter(|request| request.status == Some(200)).collect();
    ensure!(done.len() == 1 && deletions.iter().all(|request| request.name == name), "{deletions:?}");
    ensure!(done[0].body["preconditions"]["uid"] == uid.as_str(), "{done:?}");
    ensure!(done[0].body["gracePeriodSeconds"].is_null() && done[0].query.is_empty(), "{done:?}");
    let cordoned = kubernetes.requests().into_iter().find(|request| {
        request.verb == "patch" && request.name == machine && request.body["spec"]["unschedulable"] == true
    });
    ensure!(cordoned.context("its cordon")?.at < deletions[0].at, "after the cordon");
    fleet.ctl(&["get", "audit"])?.exits(0)?.says(&["drain-force", &uid])?;
    fleet.ctl(&["kubernetes", "check", "e2e"])?.says(&["may delete pods", "all 18"])?;
    fleet.done()
}
