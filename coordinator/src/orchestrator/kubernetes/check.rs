//! Asks an API server everything that a check of its cluster needs. Read-only, and apart from the questions of updates:
//! on connections of its own, and within one deadline.

use std::{collections::BTreeSet, time::Duration};

use muster_proto::model::Epoch;
use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use crate::facts::kubernetes::{
    ControlServer, ControlState, KubernetesFailure, KubernetesOp, KubernetesReply, SCALE_DOWN_DISABLED,
    SCALE_DOWN_IS_DISABLED,
    check::{
        DELETE_PODS, EVERYTHING, Handshake, Inspection, MAINTENANCE_RIGHTS, NodeMarks, Nodes, Order, OrderKind,
        Programs, RIGHTS, Right, Workload,
    },
};
use crate::orchestrator::kubernetes::{
    client::{EVENT_NAMESPACE, KubernetesClient, cluster_uid, load_of, post, segment},
    handshake,
    list::list,
    objects::{Meta, NodeObject, OrderObject, WorkloadObject},
    text::one_line,
    transport::{Call, Session},
};
use crate::{orchestrator::kubernetes::perform, server::Sessions};

/// Time for a whole check. musterctl waits for 30 s.
const CHECK_MAX: Duration = Duration::from_secs(20);
/// The annotation by which kured's daemons exclude each other.
const KURED_LOCK: &str = "weave.works/kured-node-lock";
/// The annotation with the name of a node's Cluster API cluster.
const CLUSTER_API: &str = "cluster.x-k8s.io/cluster-name";
/// The annotation that pauses an object of Cluster API, whatever its value.
const PAUSED: &str = "cluster.x-k8s.io/paused";
/// The label with the name of a program.
const APP: &str = "app.kubernetes.io/name";
/// Kinds of workloads, as `kubectl` takes them, and their collections.
const WORKLOADS: [(&str, &str); 3] = [
    ("deployment", "/apis/apps/v1/deployments"),
    ("daemonset", "/apis/apps/v1/daemonsets"),
    ("cronjob", "/apis/batch/v1/cronjobs"),
];

/// Inspect a cluster. `known` is the pinned UID of its `kube-system`; `maintenance`: with the handshake as custom
/// resources.
///
/// # Errors
/// Its identity is unknown, or it is another cluster: nothing else was asked.
pub(super) async fn inspect(
    (client, agents): (&KubernetesClient, (&Sessions, Epoch)),
    (known, maintenance): (Option<&str>, bool),
    servers: Vec<ControlServer>,
) -> Result<Inspection, KubernetesFailure> {
    let deadline = Instant::now() + CHECK_MAX;
    let cluster_uid = within(deadline, async { cluster_uid(&mut client.session()).await }).await?;
    if let Some(known) = known.filter(|known| *known != cluster_uid) {
        return Err(KubernetesFailure::another_cluster(known, &cluster_uid));
    }
    let (version, missing, may_delete, may_apply, control_plane, nodes, programs, handshake) = tokio::join!(
        within(deadline, version(client)),
        within(deadline, missing(client, &RIGHTS)),
        within(deadline, async { is_allowed(&mut client.session(), DELETE_PODS).await }),
        within(deadline, async { is_allowed(&mut client.session(), EVERYTHING).await }),
        within(deadline, control_plane(client, agents, servers)),
        within(deadline, nodes(client, &cluster_uid)),
        programs(client, deadline),
        async { if maintenance { Some(self::maintenance(client, deadline).await) } else { None } },
    );
    let server = client.url();
    Ok(Inspection {
        server,
        cluster_uid,
        version,
        missing,
        may_delete,
        may_apply,
        control_plane,
        nodes,
        programs,
        handshake,
    })
}

async fn within<T>(
    deadline: Instant,
    asked: impl Future<Output = Result<T, KubernetesFailure>>,
) -> Result<T, KubernetesFailure> {
    timeout_at(deadline, asked).await.unwrap_or_else(|_| {
        Err(KubernetesFailure::Unreachable(format!("no answer within the {} s of a check", CHECK_MAX.as_secs())))
    })
}

/// An answer to `/version`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    git_version: String,
}

async fn version(client: &KubernetesClient) -> Result<String, KubernetesFailure> {
    let answer: Version = client.session().send(Call::get("/version")).await?.object()?;
    Ok(one_line(&answer.git_version))
}

/// An answer to a SelfSubjectAccessReview.
#[derive(Deserialize)]
struct Review {
    status: ReviewStatus,
}

#[derive(Deserialize)]
struct ReviewStatus {
    allowed: bool,
}

/// Those of these rights that the account lacks.
async fn missing(client: &KubernetesClient, rights: &[Right]) -> Result<Vec<Right>, KubernetesFailure> {
    let session = &mut client.session();
    let mut missing = Vec::new();
    for right in rights {
        if !is_allowed(session, *right).await? {
            missing.push(*right);
        }
    }
    Ok(missing)
}

/// What the maintenance handshake finds.
async fn maintenance(client: &KubernetesClient, deadline: Instant) -> Handshake {
    let definitions = within(deadline, async { handshake::look(&mut client.session()).await });
    let (missing, definitions) = tokio::join!(within(deadline, missing(client, &MAINTENANCE_RIGHTS)), definitions);
    // Without its definition a kind cannot be listed, and has no objects.
    let controllers = match &definitions {
        Ok(found) if !found.absent.is_empty() => Ok(BTreeSet::new()),
        _ => within(deadline, controllers(client)).await,
    };
    Handshake { missing, definitions, controllers }
}

/// Names of the controllers that hold locks.
async fn controllers(client: &KubernetesClient) -> Result<BTreeSet<String>, KubernetesFailure> {
    match handshake::objects(&mut client.session()).await? {
        KubernetesReply::Handshake { objects, .. } => {
            Ok(objects.locks.into_iter().map(|lock| lock.controller).collect())
        }
        _ => Ok(BTreeSet::new()),
    }
}

