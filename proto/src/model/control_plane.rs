use std::fmt;

use super::Epoch;
use serde::{Deserialize, Serialize};

/// Largest kubeconfig.
pub const KUBECONFIG_BYTES_MAX: usize = 64 << 10;
/// Longest URL of etcd's health, and longest path of a file.
pub const PROBE_TEXT_BYTES_MAX: usize = 1024;

/// A call to a control machine's agent: what nothing but that machine can tell about its Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlPlaneCall {
    /// Number of the call and its answer.
    pub id: u64,
    /// Epoch of the calling coordinator.
    pub epoch: Epoch,
    /// The operation.
    pub op: ControlPlaneOp,
}

/// An operation. All are read-only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlPlaneOp {
    /// Ask the machine's etcd member for its own health. Answered with [`ControlPlaneReply::EtcdHealth`].
    EtcdHealth(EtcdProbe),
    /// Read the kubeconfig of the cluster's administrator. Answered with [`ControlPlaneReply::AdminConf`].
    AdminConf {
        /// The file, an absolute path.
        path: String,
    },
}

/// Where and how a machine's etcd member is asked for its health. As a setting it has variables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EtcdProbe {
    /// URL of its health, at an address of the machine alone.
    pub health: String,
    /// File with the CA of its certificate. None: http.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
    /// Credentials of a client. None: it asks for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<EtcdClient>,
}

/// Files with the credentials of a client of etcd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EtcdClient {
    /// The certificate.
    pub certificate_file: String,
    /// Its key.
    pub key_file: String,
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlPlaneAnswer {
    /// Number of the call.
    pub id: u64,
    /// The reply. Err: why there is none, in one line.
    pub result: Result<ControlPlaneReply, String>,
}

/// The reply to a successful call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlPlaneReply {
    /// To [`ControlPlaneOp::EtcdHealth`].
    EtcdHealth(EtcdHealth),
    /// To [`ControlPlaneOp::AdminConf`].
    AdminConf(AdminConf),
}

impl ControlPlaneOp {
    /// Is this a reply to this operation?
    #[must_use]
    pub const fn is_answered_by(&self, reply: &ControlPlaneReply) -> bool {
        match self {
            Self::EtcdHealth(_) => matches!(reply, ControlPlaneReply::EtcdHealth(_)),
            Self::AdminConf { .. } => matches!(reply, ControlPlaneReply::AdminConf(_)),
        }
    }
}

/// What an etcd member says of its own health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EtcdHealth {
    /// It is healthy.
    Healthy,
    /// It is not. Its reason, in one line; empty: it gives none.
    Unhealthy(String),
}

/// Content of a kubeconfig with credentials: never stored and never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminConf(pub Vec<u8>);

impl fmt::Debug for AdminConf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AdminConf({} bytes)", self.0.len())
    }
}
