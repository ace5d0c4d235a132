use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{EtcdProbe, SecretName, Unknown, item::words};

/// Default of [`KubernetesDrain::evictions_at_once`].
const EVICTIONS_AT_ONCE_DEFAULT: u32 = 10;
/// Upper bound of [`KubernetesDrain::evictions_at_once`].
pub const EVICTIONS_AT_ONCE_MAX: u32 = 100;

/// The Kubernetes cluster that runs on the machines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubernetesSpec {
    /// Where its kubeconfig is.
    #[serde(flatten)]
    pub source: KubeconfigSource,
    /// How nodes are drained.
    #[serde(default, skip_serializing_if = "KubernetesDrain::is_default")]
    pub drain: KubernetesDrain,
    /// How each control machine's etcd member is asked for its health, with the variables of [`PROBE_VARIABLES`]. None:
    /// it is not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdProbe>,
    /// The maintenance handshake as custom resources of group `lcm.mirantis.com`, beside Muster's own. None: there are
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<MaintenanceObjects>,
    /// DaemonSets with the update strategy `OnDelete` whose pods are renewed at the end of an update.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_delete: Vec<OnDeleteDaemonSets>,
    /// The controller that installs Helm charts there. It is the first add-on. None: Muster installs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub helm_controller: Option<HelmController>,
    /// The other add-ons, in the order in which they are applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addons: Vec<Addon>,
}

impl KubernetesSpec {
    /// Every add-on, in the order in which they are applied: the Helm controller first.
    #[must_use]
    pub fn all_addons(&self) -> Vec<Addon> {
        self.helm_controller.iter().map(HelmController::as_addon).chain(self.addons.iter().cloned()).collect()
    }

    /// Are there add-ons?
    #[must_use]
    pub fn has_addons(&self) -> bool {
        self.helm_controller.is_some() || !self.addons.is_empty()
    }

    /// The secrets that it refers to, each with its field.
    pub fn secrets(&self) -> impl Iterator<Item = (&SecretName, &'static str)> {
        let kubeconfig = self.source.secret().map(|name| (name, "spec.kubernetes.kubeconfig"));
        let helm = self.helm_controller.iter().filter_map(|helm| helm.manifest.secret());
        let helm = helm.map(|name| (name, "spec.kubernetes.helmController"));
        let addons = self.addons.iter().filter_map(|addon| addon.manifest.secret());
        kubeconfig.into_iter().chain(helm).chain(addons.map(|name| (name, "spec.kubernetes.addons")))
    }
}

/// The name of the add-on that [`KubernetesSpec::helm_controller`] is.
pub const HELM_CONTROLLER: &str = "helm-controller";

/// The controller that installs Helm charts in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelmController {
    /// Its version: the tag of its Deployment's image.
    pub version: String,
    /// Where its manifest is.
    pub manifest: AddonManifest,
    /// Namespace of its Deployment.
    pub namespace: String,
    /// Name of its Deployment.
    pub deployment: String,
}

impl HelmController {
    fn as_addon(&self) -> Addon {
        let deployment = AddonDeployment { namespace: self.namespace.clone(), deployment: self.deployment.clone() };
        Addon {
            name: HELM_CONTROLLER.to_owned(),
            manifest: self.manifest.clone(),
            available: vec![deployment],
            version: Some(self.version.clone()),
        }
    }
}

/// Objects that are applied in the cluster, and what must be available before the next add-on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Addon {
    /// Its name, unique in the cluster.
    pub name: String,
    /// Where its manifest is.
    pub manifest: AddonManifest,
    /// The Deployments that must be available. At least one.
    pub available: Vec<AddonDeployment>,
    /// The version of the first of them: the tag of its image, or its label `app.kubernetes.io/version`. None: it is
    /// not compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

