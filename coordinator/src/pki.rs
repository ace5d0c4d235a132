//! The certificate authority. It signs what the servers have decided to sign; it keeps no list of it. Its key is in the
//! store, sealed with a key file outside it (`key_file.rs`).

mod key_file;
mod peer;
mod request;
mod token;
mod vault;

use std::{fmt, time::Duration};

use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use muster_proto::tls::{SERVER_NAME, provider, spki_sha256};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SerialNumber,
};
use rustls::{
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, pem::PemObject},
    sign::CertifiedKey,
};

use crate::{
    proof::{PROOF_KEY_BYTES, ProofKey},
    store::{Change, Row, Table},
};

pub use key_file::{KeyCheck, KeyFileError, StateKey};
pub use peer::{Certificate, CertificateError, Peer, Role, TrustDomain};
pub use request::{RequestError, public_key, signed_by};
pub use token::{NewToken, Token};
pub use vault::{Vault, VaultError};

/// Lifetime of the CA.
pub const CA_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Lifetime of the coordinator's own certificate, which is renewed automatically.
pub const SERVER_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// Default lifetime of an agent's certificate.
pub const AGENT_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Lifetime of the certificate of an operator, a viewer or a controller.
pub const PERSON_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// A certificate is valid from a little before its issue: clocks differ.
const CLOCK_SLACK: Duration = Duration::from_secs(3600);
/// Length of a serial number: random, so the number of certificates stays unknown, and positive in DER.
const SERIAL_BYTES: usize = 16;
/// Purpose of the sealed CA key.
const KEY_PURPOSE: &[u8] = b"muster ca key v1";
/// Purpose of the proof key that is derived from the CA's key.
const PROOF_PURPOSE: &[u8] = b"muster proof key v1";
const CERTIFICATE_KEY: &str = "ca-certificate";
const SEALED_KEY_KEY: &str = "ca-key";

/// Why the CA failed.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// Creating a key or a certificate failed.
    #[error("cannot make {what}")]
    Make {
        /// The object to create.
        what: &'static str,
        /// Cause.
        #[source]
        source: rcgen::Error,
    },
    /// The store lacks a CA.
    #[error("the store holds no certificate authority; `muster-coordinator init` makes one in a new state directory")]
    Missing,
    /// The stored CA differs from what was written.
    #[error("the certificate authority in the store is damaged: {problem}; restore a backup")]
    Damaged {
        /// The problem.
        problem: &'static str,
    },
    /// The key file is the wrong one for the CA's key.
    #[error("the key file is not the one this state directory was made with; name that one with --key-file")]
    WrongKeyFile,
    /// The system lacks randomness.
    #[error("no random bytes from the system")]
    Random,
    /// Deriving a key from the CA's key failed.
    #[error("no key can be derived from the CA's key")]
    Derive,
    /// TLS rejects our own certificate.
    #[error("the coordinator's certificate is unusable")]
    Tls(#[source] rustls::Error),
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Issue time of a certificate that is valid from `not_before_ms`.
fn issued_at_ms(not_before_ms: u64) -> u64 {
    not_before_ms.saturating_add(millis(CLOCK_SLACK))
}

/// Validity period of a certificate, in Unix milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Start.
    pub not_before_ms: u64,
    /// End.
    pub not_after_ms: u64,
}

impl Validity {
    /// A period from a little before `now_ms` until `lifetime` after it.
    #[must_use]
    pub fn from(now_ms: u64, lifetime: Duration) -> Self {
        Self {
            not_before_ms: now_ms.saturating_sub(millis(CLOCK_SLACK)),
            not_after_ms: now_ms.saturating_add(millis(lifetime)),
        }
    }

    fn apply(self, params: &mut CertificateParams) {
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        params.not_before = epoch + Duration::from_secs(self.not_before_ms / 1000);
        params.not_after = epoch + Duration::from_secs(self.not_after_ms / 1000);
    }
}

/// The certificate authority of one coordinator.
pub struct Ca {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
    trust_domain: TrustDomain,
}

