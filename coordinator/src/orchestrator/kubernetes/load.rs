//! What keeps a node from being drained, put together from lists of pods, budgets, attachments and volumes.

use std::collections::{BTreeMap, BTreeSet};

use crate::facts::kubernetes::{Budget, DRAIN_LABEL, KubernetesFailure, NodeLoad, Pod, PodRef};
use crate::orchestrator::kubernetes::{
    list::list,
    objects::{AttachmentObject, BudgetObject, OwnerReference, PodObject, VolumeObject},
    selector::{LabelSelector, Labels},
    text::one_line,
    transport::Session,
};
use crate::plan::drain::kubernetes::eviction::must_leave;

/// The annotation that makes a pod the mirror of a file on its node.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// The value of [`DRAIN_LABEL`] that leaves a pod on its node.
const SKIP: &str = "skip";

/// A claim, as namespace and name.
type Claim = (String, String);

/// Ask for a node's load. The pods come late: what is decided about them must be no older than they are. Volumes matter
/// only when no pod has to leave.
pub(crate) async fn load(session: &mut Session<'_>, node: &str) -> Result<NodeLoad, KubernetesFailure> {
    let budgets: Vec<BudgetObject> = list(session, "/apis/policy/v1/poddisruptionbudgets", None).await?;
    let selector = format!("spec.nodeName={node}");
    let mut load = pods_and_budgets(list(session, "/api/v1/pods", Some(&selector)).await?, &budgets)?;
    if load.pods.iter().any(must_leave) {
        return Ok(load);
    }
    let attachments = list(session, "/apis/storage.k8s.io/v1/volumeattachments", None).await?;
    let attached = attached_to(node, attachments);
    let staying = staying_claims(&load.pods);
    let volumes = match attached.iter().any(|attachment| attachment.is_volume) && !staying.is_empty() {
        true => volumes(session).await?,
        false => Vec::new(),
    };
    load.attachments = without_staying(attached, &volumes, &staying);
    Ok(load)
}

/// The loads of all nodes but for their attachments, by the node's name.
pub(crate) async fn all_loads(session: &mut Session<'_>) -> Result<BTreeMap<String, NodeLoad>, KubernetesFailure> {
    let objects: Vec<PodObject> = list(session, "/api/v1/pods", None).await?;
    let budgets: Vec<BudgetObject> = list(session, "/apis/policy/v1/poddisruptionbudgets", None).await?;
    let mut by_node: BTreeMap<String, Vec<PodObject>> = BTreeMap::new();
    for object in objects {
        by_node.entry(object.spec.node_name.clone()).or_default().push(object);
    }
    by_node.into_iter().map(|(node, objects)| Ok((node, pods_and_budgets(objects, &budgets)?))).collect()
}

/// All persistent volumes; none without the right to list them, so that every attachment counts.
async fn volumes(session: &mut Session<'_>) -> Result<Vec<VolumeObject>, KubernetesFailure> {
    match list(session, "/api/v1/persistentvolumes", None).await {
        Err(KubernetesFailure::Forbidden(_)) => Ok(Vec::new()),
        result => result,
    }
}

/// The load but for its attachments.
pub(super) fn pods_and_budgets(
    objects: Vec<PodObject>,
    budgets: &[BudgetObject],
) -> Result<NodeLoad, KubernetesFailure> {
    let mut load = NodeLoad::default();
    for object in objects {
        let labels = object.metadata.labels.clone();
        let mut pod = pod(object)?;
        for found in budgets {
            let is_of = |selector: &LabelSelector| selects(found, selector, &pod.object.namespace, &labels);
            if found.spec.selector.as_ref().is_some_and(is_of) {
                let name = format!("{}/{}", found.metadata.namespace, found.metadata.name);
                pod.budgets.push(name.clone());
                load.budgets.entry(name).or_insert_with(|| budget(found));
            }
        }
        pod.budgets.sort();
        load.pods.push(pod);
    }
    load.pods.sort_by(|a, b| a.object.cmp(&b.object));
    Ok(load)
}

fn selects(budget: &BudgetObject, selector: &LabelSelector, namespace: &str, labels: &Labels) -> bool {
    budget.metadata.namespace == namespace && selector.matches(labels)
}

