//! Stored rows of workload locks.

use muster_proto::model::{ClusterName, LockState, MachineName};
use serde::{Deserialize, Serialize};

/// Time from when a controller could see a request until a missing lock counts as an answer, in milliseconds. It may
/// create its lock only when it sees the request (domain: 0.1 to 2 s later).
pub const SETTLE_MS: u64 = 10_000;

/// Key of a lock: cluster, controller and machine; without a machine it is the cluster's own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LockKey {
    /// The cluster.
    pub cluster: ClusterName,
    /// The application controller, as in its certificate.
    pub controller: String,
    /// The machine. None: a ClusterWorkloadLock.
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

/// A workload lock: an application controller's statement about a machine or the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRow {
    /// Its key.
    pub key: LockKey,
    /// Its state.
    pub state: LockState,
    /// Time of the state, in Unix milliseconds.
    pub since_ms: u64,
    /// What the controller waits for, in one line; empty: nothing.
    pub message: String,
    /// How far the workloads are moved away, in percent.
    pub percentage: u32,
    /// Its current activity, in one line; empty: none.
    pub description: String,
    /// The last release it reported to have worked for; empty: unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub release: String,
    /// Time of the newest progress, in Unix milliseconds: another state, or a higher percentage. Messages are ignored.
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
