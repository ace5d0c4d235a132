//! The custom resources of the maintenance handshake in a cluster under test: their definitions, which Muster makes
//! where the cluster has none, an application controller with an account of its own, and what all of them leave.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Result, ensure};
use muster_kubernetes_stand_in::rockoon::{Rockoon, RockoonConfig};
use serde_json::{Value, json};

use super::{
    CLUSTER_LIMIT, LOOK_EVERY, RUN_LABEL, admin,
    client::{Client, MERGE},
    cluster::ClusterUnderTest,
    has_condition, list, name, rights, text, uid,
};
use crate::fleet::{self, look_every};

/// Path of the definitions.
pub(super) const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// API group of the custom resources.
const GROUP: &str = "lcm.mirantis.com";
pub(super) const NODE_REQUESTS: &str = "nodemaintenancerequests";
pub(super) const CLUSTER_REQUESTS: &str = "clustermaintenancerequests";
pub(super) const NODE_LOCKS: &str = "nodeworkloadlocks";
pub(super) const CLUSTER_LOCKS: &str = "clusterworkloadlocks";
/// Resources with definitions that Muster makes.
pub(super) const KINDS: [&str; 6] =
    [CLUSTER_REQUESTS, NODE_REQUESTS, CLUSTER_LOCKS, NODE_LOCKS, "nodedeletionrequests", "nodedisablenotifications"];
/// The controller's account.
const ACCOUNT: &str = "rockoon";
/// The label that makes a node a controller of OpenStack, and that of a compute.
pub(super) const ROLES: [&str; 2] = ["openstack-control-plane", "openstack-compute-node"];

/// Path of all objects of a kind.
pub(super) fn path(plural: &str) -> String {
    format!("/apis/{GROUP}/v1alpha1/{plural}")
}

fn definition(plural: &str) -> String {
    format!("{DEFINITIONS}/{plural}.{GROUP}")
}

/// Prepare for the definitions that the cluster lacks: whoever makes them from now on makes them for this run. Returns
/// their paths.
pub(super) fn expect(cluster: &ClusterUnderTest) -> Result<Vec<String>> {
    let mut absent = Vec::new();
    for path in KINDS.map(definition) {
        if cluster.client().get(&path)?.is_none() {
            cluster.expect(&path)?;
            absent.push(path);
        }
    }
    Ok(absent)
}

/// Wait until all definitions are served, and write down that these are the run's.
pub(super) fn adopt(cluster: &ClusterUnderTest, made: &[String]) -> Result<()> {
    for path in KINDS.map(definition) {
        look_every(LOOK_EVERY, &format!("{path} to be served"), CLUSTER_LIMIT, || {
            let found = cluster.client().get(&path)?;
            Ok(found.is_some_and(|found| has_condition(&found, "Established", "True")).then_some(()))
        })?;
    }
    made.iter().try_for_each(|path| cluster.adopt(path))
}

/// Start Rockoon with an account of its own in this namespace, for a deployment of this name. It looks again after
/// seconds where the real one does after a minute.
pub(super) fn rockoon(cluster: &ClusterUnderTest, namespace: &str) -> Result<Rockoon> {
    let labels = json!({RUN_LABEL: cluster.run()});
    let accounts = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
    let account = json!({"metadata": {"name": ACCOUNT, "labels": labels}});
    cluster.create(&accounts, &with_kind("v1", "ServiceAccount", account))?;
    let role = json!({"metadata": {"name": format!("{namespace}-{ACCOUNT}"), "labels": labels}, "rules": [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        {"apiGroups": [GROUP], "resources": ["*"], "verbs": ["*"]},
    ]});
    let rbac = "rbac.authorization.k8s.io/v1";
    cluster.create(&format!("/apis/{rbac}/clusterroles"), &with_kind(rbac, "ClusterRole", role.clone()))?;
    let binding = json!({
        "metadata": role["metadata"],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name(&role)},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}],
    });
    cluster.create(&format!("/apis/{rbac}/clusterrolebindings"), &with_kind(rbac, "ClusterRoleBinding", binding))?;
    let token = rights::token_of(cluster, namespace, ACCOUNT)?;
    let of_account = Client::new(&admin::with_token(cluster.kubeconfig(), &token))?;
    rights::wait(&of_account, &json!({"verb": "create", "group": GROUP, "resource": NODE_LOCKS}))?;
    let (kubeconfig, host) = (cluster.kubeconfig(), cluster.client().host());
    let kubeconfig = admin::text(host, admin::certificate_name(kubeconfig), &kubeconfig.ca, &token);
    let config = RockoonConfig {
        deployment: Some(namespace.to_owned()),
        retry: Duration::from_secs(3),
        poll: Duration::from_millis(300),
        reconnect: Duration::from_millis(500),
        work: Duration::from_millis(500),
        restore: Duration::from_millis(500),
        health: Duration::from_millis(500),
        ..RockoonConfig::default()
    };
    Rockoon::start(&kubeconfig, config)
}

