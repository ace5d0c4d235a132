use std::{fs, path::Path};

use serde_json::{Value, json};

use super::*;

fn recorded(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/kubernetes").join(format!("{name}.json"));
    let recording: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    recording["body"].clone()
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn pod_of(value: Value) -> Pod {
    pod(read(value)).unwrap()
}

fn budget_of(value: Value) -> Budget {
    budget(&read(value))
}

#[test]
fn recorded_pods_are_read() {
    let daemon = pod_of(recorded("31b-ds-pod")["items"][0].clone());
    assert!(daemon.of_daemon_set && !daemon.mirror && !daemon.finished && !daemon.local_storage);
    assert_eq!(daemon.controller.as_deref(), Some("DaemonSet/tf-vrouter-agent"));
    assert_eq!(daemon.object.uid, "97106961-a16c-436a-9f4c-6ff90e77c984");
    assert_eq!(daemon.claims, Vec::<String>::new());

    let mirror = pod_of(recorded("32-mirror-pod"));
    assert!(mirror.mirror && !mirror.of_daemon_set);
    assert_eq!(mirror.controller.as_deref(), Some("Node/node-3"));

    let leaving = pod_of(recorded("01b-pod-after-eviction"));
    // 2026-11-27T01:54:17Z.
    assert_eq!((leaving.deletion_s, leaving.grace_s), (Some(1_795_744_457), 30));
    assert_eq!(leaving.controller, None);

    let held = pod_of(recorded("13b-pod-held-by-finalizer"));
    assert_eq!((held.deletion_s.is_some(), held.grace_s, held.finalizers.len()), (true, 0, 1));
}

#[test]
fn pod_volumes_and_labels_are_read() {
    let pod = pod_of(json!({
        "metadata": {
            "name": "web-0", "namespace": "shop", "uid": "u", "labels": { "muster/drain": "last" }, "annotations": null,
            "ownerReferences": [
                { "apiVersion": "v1", "kind": "Other", "name": "no-controller" },
                { "apiVersion": "extensions/v1beta1", "kind": "DaemonSet", "name": "old", "controller": true },
            ],
        },
        "spec": {
            "priority": 2_000_001_000,
            "volumes": [
                { "name": "data", "persistentVolumeClaim": { "claimName": "data-web-0" } },
                { "name": "scratch", "ephemeral": { "volumeClaimTemplate": {} } },
                { "name": "cache", "emptyDir": {} },
                { "name": "config", "configMap": {} },
            ],
        },
        "status": { "phase": "Succeeded" },
    }));
    assert_eq!(pod.claims, ["data-web-0", "web-0-scratch"]);
    assert!(pod.local_storage && pod.finished && !pod.of_daemon_set);
    assert_eq!(pod.controller.as_deref(), Some("DaemonSet/old"));
    assert_eq!((pod.priority, pod.drain_label.as_str(), pod.deletion_s, pod.grace_s), (2_000_001_000, "last", None, 0));
}

#[test]
fn unreadable_deletion_time_fails() {
    let object = read(json!({ "metadata": { "name": "p", "deletionTimestamp": "soon" } }));
    let KubernetesFailure::Other(text) = pod(object).unwrap_err() else { panic!() };
    assert!(text.starts_with("cannot read deletionTimestamp of pod p: "), "{text}");
}

#[test]
fn recorded_budgets_are_read() {
    let blocked = budget_of(recorded("02b-pdb-status-0-allowed"));
    let expected = Budget {
        observed: true,
        sync_failed: None,
        allowed: 0,
        healthy: 2,
        desired: 2,
        expected: 2,
        disrupted: Vec::new(),
    };
    assert_eq!(blocked, expected);
    let over_daemon_set = budget_of(recorded("31k-pdb-over-daemonset"));
    assert!(!over_daemon_set.observed);
    assert_eq!(
        over_daemon_set.sync_failed.as_deref(),
        Some("daemonsets.apps does not implement the scale subresource")
    );
    assert!(!budget_of(recorded("34-pdb-just-created")).observed);
    assert!(budget_of(recorded("34c-pdb-observed")).observed);
    let used = budget_of(recorded("34e-pdb-after-one"));
    assert_eq!((used.allowed, used.disrupted.len()), (1, 1));
}

#[test]
fn budgets_select_in_their_namespace() {
    let pod = |namespace: &str, name: &str| {
        read(json!({ "metadata": { "namespace": namespace, "name": name, "uid": name, "labels": { "app": "web" } } }))
    };
    let budget = |namespace: &str, name: &str, spec: Value| {
        read(json!({ "metadata": { "namespace": namespace, "name": name }, "spec": spec }))
    };
    let web = json!({ "selector": { "matchLabels": { "app": "web" } } });
    let budgets = [
        budget("b", "web", web.clone()),
        budget("a", "web", web),
        budget("a", "all", json!({ "selector": {} })),
        budget("a", "none", json!({})),
        budget("a", "other", json!({ "selector": { "matchLabels": { "app": "db" } } })),
    ];
    let load = pods_and_budgets(vec![pod("c", "p"), pod("b", "p"), pod("a", "q"), pod("a", "p")], &budgets).unwrap();
    let found: Vec<_> = load.pods.iter().map(|pod| (pod.object.name.as_str(), pod.budgets.join(" "))).collect();
    let expected = [("p", "a/all a/web"), ("q", "a/all a/web"), ("p", "b/web"), ("p", "")];
    assert_eq!(found, expected.map(|(name, budgets)| (name, budgets.to_owned())));
    assert_eq!(load.budgets.keys().collect::<Vec<_>>(), ["a/all", "a/web", "b/web"]);
}

fn attachment(node: &str, name: &str, source: Value, attached: bool) -> AttachmentObject {
    read(json!({
        "metadata": { "name": name },
        "spec": { "nodeName": node, "source": source, "attacher": "csi" },
        "status": { "attached": attached },
    }))
}

#[test]
fn attachments_of_staying_pods_are_left_out() {
    let volume = |name: &str| json!({ "persistentVolumeName": name });
    let attached = attached_to(
        "node-1",
        vec![
            attachment("node-1", "csi-1", volume("pv-web"), true),
            attachment("node-1", "csi-2", volume("pv-daemon"), true),
            attachment("node-1", "csi-3", volume("pv-skip"), true),
            attachment("node-1", "csi-4", volume("pv-detached"), false),
            attachment("node-2", "csi-5", volume("pv-elsewhere"), true),
            attachment("node-1", "csi-6", json!({ "inlineVolumeSpec": {} }), true),
            attachment("node-1", "csi-7", volume("pv-other-namespace"), true),
        ],
    );
    let with_claim = |name: &str, fields: Value| {
        let mut pod = pod_of(json!({
            "metadata": { "namespace": "a", "name": name },
            "spec": { "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": name } }] },
        }));
        pod.of_daemon_set = fields["daemon"] == true;
        fields["label"].as_str().unwrap_or_default().clone_into(&mut pod.drain_label);
        pod
    };
    let pods = [
        with_claim("web", json!({})),
        with_claim("daemon", json!({ "daemon": true })),
        with_claim("skip", json!({ "label": "skip" })),
    ];
    let staying = staying_claims(&pods);
    let bound = |name: &str, namespace: &str, claim: &str| {
        read(json!({ "metadata": { "name": name }, "spec": { "claimRef": { "namespace": namespace, "name": claim } } }))
    };
    let volumes = [
        bound("pv-web", "a", "web"),
        bound("pv-daemon", "a", "daemon"),
        bound("pv-skip", "a", "skip"),
        bound("pv-other-namespace", "b", "daemon"),
        read(json!({ "metadata": { "name": "pv-free" } })),
    ];
    let left = without_staying(attached.clone(), &volumes, &staying);
    assert_eq!(left, ["csi-6", "pv-other-namespace", "pv-web"]);
    let all = without_staying(attached, &[], &staying);
    assert_eq!(all, ["csi-6", "pv-daemon", "pv-other-namespace", "pv-skip", "pv-web"]);
}