/// Has the account this right?
async fn is_allowed(session: &mut Session<'_>, right: Right) -> Result<bool, KubernetesFailure> {
    let namespace = if right.resource == "events" { EVENT_NAMESPACE } else { "" };
    let Right { verb, group, resource, subresource, name } = right;
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": { "resourceAttributes": {
            "verb": verb, "group": group, "resource": resource, "subresource": subresource, "name": name,
            "namespace": namespace,
        } },
    });
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let answer: Review = session.send(post(path, &review)).await?.object()?;
    Ok(answer.status.allowed)
}

async fn control_plane(
    client: &KubernetesClient,
    agents: (&Sessions, Epoch),
    servers: Vec<ControlServer>,
) -> Result<Vec<ControlState>, KubernetesFailure> {
    if servers.is_empty() {
        return Ok(Vec::new());
    }
    match perform(client, agents, &KubernetesOp::ControlPlane { servers }, client.fallbacks()).await? {
        KubernetesReply::ControlPlane { servers, .. } => Ok(servers),
        _ => Ok(Vec::new()),
    }
}

async fn nodes(client: &KubernetesClient, cluster_uid: &str) -> Result<Nodes, KubernetesFailure> {
    let session = &mut client.session();
    let objects: Vec<NodeObject> = list(session, "/api/v1/nodes", None).await?;
    let marks = objects.iter().map(|object| marks(&object.metadata)).collect();
    let load = load_of(session, cluster_uid.to_owned(), objects).await?;
    Ok(Nodes { load, marks })
}

fn marks(node: &Meta) -> NodeMarks {
    NodeMarks {
        cluster_api: node.annotations.get(CLUSTER_API).cloned(),
        scale_down_disabled: node
            .annotations
            .get(SCALE_DOWN_DISABLED)
            .is_some_and(|value| value == SCALE_DOWN_IS_DISABLED),
    }
}

/// Objects among which other programs are. What cannot be listed is noted.
async fn programs(client: &KubernetesClient, deadline: Instant) -> Programs {
    let mut programs = Programs::default();
    for (kind, path) in WORKLOADS {
        let listed = async { list::<WorkloadObject>(&mut client.session(), path, None).await };
        match within(deadline, listed).await {
            Ok(objects) => programs.workloads.extend(objects.into_iter().filter_map(|object| workload(kind, object))),
            Err(failure) => programs.unknown.push((kind, failure)),
        }
    }
    let served = within(deadline, async { groups(&mut client.session()).await }).await;
    let served = served.unwrap_or_else(|failure| {
        programs.unknown.push(("API group", failure));
        Vec::new()
    });
    for kind in OrderKind::ALL {
        match within(deadline, orders(client, kind, &served)).await {
            Ok(orders) => programs.orders.extend(orders),
            Err(failure) => programs.unknown.push((kind.resource().1, failure)),
        }
    }
    programs
}

fn workload(kind: &'static str, object: WorkloadObject) -> Option<Workload> {
    let WorkloadObject { mut metadata, spec, status } = object;
    // They become words of commands that operators copy.
    segment(&metadata.name).and(segment(&metadata.namespace)).ok()?;
    let of_job = spec.job_template.spec.template.spec.containers;
    let images = spec.template.spec.containers.into_iter().chain(of_job).map(|container| container.image);
    Some(Workload {
        kind,
        images: images.collect(),
        runs: spec.replicas != Some(0) && !spec.suspend && status.desired_number_scheduled != Some(0),
        app: metadata.labels.remove(APP).unwrap_or_default(),
        kured_lock: metadata.annotations.remove(KURED_LOCK),
        namespace: metadata.namespace,
        name: metadata.name,
    })
}

/// An answer to `/apis`.
#[derive(Deserialize)]
struct GroupList {
    groups: Vec<Group>,
}

/// An API group.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    name: String,
    preferred_version: PreferredVersion,
}

#[derive(Deserialize)]
struct PreferredVersion {
    version: String,
}

/// An answer to `/apis/GROUP/VERSION`.
#[derive(Deserialize)]
struct ResourceList {
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    name: String,
}

async fn groups(session: &mut Session<'_>) -> Result<Vec<Group>, KubernetesFailure> {
    Ok(session.send(Call::get("/apis")).await?.object::<GroupList>()?.groups)
}

/// All orders of this kind; none where the cluster does not know the kind.
async fn orders(client: &KubernetesClient, kind: OrderKind, served: &[Group]) -> Result<Vec<Order>, KubernetesFailure> {
    let (name, resource) = kind.resource();
    let Some(group) = served.iter().find(|group| group.name == name) else { return Ok(Vec::new()) };
    let path = format!("/apis/{name}/{}", segment(&group.preferred_version.version)?);
    let session = &mut client.session();
    let known: ResourceList = session.send(Call::get(path.clone())).await?.object()?;
    if !known.resources.iter().any(|known| known.name == resource) {
        return Ok(Vec::new());
    }
    let objects: Vec<OrderObject> = list(session, &format!("{path}/{resource}"), None).await?;
    let order = |OrderObject { metadata, spec, status }: OrderObject| {
        // As above; most of these have no namespace.
        let safe =
            segment(&metadata.name).is_ok() && (metadata.namespace.is_empty() || segment(&metadata.namespace).is_ok());
        safe.then(|| Order {
            kind,
            paused: metadata.annotations.contains_key(PAUSED),
            namespace: metadata.namespace,
            name: metadata.name,
            state: status.state,
            cluster: spec.cluster_name,
        })
    };
    Ok(objects.into_iter().filter_map(order).collect())
}
