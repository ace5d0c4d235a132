//! Why a machine or a cluster waits, as a name.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a wait asks of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The order of things in a rollout: others go first.
    Ordinary,
    /// Ends by itself: at the coordinator's next decision, or when a deadline passes.
    Passing,
    /// Ends with what its message names: another machine, a controller, the swarm, or a command of an operator.
    Waiting,
    /// Ends with an operator, or not at all.
    Operator,
}

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident: $severity:ident,)+) => {
        /// A named reason. Its name is what documents and `musterctl` show; docs/reference/reasons.md says more.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Reason {
            $($(#[doc = $doc])+ $name,)+
            /// A reason that this version of Muster does not know: its peer is newer.
            #[serde(other)]
            Unknown,
        }

        impl Reason {
            /// Every reason that has a name.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// Its name.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)+
                    Self::Unknown => "Unknown",
                }
            }

            /// What it means, in a sentence or two.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($doc),+).trim_start(),)+
                    Self::Unknown => "A reason of a newer version.",
                }
            }

            /// What it asks of an operator.
            #[must_use]
            pub const fn severity(self) -> Severity {
                match self {
                    $(Self::$name => Severity::$severity,)+
                    Self::Unknown => Severity::Waiting,
                }
            }
        }
    };
}

reasons! {
    /// The rollout was aborted: nothing new starts, and what was taken is given back.
    Aborting: Waiting,
    /// An installed add-on of the cluster is not as the manifest says. The next update applies it again.
    AddonDiffers: Waiting,
    /// An add-on of the cluster is applied, or is to become available.
    AddonInstalling: Passing,
    /// An add-on of the cluster could not be applied, and is tried again.
    AddonNotApplied: Passing,
    /// An add-on of the cluster is not available, and its deadline has passed.
    AddonNotAvailable: Operator,
    /// The agent does not accept the list that the coordinator sends.
    AssignmentRefused: Operator,
    /// Hooks or backups that come before the update are not done; nothing is prepared or disturbed before.
    BeforeUpdate: Waiting,
    /// Another control machine has said nothing since the coordinator started; it may be at work.
    ControlNotHeard: Operator,
    /// A control machine was replaced during the update: the control plane lacks it until it is deployed.
    ControlNotDeployed: Waiting,
    /// A controller has no lock in the Kubernetes cluster for a node whose label says that it guards it.
    ControllerCannotSee: Waiting,
    /// `spec.workloadControllers` names a controller that holds no lock in the cluster.
    ControllerMissing: Waiting,
    /// A controller of this cluster is not connected and may still make a lock.
    ControllerSilent: Waiting,
    /// After `recover`: two control machines are at work, because one was revoked after the backup was made.
    ControlsAtWork: Operator,
    /// The coordinator's next decision is about it.
    Deciding: Passing,
    /// Deferred at a deadline and given back; it is tried again after the others.
    Deferred: Waiting,
    /// The manifest says neither how many machines there will be nor which.
    DeployNotStarted: Operator,
    /// It has no connection now; what runs there continues.
    Disconnected: Passing,
    /// The agent's disk is full, or has no inodes left: nothing new starts there.
    DiskFull: Waiting,
    /// The agent reports events that cannot be, so nothing that it reports is recorded.
    EventRefused: Operator,
    /// An item has used up its retries.
    Failed: Waiting,
    /// As many machines have failed or are lost as `maxFailures` allows: nothing new starts.
    FailureBudget: Waiting,
    /// Somebody else's maintenance request is in the Kubernetes cluster.
    ForeignRequest: Waiting,
    /// The coordinator has just started, or was recovered, and waits until machines have reported.
    Gathering: Passing,
    /// An operator took it out of service.
    InMaintenance: Waiting,
    /// An item was started, and how it ended is not known.
    Indeterminate: Waiting,
    /// An item still runs on a machine that goes out of service.
    ItemRunning: Waiting,
    /// Pods that have to leave are still on its Kubernetes node.
    KubernetesDraining: Waiting,
    /// The cluster has no Kubernetes node for a machine that was Ready before.
    KubernetesNodeNotFound: Waiting,
    /// A pod of an `OnDelete` DaemonSet is renewed on its Kubernetes node, or is to be.
    KubernetesPodRenewal: Waiting,
    /// Its Kubernetes node is still cordoned for a drain that is over: of its former identity, or of an update that a
    /// recovered store does not know.
    KubernetesNodeNotRestored: Waiting,
    /// Which Kubernetes node is the machine's is uncertain: name, address and boot id do not agree.
    KubernetesNodeUnclear: Waiting,
    /// A pod terminates for longer than its grace period: a kubelet or a finalizer holds it.
    KubernetesPodStuck: Waiting,
    /// A controller starts evicted pods on the cordoned node again and again.
    KubernetesPodReturns: Waiting,
    /// Before its turn it is checked whether its node can be drained.
    KubernetesPreflight: Passing,
    /// The Kubernetes API server cannot be asked.
    KubernetesUnavailable: Waiting,
    /// A pod can never leave its Kubernetes node as things are: its budget never allows it, or nothing would start it
    /// elsewhere.
    KubernetesUndrainable: Operator,
    /// An operator made its Kubernetes node schedulable while it was drained.
    KubernetesUncordoned: Waiting,
    /// Its Kubernetes node is made schedulable again.
    KubernetesUncordoning: Waiting,
    /// The node of a removed machine is deleted from Kubernetes, or the requests about it are.
    LeavingKubernetes: Waiting,
    /// A removed machine is demoted, leaves the swarm, or is forgotten by a manager.
    LeavingSwarm: Waiting,
    /// Its ledger is older than what it has reported: nothing starts there.
    LedgerBehind: Waiting,
    /// A controller says that it cannot move the workloads away, or not bring them back.
    LockFailed: Waiting,
    /// A lock is still inactive from the last maintenance.
    LockNotYetActive: Waiting,
    /// Controllers have not moved the workloads away yet.
    LocksActive: Waiting,
    /// The request is gone, and controllers bring workloads back.
    LocksReturning: Waiting,
    /// Its locks are inactive, and another controller may still make one within the settle time.
    LocksSettling: Passing,
    /// It has not been heard of for longer than `lostAfter`.
    Lost: Waiting,
    /// Machines of its cluster are in maintenance; machines that come meanwhile wait.
    MaintenanceInProgress: Waiting,
    /// It reported no address that fits `interface` and `cidr` of its Machine document.
    NoInternalIP: Operator,
    /// Its engine claims a Swarm node that is another machine's, or a manager's.
    NodeNotItsOwn: Waiting,
    /// It is declared and has not enrolled.
    NotEnrolled: Waiting,
    /// It has enrolled, and its agent has not connected yet.
    NotReported: Ordinary,
    /// It was Ready, and items that it should have are not done.
    NotUpToDate: Operator,
    /// Too many events wait for the coordinator: nothing new starts there.
    OutboxFull: Waiting,
    /// The rollout is paused, by an operator or at a deadline.
    Paused: Waiting,
    /// Without it too few control machines or Swarm managers would remain.
    Quorum: Waiting,
    /// An item took it down, and it has not returned within the item's timeout.
    RebootOverdue: Operator,
    /// It is down for an item.
    Rebooting: Passing,
    /// After `recover`: the machine needs review before anything new is done anywhere.
    RecoveredInDoubt: Operator,
    /// After `recover`: other machines need review before anything new is done anywhere.
    RecoveryOpen: Operator,
    /// Deferred because it failed or was refused, and given back.
    Refused: Waiting,
    /// A machine that is removed has to do its part, and its agent is not there.
    RemovalNeedsAgent: Waiting,
    /// An operator revoked its certificate.
    Revoked: Waiting,
    /// A service with tasks on its Swarm node runs fewer than it wants, or another drain takes from it.
    ServiceDegraded: Waiting,
    /// The coordinator runs on an old copy of its record.
    StoreOlderThanFleet: Operator,
    /// Tasks of services still run on its Swarm node.
    SwarmDraining: Waiting,
    /// No manager of the swarm can be asked.
    SwarmNoManager: Waiting,
    /// Its Swarm node does not have yet what the node of its former identity had.
    SwarmNodeNotRestored: Waiting,
    /// Its Docker is in a swarm that the cluster's managers do not know.
    SwarmNodeUnknown: Waiting,
    /// Its Swarm node gets back the availability that it had.
    SwarmUncordoning: Waiting,
    /// Its type is `unassigned`: it gets no items.
    Unassigned: Waiting,
    /// It claims more than the record has and proves none of it: its ledger was changed, or it lies.
    UnprovenLedger: Operator,
    /// It came while the cluster is being updated.
    UpdateInProgress: Waiting,
    /// An item names a variable that has no value on this machine.
    VariableWithoutValue: Operator,
    /// Control machines come first.
    WaitingForControl: Ordinary,
    /// Workers of an earlier update group come first.
    WaitingForGroup: Ordinary,
    /// Fewer machines have reported than the manifest has.
    WaitingForMachines: Ordinary,
    /// An item needs a secret and did not get it.
    WaitingForSecret: Waiting,
    /// An item brings the machine into the swarm, and it is not admitted yet.
    WaitingForSwarm: Waiting,
    /// Other machines go first, or all slots are taken.
    WaitingForTurn: Ordinary,
}

impl Reason {
    /// The reason of this name. `Unknown`: this version has none of it.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self::ALL.iter().copied().find(|known| known.as_str() == name).unwrap_or(Self::Unknown)
    }

    /// Does it end with an operator, or not at all?
    #[must_use]
    pub fn needs_operator(self) -> bool {
        self.severity() == Severity::Operator
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_keeps_name_in_json() {
        for reason in Reason::ALL {
            let text = serde_json::to_string(reason).expect("a name");
            assert_eq!(text, format!("\"{reason}\""));
            assert_eq!(serde_json::from_str::<Reason>(&text).expect("known"), *reason);
            assert_eq!(Reason::named(reason.as_str()), *reason);
            assert!(reason.meaning().ends_with('.'), "{reason}: {}", reason.meaning());
        }
        assert_eq!(serde_json::from_str::<Reason>("\"FromTheFuture\"").expect("taken"), Reason::Unknown);
        assert_eq!(Reason::named("FromTheFuture"), Reason::Unknown);
    }
}
