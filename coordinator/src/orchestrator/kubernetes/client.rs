//! Performs operations on a cluster's API server.

use std::{fmt, net::IpAddr, sync::Arc};

use futures_util::future::join_all;
use http::Method;
use jiff::Timestamp;
use muster_proto::model::OnDeleteDaemonSets;
use serde_json::{Value, json};

use crate::facts::kubernetes::{
    ClusterLoad, ControlServer, ControlState, DRAINED_FOR, Deletion, Eviction, KEEP_CORDONED, KubernetesFailure,
    KubernetesNode, KubernetesOp, KubernetesReply, NodeRef, PodRef, SCALE_DOWN_BEFORE, SCALE_DOWN_DISABLED,
    SCALE_DOWN_IS_DISABLED, ScaleDown, ScaleDownBefore, daemon_sets::DaemonSets,
};
use crate::orchestrator::kubernetes::{
    addons,
    daemon_sets::daemon_sets,
    handshake,
    kubeconfig::Kubeconfig,
    list::list,
    load::{all_loads, load},
    objects::{NamespaceObject, NodeObject},
    text::one_line,
    transport::{Call, Session, Transport},
};

pub use crate::orchestrator::kubernetes::{
    list::PAGE_SIZE,
    transport::{CONNECT_DEADLINE, MAX_ANSWER, REQUEST_DEADLINE},
};

pub(super) const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";
/// Namespace of Events about nodes, which have no namespace themselves.
pub(super) const EVENT_NAMESPACE: &str = "default";
/// Longest name of a Kubernetes object.
const MAX_NAME: usize = 253;

/// A client of one API server, for one kubeconfig. Operations may run at the same time.
pub struct KubernetesClient {
    transport: Transport,
    /// For callers without addresses of their own.
    fallbacks: Arc<[IpAddr]>,
}

impl fmt::Debug for KubernetesClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KubernetesClient")
    }
}

impl KubernetesClient {
    /// Prepare a client. Nothing is sent.
    ///
    /// # Errors
    ///
    /// [`KubernetesFailure::Other`]: TLS cannot use the kubeconfig's CA, server name or credentials.
    pub fn new(kubeconfig: &Kubeconfig) -> Result<Self, KubernetesFailure> {
        Ok(Self { transport: Transport::new(kubeconfig)?, fallbacks: Arc::default() })
    }

    /// The client, with addresses for when the kubeconfig's server cannot be connected to.
    #[must_use]
    pub fn with_fallbacks(self, fallbacks: Arc<[IpAddr]>) -> Self {
        Self { fallbacks, ..self }
    }

    /// These addresses.
    pub(super) fn fallbacks(&self) -> &[IpAddr] {
        &self.fallbacks
    }

    /// Perform an operation once. Each of its requests has [`REQUEST_DEADLINE`]; none is retried. Where the
    /// kubeconfig's server cannot be connected to, the same port at these addresses is tried: a virtual address may be
    /// on a machine that is down.
    ///
    /// Dropping the future closes the connection. A change that was under way may be made all the same.
    ///
    /// # Errors
    ///
    /// Whatever is no answer to the operation; see [`KubernetesFailure`].
    pub async fn perform(&self, op: &KubernetesOp, fallbacks: &[IpAddr]) -> Result<KubernetesReply, KubernetesFailure> {
        let mut session = self.transport.session(fallbacks);
        match op {
            KubernetesOp::Nodes => nodes(&mut session).await,
            KubernetesOp::Node { name } => one_node(&mut session, name).await,
            KubernetesOp::Load { node } => {
                let node = segment(node)?;
                let cluster_uid = cluster_uid(&mut session).await?;
                Ok(KubernetesReply::Load { cluster_uid, load: load(&mut session, node).await? })
            }
            KubernetesOp::Cordon { node, drained_for, scale_down } => {
                patch(&mut session, node, &cordon_patch(node, drained_for, scale_down)).await
            }
            KubernetesOp::Uncordon { node, schedulable, scale_down } => {
                patch(&mut session, node, &uncordon_patch(node, *schedulable, scale_down.as_ref())).await
            }
            KubernetesOp::Evict { pods } => {
                // They go out together, each on a connection of its own.
                let answers = join_all(pods.iter().map(|pod| self.evict(pod, fallbacks))).await;
                Ok(KubernetesReply::Evicted(pods.iter().cloned().zip(answers).collect()))
            }
            KubernetesOp::Delete { pod } => Ok(KubernetesReply::Deleted(delete(&mut session, pod).await?)),
            KubernetesOp::DeleteNode { name, uid } => delete_node(&mut session, name, uid).await,
            KubernetesOp::ControlPlane { servers } => self.control_plane(&mut session, servers).await,
            KubernetesOp::Handshake { define } => {
                if *define {
                    handshake::define(&mut session).await?;
                }
                handshake::objects(&mut session).await
            }
            KubernetesOp::Requests { cluster_uid: known, make, remove, annotate } => {
                is_cluster(&mut session, known).await?;
                handshake::change((&self.transport, fallbacks), (make, remove, annotate)).await
            }
            KubernetesOp::DaemonSets { wanted, node } => {
                let cluster_uid = cluster_uid(&mut session).await?;
                let nodes = match node {
                    Some(name) => node_object(&mut session, name).await?.into_iter().collect(),
                    None => list(&mut session, "/api/v1/nodes", None).await?,
                };
                let found = daemon_sets(&mut session, wanted, nodes).await?;
                Ok(KubernetesReply::DaemonSets { cluster_uid, found })
            }
            KubernetesOp::Addons { deployments } => {
                let cluster_uid = cluster_uid(&mut session).await?;
                Ok(KubernetesReply::Addons { cluster_uid, found: addons::look(&mut session, deployments).await? })
            }
            KubernetesOp::Apply { cluster_uid: known, addon } => {
                is_cluster(&mut session, known).await?;
                Ok(KubernetesReply::Applied(addons::apply(&mut session, addon).await?))
            }
            KubernetesOp::Event { node, reason, message, warning } => {
                let event = event(node, reason, message, *warning);
                let path = format!("/api/v1/namespaces/{EVENT_NAMESPACE}/events");
                session.send(with_body(Method::POST, path, JSON, &event)).await?.object::<Value>()?;
                Ok(KubernetesReply::Done)
            }
        }
    }

