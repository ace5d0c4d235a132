//! Certificates that controllers renew by themselves.

use std::collections::BTreeSet;

use super::{Fleet, reason};
use crate::{
    core::{Input, LockCommand, Refusal, Renewal, Reply, Request},
    facts::{AuditRow, CertificateRow, CredentialRow},
};

const SUBJECT: &str = "controller/nova";
const HOUR_MS: u64 = 3_600_000;

/// A fleet with a controller's certificate of this age, valid for an hour; and its issue time.
fn issued(age_ms: u64) -> (Fleet, u64) {
    let mut fleet = Fleet::of(1, 1);
    let at_ms = fleet.now().wall_ms - age_ms;
    fleet.ask(Request::RecordCredentials(row(at_ms))).expect("recorded");
    (fleet, at_ms)
}

fn row(issued_at_ms: u64) -> CredentialRow {
    CredentialRow { subject: SUBJECT.to_owned(), certificates: vec![certificate(issued_at_ms)], revoked_at_ms: None }
}

fn certificate(issued_at_ms: u64) -> CertificateRow {
    CertificateRow { issued_at_ms, expires_at_ms: issued_at_ms + HOUR_MS, clusters: BTreeSet::new() }
}

/// Presents the certificate issued at `shown_at_ms`, and requests one issued at `at_ms`.
fn renew(fleet: &mut Fleet, shown_at_ms: u64, at_ms: u64) -> Result<Reply, Refusal> {
    let renewal = Renewal {
        shown_issued_at_ms: shown_at_ms,
        shown_expires_at_ms: shown_at_ms + HOUR_MS,
        certificate: certificate(at_ms),
    };
    fleet.step(Input::Maintenance { controller: "nova".to_owned(), word: LockCommand::Renew(renewal) })
}

fn of(fleet: &Fleet) -> &CredentialRow {
    &fleet.core.facts().credentials[SUBJECT]
}

fn audited(fleet: &Fleet) -> Vec<&AuditRow> {
    let lines = fleet.core.facts().audit_lines().into_iter();
    lines.filter(|line| line.action == "renew").map(|line| &**line).collect()
}

#[test]
fn renewed_certificate_stands_beside_former() {
    let (mut fleet, at_ms) = issued(HOUR_MS / 2);
    let now_ms = fleet.now().wall_ms;
    assert_eq!(renew(&mut fleet, at_ms, now_ms), Ok(Reply::Ok));
    // The answer is lost: it asks again with its present certificate.
    assert_eq!(renew(&mut fleet, at_ms, now_ms + 1_000), Ok(Reply::Ok));
    let row = of(&fleet);
    assert_eq!(row.certificates, [at_ms, now_ms, now_ms + 1_000].map(certificate));
    assert!([at_ms, now_ms, now_ms + 1_000].iter().all(|at_ms| !row.refuses(*at_ms)), "each is accepted");
    let lines = audited(&fleet);
    let [line] = lines.as_slice() else { panic!("one line, counted up: {lines:?}") };
    assert_eq!((line.actor.as_str(), line.object.as_str(), line.times), (SUBJECT, "credentials/controller/nova", 2));
    assert!(line.message.contains("for 3600 s"), "{}", line.message);
}

#[test]
fn revocation_ends_renewed_and_former() {
    let (mut fleet, at_ms) = issued(HOUR_MS / 2);
    let now_ms = fleet.now().wall_ms;
    renew(&mut fleet, at_ms, now_ms).expect("renewed");
    fleet.ask(Request::RevokeCredentials { subject: SUBJECT.to_owned() }).expect("revoked");
    assert!(of(&fleet).refuses(at_ms) && of(&fleet).refuses(now_ms));
    // A call that began before the revocation: the rim has a certificate ready that is issued after it.
    assert_eq!(reason(renew(&mut fleet, at_ms, now_ms + 2_000)), "Revoked");
    assert!(of(&fleet).revoked(), "nothing is recorded: {:?}", of(&fleet));
    // An unrecorded certificate, as after the restoration of a backup.
    let (mut fleet, at_ms) = issued(HOUR_MS / 2);
    assert_eq!(reason(renew(&mut fleet, at_ms + 5_000, at_ms + 10_000)), "Revoked");
}

#[test]
fn fresh_certificate_is_not_renewed() {
    let (mut fleet, at_ms) = issued(HOUR_MS / 2 - 90_000);
    let now_ms = fleet.now().wall_ms;
    let refused = renew(&mut fleet, at_ms, now_ms).expect_err("too early").to_string();
    assert!(refused.starts_with("TooFast: ") && refused.contains("half of its life"), "{refused}");
    assert!(refused.ends_with("come again in 90 s"), "{refused}");
    assert_eq!((of(&fleet).certificates.len(), audited(&fleet).len()), (1, 0));
}

#[test]
fn renewals_are_limited_in_rate_and_number() {
    let (mut fleet, at_ms) = issued(HOUR_MS / 2);
    let now_ms = fleet.now().wall_ms;
    for n in 0..10 {
        renew(&mut fleet, at_ms, now_ms + n).expect("a burst");
    }
    assert_eq!(reason(renew(&mut fleet, at_ms, now_ms)), "TooFast");
    assert_eq!(of(&fleet).certificates.len(), 11);
    let (mut fleet, at_ms) = issued(HOUR_MS / 2);
    for n in 1..100 {
        fleet.ask(Request::RecordCredentials(row(at_ms + n))).expect("a hundred");
    }
    assert_eq!(reason(renew(&mut fleet, at_ms, at_ms)), "TooManyCredentials");
    fleet.ask(Request::RecordCredentials(row(at_ms + 100))).expect("people go on");
}
