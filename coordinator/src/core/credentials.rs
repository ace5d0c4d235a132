//! Credentials of people and programs: validity and revocation.

use std::collections::BTreeSet;

use muster_proto::{
    address::Addresses,
    model::{ClusterName, Now},
};

use super::{Refusal, Reply, operators::not_found};
use crate::facts::{AuditObject, CertificateRow, CredentialRow, Rate, Transaction};

/// Maximum names with credentials; expired ones make room.
const CREDENTIALS_MAX: usize = 10_000;
/// Maximum valid certificates of one name; expired ones make room.
const CERTIFICATES_MAX: usize = 1_000;
/// Maximum of these by renewal, so that a faulty controller leaves room for certificates that people issue.
const RENEWED_MAX: usize = 100;
/// Renewals of one controller.
const RENEWALS: Rate = Rate { burst: 10, per_second: 1 };

/// Prefix of a controller's subject.
const CONTROLLER: &str = "controller/";

/// A certificate that a controller requests for itself.
#[derive(Clone, Debug)]
pub struct Renewal {
    /// Issue time of the presented certificate, in Unix milliseconds.
    pub shown_issued_at_ms: u64,
    /// Expiry of the presented certificate, in Unix milliseconds.
    pub shown_expires_at_ms: u64,
    /// The new certificate.
    pub certificate: CertificateRow,
}

/// Records credentials before they are issued.
pub(crate) fn record(tx: &mut Transaction<'_>, actor: &str, row: CredentialRow, now: Now) -> Result<Reply, Refusal> {
    if tx.credentials.len() >= CREDENTIALS_MAX && !tx.credentials.contains_key(&row.subject) {
        let expired = tx.credentials.values().find(|row| row.expired(now.wall_ms));
        let Some(expired) = expired.map(|row| row.subject.clone()) else {
            let message = format!("{CREDENTIALS_MAX} names have credentials; use one of them again");
            return Err(Refusal::State { reason: "TooManyCredentials", message });
        };
        tx.drop_credentials(&expired);
    }
    let clusters = row.certificates.iter().flat_map(|certificate| &certificate.clusters);
    let clusters: Vec<&str> = clusters.map(ClusterName::as_str).collect();
    let message = match clusters.as_slice() {
        [] => "for every cluster".to_owned(),
        some => format!("for {}", some.join(", ")),
    };
    let row = beside(tx.credentials.get(&row.subject).map(|known| &**known), row, CERTIFICATES_MAX, now)?;
    tx.audit(actor, "issue", AuditObject::Credentials(&row.subject), &message, now.wall_ms);
    tx.put_credentials(row);
    Ok(Reply::Ok)
}

/// Records a certificate that a controller requested, before it is issued. The presented one stays valid: the answer
/// may be lost, and other instances may share the credentials. Its validity is checked here, because it may have been
/// revoked since the call began.
pub(super) fn renew(tx: &mut Transaction<'_>, controller: &str, renewal: Renewal, now: Now) -> Result<Reply, Refusal> {
    let subject = controller_subject(controller);
    let too_fast = |what: String| move |again_in_ms| Refusal::TooFast { what, again_in_ms };
    let limit = format!("{subject} may renew {} certificate a second", RENEWALS.per_second);
    tx.count(&subject, RENEWALS, now).map_err(too_fast(limit))?;
    let Some(known) = tx.credentials.get(&subject).filter(|row| !row.refuses(renewal.shown_issued_at_ms)).cloned()
    else {
        let message = format!("the credentials of {subject} were revoked while it asked for others");
        return Err(Refusal::State { reason: "Revoked", message });
    };
    let life_ms = renewal.shown_expires_at_ms.saturating_sub(renewal.shown_issued_at_ms);
    let from_ms = renewal.shown_issued_at_ms.saturating_add(life_ms / 2);
    if now.wall_ms < from_ms {
        let what = "a certificate is renewed when half of its life is over, not before".to_owned();
        return Err(too_fast(what)(from_ms - now.wall_ms));
    }
    let lifetime_s = renewal.certificate.expires_at_ms.saturating_sub(renewal.certificate.issued_at_ms) / 1000;
    let row = CredentialRow {
        subject: subject.clone(),
        certificates: vec![renewal.certificate],
        revoked_at_ms: known.revoked_at_ms,
    };
    let row = beside(Some(&known), row, RENEWED_MAX, now)?;
    let message = format!("by itself, for {lifetime_s} s; the certificate that it showed stays until it expires");
    tx.audit(&subject, "renew", AuditObject::Credentials(&subject), &message, now.wall_ms);
    tx.put_credentials(row);
    Ok(Reply::Ok)
}