    /// All nodes, each with its pods and their budgets, and these DaemonSets. Volumes are left out: they are detached
    /// in time.
    ///
    /// # Errors
    /// See [`KubernetesFailure`].
    pub async fn cluster_load(&self, wanted: &[OnDeleteDaemonSets]) -> Result<ClusterLoad, KubernetesFailure> {
        let session = &mut self.session();
        let cluster_uid = cluster_uid(session).await?;
        let nodes = list(session, "/api/v1/nodes", None).await?;
        let mut load = load_of(session, cluster_uid, nodes).await?;
        if !wanted.is_empty() {
            load.daemon_sets = Some(all_daemon_sets(session, wanted).await);
        }
        Ok(load)
    }

    /// The requests of one operation.
    pub(super) fn session(&self) -> Session<'_> {
        self.transport.session(&self.fallbacks)
    }

    /// Address of the API server.
    pub(super) fn url(&self) -> String {
        self.transport.url()
    }

    async fn evict(&self, pod: &PodRef, fallbacks: &[IpAddr]) -> Result<Eviction, KubernetesFailure> {
        evict(&mut self.transport.session(fallbacks), pod).await
    }

    /// What each of these control machines lacks: a Ready node, or an API server that is ready. Their etcd members are
    /// asked by their agents.
    async fn control_plane(
        &self,
        session: &mut Session<'_>,
        servers: &[ControlServer],
    ) -> Result<KubernetesReply, KubernetesFailure> {
        let cluster_uid = cluster_uid(session).await?;
        let nodes: Vec<NodeObject> = list(session, "/api/v1/nodes", None).await?;
        let nodes: Vec<KubernetesNode> = nodes.into_iter().map(node).collect();
        let asked = servers.iter().map(|server| async {
            let its = |node: &&KubernetesNode| {
                node.object.name == server.hostname || node.internal_ips.contains(&server.address)
            };
            let lacks = match nodes.iter().find(its) {
                None => Some("the cluster has no node for it".to_owned()),
                Some(node) if !node.ready => Some(format!("node {} is not Ready", node.object.name)),
                Some(_) => self.api_server(server.address).await,
            };
            ControlState { server: server.clone(), lacks, etcd: None }
        });
        Ok(KubernetesReply::ControlPlane { cluster_uid, servers: join_all(asked).await })
    }

    /// What keeps the API server at this address from being ready.
    async fn api_server(&self, address: IpAddr) -> Option<String> {
        let answer = match self.transport.session_at(address).send(Call::get("/readyz")).await {
            Ok(answer) => answer,
            Err(failure) => return Some(failure.to_string()),
        };
        match answer.status {
            401 | 403 | 429 => Some(answer.failure().to_string()),
            _ => answer.failed_check().map(|check| format!("its API server is not ready: {check}")),
        }
    }
}

/// These nodes, each with its pods and their budgets.
pub(super) async fn load_of(
    session: &mut Session<'_>,
    cluster_uid: String,
    nodes: Vec<NodeObject>,
) -> Result<ClusterLoad, KubernetesFailure> {
    let mut loads = all_loads(session).await?;
    let with_load = |node: KubernetesNode| {
        let load = loads.remove(&node.object.name).unwrap_or_default();
        (node, load)
    };
    Ok(ClusterLoad { cluster_uid, nodes: nodes.into_iter().map(node).map(with_load).collect(), daemon_sets: None })
}

