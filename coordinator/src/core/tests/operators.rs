//! Operators' requests: the accepted ones, and the refused ones with their reasons.

use std::collections::BTreeSet;

use muster_proto::model::{
    ClusterName,
    ItemState::{self, Failed, Indeterminate, Running, Succeeded},
    MachineName,
    MachineType::Control,
};

use super::{
    done,
    fleet::{Fleet, cluster, item_name, machine, spec},
    reason,
};
use crate::{
    core::{Effect, Refusal, Request},
    facts::{CertificateRow, CredentialRow},
    plan::blocked,
};

const FAILED: ItemState = Failed { exit_code: 3, retryable: false };

fn retry(item: Option<&str>) -> Request {
    Request::Retry { machine: machine("control-1"), item: item.map(item_name) }
}

fn skip(item: Option<&str>) -> Request {
    Request::Skip { machine: machine("control-1"), item: item.map(item_name) }
}

fn accept(item: Option<&str>) -> Request {
    Request::Accept { machine: machine("control-1"), item: item.map(item_name) }
}

/// `control-1` with its deploy item in this state; None: it has its slot before the item begins.
fn standing(state: Option<ItemState>) -> Fleet {
    let mut fleet = Fleet::of(1, 0).reported().prepared();
    fleet.accept("control-1");
    if let Some(state) = state {
        fleet.event("control-1", "install", Running);
        if state != Running {
            fleet.event("control-1", "install", state);
        }
    }
    fleet
}

#[test]
fn wishes_fit_or_are_refused() {
    let check = |state: Option<ItemState>, request: Request, fits: bool| {
        let mut fleet = standing(state.clone());
        let lines = fleet.core.facts().audit_lines().len();
        let case = format!("{state:?} {request:?}");
        let answer = fleet.ask(request);
        assert_eq!(answer.is_ok(), fits, "{case}: {answer:?}");
        assert_eq!(fleet.core.facts().audit_lines().len(), lines + usize::from(fits), "{case}: audited if it was done");
        if !fits {
            assert_eq!(reason(answer), "NothingToDo", "{case}");
        }
    };
    let install = Some("install");
    for item in [None, install] {
        check(Some(FAILED), retry(item), true);
        check(Some(FAILED), skip(item), true);
        check(Some(FAILED), accept(item), false);
        check(Some(Indeterminate), retry(item), true);
        check(Some(Indeterminate), skip(item), true);
        check(Some(Indeterminate), accept(item), true);
        for request in [retry(item), skip(item), accept(item)] {
            check(Some(Running), request, false);
        }
        check(None, retry(item), false);
        check(None, accept(item), false);
    }
    check(None, skip(None), false);
    check(None, skip(install), true);
    check(Some(FAILED), retry(Some("images")), false);
}

#[test]
fn a_wish_that_does_not_fit_says_how_the_item_stands() {
    for (state, stands) in [
        (None, "item install of control-1 has not begun;"),
        (
            Some(Running),
            "item install of control-1 is running; wait until it ends: `musterctl logs control-1 install -f`",
        ),
        (Some(Succeeded), "item install of control-1 is done;"),
        (Some(FAILED), "item install of control-1 has failed for good; item install failed: `musterctl retry"),
    ] {
        let refusal = standing(state).ask(accept(Some("install"))).expect_err("does not fit").to_string();
        assert!(refusal.contains(stands), "{refusal}");
    }
}

#[test]
fn an_item_of_an_earlier_manifest_is_named_as_such() {
    let mut fleet = standing(Some(FAILED));
    let mut edited = spec(1, 0);
    let items = edited.machine_types.get_mut(&Control).expect("items");
    items[1].name = item_name("setup");
    fleet.ask(super::fleet::apply(edited, &[])).expect("applies");
    let refusal = fleet.ask(accept(Some("install"))).expect_err("it is gone").to_string();
    assert!(
        refusal.contains("install of control-1 is of an earlier manifest") && refusal.contains("setup"),
        "{refusal}"
    );
}

#[test]
fn what_does_not_exist_is_named_with_its_nearest() {
    let mut fleet = standing(Some(FAILED));
    let check = |fleet: &mut Fleet, request, expected: &str| {
        assert_eq!(fleet.ask(request).expect_err("not found").to_string(), expected);
    };
    check(&mut fleet, retry(Some("instal")), "there is no item instal; did you mean install?");
    let typo = Request::Retry { machine: machine("contrl-1"), item: None };
    check(&mut fleet, typo, "there is no machine contrl-1; did you mean control-1?");
    let other = muster_proto::model::ClusterName::new("elsewhere").expect("a label");
    check(&mut fleet, Request::Deploy { cluster: other }, "there is no cluster elsewhere");
    check(
        &mut fleet,
        Request::RevokeToken { id: "contrl".into(), machines: false },
        "there is no token contrl; did you mean control?",
    );
}

