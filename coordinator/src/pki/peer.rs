//! The identity in a certificate. A role is one URI among its alternative names; for operators and viewers, further
//! URIs name the clusters to which they are limited. A certificate with any other URI is refused.

use std::{collections::BTreeSet, fmt};

use muster_proto::model::{ClusterName, MachineId, is_label};
use rustls::pki_types::CertificateDer;
use x509_parser::{
    extensions::GeneralName,
    prelude::{FromDer, X509Certificate},
};

/// Longest trust domain (as a DNS name).
const TRUST_DOMAIN_BYTES_MAX: usize = 253;
const SCHEME: &str = "spiffe://";

/// The realm of one coordinator: names of different realms are kept apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustDomain(String);

impl TrustDomain {
    /// Parse a trust domain: labels with dots between them.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let good = text.len() <= TRUST_DOMAIN_BYTES_MAX && text.split('.').all(is_label);
        good.then(|| Self(text.to_owned()))
    }

    pub(super) fn uri(&self) -> String {
        format!("{SCHEME}{self}")
    }
}

impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Role of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// The agent of one machine.
    Agent(MachineId),
    /// A person who may act.
    Operator(String),
    /// A person who may only read.
    Viewer(String),
    /// A program that guards workloads.
    Controller(String),
    /// The coordinator itself. Clients never have this role.
    Coordinator,
}

/// A peer: its role, and the clusters it is limited to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its role.
    pub role: Role,
    /// The only clusters it may see and touch. None: all.
    pub clusters: Option<BTreeSet<ClusterName>>,
}

/// The form in the audit record and the logs: `operator/anna`.
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.role {
            Role::Agent(id) => write!(f, "agent/{id}"),
            Role::Operator(name) => write!(f, "operator/{name}"),
            Role::Viewer(name) => write!(f, "viewer/{name}"),
            Role::Controller(name) => write!(f, "controller/{name}"),
            Role::Coordinator => f.write_str("coordinator"),
        }
    }
}

impl Peer {
    /// The agent of one machine.
    #[must_use]
    pub const fn agent(id: MachineId) -> Self {
        Self { role: Role::Agent(id), clusters: None }
    }

    /// May it see and touch this cluster?
    #[must_use]
    pub fn may_touch(&self, cluster: &ClusterName) -> bool {
        self.clusters.as_ref().is_none_or(|clusters| clusters.contains(cluster))
    }

    /// The URIs of its certificate.
    pub(super) fn uris(&self, domain: &TrustDomain) -> Vec<String> {
        let clusters = self.clusters.iter().flatten().map(|cluster| format!("{SCHEME}{domain}/cluster/{cluster}"));
        std::iter::once(format!("{SCHEME}{domain}/{self}")).chain(clusters).collect()
    }

    fn from_uris(domain: &TrustDomain, uris: &[&str]) -> Result<Self, CertificateError> {
        let (mut roles, mut clusters) = (Vec::new(), BTreeSet::new());
        for uri in uris {
            let path = uri.strip_prefix(&domain.uri()).and_then(|rest| rest.strip_prefix('/'));
            let path = path.ok_or(CertificateError::TrustDomain)?;
            match path.strip_prefix("cluster/") {
                Some(name) => {
                    clusters.insert(ClusterName::new(name).map_err(|_| CertificateError::Role)?);
                }
                None => roles.push(Role::from_path(path).ok_or(CertificateError::Role)?),
            }
        }
        let [role] = <[Role; 1]>::try_from(roles).map_err(|_| CertificateError::Role)?;
        let limited = matches!(role, Role::Operator(_) | Role::Viewer(_));
        match clusters.is_empty() {
            true => Ok(Self { role, clusters: None }),
            false if limited => Ok(Self { role, clusters: Some(clusters) }),
            false => Err(CertificateError::Role),
        }
    }
}

impl Role {
    fn from_path(path: &str) -> Option<Self> {
        let Some((kind, name)) = path.split_once('/') else {
            return (path == "coordinator").then_some(Self::Coordinator);
        };
        let label = || is_label(name).then(|| name.to_owned());
        match kind {
            "agent" => {
                let id: MachineId = name.parse().ok()?;
                // Accept one spelling only: a denied id must also be denied in capitals.
                (id.to_string() == name).then_some(Self::Agent(id))
            }
            "operator" => label().map(Self::Operator),
            "viewer" => label().map(Self::Viewer),
            "controller" => label().map(Self::Controller),
            _ => None,
        }
    }
}

/// Why a correctly signed certificate is unacceptable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// It is malformed.
    #[error("the certificate does not parse")]
    Parse,
    /// It has a name of another coordinator's realm.
    #[error("the certificate is of another trust domain")]
    TrustDomain,
    /// It has no role or several, or unknown names.
    #[error("the certificate does not name exactly one known role")]
    Role,
}

