//! Objects of the suite as JSON: nodes, workloads that run on these nodes only, and budgets.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{RUN_LABEL, STAGE_LABEL, TYPE_LABEL, list, text};

/// Name of every pod's container.
pub(super) const CONTAINER: &str = "c";
/// No kubelet ever pulls it.
pub(super) const IMAGE: &str = "registry.invalid/muster-test:1";
/// Grace period of the pods, in seconds.
const GRACE: u64 = 2;

/// Where the Lease of a node is, by which its kubelet shows that it lives.
pub(super) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// Path of a node's Lease.
pub(super) fn lease_path(node: &str) -> String {
    format!("{LEASES}/{node}")
}

/// A time with microseconds, as Leases have it.
pub(super) fn micro_time(time: Timestamp) -> String {
    format!("{time:.6}")
}

/// Which nodes and workloads belong together: those of one scenario.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Name of the run.
    pub(super) run: String,
    /// Name of the stage, which is its namespace too.
    pub(super) stage: String,
}

impl Place {
    fn labels(&self, app: &str) -> Value {
        json!({"app": app, RUN_LABEL: self.run})
    }

    /// A node whose taint only this run's pods tolerate, and those that tolerate every taint.
    pub(super) fn node(&self, name: &str, machine_type: &str, address: &str, boot_id: &str) -> Value {
        let size = json!({"cpu": "16", "memory": "64Gi", "pods": "110", "ephemeral-storage": "100Gi"});
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                RUN_LABEL: self.run,
                STAGE_LABEL: self.stage,
                TYPE_LABEL: machine_type,
            }},
            "spec": {"taints": [{"key": RUN_LABEL, "value": self.run, "effect": "NoSchedule"}]},
            "status": {
                "capacity": size,
                "allocatable": size,
                "conditions": node_conditions(),
                "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
                "nodeInfo": {
                    "bootID": boot_id,
                    "machineID": name,
                    "systemUUID": name,
                    "kernelVersion": "6.8.0",
                    "osImage": "none",
                    "operatingSystem": "linux",
                    "architecture": "amd64",
                    "containerRuntimeVersion": "none://1.0.0",
                    "kubeletVersion": "v1.36.2",
                },
            },
        })
    }

    /// The Lease of a node.
    pub(super) fn lease(&self, node: &str, node_uid: &str) -> Value {
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": node,
                "labels": {RUN_LABEL: self.run},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}],
            },
            "spec": {
                "holderIdentity": node,
                "leaseDurationSeconds": 40,
                "renewTime": micro_time(Timestamp::now()),
            },
        })
    }

    /// The spec of pods that run on the stage's nodes of this type, or on all of them.
    fn pod_spec(&self, machine_type: Option<&str>) -> Value {
        let mut nodes = json!({STAGE_LABEL: self.stage});
        if let Some(machine_type) = machine_type {
            nodes[TYPE_LABEL] = machine_type.into();
        }
        json!({
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": GRACE,
            "nodeSelector": nodes,
            "tolerations": self.tolerations(),
            "containers": [{"name": CONTAINER, "image": IMAGE}],
        })
    }

    fn tolerations(&self) -> Value {
        json!([{"key": RUN_LABEL, "operator": "Equal", "value": self.run, "effect": "NoSchedule"}])
    }

    fn workload(&self, kind: &str, app: &str, machine_type: Option<&str>) -> Value {
        json!({
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": {"name": app, "labels": self.labels(app)},
            "spec": {
                "selector": {"matchLabels": {"app": app}},
                "template": {"metadata": {"labels": self.labels(app)}, "spec": self.pod_spec(machine_type)},
            },
        })
    }

    /// A Deployment.
    pub(super) fn deployment(&self, app: &str, replicas: usize, machine_type: Option<&str>) -> Value {
        let mut object = self.workload("Deployment", app, machine_type);
        object["spec"]["replicas"] = replicas.into();
        object
    }

    /// A StatefulSet. Its Service need not exist.
    pub(super) fn stateful_set(&self, app: &str, replicas: usize) -> Value {
        let mut object = self.workload("StatefulSet", app, None);
        object["spec"]["replicas"] = replicas.into();
        object["spec"]["serviceName"] = app.into();
        object
    }

    /// A DaemonSet that renews no pod by itself.
    pub(super) fn daemon_set(&self, app: &str) -> Value {
        let mut object = self.workload("DaemonSet", app, None);
        object["spec"]["updateStrategy"] = json!({"type": "OnDelete"});
        object
    }

    /// A pod without a controller, on some worker.
    pub(super) fn bare_pod(&self, app: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": app, "labels": self.labels(app)},
            "spec": self.pod_spec(Some("worker")),
        })
    }

    /// The mirror of a static pod of this node.
    pub(super) fn mirror_pod(&self, app: &str, node: &str, node_uid: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": format!("{app}-{node}"),
                "labels": self.labels(app),
                "annotations": {
                    "kubernetes.io/config.hash": "abc",
                    "kubernetes.io/config.mirror": "abc",
                    "kubernetes.io/config.seen": "2026-11-27T00:00:00Z",
                    "kubernetes.io/config.source": "file",
                },
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": true},
                ],
            },
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": GRACE,
                "tolerations": self.tolerations(),
                "containers": [{"name": CONTAINER, "image": IMAGE}],
            },
        })
    }

    /// A budget over an app. `field`: `minAvailable` or `maxUnavailable`.
    pub(super) fn budget(&self, app: &str, field: &str, pods: usize) -> Value {
        json!({
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": app, "labels": self.labels(app)},
            "spec": {"selector": {"matchLabels": {"app": app}}, field: pods},
        })
    }
}

/// Do pods of this spec tolerate the taint of every run's nodes, whatever its value?
pub(super) fn tolerates_runs(spec: &Value) -> bool {
    list(spec, "/tolerations").iter().any(|toleration| {
        text(toleration, "/operator") == "Exists"
            && matches!(text(toleration, "/key"), "" | RUN_LABEL)
            && matches!(text(toleration, "/effect"), "" | "NoSchedule")
    })
}

/// Conditions of a node whose kubelet is well.
pub(super) fn node_conditions() -> Value {
    let now = format!("{:.0}", Timestamp::now());
    let condition = |(kind, status, reason): (&str, &str, &str)| {
        json!({
            "type": kind,
            "status": status,
            "reason": reason,
            "message": reason,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        })
    };
    let all = [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID"),
        ("Ready", "True", "KubeletReady"),
    ];
    all.map(condition).to_vec().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerations_of_every_taint_are_known() {
        let tolerates = |toleration: Value| tolerates_runs(&json!({"tolerations": [toleration]}));
        for toleration in [
            json!({"operator": "Exists"}),
            json!({"operator": "Exists", "effect": "NoSchedule"}),
            json!({"operator": "Exists", "key": RUN_LABEL}),
        ] {
            assert!(tolerates(toleration.clone()), "{toleration}");
        }
        for toleration in [
            json!({"operator": "Exists", "effect": "NoExecute"}),
            json!({"operator": "Exists", "key": "node-role.kubernetes.io/control-plane"}),
            json!({"operator": "Equal", "key": RUN_LABEL, "value": "another"}),
        ] {
            assert!(!tolerates(toleration.clone()), "{toleration}");
        }
        assert!(!tolerates_runs(&json!({})));
    }
}
