//! Documents of cluster states: desired conditions in the child cluster, each for a machine or an add-on.

use std::collections::BTreeMap;

use muster_proto::{
    model::{ClusterName, HELM_CONTROLLER, MachineName, Now},
    resource::{ClusterState, ClusterStateSpec, ClusterStateStatus, Document, Metadata},
};

use super::super::{at, snapshots};
use crate::{
    facts::{DrainKind, Facts, KubernetesTarget, RemovalRow, Stage},
    plan::{
        Limits,
        addons::{self, AddonStatus},
        drain::{self, Goal, Orchestrator, kubernetes::Kubernetes, swarm::Swarm},
        removal,
        snapshot::{ClusterSnapshot, MachineView},
        update::waits,
    },
};

/// Longest name: that of a label in Kubernetes.
const NAME_CHARS_MAX: usize = 63;
/// Annotation with the reason for a state.
const REASON: &str = "lcm.mirantis.com/reason";

/// Every state of the clusters that `wanted` accepts.
#[must_use]
pub fn cluster_states(
    facts: &Facts,
    wanted: impl Fn(&ClusterName) -> bool,
    limits: &Limits,
    now: Now,
) -> Vec<ClusterState> {
    let of_cluster = |snapshot: &ClusterSnapshot<'_>| -> Vec<ClusterState> {
        let drains = snapshot.machines.iter().flat_map(|view| drains(snapshot, view));
        let removals = snapshot.machines.iter().filter_map(|view| {
            let row = view.row.removal.as_ref().filter(|row| !row.aborting)?;
            Some(swarm_remove(snapshot, view, row))
        });
        let renewals = snapshot.machines.iter().filter_map(|view| pod_renewal(snapshot, view));
        drains.chain(renewals).chain(removals).chain(addon_states(snapshot)).collect()
    };
    snapshots(facts, wanted, limits, now).iter().flat_map(of_cluster).collect()
}

/// Prefix and machine; if too long, the front of the machine's name is cut.
fn name(prefix: &str, machine: &MachineName) -> String {
    let machine = machine.as_str();
    let cut = machine.len().saturating_sub(NAME_CHARS_MAX.saturating_sub(prefix.len()));
    format!("{prefix}{}", machine.get(cut..).unwrap_or(machine))
}

