//! The rows of workload locks, as they are stored.

use muster_proto::model::{ClusterName, LockState, MachineName};
use serde::{Deserialize, Serialize};

/// So long after a controller could see a request "there is no lock" is no answer: it may make its lock only when it
/// sees the request (domain: 0.1 to 2 s later), in milliseconds.
pub const SETTLE_MS: u64 = 10_000;

/// Names a lock: whose, of which cluster, and of which machine; without one it is the cluster's own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LockKey {
    /// The cluster.
    pub cluster: ClusterName,
    /// The application controller, as in its certificate.
    pub controller: String,
    /// None: a ClusterWorkloadLock.
    pub node: Option<MachineName>,
}

impl LockKey {
    /// Its key in the store.
    #[must_use]
    pub fn text(&self) -> String {
        let node = self.node.as_ref().map_or("", MachineName::as_str);
        format!("{}/{}/{node}", self.cluster, self.controller)
    }
}

/// A workload lock: an application controller's word about a machine or the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRow {
    /// Which.
    pub key: LockKey,
    /// What it says.
    pub state: LockState,
    /// Unix milliseconds of the state.
    pub since_ms: u64,
    /// What keeps the controller, in one line; empty: nothing.
    pub message: String,
    /// How far the workloads are out of the way, in percent.
    pub percentage: u32,
    /// What it is doing, in one line; empty: nothing.
    pub description: String,
    /// The release it last worked for, as it says; empty: it says none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub release: String,
    /// Unix milliseconds of the newest progress: another state, or a higher percentage. Words are none.
    pub updated_ms: u64,
    /// Rises with every change of a lock and every request.
    pub revision: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_of_an_older_store_says_no_release() {
        let stored = r#"{"key":{"cluster":"edge-7","controller":"ceph","node":"worker-1"},"state":"active","since_ms":1,
            "message":"","percentage":0,"description":"","updated_ms":1,"revision":7}"#;
        let row: LockRow = serde_json::from_str(stored).expect("it opens");
        assert_eq!((row.release.as_str(), row.revision), ("", 7));
        assert!(!serde_json::to_string(&row).expect("JSON").contains("release"), "nor is anything added to it");
    }
}
