//! Stored rows of workload locks.

use muster_proto::model::{ClusterName, LockState, MachineName};
use serde::{Deserialize, Serialize};

use super::handshake::Subject;

/// Time from when a controller could see a request until a missing lock counts as an answer, in milliseconds. It may
/// create its lock only when it sees the request (domain: 0.1 to 2 s later).
pub const SETTLE_MS: u64 = 10_000;

/// Key of a lock. One that its controller registered: cluster, controller and machine; without a machine it is the
/// cluster's own. One that is an object in the Kubernetes cluster: its UID, so that it stands for no other lock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LockKey {
    /// The cluster.
    pub cluster: ClusterName,
    /// The application controller, as in its certificate.
    pub controller: String,
    /// The machine. None: a ClusterWorkloadLock.
    pub node: Option<MachineName>,
    /// UID of the object. None: its controller registered it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

impl LockKey {
    /// Key of a lock that its controller registered.
    #[must_use]
    pub const fn registered(cluster: ClusterName, controller: String, node: Option<MachineName>) -> Self {
        Self { cluster, controller, node, uid: None }
    }

    /// Its key in the store.
    #[must_use]
    pub fn text(&self) -> String {
        let node = self.node.as_ref().map_or("", MachineName::as_str);
        let uid = self.uid.as_ref().map(|uid| format!("/{uid}")).unwrap_or_default();
        format!("{}/{}/{node}{uid}", self.cluster, self.controller)
    }

    /// The key with this text.
    #[must_use]
    pub fn of_text(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, '/');
        let cluster = ClusterName::new(parts.next()?).ok()?;
        let controller = parts.next()?.to_owned();
        let node = parts.next().filter(|node| !node.is_empty()).map(MachineName::new).transpose().ok()?;
        Some(Self { cluster, controller, node, uid: parts.next().map(str::to_owned) })
    }
}

/// The object that a lock is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockOf {
    /// Its name.
    pub name: String,
    /// What it guards.
    pub subject: Subject,
    /// Its controller answers NodeDeletionRequests.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub takes_deletion: bool,
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
    /// The object that it is. None: its controller registered it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<LockOf>,
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
