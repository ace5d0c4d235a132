//! What a check of a whole cluster asks its API server, and the answers. Nothing of it is kept.

use core::fmt;
use std::collections::BTreeSet;

use super::{ClusterLoad, ControlState, KubernetesFailure};

/// A right of the coordinator's account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// Such as `list`.
    pub verb: &'static str,
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Such as `pods`.
    pub resource: &'static str,
    /// Such as `eviction`; empty: none.
    pub subresource: &'static str,
    /// The only object; empty: all.
    pub name: &'static str,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        for (separator, part) in [(".", self.group), ("/", self.subresource), (" ", self.name)] {
            if !part.is_empty() {
                write!(f, "{separator}{part}")?;
            }
        }
        Ok(())
    }
}

const fn right(verb: &'static str, resource: &'static str, group: &'static str) -> Right {
    Right { verb, group, resource, subresource: "", name: "" }
}

/// Every right of packaging/kubernetes/rbac.yaml.
pub const RIGHTS: [Right; 18] = [
    Right { name: "kube-system", ..right("get", "namespaces", "") },
    right("get", "nodes", ""),
    right("list", "nodes", ""),
    right("patch", "nodes", ""),
    right("delete", "nodes", ""),
    right("list", "pods", ""),
    Right { subresource: "eviction", ..right("create", "pods", "") },
    right("list", "poddisruptionbudgets", "policy"),
    right("list", "volumeattachments", "storage.k8s.io"),
    right("list", "persistentvolumes", ""),
    right("create", "events", ""),
    right("list", "deployments", "apps"),
    right("list", "daemonsets", "apps"),
    right("list", "controllerrevisions", "apps"),
    right("list", "cronjobs", "batch"),
    right("list", "plans", "autopilot.k0sproject.io"),
    right("list", "plans", "upgrade.cattle.io"),
    right("list", "machinehealthchecks", "cluster.x-k8s.io"),
];

/// Every right of packaging/kubernetes/rbac-maintenance.yaml, which clusters with `kubernetes.maintenance` need too.
pub const MAINTENANCE_RIGHTS: [Right; 13] = [
    right("list", "clustermaintenancerequests", LCM),
    right("create", "clustermaintenancerequests", LCM),
    right("delete", "clustermaintenancerequests", LCM),
    right("list", "nodemaintenancerequests", LCM),
    right("create", "nodemaintenancerequests", LCM),
    right("delete", "nodemaintenancerequests", LCM),
    right("list", "nodedeletionrequests", LCM),
    right("create", "nodedeletionrequests", LCM),
    right("delete", "nodedeletionrequests", LCM),
    right("list", "clusterworkloadlocks", LCM),
    right("list", "nodeworkloadlocks", LCM),
    right("get", "customresourcedefinitions", "apiextensions.k8s.io"),
    right("create", "customresourcedefinitions", "apiextensions.k8s.io"),
];

/// API group of the custom resources of the maintenance handshake.
const LCM: &str = "lcm.mirantis.com";

/// The right of packaging/kubernetes/rbac-delete.yaml, for an operator's word about a single pod alone.
pub const DELETE_PODS: Right = right("delete", "pods", "");

/// The right of packaging/kubernetes/rbac-addons.yaml: an add-on's manifest may have any object.
pub const EVERYTHING: Right = right("*", "*", "*");

/// The answers of an API server that belongs to the right cluster. Each part may have failed by itself.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// Its address.
    pub server: String,
    /// UID of namespace `kube-system`.
    pub cluster_uid: String,
    /// Its version, such as `v1.36.2`.
    pub version: Result<String, KubernetesFailure>,
    /// The rights that the account lacks.
    pub missing: Result<Vec<Right>, KubernetesFailure>,
    /// May it delete pods ([`DELETE_PODS`])?
    pub may_delete: Result<bool, KubernetesFailure>,
    /// May it apply add-ons ([`EVERYTHING`])?
    pub may_apply: Result<bool, KubernetesFailure>,
    /// The API servers of all control machines.
    pub control_plane: Result<Vec<ControlState>, KubernetesFailure>,
    /// The nodes, and what is on them.
    pub nodes: Result<Nodes, KubernetesFailure>,
    /// Objects among which other programs are that drain or reboot nodes.
    pub programs: Programs,
    /// The maintenance handshake as custom resources. None: the manifest does not want it.
    pub handshake: Option<Handshake>,
}

/// What the maintenance handshake as custom resources finds.
#[derive(Clone, Debug)]
pub struct Handshake {
    /// The rights that the account lacks for it.
    pub missing: Result<Vec<Right>, KubernetesFailure>,
    /// The definitions of the custom resources.
    pub definitions: Result<Definitions, KubernetesFailure>,
    /// Names of the controllers that hold locks.
    pub controllers: Result<BTreeSet<String>, KubernetesFailure>,
}

/// The definitions of the handshake's custom resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Definitions {
    /// Number of those that are there, with the fields that Muster writes.
    pub usable: usize,
    /// Names of those that are not there.
    pub absent: Vec<String>,
    /// Why others cannot be used, each as a sentence.
    pub unusable: Vec<String>,
}

