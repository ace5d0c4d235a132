//! Documents of cluster states: desired conditions in the child cluster, each for a machine.

use std::collections::BTreeMap;

use muster_proto::{
    model::{ClusterName, MachineName, Now},
    resource::{ClusterState, ClusterStateSpec, ClusterStateStatus, Document, Metadata},
};

use super::super::{at, snapshots};
use crate::{
    facts::{DrainKind, DrainRow, Facts, RemovalRow, SwarmTarget},
    plan::{
        Limits,
        drain::swarm::{self, Aim},
        removal,
        snapshot::{ClusterSnapshot, MachineView},
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
        let drains = snapshot.machines.iter().filter_map(|view| {
            let row = view.update()?.drains.swarm.as_ref()?;
            Some(swarm_drain(snapshot, view, row))
        });
        let removals = snapshot.machines.iter().filter_map(|view| {
            let row = view.row.removal.as_ref().filter(|row| !row.aborting)?;
            Some(swarm_remove(snapshot, view, row))
        });
        drains.chain(removals).collect()
    };
    snapshots(facts, wanted, limits, now).iter().flat_map(of_cluster).collect()
}

/// Prefix and machine; if too long, the front of the machine's name is cut.
fn name(prefix: &str, machine: &MachineName) -> String {
    let machine = machine.as_str();
    let cut = machine.len().saturating_sub(NAME_CHARS_MAX.saturating_sub(prefix.len()));
    format!("{prefix}{}", machine.get(cut..).unwrap_or(machine))
}

fn swarm_drain(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, row: &DrainRow<SwarmTarget>) -> ClusterState {
    let given_back = swarm::aim(snapshot, view) == Some(Aim::GivenBack);
    let waits = if given_back {
        swarm::given_back(snapshot, view)
    } else if swarm::was_reached(view) && swarm::aim(snapshot, view).is_none() {
        Ok(())
    } else {
        swarm::reached(snapshot, view)
    };
    let maintained = view.update().is_some_and(|mine| mine.maintenance.is_some());
    let reason = match view.row.removal {
        Some(_) => "delete",
        None if maintained => "maintenance",
        None => "upgrade",
    };
    let drained = if given_back { waits.is_err() } else { waits.is_ok() };
    Document {
        metadata: Metadata {
            name: name("sd-", &view.row.name),
            creation_timestamp: at(row.since_ms),
            annotations: BTreeMap::from([(REASON.to_owned(), reason.to_owned())]),
        },
        spec: ClusterStateSpec {
            cluster_name: snapshot.cluster.name.to_string(),
            kind: "swarm-drain".to_owned(),
            arg: view.row.name.to_string(),
            value: (!given_back).to_string(),
        },
        status: ClusterStateStatus {
            actual_value: drained.to_string(),
            attempt: view.update().and_then(|mine| mine.drains.begun.get(&DrainKind::Swarm).copied()).unwrap_or(0),
            message: waits.err().map(|waits| waits.message).unwrap_or_default(),
        },
    }
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
