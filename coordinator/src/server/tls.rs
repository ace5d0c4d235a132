//! The coordinator's TLS: 1.3 only, HTTP/2 only, a certificate renewed in good time, resumption of sessions disabled.
//! Client certificates are optional, and here only possession of the key is proved. Whether a certificate is acceptable
//! is decided after the handshake (`authenticator.rs`), where the answer can be in words.

use std::sync::{Arc, Mutex, PoisonError};

use muster_proto::tls::{ALPN, provider};
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature},
    pki_types::{CertificateDer, UnixTime},
    server::{
        ClientHello, NoServerSessionStorage, ResolvesServerCert,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};

use super::WallClock;
use crate::pki::{Ca, PkiError, SERVER_LIFETIME, Validity};

/// The server's TLS configuration.
///
/// # Errors
/// [`PkiError`] if issuing the coordinator's certificate fails.
pub(super) fn server_config(ca: Arc<Ca>, clock: WallClock) -> Result<Arc<ServerConfig>, PkiError> {
    let own = OwnCertificate { ca, clock, current: Mutex::new(None) };
    own.fresh()?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(PkiError::Tls)?
        .with_client_cert_verifier(Arc::new(Possession(provider().signature_verification_algorithms)))
        .with_cert_resolver(Arc::new(own));
    config.alpn_protocols = vec![ALPN.to_vec()];
    // A resumed session would skip the proof that the client has its key.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Arc::new(config))
}

/// The coordinator's certificate. Its key stays in memory. Its validity is checked in each handshake, so it stays valid
/// over a long run or a change of the clock.
struct OwnCertificate {
    ca: Arc<Ca>,
    clock: WallClock,
    current: Mutex<Option<(Validity, Arc<CertifiedKey>)>>,
}

impl OwnCertificate {
    fn fresh(&self) -> Result<Arc<CertifiedKey>, PkiError> {
        let now_ms = (self.clock)();
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        // At least half of its lifetime must remain.
        let renew_from_ms = Validity::from(now_ms, SERVER_LIFETIME / 2).not_after_ms;
        let good = |validity: &Validity| validity.not_before_ms <= now_ms && renew_from_ms <= validity.not_after_ms;
        if let Some((_, key)) = current.as_ref().filter(|(validity, _)| good(validity)) {
            return Ok(Arc::clone(key));
        }
        let validity = Validity::from(now_ms, SERVER_LIFETIME);
        let key = Arc::new(self.ca.server_key(validity)?);
        *current = Some((validity, Arc::clone(&key)));
        Ok(key)
    }
}

impl std::fmt::Debug for OwnCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OwnCertificate")
    }
}

impl ResolvesServerCert for OwnCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.fresh().inspect_err(|error| tracing::error!(%error, "no certificate for the coordinator")).ok()
    }
}

/// Proves only that a client has the key of the certificate it presents.
#[derive(Debug)]
struct Possession(WebPkiSupportedAlgorithms);

impl ClientCertVerifier for Possession {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
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
        verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::pki::TrustDomain;

    #[test]
    fn the_certificate_is_made_anew_in_good_time() {
        const DAY_MS: u64 = 24 * 3_600_000;
        let now = Arc::new(AtomicU64::new(1_800_000_000_000));
        let domain = TrustDomain::new("muster.test").expect("a name");
        let ca = Arc::new(Ca::create(&domain, now.load(Ordering::Relaxed)).expect("a CA"));
        let read = Arc::clone(&now);
        let clock: WallClock = Arc::new(move || read.load(Ordering::Relaxed));
        let own = OwnCertificate { ca, clock, current: Mutex::new(None) };
        let mut last = own.fresh().expect("made");
        let mut check = |days: i64, anew: bool| {
            let moved = DAY_MS.saturating_mul(days.unsigned_abs());
            let now_ms = now.load(Ordering::Relaxed);
            now.store(if days < 0 { now_ms - moved } else { now_ms + moved }, Ordering::Relaxed);
            let next = own.fresh().expect("made");
            assert_eq!(!Arc::ptr_eq(&next, &last), anew, "{days} days on");
            last = next;
        };
        check(0, false);
        check(14, false);
        check(2, true);
        check(10, false);
        check(100, true);
        check(-300, true); // the clock was wrong before, and is set
        check(1, false);
    }
}