/// The nodes of a cluster.
#[derive(Clone, Debug)]
pub struct Nodes {
    /// They, and what is on them.
    pub load: ClusterLoad,
    /// What other programs left on them.
    pub marks: Vec<NodeMarks>,
}

/// Annotations of other programs on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMarks {
    /// The Cluster API cluster that it belongs to.
    pub cluster_api: Option<String>,
    /// Does the cluster-autoscaler leave it alone?
    pub scale_down_disabled: bool,
}

/// Objects among which other programs are that drain or reboot nodes.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    /// All Deployments, DaemonSets and CronJobs.
    pub workloads: Vec<Workload>,
    /// Orders to some of those programs.
    pub orders: Vec<Order>,
    /// What could not be listed, and why.
    pub unknown: Vec<(&'static str, KubernetesFailure)>,
}

/// A Deployment, a DaemonSet, or a CronJob.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// Its kind, as `kubectl` takes it.
    pub kind: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Value of its label `app.kubernetes.io/name`.
    pub app: String,
    /// Images of its containers.
    pub images: Vec<String>,
    /// Does it want any pods?
    pub runs: bool,
    /// Value of the annotation by which kured's daemons exclude each other.
    pub kured_lock: Option<String>,
}

/// Kinds of custom resources by which other programs are told to disturb nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderKind {
    /// k0s autopilot updates machines.
    AutopilotPlan,
    /// The system-upgrade-controller of Rancher updates nodes.
    UpgradePlan,
    /// Cluster API replaces machines whose node is not Ready.
    HealthCheck,
}

impl OrderKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::AutopilotPlan, Self::UpgradePlan, Self::HealthCheck];

    /// API group and resource.
    #[must_use]
    pub const fn resource(self) -> (&'static str, &'static str) {
        match self {
            Self::AutopilotPlan => ("autopilot.k0sproject.io", "plans"),
            Self::UpgradePlan => ("upgrade.cattle.io", "plans"),
            Self::HealthCheck => ("cluster.x-k8s.io", "machinehealthchecks"),
        }
    }
}

/// A custom resource that tells another program to disturb nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Its kind.
    pub kind: OrderKind,
    /// Its namespace; empty: it has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its `status.state`.
    pub state: String,
    /// Its `spec.clusterName`.
    pub cluster: String,
    /// Is it paused by the annotation of Cluster API?
    pub paused: bool,
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// The rights of a shipped file, each as its text.
    fn shipped(text: &str) -> BTreeSet<String> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(text).expect("YAML");
        let role = documents.iter().find(|document| document["kind"] == "ClusterRole").expect("a ClusterRole");
        let mut rights = BTreeSet::new();
        for rule in role["rules"].as_array().expect("rules") {
            let texts = |name: &str| -> Vec<&str> {
                rule[name].as_array().into_iter().flatten().map(|text| text.as_str().expect("text")).collect()
            };
            let names = if rule["resourceNames"].is_null() { vec![""] } else { texts("resourceNames") };
            for (verb, group) in texts("verbs")
                .into_iter()
                .flat_map(|verb| texts("apiGroups").into_iter().map(move |group| (verb, group)))
            {
                for (resource, name) in
                    texts("resources").into_iter().flat_map(|resource| names.iter().map(move |name| (resource, *name)))
                {
                    rights.insert(format!("{verb} {group} {resource} {name}"));
                }
            }
        }
        rights
    }

    #[test]
    fn rights_are_those_of_shipped_files() {
        let text = |right: &Right| {
            let Right { verb, group, resource, subresource, name } = right;
            let slash = if subresource.is_empty() { "" } else { "/" };
            format!("{verb} {group} {resource}{slash}{subresource} {name}")
        };
        let alone = shipped(include_str!("../../../../packaging/kubernetes/rbac-delete.yaml"));
        assert_eq!(alone, BTreeSet::from([text(&DELETE_PODS)]));
        let always = shipped(include_str!("../../../../packaging/kubernetes/rbac.yaml"));
        let maintenance = shipped(include_str!("../../../../packaging/kubernetes/rbac-maintenance.yaml"));
        for (rights, shipped) in [(&RIGHTS[..], always), (&MAINTENANCE_RIGHTS[..], maintenance)] {
            let checked: BTreeSet<String> = rights.iter().map(text).collect();
            assert_eq!(checked.len(), rights.len(), "a right twice");
            assert_eq!(checked, shipped);
        }
    }

    #[test]
    fn orders_have_rights() {
        for kind in OrderKind::ALL {
            let (group, resource) = kind.resource();
            assert!(RIGHTS.contains(&right("list", resource, group)), "{kind:?}");
        }
    }

    #[test]
    fn right_reads_as_kubectl_writes_it() {
        let texts: Vec<String> = RIGHTS.iter().map(ToString::to_string).collect();
        assert!(texts.contains(&"get namespaces kube-system".to_owned()), "{texts:?}");
        assert!(texts.contains(&"create pods/eviction".to_owned()), "{texts:?}");
        assert!(texts.contains(&"list deployments.apps".to_owned()), "{texts:?}");
    }
}
