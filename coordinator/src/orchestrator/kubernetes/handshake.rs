//! Requests and locks of group `lcm.mirantis.com`: listed, created, deleted; and their definitions.

mod definitions;

use core::net::IpAddr;

use futures_util::future::join_all;
use http::Method;
use muster_proto::model::{LockState, Scope};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    client::{JSON, cluster_uid, post, segment, with_body},
    list::list,
    node_annotations,
    objects::{Meta, nullable},
    text::one_line,
    transport::{Session, Transport},
};
use crate::facts::{
    handshake::{
        HandshakeObjects, LockObject, NewRequest, NodeAnnotations, OldRequest, REQUEST_MARK, REQUESTED_BY,
        RequestObject, Subject,
    },
    kubernetes::{KubernetesFailure, KubernetesReply},
};

pub(super) use definitions::{define, look};

/// Group and version of the custom resources.
const VERSION: &str = "lcm.mirantis.com/v1alpha1";

/// Requests and locks, as one list each.
pub(super) async fn objects(session: &mut Session<'_>) -> Result<KubernetesReply, KubernetesFailure> {
    let cluster_uid = cluster_uid(session).await?;
    let requests: Vec<Object> = list(session, &path("clustermaintenancerequests", None), None).await?;
    let of_nodes: Vec<Object> = list(session, &path("nodemaintenancerequests", None), None).await?;
    let deletions: Vec<Object> = list(session, &path("nodedeletionrequests", None), None).await?;
    let of_cluster = requests.into_iter().map(|object| request(Subject::Cluster, object));
    let about = |subject: fn(String) -> Subject| move |object: Object| request(subject(node_of(&object)), object);
    let of_nodes = of_nodes.into_iter().map(about(Subject::Node));
    let deletions = deletions.into_iter().map(about(Subject::Deletion));
    let requests = of_cluster.chain(of_nodes).chain(deletions).collect();
    // After the requests: a lock that is inactive here may be the answer to one.
    let locks: Vec<Object> = list(session, &path("clusterworkloadlocks", None), None).await?;
    let of_nodes: Vec<Object> = list(session, &path("nodeworkloadlocks", None), None).await?;
    let of_cluster = locks.into_iter().map(|object| lock(Subject::Cluster, object));
    let locks = of_cluster.chain(of_nodes.into_iter().map(|object| lock(Subject::Node(node_of(&object)), object)));
    let locks = locks.collect();
    Ok(KubernetesReply::Handshake { cluster_uid, objects: HandshakeObjects { requests, locks } })
}

/// Create and delete requests, and annotate nodes, all at once, each on a connection of its own. Of requests the first
/// failure counts: a list shows what is there. A node has its own.
pub(super) async fn change(
    (transport, fallbacks): (&Transport, &[IpAddr]),
    (make, remove, annotate): (&[NewRequest], &[OldRequest], &[NodeAnnotations]),
) -> Result<KubernetesReply, KubernetesFailure> {
    let created = make.iter().map(|new| async { create(&mut transport.session(fallbacks), new).await });
    let deleted = remove.iter().map(|old| async { delete(&mut transport.session(fallbacks), old).await });
    let annotated =
        annotate.iter().map(|node| async { node_annotations::put(&mut transport.session(fallbacks), node).await });
    let (created, deleted, annotated) = tokio::join!(join_all(created), join_all(deleted), join_all(annotated));
    let failure = created.into_iter().chain(deleted).find_map(Result::err);
    let nodes = annotate.iter().map(|wanted| wanted.node.clone());
    let not_annotated = nodes.zip(annotated).filter_map(|(node, answer)| Some((node, answer.err()?))).collect();
    Ok(KubernetesReply::Changed { failure, not_annotated })
}

/// Create a request. One of its name stays as it is: the next list shows whose it is.
async fn create(session: &mut Session<'_>, new: &NewRequest) -> Result<(), KubernetesFailure> {
    let (plural, kind) = request_kind(&new.subject);
    let scope = match new.scope {
        Scope::Drain => "drain",
        Scope::Os => "os",
    };
    let spec = match &new.subject {
        Subject::Cluster => json!({ "scope": scope }),
        Subject::Node(node) => json!({ "scope": scope, "nodeName": node }),
        Subject::Deletion(node) => json!({ "nodeName": node }),
    };
    let object = json!({
        "apiVersion": VERSION,
        "kind": kind,
        "metadata": {
            "name": new.name,
            "annotations": { REQUESTED_BY: new.requested_by, REQUEST_MARK: json!(new.mark).to_string() },
        },
        "spec": spec,
    });
    let answer = session.send(post(&path(plural, None), &object)).await?;
    if answer.status == 409 { Ok(()) } else { answer.object::<Value>().map(|_| ()) }
}

