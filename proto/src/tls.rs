//! The client side of every connection to a coordinator: TLS 1.3 only, one crypto provider, one fixed server name.
//! Agent and musterctl both connect here; the coordinator's acceptor is in `coordinator/src/server/tls.rs`.

mod verify;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::CryptoProvider,
    pki_types::{
        CertificateDer, PrivateKeyDer, ServerName,
        pem::{self, PemObject},
    },
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use uuid::Uuid;

pub use verify::spki_sha256;

use crate::address::host_and_port;

/// The DNS name in every coordinator's certificate, independent of its address. The CA alone decides which server is a
/// coordinator, so certificates stay valid when an address moves or a load balancer is added.
pub const SERVER_NAME: &str = "coordinator.muster.internal";
/// HTTP/2 only.
pub const ALPN: &[u8] = b"h2";
/// Timeout for TCP and TLS together.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Most attempts at a handshake that is cut off, for callers that rely on these retries: about three seconds.
const TRIES_MAX: u32 = 6;
/// Wait before the second attempt; doubled before each further one.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// A certificate and its key, both PEM.
#[derive(Clone)]
pub struct Identity {
    /// Certificate chain, leaf first.
    pub certificate_pem: String,
    /// Private key, PKCS#8.
    pub key_pem: String,
}

/// Why credentials are unusable.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// PEM that is malformed, or that lacks the expected section.
    #[error("{what} is not valid PEM: {}", pem_fault(problem))]
    Pem {
        /// CA, certificate or key.
        what: &'static str,
        /// The parser's error.
        problem: pem::Error,
    },
    /// PEM whose certificate is invalid.
    #[error("{what} is damaged: it is PEM, but no certificate")]
    Damaged {
        /// Name of the credential.
        what: &'static str,
    },
    /// Mismatched certificates, key or CA.
    #[error("the TLS credentials are unusable")]
    Config(#[source] rustls::Error),
    /// A CA list that is unusable for verification.
    #[error("no usable CA certificate")]
    Roots(#[source] rustls::client::VerifierBuilderError),
}

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Invalid `HOST:PORT`, or an unresolvable name.
    #[error("cannot resolve {address}{}", address_hint(address))]
    Resolve {
        /// The address as given.
        address: String,
        /// The resolver's error.
        #[source]
        source: io::Error,
    },
    /// The address is unreachable.
    #[error("cannot reach {address}")]
    Tcp {
        /// The address as given.
        address: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// No answer within [`CONNECT_TIMEOUT`].
    #[error("{address} does not answer within {} s", CONNECT_TIMEOUT.as_secs())]
    Timeout {
        /// The address as given.
        address: String,
    },
    /// The CA is right, but the certificate is invalid at this machine's time.
    #[error(
        "ClockSkew: this machine's time is {ours}, but the coordinator's certificate is valid from {not_before} to \
         {not_after}; one of the two has a wrong clock: set it (the CA is the right one)"
    )]
    ClockSkew {
        /// This machine's time.
        ours: String,
        /// Start of the certificate's validity.
        not_before: String,
        /// End of it.
        not_after: String,
    },
    /// The CA's digest differs from the one in the join token. No secret was sent.
    #[error("{address} is not the coordinator that made this token (its CA's digest differs); nothing was sent to it")]
    PinMismatch {
        /// The address as given.
        address: String,
    },
    /// The peer lacks TLS 1.3, so it is no coordinator.
    #[error("{address} does not speak TLS 1.3, so it is no coordinator (is the port the right one?)")]
    NotTls13 {
        /// The address as given.
        address: String,
        /// The error of TLS.
        #[source]
        source: io::Error,
    },
    /// The handshake failed for another reason.
    #[error("the TLS handshake with {address} failed")]
    Tls {
        /// The address as given.
        address: String,
        /// The error of TLS.
        #[source]
        source: io::Error,
    },
    /// HTTP/2 failed to start.
    #[error("no HTTP/2 connection with {address}")]
    Http {
        /// The address as given.
        address: String,
        /// The transport's error.
        #[source]
        source: tonic::transport::Error,
    },
}

/// A connection to a coordinator.
pub struct Connection {
    /// Channel for the generated clients.
    pub channel: Channel,
    /// Local address, by which the coordinator is reached.
    pub local: SocketAddr,
}

/// The crypto provider of every connection.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Parse the certificates of a PEM text.
///
/// # Errors
/// [`TlsError::Pem`] if it is malformed.
pub fn certificates(what: &'static str, pem: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|problem| TlsError::Pem { what, problem })
}

/// Build a configuration that trusts the given CAs and presents `identity`, if given.
///
/// # Errors
/// [`TlsError`] if the credentials are unusable.
pub fn client_config(ca_pem: &str, identity: Option<&Identity>) -> Result<Arc<ClientConfig>, TlsError> {
    let mut roots = RootCertStore::empty();
    for ca in certificates("the CA certificate", ca_pem)? {
        roots.add(ca).map_err(|_| TlsError::Damaged { what: "the CA certificate" })?;
    }
    let webpki =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build().map_err(TlsError::Roots)?;
    config(Arc::new(verify::Dated::new(webpki)), identity)
}

