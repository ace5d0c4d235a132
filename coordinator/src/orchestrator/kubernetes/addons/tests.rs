use std::{fs, path::Path};

use serde_json::json;

use super::*;
use crate::{
    facts::kubernetes::KubernetesReply,
    orchestrator::kubernetes::{
        client::KubernetesClient,
        test_server::{Reply, Server},
    },
};

fn recorded(name: &str) -> Reply {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/kubernetes").join(format!("{name}.json"));
    let text = fs::read_to_string(path).expect("a recording");
    let recording: Value = serde_json::from_str(&text).expect("JSON");
    let status = u16::try_from(recording["status"].as_u64().expect("a status")).expect("of HTTP");
    match &recording["body"] {
        Value::String(text) => Reply::text(status, text),
        body => Reply::json(status, body.clone()),
    }
}

fn kube_system(uid: &str) -> Reply {
    Reply::json(200, json!({"metadata": {"name": "kube-system", "uid": uid}}))
}

fn resources(group_version: &str, of: &[(&str, &str, bool)]) -> Reply {
    let resource = |(name, kind, namespaced): &(&str, &str, bool)| {
        let verbs = json!(["patch"]);
        json!({"name": name, "singularName": "", "kind": kind, "namespaced": namespaced, "verbs": verbs})
    };
    let all: Vec<Value> = of.iter().map(resource).collect();
    Reply::json(200, json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": all}))
}

fn ok() -> Reply {
    Reply::json(200, json!({"kind": "Whatever"}))
}

/// Asks a server that gives these answers.
async fn ask(replies: Vec<Reply>, op: &KubernetesOp) -> (Server, Result<KubernetesReply, KubernetesFailure>) {
    let server = Server::in_order(replies).await;
    let result = KubernetesClient::new(&server.kubeconfig()).expect("a client").perform(op, &[]).await;
    (server, result)
}

fn application(text: &str) -> KubernetesOp {
    let addon = AddonToApply {
        name: "a".to_owned(),
        version: None,
        content: "sha256:0".to_owned(),
        namespace: "here".to_owned(),
        text: AddonText::Read { text: ManifestText(text.into()), is_secret: false },
    };
    KubernetesOp::Apply { cluster_uid: "uid".to_owned(), addon: Box::new(addon) }
}

/// Method and target of each request but the first, which asks for the cluster.
fn asked(server: &Server) -> Vec<String> {
    let seen = server.seen();
    seen.iter().skip(1).map(|seen| format!("{} {}", seen.method, seen.target)).collect()
}

const QUERY: &str = "?fieldManager=muster&force=true";

#[tokio::test]
async fn objects_are_applied_in_order() {
    let text = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: ns}}\n---\n\
                {apiVersion: v1, kind: ServiceAccount, metadata: {name: s}}\n---\n\
                {apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: \"system:c\"}}\n---\n\
                {apiVersion: apps/v1, kind: Deployment, metadata: {name: e}}\n---\n\
                {apiVersion: v1, kind: Namespace, metadata: {name: ns}}";
    let core = [("namespaces", "Namespace", false), ("serviceaccounts/token", "TokenRequest", true)];
    let core = [&core[..], &[("serviceaccounts", "ServiceAccount", true)]].concat();
    let replies = vec![
        kube_system("uid"),
        resources("v1", &core),
        ok(),
        resources("apps/v1", &[("deployments", "Deployment", true)]),
        ok(),
        ok(),
        resources("rbac.authorization.k8s.io/v1", &[("clusterroles", "ClusterRole", false)]),
        ok(),
        ok(),
    ];
    let (server, result) = ask(replies, &application(text)).await;
    assert_eq!(result, Ok(KubernetesReply::Applied(5)));
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    assert_eq!(
        asked(&server),
        [
            "GET /api/v1".to_owned(),
            format!("PATCH /api/v1/namespaces/ns{QUERY}"),
            "GET /apis/apps/v1".to_owned(),
            format!("PATCH /apis/apps/v1/namespaces/ns/deployments/d{QUERY}"),
            format!("PATCH /api/v1/namespaces/here/serviceaccounts/s{QUERY}"),
            format!("GET {rbac}"),
            format!("PATCH {rbac}/clusterroles/system:c{QUERY}"),
            format!("PATCH /apis/apps/v1/namespaces/here/deployments/e{QUERY}"),
        ]
    );
    let first = &server.seen()[2];
    assert_eq!(first.header("content-type"), APPLY);
    assert_eq!(first.json()["kind"], "Namespace");
}

