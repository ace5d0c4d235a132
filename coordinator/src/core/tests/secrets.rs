//! Secrets in an update: a newer version is a reason for one, and versions stay fixed during one.

use std::collections::BTreeSet;

use muster_proto::model::{ClusterName, LockState, MachineType::Control, Phase, Reason, SecretName};

use super::{fleet::*, reason, updates::*};
use crate::{
    core::{Input, Reply, Request},
    facts::{Sealed, SecretId},
};

fn id() -> SecretId {
    SecretId { cluster: None, name: SecretName::new("db").expect("a name") }
}

/// Another version of the secret `db`.
fn renew(fleet: &mut Fleet) {
    let version = fleet.core.facts().meta.secret_seq + 1;
    let clusters = [cluster()].into();
    fleet.ask(Request::CreateSecret { id: id(), version, sealed: Sealed(vec![1]), clusters }).expect("made");
}

/// The spec with a reference to `db` in `install`.
fn using(mut spec: muster_proto::model::ClusterSpec, text: &str) -> muster_proto::model::ClusterSpec {
    for item in spec.machine_types.values_mut().flatten().filter(|item| item.name.as_str() == "install") {
        item.params.insert("password".to_owned(), text.to_owned());
    }
    spec
}

/// Every machine ends in the current update.
fn upgrade_all(fleet: &mut Fleet) {
    for name in ["control-1", "control-2", "control-3", "worker-1"] {
        assert_eq!(fleet.requests(), [name]);
        fleet.upgrade(name);
    }
    fleet.lock("ceph", None, LockState::Active);
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
}

/// A manifest that refers to it is refused without it.
#[test]
fn a_secret_of_a_cluster_comes_before_the_cluster() {
    let mut fleet = Fleet::of(1, 0);
    let id = SecretId { cluster: ClusterName::new("later").ok(), ..id() };
    let clusters = BTreeSet::new();
    let create = Request::CreateSecret { id, version: 1, sealed: Sealed(vec![1]), clusters };
    let said = super::done(fleet.ask(create));
    assert!(said.contains("secret later/db created") && said.contains("there is no cluster later yet"), "{said}");
}

fn create(clusters: BTreeSet<ClusterName>, version: u64) -> Request {
    Request::CreateSecret { id: id(), version, sealed: Sealed(vec![1]), clusters }
}

fn share(add: &[&str], remove: &[&str], in_use: bool) -> Request {
    let names = |names: &[&str]| names.iter().map(|name| ClusterName::new(*name).expect("a label")).collect();
    Request::ShareSecret { name: id().name, add: names(add), remove: names(remove), in_use }
}

#[test]
fn shared_secret_is_for_named_clusters() {
    let mut fleet = Fleet::with(using(spec(1, 0), "${secret.db}")).reported();
    assert_eq!(reason(fleet.ask(create(BTreeSet::new(), 1))), "ForNoCluster");
    assert_eq!(reason(fleet.ask(share(&["edge-7"], &[], false))), "NotFound");
    let elsewhere = ClusterName::new("elsewhere").expect("a label");
    let said = super::done(fleet.ask(create([elsewhere].into(), 1)));
    assert_eq!(
        said,
        "secret db created; it is for elsewhere; there is no cluster elsewhere yet: `musterctl apply` makes one"
    );
    assert_eq!(fleet.why("control-1").as_deref(), Some("VariableWithoutValue"), "for others it is not there");
    let said = super::done(fleet.ask(share(&["edge-7"], &[], false)));
    assert_eq!(said, "secret db is for edge-7, elsewhere");
    let mut fleet = fleet.prepared();
    fleet.accept("control-1");
    let agent = &fleet.agents["control-1"];
    let (id, generation) = (agent.id, agent.assignment.as_ref().expect("a list").generation);
    let fetch = || Input::Fetch { id, item: item_name("install"), generation };
    assert!(matches!(fleet.step(fetch()), Ok(Reply::Inputs { secrets, .. }) if secrets.len() == 1));
    assert_eq!(reason(fleet.ask(share(&[], &["edge-7"], false))), "SecretInUse");
    fleet.ask(share(&[], &["edge-7"], true)).expect("insisted upon");
    assert!(matches!(reason(fleet.step(fetch())), "SecretMissing" | "NotAssigned"), "nobody fetches it any more");
    let said = super::done(fleet.ask(create(BTreeSet::new(), 2)));
    assert!(said.ends_with("; it is for elsewhere; there is no cluster elsewhere yet: `musterctl apply` makes one"));
}

