//! DaemonSets with the update strategy `OnDelete`: their newest templates, their pods and budgets.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::model::OnDeleteDaemonSets;
use serde::Deserialize;

use super::{
    client::{node, segment},
    list::list,
    load::pods_and_budgets,
    objects::{BudgetObject, Meta, NodeObject, PodObject, Taint, nullable},
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
/// Prefix of the taints that Kubernetes itself sets.
const OWN_TAINTS: &str = "node.kubernetes.io/";

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
    min_ready_seconds: u64,
    template: Template,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Template {
    metadata: Meta,
    spec: TemplateSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct TemplateSpec {
    #[serde(deserialize_with = "nullable")]
    tolerations: Vec<Toleration>,
}

/// A taint that pods tolerate. Empty fields match every taint.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Toleration {
    key: String,
    operator: String,
    value: String,
    effect: String,
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
    desired_number_scheduled: i64,
    number_available: i64,
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
    nodes: Vec<NodeObject>,
) -> Result<DaemonSets, KubernetesFailure> {
    let mut found = DaemonSets { unmatched: wanted.to_vec(), ..DaemonSets::default() };
    let namespaces: BTreeSet<&str> = wanted.iter().map(|wanted| wanted.namespace.as_str()).collect();
    for namespace in namespaces {
        let namespace = segment(namespace)?;
        let of_apps = format!("/apis/apps/v1/namespaces/{namespace}");
        let sets: Vec<SetObject> = list(session, &format!("{of_apps}/daemonsets"), None).await?;
        let sets: Vec<SetObject> =
            sets.into_iter().filter(|set| wanted.iter().any(|wanted| is_wanted(set, wanted))).collect();
        if sets.is_empty() {
            continue;
        }
        found.unmatched.retain(|wanted| !sets.iter().any(|set| is_wanted(set, wanted)));
        let budgets: Vec<BudgetObject> =
            list(session, &format!("/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"), None).await?;
        let revisions: Vec<RevisionObject> = list(session, &format!("{of_apps}/controllerrevisions"), None).await?;
        let pods: Vec<PodObject> = list(session, &format!("/api/v1/namespaces/{namespace}/pods"), None).await?;
        let mut by_owner: BTreeMap<String, Vec<PodObject>> = BTreeMap::new();
        for pod in pods.into_iter().filter(|pod| !pod.spec.node_name.is_empty()) {
            by_owner.entry(owner(&pod.metadata).to_owned()).or_default().push(pod);
        }
        for set in sets {
            let pods = by_owner.remove(&set.metadata.uid).unwrap_or_default();
            let tainted = tainted(&set, &nodes);
            let set = daemon_set(&set, &revisions, pods, &budgets, &mut found.budgets)?;
            found.sets.push(DaemonSet { tainted, ..set });
        }
    }
    found.nodes = nodes.into_iter().map(node).collect();
    Ok(found)
}

fn is_wanted(set: &SetObject, wanted: &OnDeleteDaemonSets) -> bool {
    let labels = &set.spec.template.metadata.labels;
    set.spec.update_strategy.kind == ON_DELETE
        && set.metadata.deletion_timestamp.is_none()
        && wanted.namespace == set.metadata.namespace
        && set.metadata.name.starts_with(&wanted.name_prefix)
        && wanted.match_labels.iter().all(|(name, value)| labels.get(name) == Some(value))
}

/// Nodes on which the set starts no new pod, each with the taint. Kubernetes' own taints are left out: they show the
/// node's condition, and every DaemonSet tolerates most of them.
fn tainted(set: &SetObject, nodes: &[NodeObject]) -> BTreeMap<String, String> {
    let tolerations = &set.spec.template.spec.tolerations;
    let keeps_out = |taint: &&Taint| {
        let of_pods = matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
        of_pods && !taint.key.starts_with(OWN_TAINTS) && !tolerations.iter().any(|known| tolerates(known, taint))
    };
    let of_node = |node: &NodeObject| {
        let Taint { key, value, effect } = node.spec.taints.iter().find(keeps_out)?;
        let taint = if value.is_empty() { format!("{key}:{effect}") } else { format!("{key}={value}:{effect}") };
        Some((node.metadata.name.clone(), taint))
    };
    nodes.iter().filter_map(of_node).collect()
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let of_effect = toleration.effect.is_empty() || toleration.effect == taint.effect;
    of_effect
        && match toleration.operator.as_str() {
            "Exists" => toleration.key.is_empty() || toleration.key == taint.key,
            _ => toleration.key == taint.key && toleration.value == taint.value,
        }
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
        desired: set.status.desired_number_scheduled,
        available: set.status.number_available,
        min_ready_s: set.spec.min_ready_seconds,
        tainted: BTreeMap::new(),
        pods: pods.collect(),
    })
}

#[cfg(test)]
mod tests;