async fn nodes(session: &mut Session<'_>) -> Result<KubernetesReply, KubernetesFailure> {
    let cluster_uid = cluster_uid(session).await?;
    let nodes: Vec<NodeObject> = list(session, "/api/v1/nodes", None).await?;
    Ok(KubernetesReply::Nodes { cluster_uid, nodes: nodes.into_iter().map(node).collect() })
}

async fn one_node(session: &mut Session<'_>, name: &str) -> Result<KubernetesReply, KubernetesFailure> {
    let cluster_uid = cluster_uid(session).await?;
    let nodes = node_object(session, name).await?.into_iter().map(node).collect();
    Ok(KubernetesReply::Nodes { cluster_uid, nodes })
}

/// The node of this name. None: there is none.
async fn node_object(session: &mut Session<'_>, name: &str) -> Result<Option<NodeObject>, KubernetesFailure> {
    let path = format!("/api/v1/nodes/{}", segment(name)?);
    match session.send(Call::get(path)).await?.object() {
        Ok(object) => Ok(Some(object)),
        Err(KubernetesFailure::NotFound(_)) => Ok(None),
        Err(failure) => Err(failure),
    }
}

async fn all_daemon_sets(
    session: &mut Session<'_>,
    wanted: &[OnDeleteDaemonSets],
) -> Result<DaemonSets, KubernetesFailure> {
    let nodes = list(session, "/api/v1/nodes", None).await?;
    daemon_sets(session, wanted, nodes).await
}

/// Is it the cluster with this UID?
async fn is_cluster(session: &mut Session<'_>, known: &str) -> Result<(), KubernetesFailure> {
    let found = cluster_uid(session).await?;
    if found == known { Ok(()) } else { Err(KubernetesFailure::another_cluster(known, &found)) }
}

/// UID of namespace `kube-system`, which identifies the cluster.
pub(super) async fn cluster_uid(session: &mut Session<'_>) -> Result<String, KubernetesFailure> {
    let namespace: NamespaceObject = session.send(Call::get("/api/v1/namespaces/kube-system")).await?.object()?;
    let uid = namespace.metadata.uid;
    if uid.is_empty() {
        return Err(KubernetesFailure::Other("cannot read the API server's answer: kube-system has no UID".to_owned()));
    }
    Ok(uid)
}

pub(super) fn node(object: NodeObject) -> KubernetesNode {
    let NodeObject { mut metadata, spec, status } = object;
    let internal = status.addresses.iter().filter(|address| address.kind == "InternalIP");
    KubernetesNode {
        boot_id: status.node_info.boot_id,
        deleting: metadata.deletion_timestamp.is_some(),
        finalizers: metadata.finalizers.iter().map(|name| one_line(name)).collect(),
        labels: metadata.labels.iter().map(|(key, value)| format!("{key}={value}")).collect(),
        internal_ips: internal.filter_map(|address| address.address.parse().ok()).collect(),
        unschedulable: spec.unschedulable,
        ready: status.conditions.iter().any(|condition| condition.kind == "Ready" && condition.status == "True"),
        keep_cordoned: metadata.annotations.get(KEEP_CORDONED).is_some_and(|value| value != "false"),
        drained_for: metadata.annotations.remove(DRAINED_FOR),
        scale_down: ScaleDown {
            now: metadata.annotations.remove(SCALE_DOWN_DISABLED),
            before: metadata.annotations.get(SCALE_DOWN_BEFORE).and_then(|note| ScaleDownBefore::of_note(note)),
        },
        object: NodeRef { name: metadata.name, uid: metadata.uid, resource_version: metadata.resource_version },
    }
}

fn cordon_patch(node: &NodeRef, drained_for: &str, scale_down: &ScaleDownBefore) -> Value {
    let annotations = json!({
        DRAINED_FOR: drained_for,
        SCALE_DOWN_DISABLED: SCALE_DOWN_IS_DISABLED,
        SCALE_DOWN_BEFORE: scale_down.note(),
    });
    json!({ "metadata": guarded(node, &annotations), "spec": { "unschedulable": true } })
}

fn uncordon_patch(node: &NodeRef, schedulable: bool, scale_down: Option<&ScaleDownBefore>) -> Value {
    let mut annotations = json!({ DRAINED_FOR: null, SCALE_DOWN_BEFORE: null });
    if let (Some(ScaleDownBefore(value)), Some(annotations)) = (scale_down, annotations.as_object_mut()) {
        annotations.insert(SCALE_DOWN_DISABLED.to_owned(), json!(value));
    }
    let metadata = guarded(node, &annotations);
    match schedulable {
        true => json!({ "metadata": metadata, "spec": { "unschedulable": null } }),
        false => json!({ "metadata": metadata }),
    }
}