impl fmt::Display for Addon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.version {
            Some(version) => write!(f, "{} {version}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// A Deployment of an add-on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AddonDeployment {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub deployment: String,
}

/// `namespace/name`.
impl fmt::Display for AddonDeployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.deployment)
    }
}

/// Where the manifest of an add-on is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AddonManifest {
    /// The coordinator fetches it.
    Url {
        /// An http or https URL.
        url: String,
        /// SHA-256 of its bytes, 64 lower-case hex digits.
        sha256: String,
    },
    /// It is the value of this secret.
    Secret {
        /// The secret.
        secret: SecretName,
    },
}

impl AddonManifest {
    /// The secret whose value it is.
    #[must_use]
    pub const fn secret(&self) -> Option<&SecretName> {
        match self {
            Self::Secret { secret } => Some(secret),
            Self::Url { .. } => None,
        }
    }
}

/// Some DaemonSets with the update strategy `OnDelete`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OnDeleteDaemonSets {
    /// Their namespace.
    pub namespace: String,
    /// How their names begin; empty: in any way.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name_prefix: String,
    /// Labels that the pods of each of them have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
}

impl OnDeleteDaemonSets {
    /// Tungsten Fabric's vRouter: what an item with the runner `vrouter-restart` means.
    #[must_use]
    pub fn of_vrouter() -> Self {
        Self { namespace: "tf".to_owned(), name_prefix: "tf-vrouter-".to_owned(), match_labels: BTreeMap::new() }
    }
}

/// The maintenance handshake as custom resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaintenanceObjects {
    /// Application controllers that the cluster has, whether they hold locks yet or not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub controllers: Vec<ObjectController>,
}

/// An application controller that answers requests with custom resources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectController {
    /// `spec.controllerName` of its locks.
    pub name: String,
    /// The finalizer that it puts on each request: it has seen this one. None: its locks exist before any request, and
    /// one that is missing means that it has nothing there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finalizer: Option<String>,
    /// The annotation that it puts on a request that it has handled. None: it has 10 s from its
    /// finalizer on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handled_annotation: Option<String>,
    /// Labels, `KEY=VALUE`: it guards each node that has one of them, so that a missing lock there is no answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_labels: Vec<String>,
}

/// Where a cluster's kubeconfig is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KubeconfigSource {
    /// It is the value of this secret.
    #[serde(rename = "kubeconfig")]
    Secret(SecretName),
    /// It is this file on the control machines, an absolute path.
    #[serde(rename = "adminConf")]
    AdminConf(String),
}

impl KubeconfigSource {
    /// The secret whose value it is.
    #[must_use]
    pub const fn secret(&self) -> Option<&SecretName> {
        match self {
            Self::Secret(name) => Some(name),
            Self::AdminConf(_) => None,
        }
    }
}

/// Variables in [`KubernetesSpec::etcd`]: they differ by machine.
pub const PROBE_VARIABLES: [&str; 3] = ["machine.name", "machine.hostname", "machine.internalIP"];

/// How the pods of a node are moved away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubernetesDrain {
    /// Pods without a controller.
    pub unmanaged_pods: UnmanagedPods,
    /// Pods with emptyDir volumes keep a machine in service. Otherwise they are evicted, and lose that data.
    pub keep_local_storage: bool,
    /// A node is drained only when its volumes are detached.
    pub wait_for_volumes: bool,
    /// Most evictions in flight in the cluster.
    pub evictions_at_once: u32,
}

impl Default for KubernetesDrain {
    fn default() -> Self {
        Self {
            unmanaged_pods: UnmanagedPods::Keep,
            keep_local_storage: false,
            wait_for_volumes: true,
            evictions_at_once: EVICTIONS_AT_ONCE_DEFAULT,
        }
    }
}

impl KubernetesDrain {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

words!(
    /// What becomes of pods that no controller would start elsewhere.
    UnmanagedPods {
        /// They keep a machine in service.
        Keep = "keep",
        /// They are evicted, and gone.
        Delete = "delete",
    }
);
