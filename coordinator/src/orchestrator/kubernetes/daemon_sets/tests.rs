use std::{fs, path::Path};

use serde_json::{Value, json};

use super::*;

fn recorded(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/kubernetes").join(format!("{name}.json"));
    let text = fs::read_to_string(path).expect("a recording");
    serde_json::from_str(&text).expect("JSON")
}

fn set(name: &str) -> SetObject {
    serde_json::from_value(recorded(name)["body"].clone()).expect("a DaemonSet")
}

fn revisions(name: &str) -> Vec<RevisionObject> {
    serde_json::from_value(recorded(name)["body"]["items"].clone()).expect("ControllerRevisions")
}

/// A template that is set back gets the highest number again: neither its place in the list nor its age tells.
#[test]
fn newest_template_has_highest_revision() {
    let mut set = set("31-ds-ondelete-first");
    set.status.observed_generation = set.metadata.generation;
    for (name, hash) in [
        ("31c-controllerrevisions-1", "5dd45d975c"),
        ("31f-controllerrevisions-2", "695b444db4"),
        ("31i-controllerrevisions-rollback", "5dd45d975c"),
    ] {
        assert_eq!(newest(&set, &revisions(name)).as_deref(), Some(hash), "{name}");
    }
    set.status.observed_generation = Some(0);
    assert_eq!(newest(&set, &revisions("31f-controllerrevisions-2")), None, "it is not observed");
    set.status.observed_generation = set.metadata.generation;
    set.metadata.uid = "another".to_owned();
    assert_eq!(newest(&set, &revisions("31f-controllerrevisions-2")), None, "those are another one's");
}

#[test]
fn selector_takes_on_delete_alone() {
    let labels = |value: &str| BTreeMap::from([("app".to_owned(), value.to_owned())]);
    let of = |namespace: &str, prefix: &str, app: &str| OnDeleteDaemonSets {
        namespace: namespace.to_owned(),
        name_prefix: prefix.to_owned(),
        match_labels: labels(app),
    };
    let name = "tf-vrouter-agent";
    let recorded = set("31-ds-ondelete-first");
    for (wanted, is) in [
        (of("tf", "", name), true),
        (of("tf", "tf-vrouter-", name), true),
        (of("tf", "other-", name), false),
        (of("other", "", name), false),
        (of("tf", "", "other"), false),
        (OnDeleteDaemonSets::of_vrouter(), true),
    ] {
        assert_eq!(is_wanted(&recorded, &wanted), is, "{wanted:?}");
    }
    let mut rolling = set("31-ds-ondelete-first");
    rolling.spec.update_strategy.kind = "RollingUpdate".to_owned();
    assert!(!is_wanted(&rolling, &OnDeleteDaemonSets::of_vrouter()));
}

/// Every node with a taint that the template does not tolerate is named, and Kubernetes' own taints are not.
#[test]
fn untolerated_taints_are_named() {
    let node = |name: &str, key: &str, value: &str, effect: &str| -> NodeObject {
        let taint = json!({"key": key, "value": value, "effect": effect});
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"taints": [taint]}})).expect("a node")
    };
    let nodes = [
        node("other", "storage", "yes", "NoSchedule"),
        node("value", "role", "control", "NoExecute"),
        node("soft", "storage", "yes", "PreferNoSchedule"),
        node("own", "node.kubernetes.io/not-ready", "", "NoSchedule"),
        node("bare", "gone", "", "NoExecute"),
    ];
    let tainted = |tolerations: Value| -> Vec<String> {
        let mut set = set("31-ds-ondelete-first");
        set.spec.template.spec.tolerations = serde_json::from_value(tolerations).expect("tolerations");
        tainted(&set, &nodes).into_iter().map(|(node, taint)| format!("{node} {taint}")).collect()
    };
    let all = ["bare gone:NoExecute", "other storage=yes:NoSchedule", "value role=control:NoExecute"];
    assert_eq!(tainted(json!([])), all);
    let some = json!([
        {"key": "storage", "operator": "Exists", "effect": "NoExecute"},
        {"key": "role", "value": "worker"},
        {"key": "gone", "operator": "Exists"},
    ]);
    assert_eq!(tainted(some), all[1..]);
    let role = json!([
        {"key": "role", "operator": "Equal", "value": "control"},
        {"key": "storage", "value": "yes"},
    ]);
    assert_eq!(tainted(role), all[..1]);
    assert!(tainted(json!([{"operator": "Exists"}])).is_empty());
}
