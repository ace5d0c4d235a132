//! The kinds of objects that the stand-in serves.

use serde_json::{Value, json};

use super::objects::{self, has, list, set, set_condition, text};

/// The resource of definitions of custom resources.
pub(super) const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

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
    /// The `openAPIV3Schema` of a custom resource; null if its objects are not checked.
    pub schema: Value,
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
            schema: Value::Null,
        }
    }

    /// The kinds that a CustomResourceDefinition defines: one for each version that is served.
    pub(super) fn defined_by(definition: &Value) -> Vec<Self> {
        let (group, plural) = (text(definition, "/spec/group"), text(definition, "/spec/names/plural"));
        let served = |version: &&Value| version.pointer("/served") == Some(&Value::Bool(true));
        let versions = list(definition, "/spec/versions").iter().filter(served);
        let kind = |version: &Value| Self {
            namespaced: text(definition, "/spec/scope") == "Namespaced",
            status: has(version, "/subresources/status"),
            schema: version.pointer("/schema/openAPIV3Schema").cloned().unwrap_or_default(),
            ..Self::custom(group, text(version, "/name"), plural, text(definition, "/spec/names/kind"))
        };
        versions.map(kind).collect()
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
const BUILT_IN: [(&str, &str, &str, &str); 25] = [
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
    ("apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition", "sg"),
    ("", "services", "Service", "ns"),
    ("rbac.authorization.k8s.io", "roles", "Role", "n"),
    ("rbac.authorization.k8s.io", "rolebindings", "RoleBinding", "n"),
    ("scheduling.k8s.io", "priorityclasses", "PriorityClass", ""),
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
            schema: Value::Null,
        })
        .collect();
    let attachments = Kind::custom("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment");
    kinds.push(Kind { custom: false, generation: false, status: true, ..attachments });
    kinds
}

/// Complete a new definition.
pub(super) fn complete(definition: &mut Value) {
    let kind = text(definition, "/spec/names/kind").to_owned();
    objects::default(definition, &["spec", "names", "singular"], kind.to_lowercase());
    objects::default(definition, &["spec", "names", "listKind"], format!("{kind}List"));
    objects::default(definition, &["spec", "conversion"], json!({"strategy": "None"}));
    let stored = |version: &&Value| version.pointer("/storage") == Some(&Value::Bool(true));
    let stored: Vec<&str> =
        list(definition, "/spec/versions").iter().filter(stored).map(|v| text(v, "/name")).collect();
    let status = json!({
        "conditions": null,
        "acceptedNames": {"plural": "", "kind": ""},
        "storedVersions": stored,
    });
    set(definition, &["status"], status);
}

/// Accept the names of a definition. Its kinds can be served from then on.
pub(super) fn establish(definition: &mut Value) {
    let names = definition.pointer("/spec/names").cloned().unwrap_or_default();
    set(definition, &["status", "acceptedNames"], names);
    let accepted = json!({"reason": "NoConflicts", "message": "no conflicts found"});
    set_condition(definition, "NamesAccepted", "True", accepted);
    let established = json!({"reason": "InitialNamesAccepted", "message": "the initial names have been accepted"});
    set_condition(definition, "Established", "True", established);
}
