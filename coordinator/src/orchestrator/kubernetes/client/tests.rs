use std::{sync::Arc, time::Duration};

use serde_json::json;

use super::*;
use crate::facts::kubernetes::{ControlServer, ControlState, Deletion, Eviction, NodeLoad, ScaleDown, ScaleDownBefore};
use crate::orchestrator::kubernetes::test_server::{self, Reply, Seen, Server};

mod failures;

fn node_ref() -> NodeRef {
    NodeRef { name: "node-1".to_owned(), uid: "uid-1".to_owned(), resource_version: "621".to_owned() }
}

fn pod_ref() -> PodRef {
    PodRef { namespace: "shop".to_owned(), name: "web-0".to_owned(), uid: "uid-2".to_owned() }
}

fn node_object() -> Value {
    json!({
        "kind": "Node",
        "metadata": {
            "name": "node-1", "uid": "uid-1", "resourceVersion": "622",
            "labels": { "role": "worker" },
            "annotations": {
                "muster/drained-for": "r-7",
                "muster/keep-cordoned": "",
                "cluster-autoscaler.kubernetes.io/scale-down-disabled": "true",
                "muster/scale-down-disabled-before": "=false",
            },
        },
        "spec": { "unschedulable": true },
        "status": {
            "nodeInfo": { "bootID": "boot-1" },
            "addresses": [
                { "type": "Hostname", "address": "node-1" },
                { "type": "InternalIP", "address": "10.0.0.11" },
                { "type": "InternalIP", "address": "fd00::11" },
                { "type": "ExternalIP", "address": "192.0.2.1" },
            ],
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    })
}

fn node_seen() -> KubernetesNode {
    KubernetesNode {
        object: NodeRef { resource_version: "622".to_owned(), ..node_ref() },
        boot_id: "boot-1".to_owned(),
        internal_ips: vec!["10.0.0.11".parse().unwrap(), "fd00::11".parse().unwrap()],
        unschedulable: true,
        ready: true,
        deleting: false,
        finalizers: Vec::new(),
        drained_for: Some("r-7".to_owned()),
        keep_cordoned: true,
        labels: vec!["role=worker".to_owned()],
        scale_down: ScaleDown { now: Some("true".to_owned()), before: Some(ScaleDownBefore(Some("false".to_owned()))) },
    }
}

fn cordon_of(node: NodeRef) -> KubernetesOp {
    let scale_down = ScaleDownBefore(Some("false".to_owned()));
    KubernetesOp::Cordon { node, drained_for: "r-7".to_owned(), scale_down }
}

/// Perform an operation. A single eviction that fails is the operation's failure.
async fn done(client: &KubernetesClient, op: &KubernetesOp) -> Result<KubernetesReply, KubernetesFailure> {
    match client.perform(op, &[]).await? {
        KubernetesReply::Evicted(answers) => match answers.as_slice() {
            [(_, Err(failure))] => Err(failure.clone()),
            _ => Ok(KubernetesReply::Evicted(answers)),
        },
        reply => Ok(reply),
    }
}

/// Perform an operation against answers that come in this order.
async fn perform(op: KubernetesOp, replies: Vec<Reply>) -> (Result<KubernetesReply, KubernetesFailure>, Vec<Seen>) {
    let server = Server::in_order(replies).await;
    let client = KubernetesClient::new(&server.kubeconfig()).unwrap();
    let reply = done(&client, &op).await;
    (reply, server.seen())
}

fn targets(seen: &[Seen]) -> Vec<String> {
    seen.iter().map(|seen| format!("{} {}", seen.method, seen.target)).collect()
}

#[tokio::test]
async fn nodes_asks_for_cluster_and_pages() {
    let replies = vec![
        Reply::json(200, json!({ "metadata": { "name": "kube-system", "uid": "cluster-1" } })),
        Reply::json(200, json!({ "metadata": { "continue": "a+b/c=" }, "items": [node_object()] })),
        Reply::json(200, json!({ "metadata": {}, "items": [{ "metadata": { "name": "node-2", "uid": "uid-9" } }] })),
    ];
    let (reply, seen) = perform(KubernetesOp::Nodes, replies).await;
    let KubernetesReply::Nodes { cluster_uid, nodes } = reply.unwrap() else { panic!() };
    assert_eq!(cluster_uid, "cluster-1");
    assert_eq!(nodes[0], node_seen());
    let bare = &nodes[1];
    assert!(!bare.ready && !bare.unschedulable && !bare.keep_cordoned && bare.drained_for.is_none());
    let expected = [
        "GET /api/v1/namespaces/kube-system",
        "GET /api/v1/nodes?limit=500",
        "GET /api/v1/nodes?limit=500&continue=a%2Bb%2Fc%3D",
    ];
    assert_eq!(targets(&seen), expected);
    // One connection carries the whole operation.
    assert!(seen.iter().all(|seen| seen.connection == 0));
    assert_eq!(seen[0].header("user-agent"), concat!("muster-coordinator/", env!("CARGO_PKG_VERSION")));
    assert_eq!(seen[0].header("authorization"), "Bearer t0ken");
    assert_eq!(seen[0].header("accept"), "application/json");
    assert!(seen[0].header("host").starts_with("127.0.0.1:"));
}

#[tokio::test]
async fn expired_list_restarts_once() {
    let page = |next: &str, name: &str| {
        Reply::json(200, json!({ "metadata": { "continue": next }, "items": [{ "metadata": { "name": name } }] }))
    };
    let cluster = || Reply::json(200, json!({ "metadata": { "uid": "cluster-1" } }));
    let expired = || Reply::json(410, json!({ "kind": "Status", "message": "too old", "reason": "Expired" }));
    let replies = vec![cluster(), page("n", "old"), expired(), page("m", "a"), page("", "b")];
    let (reply, seen) = perform(KubernetesOp::Nodes, replies).await;
    let KubernetesReply::Nodes { nodes, .. } = reply.unwrap() else { panic!() };
    assert_eq!(nodes.iter().map(|node| node.object.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(targets(&seen)[3], "GET /api/v1/nodes?limit=500");
    let replies = vec![cluster(), page("n", "old"), expired(), page("m", "a"), expired()];
    let (reply, seen) = perform(KubernetesOp::Nodes, replies).await;
    assert_eq!(reply, Err(KubernetesFailure::Busy { after: Duration::from_secs(1), message: "too old".to_owned() }));
    assert_eq!(seen.len(), 5);
}

fn pod(namespace: &str, name: &str, controller: &str, claim: Option<&str>) -> Value {
    let volumes = claim.map(|claim| json!([{ "name": "v", "persistentVolumeClaim": { "claimName": claim } }]));
    json!({
        "metadata": {
            "namespace": namespace, "name": name, "uid": format!("uid-{name}"), "labels": { "app": name },
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": controller, "name": "o", "controller": true }],
        },
        "spec": { "volumes": volumes },
        "status": { "phase": "Running" },
    })
}

fn items(items: Value) -> Reply {
    Reply::json(200, json!({ "metadata": {}, "items": items }))
}

fn attached(volume: &str) -> Value {
    json!({
        "metadata": { "name": format!("csi-{volume}") },
        "spec": { "nodeName": "node-1", "source": { "persistentVolumeName": volume } },
        "status": { "attached": true },
    })
}

fn load_op() -> KubernetesOp {
    KubernetesOp::Load { node: "node-1".to_owned() }
}

#[tokio::test]
async fn load_asks_for_what_it_needs() {
    let budget = json!({
        "metadata": { "namespace": "shop", "name": "web", "generation": 1 },
        "spec": { "selector": { "matchLabels": { "app": "web-0" } } },
        "status": {
            "observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 3, "desiredHealthy": 2,
            "expectedPods": 3,
        },
    });
    let volume =
        json!({ "metadata": { "name": "pv-1" }, "spec": { "claimRef": { "namespace": "log", "name": "buffer" } } });
    let agent = || pod("log", "agent", "DaemonSet", Some("buffer"));
    let before = |pods: Value| vec![kube_system(), items(json!([budget])), items(pods)];
    let (reply, seen) =
        perform(load_op(), before(json!([pod("shop", "web-0", "StatefulSet", Some("data")), agent()]))).await;
    let KubernetesReply::Load { cluster_uid, load } = reply.unwrap() else { panic!() };
    assert_eq!((cluster_uid.as_str(), load.pods.len()), ("cluster-1", 2));
    assert_eq!(load.pods[1].budgets, ["shop/web"]);
    assert_eq!(load.budgets["shop/web"].allowed, 1);
    let first = [
        "GET /api/v1/namespaces/kube-system",
        "GET /apis/policy/v1/poddisruptionbudgets?limit=500",
        "GET /api/v1/pods?limit=500&fieldSelector=spec.nodeName%3Dnode-1",
    ];
    assert_eq!(targets(&seen), first, "a pod has to leave: its volumes do not matter yet");
    let volumes = [items(json!([attached("pv-1"), attached("pv-2")])), items(json!([volume]))];
    let (reply, seen) = perform(load_op(), before(json!([agent()])).into_iter().chain(volumes).collect()).await;
    assert_eq!(load_of(reply).attachments, ["pv-2"]);
    let then = ["GET /apis/storage.k8s.io/v1/volumeattachments?limit=500", "GET /api/v1/persistentvolumes?limit=500"];
    assert_eq!(targets(&seen)[3..], then);
}

fn load_of(reply: Result<KubernetesReply, KubernetesFailure>) -> NodeLoad {
    let KubernetesReply::Load { load, .. } = reply.unwrap() else { panic!() };
    load
}

fn kube_system() -> Reply {
    Reply::json(200, json!({ "metadata": { "name": "kube-system", "uid": "cluster-1" } }))
}

#[tokio::test]
async fn load_skips_unneeded_lists() {
    let before = |pods: Value| vec![kube_system(), items(json!([])), items(pods)];
    // Attachments, but no pod that stays has a claim: none can be left out.
    let replies = before(json!([pod("shop", "agent", "DaemonSet", None)]));
    let replies = replies.into_iter().chain([items(json!([attached("pv-1")]))]).collect();
    let (reply, seen) = perform(load_op(), replies).await;
    assert_eq!(load_of(reply).attachments, ["pv-1"]);
    assert_eq!(seen.len(), 4);
}

#[tokio::test]
async fn load_without_right_to_volumes_counts_all() {
    let forbidden =
        Reply::json(403, json!({ "kind": "Status", "message": "no", "details": { "kind": "persistentvolumes" } }));
    let pods = items(json!([pod("log", "agent", "DaemonSet", Some("buffer"))]));
    let replies = vec![kube_system(), items(json!([])), pods, items(json!([attached("pv-1")])), forbidden];
    let (reply, _) = perform(load_op(), replies).await;
    assert_eq!(load_of(reply).attachments, ["pv-1"]);
}

#[tokio::test]
async fn cordon_is_one_guarded_patch() {
    let (reply, seen) = perform(cordon_of(node_ref()), vec![Reply::json(200, node_object())]).await;
    assert_eq!(reply, Ok(KubernetesReply::Patched(node_seen())));
    assert_eq!(targets(&seen), ["PATCH /api/v1/nodes/node-1"]);
    assert_eq!(seen[0].header("content-type"), "application/merge-patch+json");
    let annotations = json!({
        "muster/drained-for": "r-7",
        "cluster-autoscaler.kubernetes.io/scale-down-disabled": "true",
        "muster/scale-down-disabled-before": "=false",
    });
    let expected = json!({
        "metadata": { "resourceVersion": "621", "uid": "uid-1", "annotations": annotations },
        "spec": { "unschedulable": true },
    });
    assert_eq!(seen[0].json(), expected);
}

#[tokio::test]
async fn uncordon_removes_annotations_and_own_cordon() {
    let metadata = |annotations: Value| json!({ "resourceVersion": "621", "uid": "uid-1", "annotations": annotations });
    let none = json!({ "muster/drained-for": null, "muster/scale-down-disabled-before": null });
    let op = |schedulable, scale_down| KubernetesOp::Uncordon { node: node_ref(), schedulable, scale_down };
    let (reply, seen) = perform(op(true, None), vec![Reply::json(200, node_object())]).await;
    assert!(matches!(reply, Ok(KubernetesReply::Patched(_))));
    assert_eq!(targets(&seen), ["PATCH /api/v1/nodes/node-1"]);
    assert_eq!(seen[0].json(), json!({ "metadata": metadata(none.clone()), "spec": { "unschedulable": null } }));
    for value in [None, Some("false".to_owned())] {
        let mut annotations = none.clone();
        annotations["cluster-autoscaler.kubernetes.io/scale-down-disabled"] = json!(value);
        let (_, seen) = perform(op(false, Some(ScaleDownBefore(value))), vec![Reply::json(200, node_object())]).await;
        assert_eq!(seen[0].json(), json!({ "metadata": metadata(annotations) }));
    }
}

#[tokio::test]
async fn deletion_carries_uid_precondition() {
    let delete = || KubernetesOp::Delete { pod: pod_ref() };
    let (reply, seen) = perform(delete(), vec![Reply::json(200, json!({}))]).await;
    assert_eq!(reply, Ok(KubernetesReply::Deleted(Deletion::Accepted)));
    assert_eq!(targets(&seen), ["DELETE /api/v1/namespaces/shop/pods/web-0"]);
    let expected = json!({ "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "uid": "uid-2" } });
    assert_eq!(seen[0].json(), expected);
    let answer = |code: u16, details: Value| {
        let body = json!({ "kind": "Status", "message": "words", "code": code, "details": details });
        perform(delete(), vec![Reply::json(code, body)])
    };
    let pods = || json!({ "kind": "pods" });
    let words = || "words".to_owned();
    for (code, details, expected) in [
        (404, pods(), Deletion::Gone),
        (409, pods(), Deletion::Replaced),
        (403, pods(), Deletion::Forbidden(words())),
        (403, json!({}), Deletion::Refused(words())),
        (422, json!({}), Deletion::Refused(words())),
    ] {
        assert_eq!(answer(code, details).await.0, Ok(KubernetesReply::Deleted(expected)), "{code}");
    }
    assert_eq!(answer(401, json!({})).await.0, Err(KubernetesFailure::Unauthorized(words())));
}

#[tokio::test]
async fn eviction_carries_uid_precondition() {
    let (reply, seen) = perform(KubernetesOp::Evict { pods: vec![pod_ref()] }, vec![Reply::json(201, json!({}))]).await;
    assert_eq!(reply, Ok(KubernetesReply::Evicted(vec![(pod_ref(), Ok(Eviction::Accepted))])));
    assert_eq!(targets(&seen), ["POST /api/v1/namespaces/shop/pods/web-0/eviction"]);
    assert_eq!(seen[0].header("content-type"), "application/json");
    let expected = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": { "name": "web-0", "namespace": "shop" },
        "deleteOptions": { "preconditions": { "uid": "uid-2" } },
    });
    assert_eq!(seen[0].json(), expected);
}

#[tokio::test]
async fn readiness_asks_given_address() {
    let server = Server::in_order(vec![
        Reply::text(200, "ok"),
        Reply::text(500, "[+]ping ok\n[-]etcd failed: reason withheld\n"),
        Reply::text(403, "no"),
    ])
    .await;
    // The kubeconfig's own address answers nothing; its port, CA and server name serve the other one.
    let mut kubeconfig = server.kubeconfig();
    kubeconfig.server.host = "192.0.2.1".to_owned();
    kubeconfig.server.path = "/prefix".to_owned();
    kubeconfig.tls_server_name = Some("kubernetes".to_owned());
    let client = KubernetesClient::new(&kubeconfig).unwrap();
    let address = "127.0.0.1".parse().unwrap();
    assert_eq!(client.api_server(address).await, None);
    assert_eq!(client.api_server(address).await.as_deref(), Some("its API server is not ready: etcd"));
    assert_eq!(client.api_server(address).await.as_deref(), Some("HTTP 403: no"));
    assert_eq!(targets(&server.seen())[0], "GET /readyz");
}

#[tokio::test]
async fn control_plane_names_what_lacks() {
    let servers: Vec<ControlServer> = [("node-1", "127.0.0.1"), ("node-9", "192.0.2.9")]
        .map(|(hostname, address)| ControlServer {
            hostname: hostname.to_owned(),
            address: address.parse().unwrap(),
            etcd: None,
        })
        .into();
    let mut node = node_object();
    node["metadata"]["name"] = json!("node-1");
    let nodes = Reply::json(200, json!({ "metadata": {}, "items": [node] }));
    let replies = vec![kube_system(), nodes, Reply::text(200, "ok")];
    let (reply, seen) = perform(KubernetesOp::ControlPlane { servers: servers.clone() }, replies).await;
    let lacks = [None, Some("the cluster has no node for it".to_owned())];
    let states = servers.into_iter().zip(lacks).map(|(server, lacks)| ControlState { server, lacks, etcd: None });
    let (cluster_uid, servers) = ("cluster-1".to_owned(), states.collect());
    assert_eq!(reply, Ok(KubernetesReply::ControlPlane { cluster_uid, servers }));
    assert_eq!(targets(&seen)[1..], ["GET /api/v1/nodes?limit=500", "GET /readyz"]);
}

#[tokio::test]
async fn event_is_posted_for_the_node() {
    let op = |warning| KubernetesOp::Event {
        node: node_ref(),
        reason: "Cordoned",
        message: "Cordoned for\nrollout r-7.".to_owned(),
        warning,
    };
    let (reply, seen) = perform(op(false), vec![Reply::json(201, json!({}))]).await;
    assert_eq!(reply, Ok(KubernetesReply::Done));
    assert_eq!(targets(&seen), ["POST /api/v1/namespaces/default/events"]);
    let mut event = seen[0].json();
    let time: Timestamp = event["lastTimestamp"].as_str().unwrap().parse().unwrap();
    assert!(Timestamp::now().duration_since(time).as_secs().abs() < 60);
    assert_eq!(event["firstTimestamp"].as_str().unwrap().len(), "2026-11-27T01:54:17Z".len());
    let fields = event.as_object_mut().unwrap();
    fields.retain(|key, _| !key.ends_with("Timestamp"));
    let expected = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "generateName": "node-1.", "namespace": "default" },
        "involvedObject": { "apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "uid-1" },
        "reason": "Cordoned",
        "message": "Cordoned for rollout r-7.",
        "type": "Normal",
        "source": { "component": "muster" },
        "reportingComponent": "muster",
        "count": 1,
    });
    assert_eq!(event, expected);
    let (_, seen) = perform(op(true), vec![Reply::json(201, json!({}))]).await;
    assert_eq!(seen[0].json()["type"], "Warning");
}

#[tokio::test]
async fn path_prefix_leads_every_request() {
    let server = Server::in_order(vec![Reply::json(201, json!({}))]).await;
    let mut kubeconfig = server.kubeconfig();
    kubeconfig.server.path = "/k8s/clusters/c-1".to_owned();
    let client = KubernetesClient::new(&kubeconfig).unwrap();
    client.perform(&KubernetesOp::Evict { pods: vec![pod_ref()] }, &[]).await.unwrap();
    assert_eq!(targets(&server.seen()), ["POST /k8s/clusters/c-1/api/v1/namespaces/shop/pods/web-0/eviction"]);
}

#[tokio::test]
async fn closed_connection_is_replaced_within_operation() {
    let closing = Reply::json(200, json!({ "metadata": { "uid": "cluster-1" } })).with_header("connection", "close");
    let (reply, seen) = perform(KubernetesOp::Nodes, vec![closing, items(json!([]))]).await;
    assert!(reply.is_ok(), "{reply:?}");
    assert_eq!(seen.iter().map(|seen| seen.connection).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn recorded_node_is_read() {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/kubernetes/30h-cordon-with-annotation-one-patch.json");
    let recording: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let node = node(serde_json::from_value(recording["body"].clone()).unwrap());
    let expected = NodeRef {
        name: "node-5".to_owned(),
        uid: "000b9149-f6a2-4c9a-9c47-f5a442fbdf09".to_owned(),
        resource_version: "622".to_owned(),
    };
    assert_eq!(node.object, expected);
    assert!(node.unschedulable && node.ready && !node.keep_cordoned && node.drained_for.is_none());
    assert_eq!(node.boot_id, recording["body"]["status"]["nodeInfo"]["bootID"].as_str().unwrap());
}
