//! Two server verifiers around webpki's: one distinguishes a wrong clock from a wrong CA, the other knows its CA by
//! digest.

use std::{io, sync::Arc};

use aws_lc_rs::digest;
use rustls::{
    AlertDescription, CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{ConnectError, provider};

/// SHA-256 of a certificate's SubjectPublicKeyInfo: the form in which a join token names its CA. None = not a
/// certificate.
#[must_use]
pub fn spki_sha256(certificate: &CertificateDer<'_>) -> Option<[u8; 32]> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let mut sum = [0; 32];
    sum.copy_from_slice(digest::digest(&digest::SHA256, parsed.public_key().raw).as_ref());
    Some(sum)
}

/// Reasons for which our verifiers refuse, carried through TLS as [`CertificateError::Other`].
#[derive(Clone, Debug, thiserror::Error)]
enum Refusal {
    #[error("the CA's digest is not the token's")]
    Pin,
    #[error("valid from {not_before} to {not_after}, but it is {ours}")]
    Clock { ours: String, not_before: String, not_after: String },
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Self::InvalidCertificate(CertificateError::Other(rustls::OtherError(Arc::new(refusal))))
    }
}

/// Convert the error of a failed handshake.
pub(super) fn explain(address: &str, source: io::Error) -> ConnectError {
    let address = address.to_owned();
    let error = source.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    let refusal = match error {
        Some(Error::InvalidCertificate(CertificateError::Other(other))) => other.0.downcast_ref::<Refusal>().cloned(),
        _ => None,
    };
    let other_protocol = matches!(
        error,
        Some(
            Error::InvalidMessage(_)
                | Error::PeerIncompatible(_)
                | Error::AlertReceived(AlertDescription::ProtocolVersion | AlertDescription::HandshakeFailure)
        )
    );
    match refusal {
        Some(Refusal::Pin) => ConnectError::PinMismatch { address },
        Some(Refusal::Clock { ours, not_before, not_after }) => ConnectError::ClockSkew { ours, not_before, not_after },
        None if other_protocol => ConnectError::NotTls13 { address, source },
        None => ConnectError::Tls { address, source },
    }
}

/// If `error` concerns time only and the chain is otherwise valid, return a refusal that says so.
fn tell_clock(
    error: Error,
    end_entity: &CertificateDer<'_>,
    now: UnixTime,
    verify_at: impl Fn(UnixTime) -> Result<ServerCertVerified, Error>,
) -> Error {
    let about_time = matches!(
        error,
        Error::InvalidCertificate(
            CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. }
        )
    );
    let Some((_, parsed)) = X509Certificate::from_der(end_entity).ok().filter(|_| about_time) else { return error };
    let validity = parsed.validity();
    let Ok(start) = u64::try_from(validity.not_before.timestamp()) else { return error };
    let inside = UnixTime::since_unix_epoch(std::time::Duration::from_secs(start));
    if verify_at(inside).is_err() {
        return error;
    }
    let ours = i64::try_from(now.as_secs())
        .ok()
        .and_then(|secs| x509_parser::time::ASN1Time::from_timestamp(secs).ok())
        .map_or_else(|| "unknown".to_owned(), |time| time.to_string());
    Refusal::Clock { ours, not_before: validity.not_before.to_string(), not_after: validity.not_after.to_string() }
        .into()
}

/// webpki, but it distinguishes a wrong clock from a wrong CA.
#[derive(Debug)]
pub(super) struct Dated(Arc<WebPkiServerVerifier>);

impl Dated {
    pub(super) const fn new(webpki: Arc<WebPkiServerVerifier>) -> Self {
        Self(webpki)
    }
}

impl ServerCertVerifier for Dated {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verify_at = |at| self.0.verify_server_cert(end_entity, intermediates, name, ocsp, at);
        verify_at(now).map_err(|error| tell_clock(error, end_entity, now, verify_at))
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Finds its CA in the server's own chain by the digest of its public key info, and then verifies as usual.
#[derive(Debug)]
pub(super) struct Pinned {
    ca_spki_sha256: [u8; 32],
    algorithms: WebPkiSupportedAlgorithms,
}

impl Pinned {
    pub(super) fn new(ca_spki_sha256: [u8; 32]) -> Self {
        Self { ca_spki_sha256, algorithms: provider().signature_verification_algorithms }
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let ca = intermediates
            .iter()
            .find(|certificate| spki_sha256(certificate) == Some(self.ca_spki_sha256))
            .ok_or(Refusal::Pin)?;
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone().into_owned())?;
        let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        let verify_at = |at| webpki.verify_server_cert(end_entity, intermediates, name, ocsp, at);
        verify_at(now).map_err(|error| tell_clock(error, end_entity, now, verify_at))
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
