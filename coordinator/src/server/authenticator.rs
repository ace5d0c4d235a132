//! Authentication of the peer of a connection. It uses the CA, the coordinator's own clock, the role in the certificate
//! and the record of denied identities: once when the connection is made, and again for each request.

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

/// Receiver of the newest recorded identities.
pub type Identities = watch::Receiver<Arc<Recorded>>;

/// The part of the record that can refuse an unexpired certificate. Most changes of the facts leave it as it is, and
/// connections ignore them.
#[derive(Debug, PartialEq, Eq)]
pub struct Recorded {
    denied: BTreeSet<MachineId>,
    /// By role and name: certificates issued until this time (Unix milliseconds) are refused.
    people: BTreeMap<String, Option<u64>>,
}

impl Recorded {
    /// Extract it from the facts.
    #[must_use]
    pub fn of(facts: &Facts) -> Self {
        let people = facts.credentials.values().map(|row| (row.subject.clone(), row.revoked_at_ms));
        Self { denied: facts.denied.keys().copied().collect(), people: people.collect() }
    }
}

/// Is this unexpired certificate refused? Also true for people outside the record: credentials are recorded before they
/// are handed out. So an older record was restored, in which these credentials could be neither seen nor revoked.
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

/// Reason for our log when an identity is refused for good.
pub(super) const TAKEN_BACK: &str = "its identity was revoked or removed, or another machine took its place";
/// Time after expiry in which a certificate can be renewed.
const GRACE_MS: u64 = 7 * 24 * 3600 * 1000;

/// The caller of a request, attached to it only by its connection.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Remote address of the connection.
    pub address: SocketAddr,
    /// Result of the authentication.
    pub standing: PeerStatus,
    line: Arc<Line>,
}

/// Result of a connection's authentication.
#[derive(Clone, Debug)]
pub enum PeerStatus {
    /// It presented no certificate.
    Stranger,
    /// It presented an unacceptable certificate. It gets one constant answer.
    Refused,
    /// An agent whose identity was taken back for good: revoked, removed, or replaced. It gets the same answer, with a
    /// mark that tells it so.
    Revoked(MachineId),
    /// It is the peer in its certificate.
    Known(Arc<Certificate>),
}

impl Caller {
    /// The caller of a new connection.
    pub(super) fn new(address: SocketAddr, standing: PeerStatus) -> Self {
        Self { address, standing, line: Arc::default() }
    }

    /// Its connection.
    pub(super) const fn line(&self) -> &Arc<Line> {
        &self.line
    }

    /// Count a call of it as under way.
    pub(super) fn engage(&self) -> Engaged {
        self.line.engage()
    }

    /// Cut its connection, with everything on it.
    pub(super) fn hang_up(&self) {
        self.line.hang_up();
    }

    /// Completes when the connection is to be cut.
    pub(super) fn hung_up(&self) -> impl Future<Output = ()> + Send + use<> {
        let line = Arc::clone(&self.line);
        async move { line.hung_up().await }
    }

    #[cfg(test)]
    pub(super) fn nobody() -> Self {
        Self::new(SocketAddr::from(([127, 0, 0, 1], 1)), PeerStatus::Stranger)
    }

    /// The peer, if it is known.
    #[must_use]
    pub fn peer(&self) -> Option<&Peer> {
        match &self.standing {
            PeerStatus::Known(certificate) => Some(&certificate.peer),
            PeerStatus::Stranger | PeerStatus::Refused | PeerStatus::Revoked(_) => None,
        }
    }
}

/// Why a certificate is unacceptable. For our log only.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Out of date, or signed by another CA or for another use.
    #[error("the certificate is not one of ours, or out of date")]
    Chain(#[source] rustls::Error),
    /// Its names are invalid.
    #[error(transparent)]
    Names(#[from] CertificateError),
    /// It names the coordinator.
    #[error("a client cannot be the coordinator")]
    Coordinator,
    /// It expired while the connection was open.
    #[error("the certificate has expired")]
    Expired,
    /// An operator revoked it, or the record lacks it.
    #[error("the identity is revoked, or not in the record")]
    Denied,
}

/// Checks certificates.
pub struct Authenticator {
    chain: Arc<dyn ClientCertVerifier>,
    trust_domain: TrustDomain,
    clock: WallClock,
    facts: watch::Receiver<Arc<Facts>>,
    identities: Identities,
    refusals: Refusals,
}

impl Authenticator {
    /// Create a authenticator for the clients of `ca`, based on the facts. `identities` tells when to check them again.
    ///
    /// # Errors
    /// [`PkiError::Tls`], [`PkiError::Damaged`] if the CA's certificate is unusable.
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

    /// Authenticate a client by the `certificates` of its handshake.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn authenticator(&self, certificates: &[CertificateDer<'_>]) -> Result<PeerStatus, Refusal> {
        let Some((leaf, between)) = certificates.split_first() else { return Ok(PeerStatus::Stranger) };
        let now = UnixTime::since_unix_epoch(Duration::from_millis((self.clock)()));
        self.chain.verify_client_cert(leaf, between, now).map_err(Refusal::Chain)?;
        let certificate = Certificate::read(&self.trust_domain, leaf)?;
        if let Some(id) = self.revoked(&certificate) {
            return Ok(PeerStatus::Revoked(id));
        }
        self.still_good(&certificate)?;
        Ok(PeerStatus::Known(Arc::new(certificate)))
    }

    /// The machine, if this is an agent's certificate that was taken back.
    pub fn revoked(&self, certificate: &Certificate) -> Option<MachineId> {
        let Role::Agent(id) = certificate.peer.role else { return None };
        self.facts.borrow().denied.contains_key(&id).then_some(id)
    }

    /// Machine of an agent's certificate of ours that has become invalid, mostly because it expired.
    pub fn machine_of(&self, certificates: &[CertificateDer<'_>]) -> Option<MachineId> {
        let leaf = certificates.first()?;
        let certificate = Certificate::read(&self.trust_domain, leaf).ok()?;
        let Role::Agent(id) = certificate.peer.role else { return None };
        let then = UnixTime::since_unix_epoch(Duration::from_millis(certificate.not_after_ms));
        self.chain.verify_client_cert(leaf, &[], then).is_ok().then_some(id)
    }

    /// Log that this machine was turned away, once an hour.
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

    /// Content of a certificate that expired a while ago, if it was valid before. The caller must still prove that it
    /// owns the certificate, and revocation is checked elsewhere.
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

    /// Check that a certificate is still valid.
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

    /// Completes when a valid certificate becomes invalid.
    pub fn until_bad(&self, certificate: &Arc<Certificate>) -> impl Future<Output = Refusal> + Send + use<> {
        let left = Duration::from_millis(certificate.not_after_ms.saturating_sub((self.clock)()));
        let (certificate, facts, mut identities) =
            (Arc::clone(certificate), self.facts.clone(), self.identities.clone());
        async move {
            let taken_back = async {
                while !refuses(&facts.borrow(), &certificate) {
                    if identities.changed().await.is_err() {
                        // The sender is gone: the coordinator is ending.
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

/// A refusal with its cause in one line.
pub(super) fn why(refusal: &Refusal) -> String {
    match std::error::Error::source(refusal) {
        Some(source) => format!("{refusal}: {source}"),
        None => refusal.to_string(),
    }
}