fn with_kind(version: &str, kind: &str, mut object: Value) -> Value {
    object["apiVersion"] = version.into();
    object["kind"] = kind.into();
    object
}

/// Objects of a kind; none where it is not served.
pub(super) fn objects(client: &Client, plural: &str) -> Result<Vec<Value>> {
    let served = client.get(&definition(plural))?.is_some();
    if served { Ok(client.list(&path(plural))?.0) } else { Ok(Vec::new()) }
}

/// Is the object of this run: about one of its nodes, a lock of its deployment, or a request of its fleet?
fn is_of(object: &Value, run: &str) -> bool {
    let is_named = [text(object, "/spec/nodeName"), name(object)].iter().any(|name| name.contains(run));
    let asks = object.pointer("/metadata/annotations").and_then(|all| all.get("muster/requested-by"));
    is_named || asks.and_then(Value::as_str) == Some(fleet::CLUSTER)
}

/// Remove what the run's fleet and its controller left. Neither runs any more: nobody else takes their finalizers away.
pub(super) fn clear(client: &Client, run: &str) -> Result<()> {
    for plural in KINDS {
        let mut left: BTreeSet<String> = BTreeSet::new();
        for object in objects(client, plural)?.iter().filter(|object| is_of(object, run)) {
            let path = format!("{}/{}", path(plural), name(object));
            release(client, &path, object)?;
            let answer = client.delete(&path, uid(object), None)?;
            ensure!(matches!(answer.status, 200 | 202 | 404 | 409), "cannot delete {path}: {}", answer.body);
            left.insert(uid(object).to_owned());
        }
        look_every(LOOK_EVERY, &format!("the end of {plural}"), CLUSTER_LIMIT, || {
            let gone = left.is_empty() || objects(client, plural)?.iter().all(|object| !left.contains(uid(object)));
            Ok(gone.then_some(()))
        })?;
    }
    Ok(())
}

/// Take the controller's finalizers from an object of the run.
pub(super) fn release(client: &Client, path: &str, object: &Value) -> Result<()> {
    let finalizers = list(object, "/metadata/finalizers");
    let rest: Vec<&Value> =
        finalizers.iter().filter(|finalizer| !finalizer.as_str().is_some_and(|text| text.starts_with(GROUP))).collect();
    if rest.len() == finalizers.len() {
        return Ok(());
    }
    let answer = client.patch(path, MERGE, &json!({"metadata": {"uid": uid(object), "finalizers": rest}}))?;
    // It went in the meantime, or another one has its name.
    ensure!(matches!(answer.status, 200 | 404 | 409), "cannot release {path}: {}", answer.body);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_objects_are_told_from_others() {
        let run = "muster-test-1a2b3c";
        for (object, ours) in [
            (json!({"metadata": {"name": "l"}, "spec": {"nodeName": "muster-test-1a2b3c-s-control-1"}}), true),
            (json!({"metadata": {"name": "openstack-muster-test-1a2b3c-s"}, "spec": {}}), true),
            (json!({"metadata": {"name": "e2e", "annotations": {"muster/requested-by": "e2e"}}}), true),
            (json!({"metadata": {"name": "edge", "annotations": {"muster/requested-by": "edge"}}}), false),
            (json!({"metadata": {"name": "openstack-node-1"}, "spec": {"nodeName": "node-1"}}), false),
            (json!({"metadata": {"name": "l"}, "spec": {"nodeName": "muster-test-ffffff-s-control-1"}}), false),
        ] {
            assert_eq!(is_of(&object, run), ours, "{object}");
        }
    }
}
