//! The vocabulary of the maintenance handshake and of the scope of updates.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{
    UpdateGroupName,
    item::{Unknown, words},
};

/// The annotation of a machine that says how its instances leave it: `live`, `manual` or `skip`.
pub const MIGRATION_MODE: &str = "openstack.lcm.mirantis.com/instance_migration_mode";
/// Value of the annotation where a person moves the instances.
pub const MANUAL: &str = "manual";

words!(
    /// What an update may do to a machine.
    Scope {
        /// Services and Docker may restart; the machine stays up.
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
        /// Moving the workloads away failed; a person must look. Counts as active.
        Failed = "failed",
    }
);

words!(
    /// What happens to a machine when a stage of its update exceeds its deadline.
    DeadlineOutcome {
        /// It counts as failed: its locks are released, and the failure budget is charged.
        Fail = "fail",
        /// Its locks are released, the others go on, and it is retried at the end.
        Defer = "defer",
        /// The whole update pauses until an operator says `resume`.
        Pause = "pause",
    }
);

words!(
    /// What the removal of a machine waits for. During a removal the policy can only be loosened, in this order.
    RemovalPolicy {
        /// Waits for its application controllers and its Swarm drain; then it leaves the swarm.
        Graceful = "graceful",
        /// Skips both waits: it leaves the swarm in order, and its running workloads are cut off.
        Unsafe = "unsafe",
        /// Waits for nothing from the machine, which is gone for good.
        Forced = "forced",
    }
);

/// Name of the default group of workers.
pub const DEFAULT_GROUP: &str = "default";
/// Default place in the order (LCM's own default).
pub const DEFAULT_GROUP_INDEX: u32 = 1;

/// Workers that are updated together, in their turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateGroup {
    /// Name that machines refer to; [`DEFAULT_GROUP`] is the group of all other workers.
    pub name: UpdateGroupName,
    /// Groups update in the order of their indexes; groups with the same index update together.
    pub index: u32,
    /// Most of its machines that hold a slot at once, within the cluster's limits.
    pub concurrent_updates: u32,
    /// Does an update of scope `os` reboot its machines when their host says that it needs to?
    pub reboot_if_update_requires: bool,
}

/// Deadline of a stage, and what happens then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Deadline {
    /// Length in milliseconds; restarts on progress.
    pub after_ms: u64,
    /// What happens when it passes.
    pub outcome: DeadlineOutcome,
}

/// Deadlines of the stages of an update that wait for other parties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateDeadlines {
    /// Until the hooks before or after an update are done. Never `defer`, which needs a machine. `fail` aborts the
    /// update.
    pub hooks: Deadline,
    /// Until a machine's prepare items are done.
    pub prepare: Deadline,
    /// Until a prepared machine gets its turn, measured from the last machine's end. Its outcome is always `pause`.
    pub turn_ms: u64,
    /// Until every ClusterWorkloadLock is inactive. Never `defer`; `fail` aborts the update, as for the hooks.
    pub cluster_locks: Deadline,
    /// Until every NodeWorkloadLock of a machine is inactive. Rockoon retries a deferred request about once a minute.
    pub node_locks: Deadline,
    /// Until all tasks of services have left a worker's Swarm node. Restarts when a task has gone.
    pub swarm_drain: Deadline,
    /// Until all pods that have to leave have left a machine's Kubernetes node. Restarts when a pod has gone.
    pub kubernetes_drain: Deadline,
    /// Until the deploy and reconfigure items are done. Never `defer`: the machine is already disturbed.
    pub items: Deadline,
    /// Until the reboot that the update added is done. Never `defer`.
    pub reboot: Deadline,
    /// From the release of the request until the locks are active again. Never `fail`: the machine then counts as done
    /// all the same.
    pub locks_returned: Deadline,
    /// Until an applied add-on is available. In an update never `defer`; `fail` aborts the update, as for the hooks.
    pub addons: Deadline,
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
            kubernetes_drain: of(30 * MINUTE_MS, DeadlineOutcome::Defer),
            items: of(4 * HOUR_MS, DeadlineOutcome::Fail),
            reboot: of(HOUR_MS, DeadlineOutcome::Fail),
            locks_returned: of(30 * MINUTE_MS, DeadlineOutcome::Defer),
            addons: of(15 * MINUTE_MS, DeadlineOutcome::Pause),
        }
    }
}
