//! Annotations for application controllers on a node, such as how its instances are migrated. What an operator set
//! there with kubectl stays; what Muster set is noted beside it, on the node, so that exactly that is taken back.

use std::collections::BTreeMap;

use muster_proto::seeded_bug::seeded_bug;
use serde_json::{Map, Value, json};

use super::{
    client::{patch_node, segment},
    objects::NodeObject,
    transport::{Call, Session},
};
use crate::facts::{
    handshake::{NODE_ANNOTATIONS, NodeAnnotations},
    kubernetes::{KubernetesFailure, NodeRef},
};

/// Annotations by name.
type Annotations = BTreeMap<String, String>;

/// Give a node these annotations, and take back those of Muster that are not among them. A node that is gone has none.
pub(super) async fn put(session: &mut Session<'_>, wanted: &NodeAnnotations) -> Result<(), KubernetesFailure> {
    let node = match read(session, wanted).await {
        Err(KubernetesFailure::NotFound(_)) if wanted.values.is_empty() => return Ok(()),
        node => node?,
    };
    let changes = changes(&node.metadata.annotations, &wanted.values);
    if !changes.is_empty() {
        return patch(session, node, changes).await;
    }
    if wanted.values.is_empty() {
        return outdate(session, wanted, node).await;
    }
    Ok(())
}

/// Give a node with nothing to take back another version: an earlier change that had no answer may still be on its way,
/// and fails then.
async fn outdate(
    session: &mut Session<'_>,
    wanted: &NodeAnnotations,
    node: NodeObject,
) -> Result<(), KubernetesFailure> {
    let empty = json!(json!(Annotations::new()).to_string());
    patch(session, node, Map::from_iter([(NODE_ANNOTATIONS.to_owned(), empty)])).await?;
    let node = read(session, wanted).await?;
    let changes = changes(&node.metadata.annotations, &wanted.values);
    patch(session, node, changes).await
}

async fn read(session: &mut Session<'_>, wanted: &NodeAnnotations) -> Result<NodeObject, KubernetesFailure> {
    session.send(Call::get(format!("/api/v1/nodes/{}", segment(&wanted.node)?))).await?.object()
}

async fn patch(
    session: &mut Session<'_>,
    NodeObject { metadata, .. }: NodeObject,
    changes: Map<String, Value>,
) -> Result<(), KubernetesFailure> {
    let object = NodeRef { name: metadata.name, uid: metadata.uid, resource_version: metadata.resource_version };
    patch_node(session, &object, &Value::Object(changes)).await
}