#[test]
fn a_retry_runs_again_and_succeeds() {
    let mut fleet = standing(Some(FAILED));
    let lines = done(fleet.ask(retry(None)));
    assert_eq!(lines, "machine control-1: item install runs again (attempt 2)");
    fleet.finish("control-1");
    assert_eq!(fleet.row("control-1").statuses[&item_name("install")].attempt, 2);
    assert_eq!(fleet.state("control-1"), "Ready");
}

#[test]
fn skipped_and_accepted_items_leave_the_list() {
    for (state, request) in [(FAILED, skip(None)), (Indeterminate, accept(Some("install")))] {
        let mut fleet = standing(Some(state));
        fleet.ask(request).expect("fits");
        let list = fleet.agents["control-1"].assignment.as_ref().expect("a list");
        assert!(list.items.iter().all(|item| item.name.as_str() != "install"));
        assert_eq!(fleet.slots(), ["control-1"], "not before the agent has accepted the list without it");
        fleet.accept("control-1");
        assert_eq!((fleet.state("control-1"), fleet.slots()), ("Ready", Vec::new()));
    }
}

/// A decision applies to one content: the same name with other content is due again.
#[test]
fn a_skip_does_not_outlive_its_item() {
    let mut fleet = standing(Some(FAILED));
    fleet.ask(skip(None)).expect("fits");
    let again = fleet.ask(skip(Some("install"))).expect_err("it is skipped already").to_string();
    assert!(again.contains("item install of control-1 was skipped by an operator"), "{again}");
    let mut edited = spec(1, 0);
    edited.machine_types.get_mut(&Control).expect("items")[1].version.push('2');
    fleet.ask(super::fleet::apply(edited, &[])).expect("applies");
    assert_eq!(fleet.due("control-1").as_deref(), Some("install"));
    fleet.finish("control-1");
    assert_eq!(fleet.state("control-1"), "Ready");
}

#[test]
fn deploy_needs_a_control_machine() {
    let mut fleet = Fleet::of(3, 2);
    let deploy = || Request::Deploy { cluster: cluster() };
    let refused = |fleet: &mut Fleet| match fleet.ask(deploy()) {
        Err(Refusal::State { reason: "NoControlMachine", message }) => message,
        other => panic!("{other:?}"),
    };
    let silent = "control-1, control-2, control-3 enrolled; does `muster-agent` run there?";
    assert!(refused(&mut fleet).contains(silent), "{}", refused(&mut fleet));
    let mut nobody = Fleet::of(0, 2);
    assert!(refused(&mut nobody).contains("`musterctl token create --cluster edge-7 --type control`"));
    fleet.connect("worker-1");
    assert_eq!(reason(fleet.ask(deploy())), "NoControlMachine");
    fleet.connect("control-2");
    assert_eq!(fleet.row("control-2").max_phase, None, "2 of 5 machines start nothing by themselves");
    let line = "cluster edge-7: deployment started with 1 control and 1 worker machines; others join when they report";
    assert_eq!(done(fleet.ask(deploy())), line);
    let mut fleet = fleet.prepared();
    assert_eq!(fleet.slots(), ["control-2"]);
    assert!(done(fleet.ask(deploy())).contains("has begun already"));
    fleet.connect("control-1");
    assert!(fleet.row("control-1").rollout.is_some(), "it joins");
    let mut fleet = Fleet::of(1, 0).reported().prepared();
    fleet.finish_all(Control);
    assert!(done(fleet.ask(deploy())).ends_with("is brought about by `musterctl update edge-7`"));
}

#[test]
fn a_revoked_machine_frees_its_slot_and_is_shut_out() {
    let mut fleet = Fleet::of(2, 0).reported().prepared();
    fleet.begin("control-1");
    let id = fleet.agents["control-1"].id;
    let revoke = |name: &str| Request::RevokeMachine {
        machine: MachineName::new(name).expect("a label"),
        machine_is_off: false,
    };
    let line = "machine control-1 revoked: its streams are closed and it cannot renew; its slot is free, but what it \
                was told to do goes on there until it is off";
    assert_eq!(done(fleet.ask(revoke("control-1"))), line);
    assert!(fleet.effects.iter().any(|effect| matches!(effect, Effect::Close { id: closed, .. } if *closed == id)));
    assert!(fleet.core.facts().denied.contains_key(&id));
    assert_eq!((fleet.slots(), fleet.why("control-1").as_deref()), (vec!["control-2"], Some("Revoked")));
    assert_eq!(reason(fleet.ask(revoke("control-1"))), "NothingToDo");
    let way_out = |fleet: &Fleet| fleet.look("control-1", blocked::of_machine).expect("it waits").clears_when;
    assert_eq!(way_out(&fleet), "`musterctl replace control-1`, and it enrols again");
    fleet.ask(Request::ReplaceMachine { machine: machine("control-1"), machine_is_off: false }).expect("replaced");
    assert!(way_out(&fleet).starts_with("one enrols as control-1, with a token of `musterctl token create --cluster"));
    fleet.finish("control-2");
    assert_eq!(fleet.state("control-2"), "Ready");
}