/// Content of a certificate. The caller checks its signature and its validity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The peer it identifies.
    pub peer: Peer,
    /// Time of issue in Unix milliseconds, in whole seconds.
    pub issued_at_ms: u64,
    /// Start of its validity, Unix milliseconds.
    pub not_before_ms: u64,
    /// End of its validity, Unix milliseconds.
    pub not_after_ms: u64,
    /// The public key, as in the certificate's SubjectPublicKeyInfo.
    pub public_key: Vec<u8>,
}

impl Certificate {
    /// Parse a certificate of `domain`.
    ///
    /// # Errors
    /// [`CertificateError`].
    pub fn read(domain: &TrustDomain, der: &CertificateDer<'_>) -> Result<Self, CertificateError> {
        let (rest, parsed) = X509Certificate::from_der(der).map_err(|_| CertificateError::Parse)?;
        if !rest.is_empty() {
            return Err(CertificateError::Parse);
        }
        let millis = |seconds: i64| u64::try_from(seconds).unwrap_or_default().saturating_mul(1000);
        let not_before_ms = millis(parsed.validity().not_before.timestamp());
        Ok(Self {
            peer: Peer::from_uris(domain, &uris(&parsed)?)?,
            issued_at_ms: super::issued_at_ms(not_before_ms),
            not_before_ms,
            not_after_ms: millis(parsed.validity().not_after.timestamp()),
            public_key: parsed.public_key().raw.to_vec(),
        })
    }
}

/// The trust domain of a CA's certificate: its one URI.
pub(super) fn trust_domain_of(ca: &CertificateDer<'_>) -> Option<TrustDomain> {
    let (_, parsed) = X509Certificate::from_der(ca).ok()?;
    let uris = uris(&parsed).ok()?;
    let [uri] = uris.as_slice() else { return None };
    TrustDomain::new(uri.strip_prefix(SCHEME)?)
}

fn uris<'a>(certificate: &'a X509Certificate<'_>) -> Result<Vec<&'a str>, CertificateError> {
    let names = certificate.subject_alternative_name().map_err(|_| CertificateError::Parse)?;
    let names = names.map_or(&[][..], |names| names.value.general_names.as_slice());
    let uri = |name: &'a GeneralName<'_>| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    };
    Ok(names.iter().filter_map(uri).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_name_a_peer_or_nothing() {
        let domain = TrustDomain::new("muster.test").expect("a name");
        let id = "0191d2a4-0000-7000-8000-00000000000a";
        let agent = format!("spiffe://muster.test/agent/{id}");
        let check = |uris: &[&str], expected: Result<&str, CertificateError>| {
            let found = Peer::from_uris(&domain, uris);
            if let Ok(peer) = &found {
                assert_eq!(peer.uris(&domain), uris, "it must come out as it went in");
            }
            assert_eq!(found.map(|peer| peer.to_string()), expected.map(str::to_owned), "{uris:?}");
        };
        use CertificateError::{Role, TrustDomain as Other};
        check(&[&agent], Ok("agent/0191d2a4-0000-7000-8000-00000000000a"));
        check(&["spiffe://muster.test/operator/anna"], Ok("operator/anna"));
        check(&["spiffe://muster.test/viewer/bo", "spiffe://muster.test/cluster/edge-7"], Ok("viewer/bo"));
        check(&["spiffe://muster.test/controller/locks"], Ok("controller/locks"));
        check(&["spiffe://muster.test/coordinator"], Ok("coordinator"));
        check(&[], Err(Role));
        check(&["spiffe://muster.test/cluster/edge-7"], Err(Role));
        check(&["spiffe://muster.test/operator/anna", "spiffe://muster.test/viewer/anna"], Err(Role));
        check(&["spiffe://muster.test/operator/anna", "spiffe://muster.test/cluster/Edge"], Err(Role));
        check(&[&agent, "spiffe://muster.test/cluster/edge-7"], Err(Role));
        check(&[&agent.to_uppercase()], Err(Other));
        check(&[&agent.replace("00000000000a", "00000000000A")], Err(Role));
        check(&["spiffe://muster.test/operator/"], Err(Role));
        check(&["spiffe://muster.test/operator/a/b"], Err(Role));
        check(&["spiffe://muster.test/operator/anna?x"], Err(Role));
        check(&["spiffe://muster.test/root/anna"], Err(Role));
        check(&["spiffe://muster.test"], Err(Other));
        check(&["spiffe://muster.test.evil/operator/anna"], Err(Other));
        check(&["spiffe://other/operator/anna"], Err(Other));
        check(&["https://muster.test/operator/anna"], Err(Other));
        check(&["spiffe://muster.test/operator/anna", "spiffe://other/cluster/edge-7"], Err(Other));
    }

    #[test]
    fn a_trust_domain_is_a_dns_name() {
        for good in ["muster.internal", "a", "a-b.c"] {
            assert!(TrustDomain::new(good).is_some(), "{good}");
        }
        for bad in ["", ".", "a.", "A", "a/b", "a b", &"a.".repeat(200)] {
            assert!(TrustDomain::new(bad).is_none(), "{bad}");
        }
    }
}