/// The changes that give a node with these annotations the wanted ones, null for one that goes. One with a value that
/// is not Muster's is left alone.
#[must_use]
pub fn changes(now: &Annotations, wanted: &Annotations) -> Map<String, Value> {
    let noted: Annotations =
        now.get(NODE_ANNOTATIONS).and_then(|note| serde_json::from_str(note).ok()).unwrap_or_default();
    let is_ours = |name: &str| now.get(name).is_some_and(|value| noted.get(name) == Some(value));
    let (mut changes, mut note) = (Map::new(), Annotations::new());
    let is_free = |name: &str| !now.contains_key(name) || is_ours(name) || seeded_bug("annotate-foreign");
    for (name, value) in wanted.iter().filter(|(name, _)| is_free(name)) {
        note.insert(name.clone(), value.clone());
        if now.get(name) != Some(value) {
            changes.insert(name.clone(), json!(value));
        }
    }
    let ends = noted.keys().filter(|name| is_ours(name) && !wanted.contains_key(*name));
    changes.extend(ends.map(|name| (name.clone(), Value::Null)));
    if note != noted || (note.is_empty() && now.contains_key(NODE_ANNOTATIONS)) {
        let note = (!note.is_empty()).then(|| json!(note).to_string());
        changes.insert(NODE_ANNOTATIONS.to_owned(), json!(note));
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            test_server::{Reply, Server},
            transport::Transport,
        },
        *,
    };

    const MODE: &str = "openstack.lcm.mirantis.com/instance_migration_mode";
    const ATTEMPTS: &str = "openstack.lcm.mirantis.com/instance_migration_attempts";

    fn of(values: &[(&str, &str)]) -> Annotations {
        values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// What is sent to take everything back from a node with these annotations, and then with those.
    async fn taken_back(nodes: [&[(&str, &str)]; 2]) -> Vec<Value> {
        let node = |annotations: &[(&str, &str)]| {
            let metadata = json!({ "name": "n", "uid": "u", "resourceVersion": "7", "annotations": of(annotations) });
            Reply::json(200, json!({ "metadata": metadata }))
        };
        let patched = || Reply::json(200, json!({ "metadata": { "name": "n", "uid": "u", "resourceVersion": "8" } }));
        let [first, second] = nodes;
        let server = Server::in_order(vec![node(first), patched(), node(second), patched()]).await;
        let transport = Transport::new(&server.kubeconfig()).unwrap();
        let wanted = NodeAnnotations { node: "n".to_owned(), values: Annotations::new() };
        put(&mut transport.session(&[]), &wanted).await.unwrap();
        let sent = server.seen().into_iter().filter(|seen| seen.method == "PATCH");
        sent.map(|seen| seen.json()["metadata"]["annotations"].clone()).collect()
    }

    /// A change without an answer is guarded by the node's version, so the node gets another one.
    #[tokio::test]
    async fn late_change_of_a_node_fails() {
        let found = taken_back([&[], &[(NODE_ANNOTATIONS, "{}")]]).await;
        assert_eq!(found, [json!({ NODE_ANNOTATIONS: "{}" }), json!({ NODE_ANNOTATIONS: null })]);
        let note = r#"{"openstack.lcm.mirantis.com/instance_migration_mode":"manual"}"#;
        let found = taken_back([&[(MODE, "manual"), (NODE_ANNOTATIONS, note)], &[]]).await;
        assert_eq!(found, [json!({ MODE: null, NODE_ANNOTATIONS: null })], "it has another version by this");
    }

    /// The node after it was given these annotations.
    fn after(now: &Annotations, wanted: &[(&str, &str)]) -> Annotations {
        let mut node = now.clone();
        for (name, value) in changes(now, &of(wanted)) {
            match value.as_str() {
                Some(value) => node.insert(name, value.to_owned()),
                None => node.remove(&name),
            };
        }
        let again = changes(&node, &of(wanted));
        assert!(again.is_empty(), "it is done once: {again:?}");
        node
    }

    #[test]
    fn put_annotations_are_taken_back() {
        let before = of(&[("other", "stays")]);
        let manual = after(&before, &[(MODE, "manual"), (ATTEMPTS, "5")]);
        assert_eq!((manual[MODE].as_str(), manual[ATTEMPTS].as_str()), ("manual", "5"));
        let skip = after(&manual, &[(MODE, "skip")]);
        assert_eq!((skip[MODE].as_str(), skip.get(ATTEMPTS)), ("skip", None));
        assert_eq!(after(&skip, &[]), before);
        assert_eq!(after(&manual, &[]), before);
    }

    #[test]
    fn values_of_operators_stay() {
        let theirs = of(&[(MODE, "live")]);
        assert_eq!(after(&theirs, &[(MODE, "manual")]), theirs, "it was there before");
        let mut set = after(&of(&[]), &[(MODE, "manual"), (ATTEMPTS, "5")]);
        set.insert(MODE.to_owned(), "skip".to_owned());
        let later = after(&set, &[(MODE, "live"), (ATTEMPTS, "6")]);
        assert_eq!((later[MODE].as_str(), later[ATTEMPTS].as_str()), ("skip", "6"));
        assert_eq!(after(&set, &[]), of(&[(MODE, "skip")]));
        assert_eq!(after(&later, &[]), of(&[(MODE, "skip")]));
    }

    #[test]
    fn unreadable_note_is_nobodys() {
        let node = of(&[(MODE, "manual"), (NODE_ANNOTATIONS, "{")]);
        assert_eq!(after(&node, &[(MODE, "skip")]), of(&[(MODE, "manual")]));
    }
}
