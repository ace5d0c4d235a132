//! Annotations for application controllers on a node, such as how its instances are migrated. What an operator set
//! there with kubectl stays; what Muster set is noted beside it, on the node, so that exactly that is taken back.

use std::collections::BTreeMap;

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
    let path = format!("/api/v1/nodes/{}", segment(&wanted.node)?);
    let node: NodeObject = match session.send(Call::get(path)).await?.object() {
        Err(KubernetesFailure::NotFound(_)) if wanted.values.is_empty() => return Ok(()),
        node => node?,
    };
    let metadata = node.metadata;
    let changes = changes(&metadata.annotations, &wanted.values);
    if changes.is_empty() {
        return Ok(());
    }
    let object = NodeRef { name: metadata.name, uid: metadata.uid, resource_version: metadata.resource_version };
    patch_node(session, &object, &Value::Object(changes)).await
}

/// The changes that give a node with these annotations the wanted ones, null for one that goes. One with a value that
/// is not Muster's is left alone.
fn changes(now: &Annotations, wanted: &Annotations) -> Map<String, Value> {
    let noted: Annotations =
        now.get(NODE_ANNOTATIONS).and_then(|note| serde_json::from_str(note).ok()).unwrap_or_default();
    let is_ours = |name: &str| now.get(name).is_some_and(|value| noted.get(name) == Some(value));
    let (mut changes, mut note) = (Map::new(), Annotations::new());
    for (name, value) in wanted.iter().filter(|(name, _)| !now.contains_key(*name) || is_ours(name)) {
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
    use super::*;

    const MODE: &str = "openstack.lcm.mirantis.com/instance_migration_mode";
    const ATTEMPTS: &str = "openstack.lcm.mirantis.com/instance_migration_attempts";

    fn of(values: &[(&str, &str)]) -> Annotations {
        values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
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
