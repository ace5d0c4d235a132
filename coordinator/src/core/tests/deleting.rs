//! Deleting clusters: preconditions, and complete deletion.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::model::{
    ClusterName, LockState,
    MachineType::{Control, Worker},
    SecretName,
};

use super::{done, fleet::*, reason, updates};
use crate::{
    core::Request,
    facts::{Facts, Sealed, SecretId},
    store::Store,
};

fn delete() -> Request {
    Request::DeleteCluster { cluster: cluster() }
}

/// Only the audit still names the cluster, in memory and in the store.
fn nothing_is_left(fleet: &Fleet) {
    let stored = Facts::load(fleet.store.load().expect("in memory")).expect("rows");
    assert!(stored.same_record(fleet.core.facts()));
    assert!(stored.clusters.is_empty() && stored.specs.is_empty() && stored.rollouts.is_empty());
    assert!(stored.machines.is_empty() && stored.locks.is_empty());
    assert!(stored.tokens.is_empty() && stored.secrets.values().all(|row| !row.is_for(&cluster())));
    let line = stored.audit_lines().pop().expect("audited");
    assert_eq!((line.action.as_str(), line.object.as_str()), ("delete", "cluster/edge-7"));
}

#[test]
fn a_cluster_without_machines_goes_with_all_that_is_its_own() {
    let mut fleet = Fleet::applied(spec(1, 1));
    fleet.ask(apply(spec(1, 1), &[("worker-9", machine_spec(Worker))])).expect("declares a machine");
    let id = SecretId { cluster: Some(cluster()), name: SecretName::new("db").expect("a name") };
    let clusters = BTreeSet::new();
    fleet.ask(Request::CreateSecret { id, version: 1, sealed: Sealed(vec![1]), clusters }).expect("made");
    let id = SecretId { cluster: None, name: SecretName::new("shared").expect("a name") };
    let clusters = [cluster(), ClusterName::new("edge-8").expect("a label")].into();
    fleet.ask(Request::CreateSecret { id, version: 2, sealed: Sealed(vec![1]), clusters }).expect("made");
    let line = "cluster edge-7 deleted with 1 machine, 2 join tokens, 1 secret of its own; `get audit` keeps what was \
                done to it";
    assert_eq!(done(fleet.ask(delete())), line);
    nothing_is_left(&fleet);
    assert_eq!(reason(fleet.ask(delete())), "NotFound");
}

#[test]
fn deleted_cluster_takes_unheard_machines() {
    let mut fleet = Fleet::of(1, 1);
    let ids: Vec<_> = fleet.agents.values().map(|agent| agent.id).collect();
    let said = done(fleet.ask(delete()));
    assert!(said.starts_with("cluster edge-7 deleted with 2 machines, 2 join tokens"), "{said}");
    assert!(ids.iter().all(|id| fleet.core.facts().denied.contains_key(id)), "their certificates are refused");
    nothing_is_left(&fleet);
}

#[test]
fn nothing_of_another_cluster_goes() {
    let mut fleet = Fleet::of(1, 1).reported();
    let other = ClusterName::new("edge-70").expect("a label");
    let clusters = BTreeMap::from([(other.clone(), (spec(1, 1), BTreeMap::new()))]);
    let before = fleet.core.facts().clone();
    fleet.ask(Request::Apply { clusters, machines: BTreeMap::new(), dry_run: false }).expect("applies");
    let line = "cluster edge-70 deleted; `get audit` keeps what was done to it";
    assert_eq!(done(fleet.ask(Request::DeleteCluster { cluster: other })), line);
    let after = fleet.core.facts();
    assert_eq!((&after.clusters, &after.specs, &after.tokens), (&before.clusters, &before.specs, &before.tokens));
    assert_eq!((&after.machines, &after.rollouts), (&before.machines, &before.rollouts));
}

#[test]
fn a_cluster_with_an_enrolled_machine_stays() {
    let mut fleet = Fleet::of(1, 1).reported();
    let before = fleet.core.facts().clone();
    let refused = fleet.ask(delete());
    let way = "`musterctl remove worker-1` and so on";
    assert!(
        format!("{refused:?}").contains(way) && format!("{refused:?}").contains("revoke control-1 --machine-is-off")
    );
    assert_eq!(reason(refused), "MachinesLeft");
    assert!(before.same_record(fleet.core.facts()), "a refusal changes nothing");
}

#[test]
fn a_revoked_machine_that_may_be_at_work_keeps_its_cluster() {
    let mut fleet = updates::guarded(Fleet::of(3, 1));
    updates::release(&mut fleet, &["install"], 1);
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    assert!(fleet.permit("control-1").is_some());
    let revoke = |name: &str, machine_is_off| Request::RevokeMachine { machine: machine(name), machine_is_off };
    for name in ["control-1", "control-2", "control-3", "worker-1"] {
        fleet.ask(revoke(name, false)).expect("revoked");
    }
    assert_eq!(reason(fleet.ask(delete())), "MachinesLeft");
    fleet.ask(revoke("control-1", true)).expect("its slot is freed");
    done(fleet.ask(delete()));
    nothing_is_left(&fleet);
}

#[test]
fn a_cluster_of_that_name_can_be_made_again() {
    let mut fleet = updates::deployed(1, 1);
    for name in ["control-1", "worker-1"] {
        fleet.ask(Request::RevokeMachine { machine: machine(name), machine_is_off: true }).expect("revoked");
    }
    done(fleet.ask(delete()));
    fleet.ask(apply(spec(1, 0), &[])).expect("applies");
    fleet.ask(token("anew", Control)).expect("a token");
    fleet.agents.clear();
    fleet.enroll_with("anew", "control-1").expect("the name is free");
    fleet.all_report();
    assert_eq!(fleet.state("control-1"), "Prepare");
}