/// Build a configuration that trusts the CA in the server's chain whose public key info has this SHA-256. For
/// enrolment, before the CA is known.
///
/// # Errors
/// [`TlsError`] if building the configuration fails.
pub fn pinned_config(ca_spki_sha256: [u8; 32]) -> Result<Arc<ClientConfig>, TlsError> {
    config(Arc::new(verify::Pinned::new(ca_spki_sha256)), None)
}

/// The parser's error in words: it has bytes as numbers. The text itself is left out: it may be a key.
fn pem_fault(problem: &pem::Error) -> String {
    match problem {
        pem::Error::MissingSectionEnd { end_marker } => {
            format!("its last line, -----END {}-----, is missing", String::from_utf8_lossy(end_marker).trim())
        }
        pem::Error::IllegalSectionStart { .. } => "its -----BEGIN line is broken".to_owned(),
        pem::Error::Base64Decode(_) => "what is between its first and its last line is not base64".to_owned(),
        pem::Error::NoItemsFound => "there is none in it".to_owned(),
        other => other.to_string(),
    }
}

/// The error's own words; the link to rustls' manual, useless to operators, is cut.
#[must_use]
pub fn without_manual(said: &str) -> &str {
    said.split_once(": https://docs.rs/rustls").map_or(said, |(said, _)| said)
}

impl ConnectError {
    /// Did the peer cut off the handshake without an alert? A coordinator does so under too many idle connections, or
    /// when it is killed.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        let mut next: Option<&(dyn std::error::Error + 'static)> = match self {
            Self::Tls { source, .. } => Some(source),
            Self::Http { source, .. } => Some(source),
            _ => None,
        };
        while let Some(error) = next {
            if let Some(kind) = error.downcast_ref::<io::Error>().map(io::Error::kind) {
                return matches!(
                    kind,
                    io::ErrorKind::ConnectionReset
                        | io::ErrorKind::ConnectionAborted
                        | io::ErrorKind::BrokenPipe
                        | io::ErrorKind::UnexpectedEof
                );
            }
            next = error.source();
        }
        false
    }

    /// Is the address invalid everywhere, whatever the resolver?
    #[must_use]
    pub fn is_malformed_address(&self) -> bool {
        matches!(self, Self::Resolve { address, .. } if !address_hint(address).is_empty())
    }
}

/// Why an address is malformed.
fn address_hint(address: &str) -> String {
    host_and_port(address).err().map(|fault| format!(": {fault}")).unwrap_or_default()
}

fn config(verifier: Arc<dyn ServerCertVerifier>, identity: Option<&Identity>) -> Result<Arc<ClientConfig>, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsError::Config)?
        .dangerous() // rustls' word for a verifier of one's own; ours wrap webpki's and only ever refuse more
        .with_custom_certificate_verifier(verifier);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes())
                .map_err(|problem| TlsError::Pem { what: "the private key", problem })?;
            builder.with_client_auth_cert(certificates("the certificate", &identity.certificate_pem)?, key).map_err(
                |error| match error {
                    rustls::Error::InvalidCertificate(_) => TlsError::Damaged { what: "the certificate" },
                    other => TlsError::Config(other),
                },
            )?
        }
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Arc::new(config))
}

/// Open one connection to `address` (`HOST:PORT`), within [`CONNECT_TIMEOUT`].
///
/// # Errors
/// [`ConnectError`], which says what to do where possible.
pub async fn connect(address: &str, config: Arc<ClientConfig>) -> Result<Connection, ConnectError> {
    tokio::time::timeout(CONNECT_TIMEOUT, dial(address, config))
        .await
        .unwrap_or_else(|_| Err(ConnectError::Timeout { address: address.to_owned() }))
}

/// As [`connect`], for callers that rely on these retries: it retries a handshake that was cut off a few times, each
/// after a longer wait.
///
/// # Errors
/// [`ConnectError`], of the last attempt.
pub async fn connect_again(address: &str, config: Arc<ClientConfig>) -> Result<Connection, ConnectError> {
    let mut wait = TRY_AGAIN_AFTER;
    for _ in 1..TRIES_MAX {
        match connect(address, Arc::clone(&config)).await {
            Err(error) if error.is_cut() => tokio::time::sleep(spread(wait)).await,
            outcome => return outcome,
        }
        wait *= 2;
    }
    connect(address, config).await
}

/// Between half and one and a half times a wait: spreads the retries of many clients.
#[must_use]
pub fn spread(wait: Duration) -> Duration {
    let part = u32::from(Uuid::new_v4().as_bytes()[0]);
    wait / 2 + wait * part / 255
}