/// The drains of a machine's nodes.
fn drains(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Vec<ClusterState> {
    let Some(mine) = view.update() else { return Vec::new() };
    let kubernetes = mine.drains.kubernetes.as_ref().map(|row| of_drain(snapshot, view, &Kubernetes, row.since_ms));
    let swarm = match (&mine.drains.swarm, &mine.drains.kubernetes) {
        (Some(row), _) => Some(of_drain(snapshot, view, &Swarm, row.since_ms)),
        // It begins when the Kubernetes node is drained.
        (None, Some(row)) if Swarm.is_wanted(snapshot, view) && drain::goal(snapshot, view) == Some(Goal::Drained) => {
            let name = match &row.target {
                KubernetesTarget::Node { name, .. } => name.as_str(),
                KubernetesTarget::Unknown | KubernetesTarget::Absent => view.row.name.as_str(),
            };
            let message = format!("Error: waiting for kubernetes node {name} to be drained first");
            Some(state(snapshot, view, DrainKind::Swarm, row.since_ms, (true, false, message)))
        }
        (None, _) => None,
    };
    kubernetes.into_iter().chain(swarm).collect()
}

fn of_drain(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    orchestrator: &dyn Orchestrator,
    since_ms: u64,
) -> ClusterState {
    let given_back = drain::goal(snapshot, view) == Some(Goal::Restored);
    let done = view.row.stages.get(&drain::drained_stage(orchestrator.kind())).is_some_and(|stage| stage.succeeded);
    let waits = if given_back {
        orchestrator.restored(snapshot, view)
    } else if done && !orchestrator.is_at_it(snapshot, view) {
        Ok(())
    } else {
        orchestrator.drained(snapshot, view)
    };
    let drained = if given_back { waits.is_err() } else { waits.is_ok() };
    let message = waits.err().map(|waits| waits.message).unwrap_or_default();
    state(snapshot, view, orchestrator.kind(), since_ms, (!given_back, drained, message))
}

fn state(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    of: DrainKind,
    since_ms: u64,
    (wanted, drained, message): (bool, bool, String),
) -> ClusterState {
    let maintained = view.update().is_some_and(|mine| mine.maintenance.is_some());
    let reason = match view.row.removal {
        Some(_) => "delete",
        None if maintained => "maintenance",
        None => "upgrade",
    };
    let (prefix, kind) = match of {
        DrainKind::Kubernetes => ("cd-", "cordon-drain"),
        DrainKind::Swarm => ("sd-", "swarm-drain"),
    };
    let attempt = view.update().and_then(|mine| mine.drains.begun.get(&of).copied()).unwrap_or(0);
    Document {
        metadata: Metadata {
            name: name(prefix, &view.row.name),
            creation_timestamp: at(since_ms),
            annotations: BTreeMap::from([(REASON.to_owned(), reason.to_owned())]),
        },
        spec: ClusterStateSpec {
            cluster_name: snapshot.cluster.name.to_string(),
            kind: kind.to_owned(),
            arg: view.row.name.to_string(),
            value: wanted.to_string(),
        },
        status: ClusterStateStatus { actual_value: drained.to_string(), attempt, message },
    }
}

/// The renewal of pods on a machine's node, in its turn.
fn pod_renewal(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<ClusterState> {
    view.update()?.renewal.as_ref()?;
    let slot = view.row.slot?;
    let done = view.row.stages.get(&Stage::PodsRenewed).is_some_and(|stage| stage.succeeded);
    Some(Document {
        metadata: Metadata {
            name: name("pr-", &view.row.name),
            creation_timestamp: at(slot.granted_at_ms),
            annotations: BTreeMap::from([(REASON.to_owned(), "upgrade".to_owned())]),
        },
        spec: ClusterStateSpec {
            cluster_name: snapshot.cluster.name.to_string(),
            kind: "pod-renewal".to_owned(),
            arg: view.row.name.to_string(),
            value: true.to_string(),
        },
        status: ClusterStateStatus {
            actual_value: done.to_string(),
            attempt: 1,
            message: waits::of_machine(snapshot, view).map(|waits| waits.message).unwrap_or_default(),
        },
    })
}

fn swarm_remove(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, row: &RemovalRow) -> ClusterState {
    Document {
        metadata: Metadata {
            name: name("sr-", &view.row.name),
            creation_timestamp: at(row.since_ms),
            annotations: BTreeMap::from([(REASON.to_owned(), "delete".to_owned())]),
        },
        spec: ClusterStateSpec {
            cluster_name: snapshot.cluster.name.to_string(),
            kind: "swarm-remove".to_owned(),
            arg: view.row.name.to_string(),
            value: true.to_string(),
        },
        status: ClusterStateStatus {
            // Once it is true, machine and state are gone.
            actual_value: false.to_string(),
            attempt: u32::from(row.departure.is_some()),
            message: removal::waits(snapshot, view).map(|waits| waits.message).unwrap_or_default(),
        },
    }
}

/// The add-ons of a cluster: `helm-deployed` is the Helm controller's.
fn addon_states(snapshot: &ClusterSnapshot<'_>) -> Vec<ClusterState> {
    let cluster = &snapshot.cluster.name;
    let state = |status: AddonStatus| {
        let AddonStatus { addon, settled, attempt, applied_at_ms, message } = status;
        let (kind, arg) = match addon.name.as_str() {
            HELM_CONTROLLER => ("helm-deployed".to_owned(), cluster.to_string()),
            name => (format!("addon-{name}"), name.to_owned()),
        };
        Document {
            metadata: Metadata {
                // Names of add-ons are unique in a cluster only.
                name: format!("{kind}-{cluster}"),
                creation_timestamp: at(applied_at_ms.unwrap_or(snapshot.cluster.created_at_ms)),
                annotations: BTreeMap::from([(REASON.to_owned(), "add-on".to_owned())]),
            },
            spec: ClusterStateSpec { cluster_name: cluster.to_string(), kind, arg, value: true.to_string() },
            status: ClusterStateStatus { actual_value: settled.to_string(), attempt, message },
        }
    };
    addons::statuses(snapshot).into_iter().map(state).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_too_long_loses_its_front() {
        let of = |text: &str| name("sd-", &MachineName::new(text).expect("a label"));
        assert_eq!(of("worker-3"), "sd-worker-3");
        let long = format!("front-{}", "w".repeat(57));
        assert_eq!(of(&long), format!("sd-nt-{}", "w".repeat(57)));
        assert_eq!(of(&long).len(), NAME_CHARS_MAX);
    }
}
