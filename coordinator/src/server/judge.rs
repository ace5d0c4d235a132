//! Who is at the other end of a connection. Judged by the CA, the coordinator's own clock, the role in the certificate
//! and the record of denied identities: once when the connection stands, and again for each request.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use muster_proto::{model::MachineId, tls::provider};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, UnixTime},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use tokio::sync::watch;

use super::{
    WallClock,
    refusals::Refusals,
    room::{Engaged, Line},
};
use crate::{
    facts::Facts,
    pki::{Ca, Certificate, CertificateError, Peer, PkiError, Role, TrustDomain},
};

/// What is recorded of identities; the newest value.
pub type Identities = watch::Receiver<Arc<Recorded>>;

/// All of the record that decides who is refused though the certificate has not expired. Of most changes of the facts
/// it is no part, and no connection need look at them.
#[derive(Debug, PartialEq, Eq)]
pub struct Recorded {
    denied: BTreeSet<MachineId>,
    /// Role and name, and until when a certificate was issued that is refused, Unix milliseconds.
    people: BTreeMap<String, Option<u64>>,
}

impl Recorded {
    /// As it is.
    #[must_use]
    pub fn of(facts: &Facts) -> Self {
        let people = facts.credentials.values().map(|row| (row.subject.clone(), row.revoked_at_ms));
        Self { denied: facts.denied.keys().copied().collect(), people: people.collect() }
    }
}

/// Is this certificate refused though it has not expired? Of people everyone who is not in the record: credentials are
/// recorded before anybody has them, so this record is an older one that was put back, and nobody could see them there
/// or revoke them.
fn refuses(facts: &Facts, certificate: &Certificate) -> bool {
    match &certificate.peer.role {
        Role::Agent(id) => facts.denied.contains_key(id),
        Role::Operator(_) | Role::Viewer(_) | Role::Controller(_) => {
            let row = facts.credentials.get(&certificate.peer.to_string());
            row.is_none_or(|row| row.refuses(certificate.issued_at_ms))
        }
        Role::Coordinator => false,
    }
}

/// Why an identity is refused for good, in our log.
pub(super) const TAKEN_BACK: &str = "its identity was revoked or removed, or another machine took its place";
/// A certificate can be renewed for so long after it ran out.
const GRACE_MS: u64 = 7 * 24 * 3600 * 1000;

/// Who calls. Every request carries it, put there by the connection and by nothing else.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Where the connection comes from.
    pub address: SocketAddr,
    /// What it proved to be.
    pub standing: Standing,
    line: Arc<Line>,
}

/// What a connection proved to be.
#[derive(Clone, Debug)]
pub enum Standing {
    /// It showed no certificate.
    Stranger,
    /// It showed one that says nothing to us. It gets one constant answer.
    Refused,
    /// It is an agent whose identity the record says was taken back for good: revoked, removed, or another's by now. It
    /// gets the same answer, and learns that much from it.
    Revoked(MachineId),
    /// It is who its certificate says.
    Known(Arc<Certificate>),
}

impl Caller {
    /// The caller at the other end of a new connection.
    pub(super) fn new(address: SocketAddr, standing: Standing) -> Self {
        Self { address, standing, line: Arc::default() }
    }

    /// Its connection.
    pub(super) const fn line(&self) -> &Arc<Line> {
        &self.line
    }

    /// A call of it begins.
    pub(super) fn engage(&self) -> Engaged {
        self.line.engage()
    }

    /// Cuts its connection, with everything on it.
    pub(super) fn hang_up(&self) {
        self.line.hang_up();
    }

    /// Ends when somebody hangs up.
    pub(super) fn hung_up(&self) -> impl Future<Output = ()> + Send + use<> {
        let line = Arc::clone(&self.line);
        async move { line.hung_up().await }
    }

    #[cfg(test)]
    pub(super) fn nobody() -> Self {
        Self::new(SocketAddr::from(([127, 0, 0, 1], 1)), Standing::Stranger)
    }

    /// The peer, if it is known.
    #[must_use]
    pub fn peer(&self) -> Option<&Peer> {
        match &self.standing {
            Standing::Known(certificate) => Some(&certificate.peer),
            Standing::Stranger | Standing::Refused | Standing::Revoked(_) => None,
        }
    }
}

