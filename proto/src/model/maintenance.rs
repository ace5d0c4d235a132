//! The words of the maintenance handshake, and of what an update may do.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{
    UpdateGroupName,
    item::{Unknown, words},
};

/// The annotation of a machine that says how its instances leave it: `live`, `manual` or `skip`.
pub const MIGRATION_MODE: &str = "openstack.lcm.mirantis.com/instance_migration_mode";
/// Its value where somebody moves them by hand.
pub const MANUAL: &str = "manual";

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

words!(
    /// What the removal of a machine waits for. Under way it is only ever loosened, in this order.
    RemovalPolicy {
        /// For its application controllers and for its Swarm drain; then it leaves the swarm.
        Graceful = "graceful",
        /// For neither: it leaves the swarm in order, and what runs there is cut off.
        Unsafe = "unsafe",
        /// For nothing of its own: it is gone for good, and is not asked.
        Forced = "forced",
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
#[serde(rename_all = "camelCase", default)]
pub struct UpdateDeadlines {
    /// Until the hooks before an update, or those after it, are done. Never `defer`: there is no machine to put aside.
    /// `fail` aborts the update.
    pub hooks: Deadline,
    /// Until a machine's prepare items are done.
    pub prepare: Deadline,
    /// Until a prepared machine has its turn, since the last machine came to its end. Its outcome is always `pause`.
    pub turn_ms: u64,
    /// Until every ClusterWorkloadLock is inactive. Never `defer`, and `fail` aborts the update, as for the hooks.
    pub cluster_locks: Deadline,
    /// Until every NodeWorkloadLock of a machine is inactive. Rockoon tries a deferred request about once a minute.
    pub node_locks: Deadline,
    /// Until no task of a service runs on a worker's Swarm node any more. Starts anew when one of them has gone.
    pub swarm_drain: Deadline,
    /// Until the deploy and reconfigure items are done. Never `defer`: who was disturbed cannot be put aside.
    pub items: Deadline,
    /// Until the reboot that the update added is done. Never `defer`, either.
    pub reboot: Deadline,
    /// After the request is gone, until the locks are active again. Then the machine counts as done all the same: never
    /// `fail`.
    pub locks_returned: Deadline,
}

impl Default for UpdateDeadlines {
    fn default() -> Self {
        const MINUTE_MS: u64 = 60 * 1000;
        const HOUR_MS: u64 = 60 * MINUTE_MS;
        let of = |after_ms, outcome| Deadline { after_ms, outcome };
        Self {
            hooks: of(4 * HOUR_MS, DeadlineOutcome::Pause),
            prepare: of(4 * HOUR_MS, DeadlineOutcome::Defer),
            turn_ms: 24 * HOUR_MS,
            cluster_locks: of(2 * HOUR_MS, DeadlineOutcome::Pause),
            node_locks: of(30 * MINUTE_MS, DeadlineOutcome::Defer),
            swarm_drain: of(30 * MINUTE_MS, DeadlineOutcome::Defer),
            items: of(4 * HOUR_MS, DeadlineOutcome::Fail),
            reboot: of(HOUR_MS, DeadlineOutcome::Fail),
            locks_returned: of(30 * MINUTE_MS, DeadlineOutcome::Defer),
        }
    }
}