/// The API server answers 404 and 429 for a moment after a definition is established (recordings 20 and 20g).
#[tokio::test]
async fn custom_resources_wait_for_their_definition() {
    let text = "{apiVersion: lcm.mirantis.com/v1alpha1, kind: NodeMaintenanceRequest, metadata: {name: ssa}}\n---\n\
                {apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: \
                nodemaintenancerequests.lcm.mirantis.com}, spec: {group: lcm.mirantis.com, names: {kind: \
                NodeMaintenanceRequest}}}";
    let definitions = [("customresourcedefinitions", "CustomResourceDefinition", false)];
    let busy = json!({"kind": "Status", "message": "storage is (re)initializing", "code": 429,
                      "details": {"retryAfterSeconds": 1}});
    let replies = vec![
        kube_system("uid"),
        resources("apiextensions.k8s.io/v1", &definitions),
        recorded("20b-crd-create"),
        recorded("20b-crd-create"),
        recorded("20d-crd-established"),
        Reply::text(404, "404 page not found\n"),
        recorded("20f-discovery-group"),
        recorded("20-cr-before-crd"),
        recorded("20f-discovery-group"),
        Reply::json(429, busy),
        recorded("23g-ssa-create"),
    ];
    let (server, result) = ask(replies, &application(text)).await;
    assert_eq!(result, Ok(KubernetesReply::Applied(2)));
    let last = server.seen().last().map(|seen| seen.target.clone());
    let path = "/apis/lcm.mirantis.com/v1alpha1/nodemaintenancerequests/ssa";
    assert_eq!(last, Some(format!("{path}{QUERY}")));
}

#[tokio::test]
async fn refusals_name_the_object() {
    let text = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: ns}}";
    let deployments = || resources("apps/v1", &[("deployments", "Deployment", true)]);
    let invalid = json!({"kind": "Status", "reason": "Invalid", "code": 422, "details": {"causes": []},
                         "message": "Deployment.apps \"d\" is invalid: spec.selector: field is immutable"});
    let (_, result) = ask(vec![kube_system("uid"), deployments(), Reply::json(422, invalid)], &application(text)).await;
    let words = "Deployment ns/d: Deployment.apps \"d\" is invalid: spec.selector: field is immutable";
    assert_eq!(result, Err(KubernetesFailure::Other(words.to_owned())));
    let (_, result) =
        ask(vec![kube_system("uid"), deployments(), recorded("12-eviction-forbidden")], &application(text)).await;
    assert!(
        matches!(&result, Err(KubernetesFailure::Forbidden(text)) if text.starts_with("Deployment ns/d: ")),
        "{result:?}"
    );
    let (server, result) = ask(vec![kube_system("uid"), resources("apps/v1", &[])], &application(text)).await;
    let words = "Deployment ns/d: the cluster does not serve its kind in apps/v1";
    assert_eq!((result, asked(&server).len()), (Err(KubernetesFailure::Other(words.to_owned())), 1));
    let (server, result) = ask(vec![kube_system("other")], &application(text)).await;
    assert_eq!((result, asked(&server).len()), (Err(KubernetesFailure::another_cluster("uid", "other")), 0));
}

/// What the API server says about a Secret, or about an object of a manifest that is a secret, may have its values.
#[tokio::test]
async fn refusals_do_not_quote_secrets() {
    let secret = "{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {a: hunter2}}";
    let map = "{apiVersion: v1, kind: ConfigMap, metadata: {name: s}, data: {a: hunter2}}";
    let in_secret = |text: &str| {
        let KubernetesOp::Apply { cluster_uid, mut addon } = application(text) else { unreachable!() };
        addon.text = AddonText::Read { text: ManifestText(text.into()), is_secret: true };
        KubernetesOp::Apply { cluster_uid, addon }
    };
    let core = || resources("v1", &[("secrets", "Secret", true), ("configmaps", "ConfigMap", true)]);
    let invalid = json!({"kind": "Status", "reason": "Invalid", "code": 422, "message": "\"s\" is invalid: hunter2",
                         "details": {"causes": [{"field": "data[a]", "message": "hunter2"}, {"field": "type"}]}});
    for (op, object) in [(application(secret), "Secret s"), (in_secret(map), "ConfigMap s")] {
        let (_, result) = ask(vec![kube_system("uid"), core(), Reply::json(422, invalid.clone())], &op).await;
        let words = format!("{object}: HTTP 422 Invalid (data[a], type)");
        assert_eq!(result, Err(KubernetesFailure::Other(words)));
        let plain = Reply::text(502, "cannot relay hunter2");
        let (_, result) = ask(vec![kube_system("uid"), core(), plain], &op).await;
        assert_eq!(result, Err(KubernetesFailure::Unreachable(format!("{object}: HTTP 502"))));
    }
    let rights = json!({"kind": "Status", "reason": "Forbidden", "code": 403, "details": {"kind": "secrets"},
                        "message": "secrets \"s\" is forbidden: User \"m\" cannot patch resource \"secrets\" in"});
    let (_, result) = ask(vec![kube_system("uid"), core(), Reply::json(403, rights)], &application(secret)).await;
    assert!(result.as_ref().is_err_and(KubernetesFailure::lacks_right), "{result:?}");
}

