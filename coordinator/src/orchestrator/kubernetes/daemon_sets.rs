//! DaemonSets with the update strategy `OnDelete`: their newest templates, their pods and budgets.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::model::OnDeleteDaemonSets;
use serde::Deserialize;

use super::{
    client::{node, segment},
    list::list,
    load::pods_and_budgets,
    objects::{BudgetObject, Meta, NodeObject, PodObject, nullable},
    transport::Session,
};
use crate::facts::kubernetes::{
    Budget, KubernetesFailure,
    daemon_sets::{DaemonPod, DaemonSet, DaemonSets},
};

/// The label of pods and ControllerRevisions with the hash of their template.
const HASH: &str = "controller-revision-hash";
/// Pods are renewed only when the old one goes.
const ON_DELETE: &str = "OnDelete";

/// A DaemonSet.
#[derive(Debug, Deserialize)]
struct SetObject {
    metadata: Meta,
    #[serde(default)]
    spec: SetSpec,
    #[serde(default)]
    status: SetStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SetSpec {
    update_strategy: Strategy,
    template: Template,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Template {
    metadata: Meta,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Strategy {
    #[serde(rename = "type")]
    kind: String,
}

/// A number that is 0 may be absent.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SetStatus {
    observed_generation: Option<i64>,
    current_number_scheduled: i64,
    updated_number_scheduled: i64,
}

/// A ControllerRevision.
#[derive(Debug, Deserialize)]
struct RevisionObject {
    metadata: Meta,
    #[serde(default, deserialize_with = "nullable")]
    revision: i64,
}

/// List what is wanted. The pods come last: what is decided about them must be no older than they are.
pub(super) async fn daemon_sets(
    session: &mut Session<'_>,
    wanted: &[OnDeleteDaemonSets],
) -> Result<DaemonSets, KubernetesFailure> {
    let nodes: Vec<NodeObject> = list(session, "/api/v1/nodes", None).await?;
    let budgets: Vec<BudgetObject> = list(session, "/apis/policy/v1/poddisruptionbudgets", None).await?;
    let mut found = DaemonSets { nodes: nodes.into_iter().map(node).collect(), ..DaemonSets::default() };
    let namespaces: BTreeSet<&str> = wanted.iter().map(|wanted| wanted.namespace.as_str()).collect();
    for namespace in namespaces {
        let namespace = segment(namespace)?;
        let of_apps = format!("/apis/apps/v1/namespaces/{namespace}");
        let sets: Vec<SetObject> = list(session, &format!("{of_apps}/daemonsets"), None).await?;
        let sets: Vec<SetObject> = sets.into_iter().filter(|set| is_wanted(set, wanted)).collect();
        if sets.is_empty() {
            continue;
        }
        let revisions: Vec<RevisionObject> = list(session, &format!("{of_apps}/controllerrevisions"), None).await?;
        let pods: Vec<PodObject> = list(session, &format!("/api/v1/namespaces/{namespace}/pods"), None).await?;
        let mut by_owner: BTreeMap<String, Vec<PodObject>> = BTreeMap::new();
        for pod in pods.into_iter().filter(|pod| !pod.spec.node_name.is_empty()) {
            by_owner.entry(owner(&pod.metadata).to_owned()).or_default().push(pod);
        }
        for set in sets {
            let pods = by_owner.remove(&set.metadata.uid).unwrap_or_default();
            found.sets.push(daemon_set(&set, &revisions, pods, &budgets, &mut found.budgets)?);
        }
    }
    Ok(found)
}

fn is_wanted(set: &SetObject, wanted: &[OnDeleteDaemonSets]) -> bool {
    let has_labels = |labels: &BTreeMap<String, String>| {
        labels.iter().all(|(name, value)| set.spec.template.metadata.labels.get(name) == Some(value))
    };
    let selects = |wanted: &OnDeleteDaemonSets| {
        wanted.namespace == set.metadata.namespace
            && set.metadata.name.starts_with(&wanted.name_prefix)
            && has_labels(&wanted.match_labels)
    };
    set.spec.update_strategy.kind == ON_DELETE
        && set.metadata.deletion_timestamp.is_none()
        && wanted.iter().any(selects)
}

/// UID of the controller.
fn owner(object: &Meta) -> &str {
    object.owner_references.iter().find(|owner| owner.controller).map_or("", |owner| owner.uid.as_str())
}

/// The hash of the newest template: that of the highest revision, for a template that comes back gets a new number.
fn newest(set: &SetObject, revisions: &[RevisionObject]) -> Option<String> {
    let observed =
        set.status.observed_generation.is_some() && set.status.observed_generation == set.metadata.generation;
    let of_set = revisions.iter().filter(|revision| owner(&revision.metadata) == set.metadata.uid);
    let newest = of_set.max_by_key(|revision| revision.revision).filter(|_| observed)?;
    newest.metadata.labels.get(HASH).cloned()
}

fn daemon_set(
    set: &SetObject,
    revisions: &[RevisionObject],
    pods: Vec<PodObject>,
    budgets: &[BudgetObject],
    known: &mut BTreeMap<String, Budget>,
) -> Result<DaemonSet, KubernetesFailure> {
    let more = |pod: &PodObject| {
        let hash = pod.metadata.labels.get(HASH).cloned().unwrap_or_default();
        let is_ready = |condition: &super::objects::Condition| condition.kind == "Ready" && condition.status == "True";
        (pod.spec.node_name.clone(), hash, pod.status.conditions.iter().any(is_ready))
    };
    let mut more: BTreeMap<String, _> = pods.iter().map(|pod| (pod.metadata.uid.clone(), more(pod))).collect();
    let load = pods_and_budgets(pods, budgets)?;
    known.extend(load.budgets);
    let pods = load.pods.into_iter().filter_map(|pod| {
        let (node, hash, ready) = more.remove(&pod.object.uid)?;
        Some(DaemonPod { pod, node, hash, ready })
    });
    Ok(DaemonSet {
        name: format!("{}/{}", set.metadata.namespace, set.metadata.name),
        newest: newest(set, revisions),
        current: set.status.current_number_scheduled,
        updated: set.status.updated_number_scheduled,
        pods: pods.collect(),
    })
}

#[cfg(test)]
mod tests;