/// An update continues with its frozen list; the names in the list are resolved each time.
#[test]
fn unshared_secret_is_not_fetched_in_an_update() {
    let mut fleet = deployed(3, 1);
    renew(&mut fleet);
    fleet.ask(apply(using(spec(3, 1), "${secret.db}"), &[])).expect("applies");
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.accept("control-1");
    let agent = &fleet.agents["control-1"];
    let (id, generation) = (agent.id, agent.assignment.as_ref().expect("a list").generation);
    let fetch = || Input::Fetch { id, item: item_name("install"), generation };
    assert!(matches!(fleet.step(fetch()), Ok(Reply::Inputs { secrets, .. }) if secrets.len() == 1));
    fleet.ask(share(&[], &["edge-7"], true)).expect("insisted upon");
    assert_eq!(reason(fleet.step(fetch())), "SecretMissing");
}

#[test]
fn a_newer_secret_is_a_reason_for_an_update() {
    let mut fleet = Fleet::with(using(spec(3, 1), "${secret.db}"));
    renew(&mut fleet);
    let mut fleet = guarded(fleet);
    assert_eq!(reason(fleet.ask(update())), "NothingToDo");
    renew(&mut fleet);
    assert_eq!(fleet.state("worker-1"), "Ready", "a new version alone changes nothing");
    let mut fleet = fleet.started();
    upgrade_all(&mut fleet);
    assert_eq!(reason(fleet.ask(update())), "NothingToDo", "everybody has it");
}

#[test]
fn a_secret_renewed_in_an_update_is_for_the_next_one() {
    let mut fleet = deployed(3, 1);
    renew(&mut fleet);
    fleet.ask(apply(using(spec(3, 1), "${secret.db}"), &[])).expect("applies");
    let mut fleet = fleet.started();
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    let before = fleet.agents["control-1"].assignment.clone().expect("a list");
    renew(&mut fleet);
    let after = fleet.agents["control-1"].assignment.clone().expect("a list");
    assert_eq!(before, after, "what was frozen does not change");
    upgrade_all(&mut fleet);
    assert_eq!(
        fleet.row("worker-1").ready_secrets.values().collect::<Vec<_>>(),
        [&1],
        "it was introduced by the update"
    );
    renew(&mut fleet);
    assert_eq!(fleet.state("worker-1"), "Ready");
    let mut fleet = fleet.started();
    upgrade_all(&mut fleet);
    assert_eq!(fleet.row("worker-1").ready_secrets.values().collect::<Vec<_>>(), [&3]);
}

#[test]
fn an_update_without_a_secret_it_needs_does_not_start() {
    let mut fleet = deployed(3, 1);
    fleet.ask(apply(using(spec(3, 1), "${secret.db}"), &[])).expect("applies");
    assert_eq!(reason(fleet.ask(update())), "VariableWithoutValue");
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none());
}

#[test]
fn a_machine_that_comes_when_its_secret_is_gone_says_what_makes_it() {
    let fleet = Fleet::with(using(spec(1, 0), "${secret.db}")).reported();
    let blocked = fleet.look("control-1", crate::plan::blocked::of_machine).expect("it lacks the secret");
    assert_eq!(blocked.reason, Reason::VariableWithoutValue);
    assert!(blocked.message.contains("item install, param password: variable 'secret.db'"), "{blocked:?}");
    assert!(
        blocked.clears_when.contains("musterctl secret create db --cluster edge-7 --from-file FILE"),
        "{blocked:?}"
    );
}

#[test]
fn a_secret_of_a_frozen_override_is_in_use() {
    let mut fleet = deployed(3, 1);
    renew(&mut fleet);
    let mut own = machine_spec(muster_proto::model::MachineType::Worker);
    let params = [("password".to_owned(), "${secret.db}".to_owned())].into();
    own.state_items_overwrites.insert(item_name("install"), params);
    fleet.ask(apply(spec(3, 1), &[("worker-1", own.clone())])).expect("applies");
    fleet.ask(update()).expect("starts");
    own.state_items_overwrites.clear();
    fleet.ask(apply(spec(3, 1), &[("worker-1", own)])).expect("applies");
    assert_eq!(reason(fleet.ask(Request::DeleteSecret { id: id(), in_use: false })), "SecretInUse");
}

#[test]
fn what_becomes_disruptive_in_the_middle_gets_a_turn_with_a_request() {
    let mut fleet = guarded(Fleet::with(using(spec(3, 1), "${machine.hostname}")));
    release(&mut fleet, &["images"], 1);
    fleet.ask(update()).expect("starts");
    let mut hello = fleet.greeting("control-1");
    hello.facts.hostname.push_str("-renamed");
    let id = fleet.agents["control-1"].id;
    fleet.report_host(id, hello.facts);
    for name in ["control-1", "control-2", "control-3", "worker-1"] {
        fleet.finish(name);
    }
    fleet.lock("ceph", None, LockState::Inactive);
    assert_eq!((fleet.requests(), fleet.slot("control-1")), (vec!["control-1"], Some(Phase::Deploy)));
    fleet.upgrade("control-1");
    assert!(fleet.core.facts().open_rollout(&cluster()).is_none(), "{:?}", fleet.row("control-2"));
    assert!(fleet.row("control-1").spec.machine_type == Control);
}