async fn dial(address: &str, config: Arc<ClientConfig>) -> Result<Connection, ConnectError> {
    let found: Vec<SocketAddr> = tokio::net::lookup_host(address)
        .await
        .map_err(|source| ConnectError::Resolve { address: address.to_owned(), source })?
        .collect();
    if found.is_empty() {
        let source = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        return Err(ConnectError::Resolve { address: address.to_owned(), source });
    }
    let tcp_error = |source| ConnectError::Tcp { address: address.to_owned(), source };
    let tcp = first_answer(&found, CONNECT_TIMEOUT).await.map_err(tcp_error)?;
    tcp.set_nodelay(true).map_err(tcp_error)?;
    let local = tcp.local_addr().map_err(tcp_error)?;
    let name = ServerName::try_from(SERVER_NAME)
        .map_err(|_| tcp_error(io::Error::new(io::ErrorKind::InvalidInput, "bad server name")))?;
    let tls = TlsConnector::from(config).connect(name, tcp).await.map_err(|source| verify::explain(address, source))?;
    let mut once = Some(TokioIo::new(tls));
    let connector = tower::service_fn(move |_: http::Uri| {
        std::future::ready(once.take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)))
    });
    let channel = Endpoint::from_static("http://coordinator.muster.internal")
        .http2_keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(10))
        .connect_with_connector(connector)
        .await
        .map_err(|source| ConnectError::Http { address: address.to_owned(), source })?;
    Ok(Connection { channel, local })
}

/// The first address that answers, in the resolver's order. Each gets an equal share of the time, and one share remains
/// for the handshake: an address that drops packets would otherwise hide the others.
async fn first_answer(addresses: &[SocketAddr], time: Duration) -> io::Result<TcpStream> {
    let shares = u32::try_from(addresses.len()).unwrap_or(u32::MAX).saturating_add(1);
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        let error = match tokio::time::timeout(time / shares, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => error,
            Err(_) => io::Error::new(io::ErrorKind::TimedOut, "nobody answers"),
        };
        last = if addresses.len() > 1 { io::Error::new(error.kind(), format!("{address}: {error}")) } else { error };
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    /// A listener whose queue is full: the kernel drops further connections.
    async fn silent() -> (TcpListener, Vec<TcpStream>) {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(([127, 0, 0, 1], 0).into()).expect("a port");
        let listener = socket.listen(1).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let mut waiting = Vec::new();
        let time_limit = Duration::from_millis(300);
        while let Ok(Ok(stream)) = tokio::time::timeout(time_limit, TcpStream::connect(address)).await {
            waiting.push(stream);
        }
        (listener, waiting)
    }

    #[test]
    fn a_damaged_certificate_is_told_by_its_name() {
        let pem = "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n";
        let said = client_config(pem, None).err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(said, "the CA certificate is damaged: it is PEM, but no certificate");
    }

    #[test]
    fn what_is_wrong_with_pem_is_said_in_words() {
        for (key, said) in [
            ("", "there is none in it"),
            ("-----BEGIN PRIVATE KEY-----\nAAAA\n", "-----END PRIVATE KEY-----, is missing"),
            ("-----BEGIN PRIVATE\nAAAA\n", "its -----BEGIN line is broken"),
            ("-----BEGIN PRIVATE KEY-----\nA!AA\n-----END PRIVATE KEY-----\n", "is not base64"),
        ] {
            let identity = Identity { certificate_pem: String::new(), key_pem: key.to_owned() };
            let error =
                config(Arc::new(verify::Pinned::new([0; 32])), Some(&identity)).expect_err("no key").to_string();
            assert!(error.contains(said) && error.starts_with("the private key is not valid PEM: "), "{error}");
        }
    }

    #[test]
    fn an_operator_is_not_sent_to_rustls_manual() {
        let eof = "peer closed connection without sending TLS close_notify: \
                   https://docs.rs/rustls/latest/rustls/manual/_03_howto/index.html#unexpected-eof";
        assert_eq!(without_manual(eof), "peer closed connection without sending TLS close_notify");
        assert_eq!(without_manual("another"), "another");
    }

    /// The server closes the first connection; it is gone when the second comes.
    #[test]
    fn a_handshake_that_was_cut_is_tried_again() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("an address").to_string();
            let config = pinned_config([0; 32]).expect("a config");
            let cut_once = async {
                drop(listener.accept().await.expect("he comes"));
                drop(listener.accept().await.expect("he comes again"));
                drop(listener);
            };
            let (outcome, ()) = tokio::join!(connect_again(&address, config), cut_once);
            let error = outcome.err().expect("nobody is there");
            assert!(matches!(error, ConnectError::Tcp { .. }), "not cut, and not tried again: {error:?}");
        });
    }

    #[test]
    fn an_address_that_is_silent_hides_no_other() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (silent, _waiting) = silent().await;
            let silent = silent.local_addr().expect("an address");
            let good = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let good = good.local_addr().expect("an address");
            let time = Duration::from_millis(600);
            let answered = tokio::time::timeout(time, first_answer(&[silent, good], time)).await;
            let stream = answered.expect("in time").expect("the second answers");
            assert_eq!(stream.peer_addr().expect("an address"), good);
            let error = first_answer(&[silent], time).await.expect_err("nobody is left");
            assert_eq!(error.to_string(), "nobody answers");
            let error = first_answer(&[silent, silent], time).await.expect_err("nobody is left");
            assert_eq!(error.to_string(), format!("{silent}: nobody answers"));
        });
    }
}
