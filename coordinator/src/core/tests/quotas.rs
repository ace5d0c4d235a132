//! One cluster's operators can exhaust only that cluster's quotas.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::model::{
    ClusterName, ClusterSpec, Counts, ItemHash,
    MachineType::{Control, Worker},
    SecretName,
};

use super::{
    fleet::{Fleet, apply, cluster, machine, machine_spec, spec, token},
    reason,
};
use crate::{
    core::{Request, secrets::SECRETS_MAX, tokens::TOKENS_MAX},
    facts::{MachineRow, Sealed, SecretId, TokenRow, Transaction},
    plan::enrolment::CLUSTER_MACHINES_MAX,
};

fn other() -> ClusterName {
    ClusterName::new("other").expect("a label")
}

/// A fleet with a second cluster, and a token `theirs` for its control machines.
fn two_clusters(spec_of_first: ClusterSpec) -> Fleet {
    let mut fleet = Fleet::applied(spec_of_first);
    let clusters = BTreeMap::from([(other(), (spec(1, 0), BTreeMap::new()))]);
    fleet.ask(Request::Apply { clusters, machines: BTreeMap::new(), dry_run: false }).expect("applies");
    fleet.ask(for_other("theirs")).expect("a token");
    fleet
}

fn for_other(id: &str) -> Request {
    let mut request = token(id, Control);
    if let Request::CreateToken { cluster, .. } = &mut request {
        *cluster = other();
    }
    request
}

/// Creates the next secret.
fn secret(fleet: &Fleet, of: Option<ClusterName>, name: &str) -> Request {
    let clusters = if of.is_none() { [cluster()].into() } else { BTreeSet::new() };
    let id = SecretId { cluster: of, name: SecretName::new(name).expect("a name") };
    Request::CreateSecret { id, version: fleet.core.facts().meta.secret_seq + 1, sealed: Sealed(vec![1]), clusters }
}

#[test]
fn secrets_of_one_cluster_leave_others_room() {
    let mut fleet = two_clusters(spec(1, 0));
    for of in [Some(cluster()), None] {
        for n in 0..SECRETS_MAX {
            fleet.ask(secret(&fleet, of.clone(), &format!("s{n}"))).expect("made");
        }
        assert_eq!(reason(fleet.ask(secret(&fleet, of.clone(), "more"))), "TooManySecrets");
        fleet.ask(secret(&fleet, of, "s0")).expect("a new version takes no room");
    }
    fleet.ask(secret(&fleet, Some(other()), "s0")).expect("another cluster has room");
}

#[test]
fn tokens_of_one_cluster_leave_others_room() {
    let mut fleet = two_clusters(spec(1, 2));
    let now = fleet.now();
    let mut facts = fleet.core.facts().clone();
    let mut tx = Transaction::new(&mut facts);
    let row = |n: usize| TokenRow {
        id: format!("t{n:04}"),
        secret_sha256: ItemHash([1; 32]),
        cluster: cluster(),
        machine_type: Worker,
        machine: None,
        uses: 1,
        used: 0,
        created_at_ms: now.wall_ms + n as u64,
        expires_at_ms: now.wall_ms + 3_600_000,
        revoked: false,
    };
    let there = tx.tokens.values().filter(|token| token.cluster == cluster()).count();
    (there..TOKENS_MAX).for_each(|n| tx.put_token(row(n)));
    fleet.core.set_facts(facts);

    let refused = fleet.ask(token("more", Worker)).expect_err("none is spent").to_string();
    assert!(refused.contains("cluster edge-7 has 1000 join tokens") && refused.contains("token revoke"), "{refused}");
    fleet.ask(for_other("more-of-theirs")).expect("another cluster has room");

    let mut facts = fleet.core.facts().clone();
    let mut tx = Transaction::new(&mut facts);
    let spent: [fn(&mut TokenRow); 3] =
        [|token| token.used = 1, |token| token.expires_at_ms = 1, |token| token.revoked = true];
    for (n, spend) in spent.into_iter().enumerate() {
        spend(tx.token_mut(&format!("t{:04}", 500 + n)).expect("there"));
    }
    fleet.core.set_facts(facts);
    for (n, gone) in ["t0501", "t0502", "t0500"].into_iter().enumerate() {
        fleet.ask(token(&format!("more-{n}"), Worker)).expect("one is spent");
        assert!(!fleet.core.facts().tokens.contains_key(gone), "{gone}: used up ones go last");
    }
    assert_eq!(reason(fleet.ask(token("more", Worker))), "TooManyTokens");
}

/// A manifest may name any number of machines, and its operator may apply any number of Machine documents.
#[test]
fn machines_of_one_cluster_leave_others_room() {
    let machines = Some(Counts { control: 1, worker: 10_000 });
    let mut fleet = two_clusters(ClusterSpec { machines, ..spec(1, 0) });
    let names: Vec<String> = (0..=CLUSTER_MACHINES_MAX).map(|n| format!("junk-{n}")).collect();
    let declared: Vec<_> = names.iter().map(|name| (name.as_str(), machine_spec(Worker))).collect();
    assert_eq!(reason(fleet.ask(apply(spec(1, 0), &declared))), "TooManyMachines");

    let mut facts = fleet.core.facts().clone();
    let mut tx = Transaction::new(&mut facts);
    for name in &names[1..] {
        let mut row = MachineRow::new(machine(name), machine_spec(Worker), false, 0);
        row.revoked = true;
        tx.put_machine(row);
    }
    fleet.core.set_facts(facts);
    let refused = fleet.enroll("one-more", Worker).expect_err("full").to_string();
    assert!(refused.contains("TooManyMachines") && refused.contains("musterctl remove"), "{refused}");
    assert_eq!(reason(fleet.ask(apply(spec(1, 0), &[("one-more", machine_spec(Worker))]))), "TooManyMachines");
    fleet.enroll_with("theirs", "control-9").expect("another cluster has room");
}