/// Metadata that sets annotations only on this object at this version.
fn guarded(node: &NodeRef, annotations: &Value) -> Value {
    json!({ "resourceVersion": node.resource_version, "uid": node.uid, "annotations": annotations })
}

/// Change annotations of a node at this very version; null removes one.
pub(super) async fn patch_node(
    session: &mut Session<'_>,
    node: &NodeRef,
    annotations: &Value,
) -> Result<(), KubernetesFailure> {
    patch(session, node, &json!({ "metadata": guarded(node, annotations) })).await.map(drop)
}

async fn patch(session: &mut Session<'_>, to: &NodeRef, patch: &Value) -> Result<KubernetesReply, KubernetesFailure> {
    // The API server takes an empty guard for none.
    if to.uid.is_empty() || to.resource_version.is_empty() {
        return Err(KubernetesFailure::Other(format!("node {} has no UID or resourceVersion", one_line(&to.name))));
    }
    let path = format!("/api/v1/nodes/{}", segment(&to.name)?);
    let patched: NodeObject = session.send(with_body(Method::PATCH, path, MERGE_PATCH, patch)).await?.object()?;
    Ok(KubernetesReply::Patched(node(patched)))
}

/// Path of a pod. One without a UID is left alone: the API server takes an empty precondition for none.
fn pod_path(pod: &PodRef) -> Result<String, KubernetesFailure> {
    if pod.uid.is_empty() {
        return Err(KubernetesFailure::Other(format!("pod {} has no UID", one_line(&pod.name))));
    }
    Ok(format!("/api/v1/namespaces/{}/pods/{}", segment(&pod.namespace)?, segment(&pod.name)?))
}

/// Delete a pod with its own grace period.
async fn delete(session: &mut Session<'_>, pod: &PodRef) -> Result<Deletion, KubernetesFailure> {
    let path = pod_path(pod)?;
    let options = json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": pod.uid } });
    let answer = session.send(with_body(Method::DELETE, path, JSON, &options)).await?;
    answer.deletion()
}

/// Delete a node by its UID. One that is gone, or was made anew, is no failure: the next look shows it.
async fn delete_node(session: &mut Session<'_>, name: &str, uid: &str) -> Result<KubernetesReply, KubernetesFailure> {
    // The API server takes an empty precondition for none.
    if uid.is_empty() {
        return Err(KubernetesFailure::Other(format!("node {} has no UID", one_line(name))));
    }
    let options = json!({
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": { "uid": uid },
        "propagationPolicy": "Background",
    });
    let call = with_body(Method::DELETE, format!("/api/v1/nodes/{}", segment(name)?), JSON, &options);
    match session.send(call).await?.object::<Value>() {
        Ok(_) | Err(KubernetesFailure::NotFound(_) | KubernetesFailure::Conflict(_)) => Ok(KubernetesReply::Done),
        Err(failure) => Err(failure),
    }
}

async fn evict(session: &mut Session<'_>, pod: &PodRef) -> Result<Eviction, KubernetesFailure> {
    let path = format!("{}/eviction", pod_path(pod)?);
    let eviction = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": { "name": pod.name, "namespace": pod.namespace },
        "deleteOptions": { "preconditions": { "uid": pod.uid } },
    });
    let answer = session.send(with_body(Method::POST, path, JSON, &eviction)).await?;
    answer.eviction()
}

/// An Event of core/v1. `kubectl describe node` finds it by the node's UID.
fn event(node: &NodeRef, reason: &str, message: &str, warning: bool) -> Value {
    let now = format!("{:.0}", Timestamp::now());
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "generateName": format!("{}.", node.name), "namespace": EVENT_NAMESPACE },
        "involvedObject": { "apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid },
        "reason": reason,
        "message": one_line(message),
        "type": if warning { "Warning" } else { "Normal" },
        "source": { "component": "muster" },
        "reportingComponent": "muster",
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    })
}

/// A POST of an object.
pub(super) fn post(path: &str, object: &Value) -> Call {
    with_body(Method::POST, path.to_owned(), JSON, object)
}

pub(super) fn with_body(method: Method, path: String, media_type: &'static str, body: &Value) -> Call {
    Call { method, target: path, body: Some((media_type, body.to_string().into_bytes())) }
}

/// The name, if it can be a segment of a path: names come from a server, and must not lead a request elsewhere.
pub(crate) fn segment(name: &str) -> Result<&str, KubernetesFailure> {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let is_name =
        !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(is_safe) && name != "." && name != "..";
    match is_name {
        true => Ok(name),
        false => Err(KubernetesFailure::Other(format!("'{}' cannot be the name of an object", one_line(name)))),
    }
}

#[cfg(test)]
mod tests;
