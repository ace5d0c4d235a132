//! Persistent volumes: claims that are bound at once, and VolumeAttachments that follow the pods.

use std::{collections::BTreeSet, sync::Arc};

use anyhow::Result;
use serde_json::{Value, json};

use super::super::{
    Config,
    objects::{hash, list, name, namespace, text, uid},
    state::State,
};
use super::{Memory, create, is_finished};

const ATTACHMENTS: &str = "volumeattachments.storage.k8s.io";

/// Create a claim together with the volume that it is bound to.
pub(in super::super) fn create_claim(state: &mut State, namespace: &str, claim: &str) -> Result<Arc<Value>> {
    let volume = format!("pv-{namespace}-{claim}");
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let mut bound = spec.clone();
    super::super::objects::set(&mut bound, &["volumeName"], volume.as_str());
    let object = json!({"metadata": {"name": claim}, "spec": bound, "status": {"phase": "Bound"}});
    let created = create(state, "persistentvolumeclaims", namespace, object)?;
    let reference = json!({
        "kind": "PersistentVolumeClaim",
        "apiVersion": "v1",
        "namespace": namespace,
        "name": claim,
        "uid": uid(&created),
    });
    let object = json!({
        "metadata": {"name": volume},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
            "claimRef": reference,
            "csi": {"driver": "csi.example.com", "volumeHandle": volume},
            "persistentVolumeReclaimPolicy": "Retain",
        },
        "status": {"phase": "Bound"},
    });
    create(state, "persistentvolumes", "", object)?;
    Ok(created)
}

pub(super) fn tick(state: &mut State, memory: &mut Memory, config: &Config) {
    let needed = needed(state);
    let mut attached = BTreeSet::new();
    for attachment in state.store.all(ATTACHMENTS) {
        let pair = (
            text(&attachment, "/spec/source/persistentVolumeName").to_owned(),
            text(&attachment, "/spec/nodeName").to_owned(),
        );
        if needed.contains(&pair) {
            memory.forget("detach", uid(&attachment));
            attached.insert(pair);
        } else if memory.age("detach", uid(&attachment)) >= config.detach_after {
            state.store.remove(ATTACHMENTS, "", name(&attachment));
        } else {
            attached.insert(pair);
        }
    }
    for (volume, node) in needed.difference(&attached) {
        let object = json!({
            "metadata": {"name": format!("csi-{}", hash(&json!([volume, node])))},
            "spec": {"attacher": "csi.example.com", "nodeName": node, "source": {"persistentVolumeName": volume}},
            "status": {"attached": true},
        });
        drop(create(state, ATTACHMENTS, "", object));
    }
}

/// Pairs of volume and node that a pod needs.
fn needed(state: &State) -> BTreeSet<(String, String)> {
    let mut needed = BTreeSet::new();
    for pod in state.store.all("pods").iter().filter(|pod| !is_finished(pod)) {
        let node = text(pod, "/spec/nodeName");
        for volume in list(pod, "/spec/volumes").iter().filter(|_| !node.is_empty()) {
            let claim = text(volume, "/persistentVolumeClaim/claimName");
            if let Some(claim) = state.store.get("persistentvolumeclaims", namespace(pod), claim) {
                needed.insert((text(&claim, "/spec/volumeName").to_owned(), node.to_owned()));
            }
        }
    }
    needed
}