/// Why a certificate says nothing to us. For our log; the peer is not told.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Not signed by our CA for a client, or out of date.
    #[error("the certificate is not one of ours, or out of date")]
    Chain(#[source] rustls::Error),
    /// It names nobody we know.
    #[error(transparent)]
    Names(#[from] CertificateError),
    /// It names the coordinator.
    #[error("a client cannot be the coordinator")]
    Coordinator,
    /// Its time has passed while the connection stood.
    #[error("the certificate has expired")]
    Expired,
    /// An operator took it back, or the record does not have it.
    #[error("the identity is revoked, or not in the record")]
    Denied,
}

/// Judges certificates.
pub struct Judge {
    chain: Arc<dyn ClientCertVerifier>,
    trust_domain: TrustDomain,
    clock: WallClock,
    facts: watch::Receiver<Arc<Facts>>,
    identities: Identities,
    refusals: Refusals,
}

impl Judge {
    /// A judge for the clients of `ca`, by the facts. Of `identities` it hears when to look at them again.
    ///
    /// # Errors
    /// [`PkiError::Tls`], [`PkiError::Damaged`] if the CA's certificate cannot be used.
    pub fn new(
        ca: &Ca,
        clock: WallClock,
        facts: watch::Receiver<Arc<Facts>>,
        identities: Identities,
    ) -> Result<Self, PkiError> {
        let mut roots = RootCertStore::empty();
        roots.add(ca.certificate().clone()).map_err(PkiError::Tls)?;
        let chain = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(|_| PkiError::Damaged { problem: "its certificate verifies nothing" })?;
        Ok(Self {
            chain,
            trust_domain: ca.trust_domain().clone(),
            clock,
            facts,
            identities,
            refusals: Refusals::default(),
        })
    }

    /// What a client that showed `certificates` in its handshake is.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn judge(&self, certificates: &[CertificateDer<'_>]) -> Result<Standing, Refusal> {
        let Some((leaf, between)) = certificates.split_first() else { return Ok(Standing::Stranger) };
        let now = UnixTime::since_unix_epoch(Duration::from_millis((self.clock)()));
        self.chain.verify_client_cert(leaf, between, now).map_err(Refusal::Chain)?;
        let certificate = Certificate::read(&self.trust_domain, leaf)?;
        if let Some(id) = self.revoked(&certificate) {
            return Ok(Standing::Revoked(id));
        }
        self.still_good(&certificate)?;
        Ok(Standing::Known(Arc::new(certificate)))
    }

    /// The machine, if this is its agent's and was taken back.
    pub fn revoked(&self, certificate: &Certificate) -> Option<MachineId> {
        let Role::Agent(id) = certificate.peer.role else { return None };
        self.facts.borrow().denied.contains_key(&id).then_some(id)
    }

    /// Whose agent's certificate this is, if it is one of ours that says nothing to us any more: mostly it ran out.
    pub fn machine_of(&self, certificates: &[CertificateDer<'_>]) -> Option<MachineId> {
        let leaf = certificates.first()?;
        let certificate = Certificate::read(&self.trust_domain, leaf).ok()?;
        let Role::Agent(id) = certificate.peer.role else { return None };
        let then = UnixTime::since_unix_epoch(Duration::from_millis(certificate.not_after_ms));
        self.chain.verify_client_cert(leaf, &[], then).is_ok().then_some(id)
    }

    /// Says in our log that this machine was turned away, once an hour.
    pub(super) fn note(&self, id: MachineId, address: SocketAddr, reason: &str) {
        if !self.refusals.is_news(id, (self.clock)()) {
            return;
        }
        let facts = self.facts.borrow();
        let removed = || facts.denied.get(&id).map(|row| &row.machine);
        let machine = facts.by_id(id).map(|row| &row.name).or_else(removed).map(ToString::to_string);
        let machine = machine.unwrap_or_else(|| "a machine that is not in the record".to_owned());
        tracing::warn!(machine, %id, %address, reason, "refused; for an hour this is not said again of it");
    }

    /// What a certificate says that ran out a while ago, if it was good then. The caller has to prove that it is his;
    /// whether it was taken back is not looked at.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn judge_expired(&self, leaf: &CertificateDer<'_>) -> Result<Certificate, Refusal> {
        let certificate = Certificate::read(&self.trust_domain, leaf)?;
        let now_ms = (self.clock)();
        if now_ms.saturating_sub(certificate.not_after_ms) > GRACE_MS {
            return Err(Refusal::Expired);
        }
        let then = UnixTime::since_unix_epoch(Duration::from_millis(now_ms.min(certificate.not_after_ms)));
        self.chain.verify_client_cert(leaf, &[], then).map_err(Refusal::Chain)?;
        Ok(certificate)
    }

    /// Is a certificate that was good still so?
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn still_good(&self, certificate: &Certificate) -> Result<(), Refusal> {
        if certificate.not_after_ms < (self.clock)() {
            return Err(Refusal::Expired);
        }
        self.not_denied(certificate)
    }

    fn not_denied(&self, certificate: &Certificate) -> Result<(), Refusal> {
        match &certificate.peer.role {
            Role::Coordinator => Err(Refusal::Coordinator),
            Role::Agent(_) | Role::Operator(_) | Role::Viewer(_) | Role::Controller(_)
                if refuses(&self.facts.borrow(), certificate) =>
            {
                Err(Refusal::Denied)
            }
            Role::Agent(_) | Role::Operator(_) | Role::Viewer(_) | Role::Controller(_) => Ok(()),
        }
    }

    /// Ends when a certificate that is good now is so no more.
    pub fn until_bad(&self, certificate: &Arc<Certificate>) -> impl Future<Output = Refusal> + Send + use<> {
        let left = Duration::from_millis(certificate.not_after_ms.saturating_sub((self.clock)()));
        let (certificate, facts, mut identities) =
            (Arc::clone(certificate), self.facts.clone(), self.identities.clone());
        async move {
            let taken_back = async {
                while !refuses(&facts.borrow(), &certificate) {
                    if identities.changed().await.is_err() {
                        // Nobody can deny any more: the coordinator is ending.
                        std::future::pending().await
                    }
                }
            };
            tokio::select! {
                () = taken_back => Refusal::Denied,
                () = tokio::time::sleep(left) => Refusal::Expired,
            }
        }
    }
}

/// A refusal with its cause, on one line.
pub(super) fn why(refusal: &Refusal) -> String {
    match std::error::Error::source(refusal) {
        Some(source) => format!("{refusal}: {source}"),
        None => refusal.to_string(),
    }
}