impl fmt::Debug for Ca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ca").field("trust_domain", &self.trust_domain).finish_non_exhaustive()
    }
}

impl Ca {
    /// Create a new CA.
    ///
    /// # Errors
    /// [`PkiError::Make`], [`PkiError::Random`].
    pub fn create(trust_domain: &TrustDomain, now_ms: u64) -> Result<Self, PkiError> {
        let make = |source| PkiError::Make { what: "the CA", source };
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(make)?;
        let mut params = params(&format!("Muster CA of {trust_domain}"), vec![uri(&trust_domain.uri())?])?;
        Validity::from(now_ms, CA_LIFETIME).apply(&mut params);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).map_err(make)?;
        Ok(Self {
            pem: certificate.pem(),
            certificate: certificate.into(),
            issuer: Issuer::new(params, key),
            trust_domain: trust_domain.clone(),
        })
    }

    /// The rows that store it, with its key sealed.
    ///
    /// # Errors
    /// [`PkiError::Random`] if sealing fails.
    pub fn rows(&self, key: &StateKey) -> Result<Vec<Change>, PkiError> {
        let sealed = key.seal(KEY_PURPOSE, self.issuer.key().serialized_der()).ok_or(PkiError::Random)?;
        let put = |key: &str, value| Change::Put { table: Table::Pki, key: key.to_owned(), value };
        Ok(vec![put(CERTIFICATE_KEY, self.pem.clone().into_bytes()), put(SEALED_KEY_KEY, sealed)])
    }

    /// Load the CA from the store.
    ///
    /// # Errors
    /// [`PkiError::Missing`], [`PkiError::WrongKeyFile`], [`PkiError::Damaged`].
    pub fn load(rows: &[Row], key: &StateKey) -> Result<Self, PkiError> {
        let row = |name: &str| {
            rows.iter().find(|(table, key, _)| *table == Table::Pki && key == name).map(|(.., value)| value.as_slice())
        };
        let damaged = |problem| PkiError::Damaged { problem };
        let pem = row(CERTIFICATE_KEY).ok_or(PkiError::Missing)?;
        let sealed = row(SEALED_KEY_KEY).ok_or(PkiError::Missing)?;
        let pem = std::str::from_utf8(pem).map_err(|_| damaged("its certificate is no text"))?;
        let certificate =
            CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|_| damaged("its certificate does not parse"))?;
        let trust_domain =
            peer::trust_domain_of(&certificate).ok_or(damaged("its certificate names no trust domain"))?;
        let opened = PrivatePkcs8KeyDer::from(key.open(KEY_PURPOSE, sealed).ok_or(PkiError::WrongKeyFile)?);
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&opened, &PKCS_ECDSA_P256_SHA256)
            .map_err(|_| damaged("its key does not parse"))?;
        if spki_sha256(&certificate) != Some(token::sha256(&key.subject_public_key_info())) {
            return Err(damaged("key and certificate do not belong together"));
        }
        let issuer =
            Issuer::from_ca_cert_der(&certificate, key).map_err(|_| damaged("its certificate does not parse"))?;
        Ok(Self { issuer, certificate, pem: pem.to_owned(), trust_domain })
    }

    /// The same CA, signing for another trust domain: its certificates are correctly signed but foreign.
    #[cfg(test)]
    pub(crate) fn signing_for(&self, trust_domain: &TrustDomain) -> Self {
        let der = PrivatePkcs8KeyDer::from(self.issuer.key().serialized_der());
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_ECDSA_P256_SHA256).expect("a key");
        let issuer = Issuer::from_ca_cert_der(&self.certificate, key).expect("an issuer");
        let (certificate, pem) = (self.certificate.clone(), self.pem.clone());
        Self { issuer, certificate, pem, trust_domain: trust_domain.clone() }
    }

    /// Its trust domain.
    #[must_use]
    pub const fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    /// Its certificate.
    #[must_use]
    pub const fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Its certificate, as PEM.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The pin that a join token carries: SHA-256 of its public key info.
    #[must_use]
    pub fn pin(&self) -> [u8; 32] {
        token::sha256(&self.issuer.key().subject_public_key_info())
    }

    /// The key of the codes with which agents prove what they were told. It is derived from the CA's key, so every
    /// backup has it, whatever key file seals it. And every coordinator with this CA's signature has had it.
    ///
    /// # Errors
    /// [`PkiError::Derive`].
    pub fn proof_key(&self) -> Result<ProofKey, PkiError> {
        let secret = Salt::new(HKDF_SHA256, &[]).extract(self.issuer.key().serialized_der());
        let mut bytes = [0; PROOF_KEY_BYTES];
        let derived = secret.expand(&[PROOF_PURPOSE], HKDF_SHA256);
        derived.and_then(|derived| derived.fill(&mut bytes)).map_err(|_| PkiError::Derive)?;
        Ok(ProofKey::new(&bytes))
    }

    /// Sign a client's certificate for `peer`, as PEM. The caller has verified that `public_key` is the peer's.
    ///
    /// # Errors
    /// [`PkiError::Make`], [`PkiError::Random`].
    pub fn sign(&self, peer: &Peer, public_key: &impl PublicKeyData, validity: Validity) -> Result<String, PkiError> {
        let names = peer.uris(&self.trust_domain).iter().map(|name| uri(name)).collect::<Result<_, _>>()?;
        let mut params = params(&peer.to_string(), names)?;
        validity.apply(&mut params);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let signed = params.signed_by(public_key, &self.issuer);
        Ok(signed.map_err(|source| PkiError::Make { what: "a certificate", source })?.pem())
    }

    /// Create a key and a client's certificate for it, as in an operator's configuration.
    ///
    /// # Errors
    /// [`PkiError::Make`], [`PkiError::Random`].
    pub fn issue(&self, peer: &Peer, validity: Validity) -> Result<muster_proto::tls::Identity, PkiError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)
            .map_err(|source| PkiError::Make { what: "a key", source })?;
        Ok(muster_proto::tls::Identity {
            certificate_pem: self.sign(peer, &key, validity)?,
            key_pem: key.serialize_pem(),
        })
    }

    /// Create a key and a certificate for the coordinator itself, with the CA in the chain: an enrolling agent finds
    /// its pin there.
    ///
    /// # Errors
    /// [`PkiError::Make`], [`PkiError::Random`], [`PkiError::Tls`].
    pub fn server_key(&self, validity: Validity) -> Result<CertifiedKey, PkiError> {
        let make = |source| PkiError::Make { what: "the coordinator's certificate", source };
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(make)?;
        let peer = Peer { role: Role::Coordinator, clusters: None };
        let mut names: Vec<_> = peer.uris(&self.trust_domain).iter().map(|name| uri(name)).collect::<Result<_, _>>()?;
        names.push(SanType::DnsName(SERVER_NAME.try_into().map_err(make)?));
        let mut params = params("Muster coordinator", names)?;
        validity.apply(&mut params);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let chain = vec![params.signed_by(&key, &self.issuer).map_err(make)?.into(), self.certificate.clone()];
        let key = provider()
            .key_provider
            .load_private_key(PrivatePkcs8KeyDer::from(key.serialize_der()).into())
            .map_err(PkiError::Tls)?;
        Ok(CertifiedKey::new(chain, key))
    }
}

fn uri(text: &str) -> Result<SanType, PkiError> {
    Ok(SanType::URI(text.try_into().map_err(|source| PkiError::Make { what: "a name", source })?))
}

fn params(common_name: &str, names: Vec<SanType>) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.subject_alt_names = names;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    let mut serial: [u8; SERIAL_BYTES] = random()?;
    if let Some(first) = serial.first_mut() {
        *first = *first & 0x7f | 0x40;
    }
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    Ok(params)
}

/// Random bytes from the system.
fn random<const N: usize>() -> Result<[u8; N], PkiError> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| PkiError::Random)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
