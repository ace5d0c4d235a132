//! The words of the maintenance handshake, and of what an update may do.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{
    UpdateGroupName,
    item::{Unknown, words},
};

words!(
    /// What an update may do to a machine.
    Scope {
        /// Services and Docker may restart; the machine does not reboot.
        Drain = "drain",
        /// The machine may reboot as well.
        Os = "os",
    }
);

words!(
    /// An application controller's answer to a maintenance request.
    LockState {
        /// Do not touch it.
        Active = "active",
        /// Its workloads are out of the way.
        Inactive = "inactive",
        /// It cannot get them out of the way; a person must look. Counts as active.
        Failed = "failed",
    }
);

words!(
    /// What becomes of a machine when a stage of its update takes too long.
    DeadlineOutcome {
        /// It counts as failed: what was taken is given back, and the failure budget is charged.
        Fail = "fail",
        /// What was taken is given back, the others go on, it is tried again at the end.
        Defer = "defer",
        /// The whole update pauses until an operator says `resume`.
        Pause = "pause",
    }
);

/// Name of the group of every worker that names none.
pub const DEFAULT_GROUP: &str = "default";
/// Its place in the order, unless the manifest says otherwise (LCM's own default).
pub const DEFAULT_GROUP_INDEX: u32 = 1;

/// Workers that are updated together, in their turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateGroup {
    /// As machines refer to it; [`DEFAULT_GROUP`] is the one of those that name none.
    pub name: UpdateGroupName,
    /// Groups go in the order of their indexes; those of the same go together.
    pub index: u32,
    /// Its machines that hold a slot at once; within what the cluster allows.
    pub concurrent_updates: u32,
    /// Does a machine of it reboot, in an update of scope `os`, because its host says that it needs to?
    pub reboot_if_update_requires: bool,
}

/// How long a stage may take, and what then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Deadline {
    /// In milliseconds; starts anew on progress.
    pub after_ms: u64,
    /// What then.
    pub outcome: DeadlineOutcome,
}

/// Deadlines of the stages of an update that wait for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateDeadlines {
    /// Until every ClusterWorkloadLock is inactive. Its outcome is always `pause`: there is no machine to put aside.
    pub cluster_locks_ms: u64,
    /// Until every NodeWorkloadLock of a machine is inactive. Rockoon tries a deferred request about once a minute.
    pub node_locks: Deadline,
    /// Until no task of a service runs on a worker's Swarm node any more. Starts anew when one of them has gone.
    #[serde(default = "swarm_drain")]
    pub swarm_drain: Deadline,
    /// After the request is gone, until the locks are active again. Then the machine counts as done all the same.
    pub locks_returned_ms: u64,
}

const fn swarm_drain() -> Deadline {
    Deadline { after_ms: 30 * 60 * 1000, outcome: DeadlineOutcome::Defer }
}

impl Default for UpdateDeadlines {
    fn default() -> Self {
        Self {
            cluster_locks_ms: 2 * 3600 * 1000,
            node_locks: Deadline { after_ms: 30 * 60 * 1000, outcome: DeadlineOutcome::Defer },
            swarm_drain: swarm_drain(),
            locks_returned_ms: 30 * 60 * 1000,
        }
    }
}
