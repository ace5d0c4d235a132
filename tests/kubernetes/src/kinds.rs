//! The kinds of objects that the stand-in serves.

/// A kind of object and how the API serves it.
#[derive(Clone, Debug)]
pub struct Kind {
    /// API group; empty for the core group.
    pub group: String,
    /// Version within the group.
    pub version: String,
    /// Name of the resource in URLs.
    pub plural: String,
    /// Name of the kind in objects.
    pub kind: String,
    /// Do its objects live in a namespace?
    pub namespaced: bool,
    /// Has it a status subresource?
    pub status: bool,
    /// Is `metadata.generation` kept?
    pub generation: bool,
    /// Is it a custom resource? Some answers differ for these.
    pub custom: bool,
}

impl Kind {
    /// A custom resource, as after its CustomResourceDefinition is established. Its schema is not checked.
    pub fn custom(group: &str, version: &str, plural: &str, kind: &str) -> Self {
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            plural: plural.to_owned(),
            kind: kind.to_owned(),
            namespaced: false,
            status: false,
            generation: true,
            custom: true,
        }
    }

    /// The same kind with a status subresource.
    #[must_use]
    pub fn with_status(mut self) -> Self {
        self.status = true;
        self
    }

    /// The same kind within namespaces.
    #[must_use]
    pub fn in_namespaces(mut self) -> Self {
        self.namespaced = true;
        self
    }

    /// `pods`, or `poddisruptionbudgets.policy` where the group has a name. The store's key and the API's messages
    /// use this form.
    pub fn resource(&self) -> String {
        qualified(&self.plural, &self.group)
    }

    /// `Pod`, or `PodDisruptionBudget.policy`.
    pub(super) fn qualified_kind(&self) -> String {
        qualified(&self.kind, &self.group)
    }

    /// `v1`, or `policy/v1`.
    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
}

fn qualified(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

/// Group, plural, kind, and flags: `n` namespaced, `s` status subresource, `g` generation.
const BUILT_IN: [(&str, &str, &str, &str); 20] = [
    ("", "namespaces", "Namespace", "s"),
    ("", "nodes", "Node", "s"),
    ("", "pods", "Pod", "nsg"),
    ("", "events", "Event", "n"),
    ("", "configmaps", "ConfigMap", "n"),
    ("", "secrets", "Secret", "n"),
    ("", "serviceaccounts", "ServiceAccount", "n"),
    ("", "persistentvolumeclaims", "PersistentVolumeClaim", "ns"),
    ("", "persistentvolumes", "PersistentVolume", "s"),
    ("policy", "poddisruptionbudgets", "PodDisruptionBudget", "nsg"),
    ("apps", "deployments", "Deployment", "nsg"),
    ("apps", "replicasets", "ReplicaSet", "nsg"),
    ("apps", "statefulsets", "StatefulSet", "nsg"),
    ("apps", "daemonsets", "DaemonSet", "nsg"),
    ("apps", "controllerrevisions", "ControllerRevision", "n"),
    ("batch", "jobs", "Job", "nsg"),
    ("batch", "cronjobs", "CronJob", "nsg"),
    ("coordination.k8s.io", "leases", "Lease", "n"),
    ("rbac.authorization.k8s.io", "clusterroles", "ClusterRole", ""),
    ("rbac.authorization.k8s.io", "clusterrolebindings", "ClusterRoleBinding", ""),
];

/// The kinds that every stand-in serves.
pub(super) fn built_in() -> Vec<Kind> {
    let mut kinds: Vec<Kind> = BUILT_IN
        .iter()
        .map(|(group, plural, kind, flags)| Kind {
            group: (*group).to_owned(),
            version: "v1".to_owned(),
            plural: (*plural).to_owned(),
            kind: (*kind).to_owned(),
            namespaced: flags.contains('n'),
            status: flags.contains('s'),
            generation: flags.contains('g'),
            custom: false,
        })
        .collect();
    let attachments = Kind::custom("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment");
    kinds.push(Kind { custom: false, generation: false, status: true, ..attachments });
    kinds
}
