//! Add-ons of a cluster: what is recorded of each, and what is known of them while the process lives.

use std::{collections::BTreeMap, fmt, sync::Arc};

use muster_proto::model::AddonDeployment;
use serde::{Deserialize, Serialize};

use super::KubernetesFailure;
use crate::facts::{KubernetesAsked, SecretRow, Seen};

/// An add-on that was applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddonRow {
    /// What was applied last: `sha256:HEX`, or `secret:NAME@VERSION`.
    pub content: String,
    /// Its version in the manifest then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// When that was, in Unix milliseconds.
    pub applied_at_ms: u64,
    /// When this content was applied first, in Unix milliseconds.
    #[serde(default)]
    pub since_ms: u64,
    /// Number of times that it was applied.
    pub applications: u32,
    /// Was it ever found available? From then on it is applied by updates alone.
    pub installed: bool,
    /// When it was last found as it should be and that was recorded, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_at_ms: Option<u64>,
    /// The last update that found it as it should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified_in: Option<String>,
}

/// A Deployment at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeploymentState {
    /// The tag of its first container's image; where that has none, its label `app.kubernetes.io/version`.
    pub version: Option<String>,
    /// `spec.replicas`.
    pub wanted: i64,
    /// `status.readyReplicas`.
    pub ready: i64,
    /// Has the rollout of its newest spec come to its end, as `kubectl rollout status` says, with at least one replica?
    pub available: bool,
    /// What speaks against that; empty: nothing does.
    pub message: String,
}

/// The Deployments that were asked for. None: there is no such Deployment.
pub type DeploymentStates = BTreeMap<AddonDeployment, Option<DeploymentState>>;

/// The text of an add-on's manifest, and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddonText {
    /// It is fetched.
    Url {
        /// From here.
        url: String,
        /// SHA-256 of its bytes, in hex.
        sha256: String,
    },
    /// It is the value of this secret.
    Secret(Arc<SecretRow>),
    /// It was read. No core makes this one.
    Read {
        /// All of it.
        text: ManifestText,
        /// Is it the value of a secret?
        is_secret: bool,
    },
}

/// The text of a manifest. It may be a secret's value, so no log shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct ManifestText(pub Arc<str>);

impl fmt::Debug for ManifestText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ManifestText({} bytes)", self.0.len())
    }
}

/// An add-on to apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddonToApply {
    /// Its name.
    pub name: String,
    /// Its version in the manifest.
    pub version: Option<String>,
    /// For [`AddonRow::content`].
    pub content: String,
    /// Namespace of its objects that name none.
    pub namespace: String,
    /// Its manifest.
    pub text: AddonText,
}

/// What is known of a cluster's add-ons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddonsObservation {
    /// The open question; one at a time.
    pub asked: Option<KubernetesAsked>,
    /// The Deployments, and when they were asked for.
    pub seen: Option<Seen<DeploymentStates>>,
    /// Why the last look has no answer. None: it had one.
    pub failure: Option<Seen<KubernetesFailure>>,
    /// The add-on that was not applied when that was tried last, and why.
    pub refused: Option<(String, Seen<KubernetesFailure>)>,
    /// The add-on that is due and was not applied yet, and since when, in Unix milliseconds.
    pub due: Option<(String, u64)>,
    /// When this process applied each add-on last, in monotonic milliseconds: the wall clock may step back.
    pub applied: BTreeMap<String, u64>,
    /// The time from which an update looks at its add-ons, as it is recorded in Unix milliseconds, and in monotonic
    /// milliseconds of this process.
    pub verified_from: Option<(u64, u64)>,
}