#[test]
fn an_item_that_succeeded_is_never_undone_by_a_wish() {
    let mut fleet = standing(Some(Succeeded));
    for request in [retry(None), skip(None), accept(None), retry(Some("install")), skip(Some("install"))] {
        assert_eq!(reason(fleet.ask(request)), "NothingToDo");
    }
}

#[test]
fn a_revocation_outlives_new_credentials_that_were_under_way() {
    let mut fleet = Fleet::of(1, 1);
    let now_ms = fleet.now().wall_ms;
    let issued = |at_ms: u64, clusters: &[&str]| {
        let clusters = clusters.iter().map(|name| ClusterName::new(*name).expect("a label")).collect();
        let certificate = CertificateRow { issued_at_ms: at_ms, expires_at_ms: at_ms + 3_600_000, clusters };
        let subject = "operator/bo".to_owned();
        Request::RecordCredentials(CredentialRow { subject, certificates: vec![certificate], revoked_at_ms: None })
    };
    let of = |fleet: &Fleet| (*fleet.core.facts().credentials["operator/bo"]).clone();
    fleet.ask(issued(now_ms - 5_000, &["edge-7"])).expect("recorded");
    fleet.ask(issued(now_ms - 4_000, &["edge-8"])).expect("recorded");
    let clusters = |fleet: &Fleet| {
        let certificates = of(fleet).certificates.into_iter();
        certificates.map(|known| known.clusters.into_iter().map(String::from).collect()).collect::<Vec<Vec<String>>>()
    };
    assert_eq!(clusters(&fleet), [["edge-7"], ["edge-8"]], "each is for its own, and both are good");
    let refused = |fleet: &Fleet, at_ms: u64| of(fleet).refuses(at_ms);
    for (issued_at_ms, is_refused) in [(5_000, false), (4_000, false), (4_500, false), (3_000, true), (6_000, true)] {
        assert_eq!(refused(&fleet, now_ms / 1000 * 1000 - issued_at_ms), is_refused, "{issued_at_ms} ms ago");
    }
    fleet.ask(Request::RevokeCredentials { subject: "operator/bo".to_owned() }).expect("revoked");
    assert_eq!(reason(fleet.ask(issued(now_ms - 1, &[]))), "Conflict", "made before, recorded after");
    assert!(of(&fleet).revoked());
    fleet.ask(issued(now_ms + 3_000, &["edge-9"])).expect("made after");
    assert!(!of(&fleet).revoked() && of(&fleet).revoked_at_ms.is_some());
    assert_eq!(clusters(&fleet), [["edge-9"]]);
    assert!(refused(&fleet, now_ms - 4_000) && !refused(&fleet, now_ms + 3_000));
    // The clock was set back.
    fleet.ask(issued(now_ms + 2_000, &[])).expect("made after");
    let issued_ms: Vec<u64> = of(&fleet).certificates.iter().map(|known| known.issued_at_ms).collect();
    assert_eq!(issued_ms, [now_ms + 2_000, now_ms + 3_000]);
}

/// After a mistyped name, only the credentials of others are suggested.
#[test]
fn a_mistyped_name_suggests_the_credentials_of_others() {
    let mut fleet = Fleet::of(1, 1);
    let now_ms = fleet.now().wall_ms;
    let mut issue = |subject: &str| {
        let expires_at_ms = now_ms + 3_600_000;
        let certificate = CertificateRow { issued_at_ms: now_ms, expires_at_ms, clusters: BTreeSet::new() };
        let row = CredentialRow { subject: subject.to_owned(), certificates: vec![certificate], revoked_at_ms: None };
        fleet.ask(Request::RecordCredentials(row)).expect("recorded");
        match fleet.ask(Request::RevokeCredentials { subject: "operator/anne".to_owned() }) {
            Err(Refusal::NotFound { nearest, .. }) => nearest,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(issue("operator/anna"), None, "who asks");
    assert_eq!(issue("operator/hanne").as_deref(), Some("operator/hanne"));
}