/// Delete a request by its UID. One that is gone, or made anew, is no failure.
async fn delete(session: &mut Session<'_>, old: &OldRequest) -> Result<(), KubernetesFailure> {
    // The API server takes an empty precondition for none.
    if old.uid.is_empty() {
        return Err(KubernetesFailure::Other(format!("request {} has no UID", one_line(&old.name))));
    }
    let (plural, _) = request_kind(&old.subject);
    let options = json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": old.uid } });
    let call = with_body(Method::DELETE, path(plural, Some(segment(&old.name)?)), JSON, &options);
    let answer = session.send(call).await?;
    if matches!(answer.status, 404 | 409) { Ok(()) } else { answer.object::<Value>().map(|_| ()) }
}

fn request_kind(subject: &Subject) -> (&'static str, &'static str) {
    match subject {
        Subject::Cluster => ("clustermaintenancerequests", "ClusterMaintenanceRequest"),
        Subject::Node(_) => ("nodemaintenancerequests", "NodeMaintenanceRequest"),
        Subject::Deletion(_) => ("nodedeletionrequests", "NodeDeletionRequest"),
    }
}

/// The node that an object is about, by its spec.
fn node_of(object: &Object) -> String {
    object.spec.node_name.clone()
}

fn path(plural: &str, name: Option<&str>) -> String {
    let name = name.map(|name| format!("/{name}")).unwrap_or_default();
    format!("/apis/{VERSION}/{plural}{name}")
}

/// A request or a lock.
#[derive(Debug, Deserialize)]
struct Object {
    metadata: Meta,
    #[serde(default, deserialize_with = "nullable")]
    spec: Spec,
    #[serde(default, deserialize_with = "nullable")]
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: String,
    controller_name: String,
    #[serde(deserialize_with = "nullable")]
    node_deletion_request_supported: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    state: String,
    #[serde(deserialize_with = "nullable")]
    error_message: String,
    #[serde(deserialize_with = "nullable")]
    release: String,
    #[serde(deserialize_with = "nullable")]
    inactivation_progress: Progress,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Progress {
    /// The schema has no minimum.
    percentage: i64,
    description: String,
}

fn request(subject: Subject, Object { metadata, .. }: Object) -> RequestObject {
    RequestObject {
        subject,
        name: metadata.name,
        uid: metadata.uid,
        requested_by: metadata.annotations.get(REQUESTED_BY).cloned(),
        mark: metadata.annotations.get(REQUEST_MARK).and_then(|mark| serde_json::from_str(mark).ok()),
        deleting: metadata.deletion_timestamp.is_some(),
        finalizers: metadata.finalizers,
        annotations: metadata.annotations.into_keys().collect(),
    }
}

fn lock(subject: Subject, Object { metadata, spec, status }: Object) -> LockObject {
    let state = match status.state.as_str() {
        "inactive" => LockState::Inactive,
        "failed" => LockState::Failed,
        // A new lock has no status for a moment.
        _ => LockState::Active,
    };
    LockObject {
        subject,
        name: metadata.name,
        uid: metadata.uid,
        controller: one_line(&spec.controller_name),
        takes_deletion: spec.node_deletion_request_supported,
        state,
        message: one_line(without_time(&status.error_message)),
        percentage: u32::try_from(status.inactivation_progress.percentage.clamp(0, 100)).unwrap_or(0),
        description: one_line(&status.inactivation_progress.description),
        release: one_line(&status.release),
    }
}

/// The message without the UTC time that Rockoon puts before it at every try (recordings 62 to 64).
fn without_time(message: &str) -> &str {
    let time = message.find(|c: char| !(c.is_ascii_digit() || "-:.T Z+".contains(c))).unwrap_or(0);
    // A number alone is no time.
    if time >= "2026-11-27 02:12:09".len() { message[time..].trim_start() } else { message }
}

#[cfg(test)]
mod tests;