fn pod(object: PodObject) -> Result<Pod, KubernetesFailure> {
    let PodObject { metadata, spec, status } = object;
    let deletion = metadata.deletion_timestamp.as_deref().map(str::parse::<jiff::Timestamp>).transpose();
    let deletion = deletion.map_err(|error| {
        let words = one_line(&error.to_string());
        KubernetesFailure::Other(format!("cannot read deletionTimestamp of pod {}: {words}", one_line(&metadata.name)))
    })?;
    let controller = metadata.owner_references.iter().find(|owner| owner.controller);
    let claims = spec.volumes.iter().filter_map(|volume| {
        let made_for_pod = || volume.ephemeral.as_ref().map(|_| format!("{}-{}", metadata.name, volume.name));
        volume.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.clone()).or_else(made_for_pod)
    });
    Ok(Pod {
        claims: claims.collect(),
        controller: controller.map(|owner| format!("{}/{}", owner.kind, owner.name)),
        of_daemon_set: controller.is_some_and(is_daemon_set),
        mirror: metadata.annotations.contains_key(MIRROR),
        finished: matches!(status.phase.as_str(), "Succeeded" | "Failed"),
        deletion_s: deletion.map(|time| time.as_second()),
        grace_s: metadata.deletion_grace_period_seconds.unwrap_or_default(),
        local_storage: spec.volumes.iter().any(|volume| volume.empty_dir.is_some()),
        priority: spec.priority.unwrap_or_default(),
        drain_label: metadata.labels.get(DRAIN_LABEL).cloned().unwrap_or_default(),
        budgets: Vec::new(),
        finalizers: metadata.finalizers,
        object: PodRef { namespace: metadata.namespace, name: metadata.name, uid: metadata.uid },
    })
}

fn is_daemon_set(owner: &OwnerReference) -> bool {
    owner.api_version == "apps/v1" && owner.kind == "DaemonSet"
}

fn budget(object: &BudgetObject) -> Budget {
    let status = &object.status;
    let failed = |condition: &&crate::orchestrator::kubernetes::objects::Condition| {
        let failed = matches!(condition.reason.as_str(), "SyncFailed");
        condition.kind == "DisruptionAllowed" && condition.status != "True" && failed
    };
    Budget {
        observed: status.observed_generation.is_some() && status.observed_generation == object.metadata.generation,
        sync_failed: status.conditions.iter().find(failed).map(|condition| one_line(&condition.message)),
        allowed: status.disruptions_allowed,
        healthy: status.current_healthy,
        desired: status.desired_healthy,
        expected: status.expected_pods,
        disrupted: status.disrupted_pods.keys().cloned().collect(),
    }
}

/// A volume attached to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Attached {
    /// The PersistentVolume's name, or the attachment's own.
    name: String,
    /// Is `name` a PersistentVolume's? False: the volume is described inline.
    is_volume: bool,
}

fn attached_to(node: &str, attachments: Vec<AttachmentObject>) -> Vec<Attached> {
    let of_node = attachments.into_iter().filter(|object| object.spec.node_name == node && object.status.attached);
    let mut attached: Vec<Attached> = of_node
        .map(|object| match object.spec.source.persistent_volume_name {
            Some(name) => Attached { name, is_volume: true },
            None => Attached { name: object.metadata.name, is_volume: false },
        })
        .collect();
    attached.sort_by(|a, b| a.name.cmp(&b.name));
    attached
}

/// Claims of the pods that stay on the node: a drain does not detach their volumes.
fn staying_claims(pods: &[Pod]) -> BTreeSet<Claim> {
    let staying = pods.iter().filter(|pod| pod.of_daemon_set || pod.mirror || pod.drain_label == SKIP);
    staying.flat_map(|pod| pod.claims.iter().map(|claim| (pod.object.namespace.clone(), claim.clone()))).collect()
}

fn without_staying(attached: Vec<Attached>, volumes: &[VolumeObject], staying: &BTreeSet<Claim>) -> Vec<String> {
    let claims: BTreeMap<&str, Claim> = volumes
        .iter()
        .filter_map(|volume| {
            let claim = volume.spec.claim_ref.as_ref()?;
            Some((volume.metadata.name.as_str(), (claim.namespace.clone(), claim.name.clone())))
        })
        .collect();
    let stays = |attached: &Attached| {
        attached.is_volume && claims.get(attached.name.as_str()).is_some_and(|claim| staying.contains(claim))
    };
    attached.into_iter().filter(|attached| !stays(attached)).map(|attached| attached.name).collect()
}

#[cfg(test)]
mod tests;