/// A controller's subject in credentials and in the audit record.
fn controller_subject(controller: &str) -> String {
    format!("{CONTROLLER}{controller}")
}

/// Records the coordinator's addresses: new credentials name the first, and agents learn all of them.
pub(crate) fn set_address(tx: &mut Transaction<'_>, actor: &str, addresses: Addresses, now: Now) -> Reply {
    tx.audit(actor, "set-address", AuditObject::Coordinator, &addresses.to_string(), now.wall_ms);
    let meta = tx.meta_mut();
    addresses.first().clone_into(&mut meta.address);
    meta.advertised = Some(addresses);
    Reply::Ok
}

/// Adds a new certificate to the record of its name. A revocation stays, and so do valid certificates. `most`: their
/// maximum number together.
fn beside(known: Option<&CredentialRow>, row: CredentialRow, most: usize, now: Now) -> Result<CredentialRow, Refusal> {
    let Some(known) = known else { return Ok(row) };
    let mut row = CredentialRow { revoked_at_ms: known.revoked_at_ms.max(row.revoked_at_ms), ..row };
    if row.revoked() {
        let message = format!("the credentials of {} were revoked while new ones were made; try again", row.subject);
        return Err(Refusal::State { reason: "Conflict", message });
    }
    let good = |known: &&CertificateRow| !row.has_revoked(known) && known.expires_at_ms > now.wall_ms;
    let good: Vec<CertificateRow> = known.certificates.iter().filter(good).cloned().collect();
    row.certificates.extend(good);
    if row.certificates.len() > most {
        let message = format!(
            "{} has {} certificates that are good; `musterctl revoke {}` ends them all, or take another name",
            row.subject,
            row.certificates.len() - 1,
            row.subject
        );
        return Err(Refusal::State { reason: "TooManyCredentials", message });
    }
    // The clock may have been set back.
    row.certificates.sort_by_key(|certificate| certificate.issued_at_ms);
    Ok(row)
}

/// Refuses every existing certificate of this name.
pub(super) fn revoke(tx: &mut Transaction<'_>, actor: &str, subject: &str, now: Now) -> Result<Reply, Refusal> {
    let Some(row) = tx.credentials.get(subject) else {
        // Exclude the operator's own subject: an operator cannot revoke it.
        let others = tx.credentials.keys().map(String::as_str).filter(|known| *known != actor);
        return Err(not_found("credential", subject, others));
    };
    if row.revoked() {
        let message = format!("the credentials of {subject} are revoked already");
        return Err(Refusal::State { reason: "NothingToDo", message });
    }
    if actor == subject {
        let message = format!(
            "you are {subject} yourself and would be shut out; make others first, on the coordinator's machine \
             (`muster-coordinator credentials`), and revoke these with them"
        );
        return Err(Refusal::State { reason: "OwnCredentials", message });
    }
    // Include a certificate with an issue time slightly ahead of this clock.
    let newest_ms = row.certificates.iter().map(|certificate| certificate.issued_at_ms).max();
    let revoked_at_ms = newest_ms.max(Some(now.wall_ms));
    let row = CredentialRow { revoked_at_ms, ..(**row).clone() };
    tx.put_credentials(row);
    let line = format!("credentials of {subject} revoked: their connections are cut and they open no new one");
    tx.audit(actor, "revoke", AuditObject::Credentials(subject), &line, now.wall_ms);
    Ok(Reply::Done(std::iter::once(line).chain(locks_that_stay(tx, subject)).collect()))
}

/// The locks of a controller outlive its credentials and still protect their machines.
fn locks_that_stay(tx: &Transaction<'_>, subject: &str) -> Vec<String> {
    let Some(controller) = subject.strip_prefix(CONTROLLER) else { return Vec::new() };
    let clusters: BTreeSet<&ClusterName> =
        tx.locks.keys().filter(|key| key.controller == controller).map(|key| &key.cluster).collect();
    let line = |cluster| {
        format!(
            "cluster {cluster}: its locks stay, and it is waited for; if it is gone for good: `musterctl locks \
             release {controller} --cluster {cluster}`"
        )
    };
    clusters.into_iter().map(line).collect()
}
