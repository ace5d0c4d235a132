//! The handle's view of the cluster: nodes, objects, controllers, samples.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{
    Kubernetes,
    access::Rule,
    controllers::{Controller, STUCK, UNREADY, create},
    objects::{name, set, set_condition, unset},
    sampler::{self, Replicas},
    state::lock,
    times,
};

impl Kubernetes {
    /// Accept a token with every right, such as a test's own client uses.
    pub fn add_admin(&self, token: &str) {
        self.add_token(token, "cluster-admin", vec![Rule::everything()]);
    }

    /// Create a namespace.
    pub fn namespace(&self, name: &str) -> Result<()> {
        self.put("namespaces", "", json!({"metadata": {"name": name}}))
    }

    /// Add a node that is Ready.
    pub fn add_node(&self, name: &str, ip: &str, boot_id: &str) -> Result<()> {
        let size = json!({"cpu": "64", "memory": "256Gi", "pods": "500", "ephemeral-storage": "1000Gi"});
        let conditions = json!([
            node_condition("Ready", "True", "KubeletReady"),
            node_condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
            node_condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        ]);
        let labels = json!({
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        });
        let object = json!({
            "metadata": {"name": name, "labels": labels, "annotations": {"node.alpha.kubernetes.io/ttl": "0"}},
            "status": {
                "capacity": size,
                "allocatable": size,
                "conditions": conditions,
                "addresses": [{"type": "InternalIP", "address": ip}, {"type": "Hostname", "address": name}],
                "nodeInfo": {
                    "bootID": boot_id,
                    "machineID": name,
                    "systemUUID": name,
                    "kernelVersion": "6.8.0",
                    "osImage": "Ubuntu 24.04 LTS",
                    "operatingSystem": "linux",
                    "architecture": "amd64",
                    "containerRuntimeVersion": "containerd://2.0.0",
                    "kubeletVersion": "v1.36.2",
                },
            },
        });
        self.put("nodes", "", object)
    }

    /// Set the boot id that a node reports, as after a reboot.
    pub fn set_boot_id(&self, node: &str, boot_id: &str) -> Result<()> {
        self.modify("nodes", "", node, |node| set(node, &["status", "nodeInfo", "bootID"], boot_id))
    }

    /// Set whether a node is Ready. Only the kubelet of a Ready node acts.
    pub fn set_ready(&self, node: &str, ready: bool) -> Result<()> {
        let (status, reason) = if ready { ("True", "KubeletReady") } else { ("Unknown", "NodeStatusUnknown") };
        self.modify("nodes", "", node, |node| {
            let now = times::now();
            let fields = json!({"reason": reason, "message": reason, "lastHeartbeatTime": now});
            set_condition(node, "Ready", status, fields);
        })
    }

    /// Set or remove a label of a node.
    pub fn label_node(&self, node: &str, key: &str, value: Option<&str>) -> Result<()> {
        self.modify("nodes", "", node, |node| match value {
            Some(value) => set(node, &["metadata", "labels", key], value),
            None => unset(node, &["metadata", "labels", key]),
        })
    }

    /// Set whether a pod is ready. A pod that is set unready stays so until it is set ready.
    pub fn set_pod_ready(&self, namespace: &str, pod: &str, ready: bool) -> Result<()> {
        self.modify("pods", namespace, pod, |pod| {
            if ready {
                unset(pod, &["metadata", "annotations", UNREADY]);
            } else {
                set(pod, &["metadata", "annotations", UNREADY], "true");
            }
            for condition in ["Ready", "ContainersReady"] {
                let status = if ready { "True" } else { "False" };
                set_condition(pod, condition, status, json!({"lastProbeTime": null}));
            }
        })
    }

    /// Keep a pod from ending while it terminates, or let it end.
    pub fn set_stuck(&self, namespace: &str, pod: &str, stuck: bool) -> Result<()> {
        self.modify("pods", namespace, pod, |pod| {
            if stuck {
                set(pod, &["metadata", "annotations", STUCK], "true");
            } else {
                unset(pod, &["metadata", "annotations", STUCK]);
            }
        })
    }

    /// Take an image out of all registries, or put it there.
    pub fn set_missing_image(&self, image: &str, missing: bool) {
        let mut state = lock(&self.shared.state);
        if missing {
            state.missing_images.insert(image.to_owned());
        } else {
            state.missing_images.remove(image);
        }
    }

    /// Create any object of a kind that is served, such as `pods` or `poddisruptionbudgets.policy`. A given status is
    /// kept.
    pub fn put(&self, resource: &str, namespace: &str, object: Value) -> Result<()> {
        create(&mut lock(&self.shared.state), resource, namespace, object).map(drop)
    }

    /// Change any object. There are no checks: finalizers and UIDs can be changed too, and `metadata.generation`
    /// stays as it is.
    pub fn modify(&self, resource: &str, namespace: &str, name: &str, change: impl FnOnce(&mut Value)) -> Result<()> {
        let mut state = lock(&self.shared.state);
        let object = state.store.get(resource, namespace, name);
        let object = object.with_context(|| format!("there is no {resource} {namespace}/{name}"))?;
        state.store.update(resource, &object, change);
        Ok(())
    }

    /// Remove any object at once, without grace and finalizers.
    pub fn remove(&self, resource: &str, namespace: &str, name: &str) -> Result<()> {
        let removed = lock(&self.shared.state).store.remove(resource, namespace, name);
        ensure!(removed.is_some(), "there is no {resource} {namespace}/{name}");
        Ok(())
    }

    /// An object as it is stored.
    pub fn object(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        lock(&self.shared.state).store.get(resource, namespace, name)
    }

    /// All objects of a resource in all namespaces.
    pub fn objects(&self, resource: &str) -> Vec<Arc<Value>> {
        lock(&self.shared.state).store.all(resource)
    }

    /// Names of the pods on a node, terminating ones included, as `NAMESPACE/NAME`.
    pub fn pods_on(&self, node: &str) -> Vec<String> {
        let pods = self.objects("pods");
        let here = pods.iter().filter(|pod| super::objects::text(pod, "/spec/nodeName") == node);
        here.map(|pod| format!("{}/{}", super::objects::namespace(pod), name(pod))).collect()
    }

    /// The newest resourceVersion.
    pub fn revision(&self) -> u64 {
        lock(&self.shared.state).store.revision()
    }

    /// Forget the history: watches and lists from older resourceVersions get 410.
    pub fn compact(&self) {
        lock(&self.shared.state).store.compact();
    }

    /// Pause or resume a controller.
    pub fn pause(&self, controller: Controller, paused: bool) {
        let mut state = lock(&self.shared.state);
        if paused {
            state.paused.insert(controller);
        } else {
            state.paused.remove(&controller);
        }
    }

    /// Ready replicas of every workload.
    pub fn ready_replicas(&self) -> Vec<Replicas> {
        sampler::sample(&lock(&self.shared.state).store)
    }

    /// Start to record the lowest count of ready replicas. Later changes are recorded at the moment they happen.
    pub fn reset_lowest_ready(&self) {
        let mut state = lock(&self.shared.state);
        let sample = sampler::sample(&state.store);
        state.store.lowest_ready = sample.into_iter().map(|replicas| (replicas.workload, replicas.ready)).collect();
    }
}

fn node_condition(kind: &str, status: &str, reason: &str) -> Value {
    let now = times::now();
    json!({
        "type": kind,
        "status": status,
        "reason": reason,
        "message": reason,
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    })
}