fn object(change: impl FnOnce(&mut Value)) -> Value {
    let containers = json!([{"name": "c", "image": "r:5000/a/b:v1@sha256:0"}]);
    let mut object = json!({
        "metadata": {"name": "d", "generation": 3, "labels": {"app.kubernetes.io/version": "9"}},
        "spec": {"replicas": 2, "template": {"spec": {"containers": containers}}},
        "status": {"observedGeneration": 3, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2,
                   "availableReplicas": 2,
                   "conditions": [{"type": "Available", "status": "True", "reason": "", "message": ""}]},
    });
    change(&mut object);
    object
}

fn seen(change: impl FnOnce(&mut Value)) -> DeploymentState {
    state(serde_json::from_value(object(change)).expect("a Deployment"))
}

#[test]
fn deployment_is_available_with_its_newest_spec() {
    let good = seen(|_| {});
    assert_eq!((good.version.as_deref(), good.wanted, good.ready, good.available), (Some("v1"), 2, 2, true));
    let said = |change: fn(&mut Value)| {
        let state = seen(change);
        assert!(!state.available);
        state.message
    };
    let unseen = said(|object| object["metadata"]["generation"] = json!(4));
    assert_eq!(unseen, "its controller has not seen its newest spec");
    let old = said(|object| object["status"]["updatedReplicas"] = json!(1));
    assert_eq!(old, "1 of 2 replicas are of its newest template");
    let both = said(|object| object["status"]["replicas"] = json!(3));
    assert_eq!(both, "replicas of an older template are left: 1", "a broken upgrade: the old one serves");
    let none = said(|object| {
        object["spec"]["replicas"] = json!(0);
        object["status"] = json!({"observedGeneration": 3});
    });
    assert_eq!(none, "it is scaled to 0");
    let fresh = said(|object| object["status"]["availableReplicas"] = json!(1));
    assert_eq!(fresh, "1 of 2 replicas are available");
    let late = said(|object| {
        object["status"]["conditions"][0] = json!({"type": "Progressing", "status": "False", "message": "timed out"});
    });
    assert_eq!(late, "timed out");
    let unavailable = said(|object| {
        object["status"].as_object_mut().expect("a status").remove("availableReplicas");
        object["status"]["conditions"] = json!([
            {"type": "Available", "status": "False", "reason": "MinimumReplicasUnavailable", "message": "too few\n"},
        ]);
    });
    assert_eq!(unavailable, "too few");
    let stuck = said(|object| {
        object["status"]["availableReplicas"] = json!(0);
        object["status"]["conditions"] = json!([
            {"type": "Available", "status": "False", "message": "too few"},
            {"type": "Progressing", "status": "False", "message": "has timed out progressing."},
        ]);
    });
    assert_eq!(stuck, "has timed out progressing.");
}

#[test]
fn version_is_tag_or_label() {
    let of = |image: &'static str| {
        seen(|object| object["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image)).version
    };
    for (image, version) in [("a:1", "1"), ("r:5000/a", "9"), ("a@sha256:0", "9"), ("a", "9"), ("r:5000/a:2", "2")] {
        assert_eq!(of(image).as_deref(), Some(version), "{image}");
    }
    let bare = seen(|object| {
        object["metadata"]["labels"] = Value::Null;
        object["spec"]["template"] = json!({});
    });
    assert_eq!(bare.version, None);
}

#[tokio::test]
async fn absent_deployment_is_none() {
    let name = |deployment: &str| AddonDeployment { namespace: "n".to_owned(), deployment: deployment.to_owned() };
    let gone = json!({"kind": "Status", "code": 404, "details": {"kind": "deployments"}});
    let replies = vec![kube_system("uid"), Reply::json(200, object(|_| {})), Reply::json(404, gone)];
    let op = KubernetesOp::Addons { deployments: vec![name("d"), name("e")] };
    let (server, result) = ask(replies, &op).await;
    let Ok(KubernetesReply::Addons { cluster_uid, found }) = result else { panic!("{result:?}") };
    assert_eq!((cluster_uid.as_str(), found[&name("d")].is_some(), found[&name("e")].is_some()), ("uid", true, false));
    assert_eq!(asked(&server)[1], "GET /apis/apps/v1/namespaces/n/deployments/e");
}
