//! HTTPS to one API server: TLS by the kubeconfig's CA alone, HTTP/1.1, deadlines and a size limit.
//!
//! An operation opens one connection and sends its requests over it, one after another. No connection outlives its
//! operation, so no request is lost on one that the server closed while it was idle.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::future::select_ok;
use http::{
    Method, Request, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, USER_AGENT},
};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio::{net::TcpStream, task::JoinHandle, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};
use zeroize::Zeroizing;

use crate::facts::kubernetes::KubernetesFailure;
use crate::orchestrator::kubernetes::{
    answers::Answer,
    kubeconfig::{Credentials, Kubeconfig, Server},
    text::{chain, one_line},
};

/// Time for a request, from connecting to the answer's last byte.
pub const REQUEST_DEADLINE: Duration = Duration::from_secs(10);
/// Time for connecting and the TLS handshake, as a part of [`REQUEST_DEADLINE`].
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// Time after which the kubeconfig's server is tried again before the fallback that answered for it.
const FALLBACK_FOR: Duration = Duration::from_secs(60);
/// Largest answer that is read, in bytes.
pub const MAX_ANSWER: usize = 64 * 1024 * 1024;
/// How Muster names itself; the API server's audit log and `managedFields` show it.
pub(super) const AGENT: &str = concat!("muster-coordinator/", env!("CARGO_PKG_VERSION"));

/// Bounds of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) connect: Duration,
    pub(crate) request: Duration,
    pub(crate) answer: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connect: CONNECT_DEADLINE, request: REQUEST_DEADLINE, answer: MAX_ANSWER }
    }
}

/// A request, without what all requests share.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    /// Path and query, without the kubeconfig's prefix.
    pub(crate) target: String,
    /// Media type and body.
    pub(crate) body: Option<(&'static str, Vec<u8>)>,
}

impl Call {
    /// A GET.
    pub(crate) fn get(target: impl Into<String>) -> Self {
        Self { method: Method::GET, target: target.into(), body: None }
    }
}

/// Everything that connections to one API server share.
pub(crate) struct Transport {
    server: Server,
    name: ServerName<'static>,
    tls: TlsConnector,
    host: HeaderValue,
    authorization: Option<HeaderValue>,
    /// The fallback that answered last, and since when it goes first: a server that is down may cost the whole time for
    /// connecting.
    answered: Mutex<Option<(IpAddr, Instant)>>,
    pub(crate) limits: Limits,
}

impl Transport {
    /// Prepare connections; nothing is sent.
    pub(crate) fn new(kubeconfig: &Kubeconfig) -> Result<Self, KubernetesFailure> {
        let server = kubeconfig.server.clone();
        let name = kubeconfig.tls_server_name.as_deref().unwrap_or(&server.host).to_owned();
        let name = ServerName::try_from(name).map_err(|error| unusable("server name", &error))?;
        let authority = match server.host.contains(':') {
            true => format!("[{}]:{}", server.host, server.port),
            false => format!("{}:{}", server.host, server.port),
        };
        let host = HeaderValue::from_str(&authority).map_err(|error| unusable("server", &error))?;
        let authorization = match &kubeconfig.credentials {
            Credentials::Token(token) => {
                let value = Zeroizing::new(format!("Bearer {}", token.reveal()));
                let mut value = HeaderValue::from_str(&value).map_err(|error| unusable("token", &error))?;
                value.set_sensitive(true);
                Some(value)
            }
            Credentials::ClientCertificate { .. } => None,
        };
        let tls = TlsConnector::from(Arc::new(tls_config(kubeconfig)?));
        Ok(Self { server, name, tls, host, authorization, answered: Mutex::default(), limits: Limits::default() })
    }

    /// Address of the kubeconfig's server.
    pub(crate) fn url(&self) -> String {
        format!("https://{}{}", self.session(&[]).authority(), self.server.path)
    }

    /// Start an operation with the kubeconfig's server, or with the same port at one of these addresses where that
    /// cannot be connected to. A path before the API belongs to a proxy, which other addresses cannot stand for.
    pub(crate) fn session<'a>(&'a self, fallbacks: &'a [IpAddr]) -> Session<'a> {
        let (host, prefix) = (self.server.host.clone(), self.server.path.as_str());
        let fallbacks = if prefix.is_empty() { fallbacks } else { &[] };
        Session { transport: self, host, fallbacks, fallback: None, prefix, connection: None }
    }

    /// Start an operation with the same port at this address, and no other.
    pub(crate) fn session_at(&self, address: IpAddr) -> Session<'_> {
        let host = address.to_string();
        Session { transport: self, host, fallbacks: &[], fallback: None, prefix: "", connection: None }
    }

    /// The fallback to try first, if one answered a moment ago.
    fn answered(&self) -> Option<IpAddr> {
        let answered = *self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        answered.filter(|(_, since)| since.elapsed() < FALLBACK_FOR).map(|(address, _)| address)
    }

    fn set_answered(&self, address: Option<IpAddr>) {
        let answered = address.map(|address| (address, Instant::now()));
        *self.answered.lock().unwrap_or_else(PoisonError::into_inner) = answered;
    }

    async fn handshake(&self, host: &str) -> Result<TlsStream<TcpStream>, Fault> {
        let tcp = TcpStream::connect((host, self.server.port)).await.map_err(Fault::Connect)?;
        tcp.set_nodelay(true).map_err(Fault::Connect)?;
        self.tls.connect(self.name.clone(), tcp).await.map_err(Fault::Tls)
    }
}

fn tls_config(kubeconfig: &Kubeconfig) -> Result<ClientConfig, KubernetesFailure> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(kubeconfig.ca.as_bytes()) {
        let certificate = certificate.map_err(|error| unusable("CA", &error))?;
        roots.add(certificate).map_err(|error| unusable("CA", &error))?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("TLS versions", &error))?
        .with_root_certificates(roots);
    let mut config = match &kubeconfig.credentials {
        Credentials::Token(_) => builder.with_no_client_auth(),
        Credentials::ClientCertificate { certificate, key } => {
            let certificates = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<_, _>>();
            let certificates = certificates.map_err(|error| unusable("client certificate", &error))?;
            let key = PrivateKeyDer::from_pem_slice(key.reveal().as_bytes());
            let key = key.map_err(|_| unusable_key())?;
            builder.with_client_auth_cert(certificates, key).map_err(|error| unusable("client certificate", &error))?
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn unusable(field: &str, error: &(dyn std::error::Error + 'static)) -> KubernetesFailure {
    KubernetesFailure::Other(format!("cannot use the kubeconfig's {field}: {}", chain(error)))
}

fn unusable_key() -> KubernetesFailure {
    KubernetesFailure::Other("cannot use the kubeconfig's client key: it is not an unencrypted private key".to_owned())
}

/// The requests of one operation.
pub(crate) struct Session<'a> {
    transport: &'a Transport,
    host: String,
    fallbacks: &'a [IpAddr],
    /// The fallback that the connection leads to.
    fallback: Option<IpAddr>,
    prefix: &'a str,
    connection: Option<Connection>,
}

/// An open connection, and the task that moves its bytes.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    task: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Why no answer came.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("cannot connect")]
    Connect(#[source] std::io::Error),
    #[error("TLS handshake failed")]
    Tls(#[source] std::io::Error),
    #[error("connecting took longer than {0:?}")]
    ConnectDeadline(Duration),
    #[error("no answer within {0:?}")]
    RequestDeadline(Duration),
    #[error("the connection broke")]
    Http(#[from] hyper::Error),
    #[error("reading the answer failed")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the answer has more than {0} bytes")]
    TooLarge(usize),
    #[error("cannot write the request")]
    Request(#[from] http::Error),
}

impl Session<'_> {
    /// Send a request and read the whole answer, whatever its status. Redirects are answers like all others.
    pub(crate) async fn send(&mut self, call: Call) -> Result<Answer, KubernetesFailure> {
        let limit = self.transport.limits.request;
        let result = match timeout(limit, self.exchange(call)).await {
            Ok(result) => result,
            Err(_) => Err(Fault::RequestDeadline(limit)),
        };
        // A server that answers badly must not be preferred: the kubeconfig's may be a load balancer that knows better.
        if self.fallback.is_some() && result.as_ref().map_or(true, |answer| answer.status >= 500) {
            self.transport.set_answered(None);
        }
        result.map_err(|fault| {
            // Bytes of the failed exchange may still be under way on it.
            self.connection = None;
            let text = one_line(&format!("https://{}: {}", self.authority(), chain(&fault)));
            match fault {
                Fault::TooLarge(_) | Fault::Request(_) => KubernetesFailure::Other(text),
                Fault::Connect(_) | Fault::Tls(_) | Fault::ConnectDeadline(_) | Fault::RequestDeadline(_) => {
                    KubernetesFailure::Unreachable(text)
                }
                Fault::Http(_) | Fault::Body(_) => KubernetesFailure::Unreachable(text),
            }
        })
    }

    /// Host and port of the server that was connected to, or is tried first.
    fn authority(&self) -> String {
        let (host, port) =
            (self.fallback.map_or_else(|| self.host.clone(), |at| at.to_string()), self.transport.server.port);
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    async fn exchange(&mut self, call: Call) -> Result<Answer, Fault> {
        let request = self.request(call)?;
        let limit = self.transport.limits.answer;
        let response = self.live().await?.send_request(request).await?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, limit).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() { Fault::TooLarge(limit) } else { Fault::Body(error) }
        })?;
        let retry_after = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Ok(Answer { status: StatusCode::as_u16(&head.status), retry_after, body: body.to_bytes().to_vec() })
    }

    fn request(&self, call: Call) -> Result<Request<Full<Bytes>>, http::Error> {
        let mut request = Request::builder()
            .method(call.method)
            .uri(format!("{}{}", self.prefix, call.target))
            .header(HOST, &self.transport.host)
            .header(USER_AGENT, AGENT)
            .header(ACCEPT, "application/json");
        if let Some(authorization) = &self.transport.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let body = match call.body {
            Some((media_type, body)) => {
                request = request.header(CONTENT_TYPE, media_type);
                body
            }
            None => Vec::new(),
        };
        request.body(Full::from(body))
    }

    /// The open connection, or a new one where the server closed it.
    async fn live(&mut self) -> Result<&mut SendRequest<Full<Bytes>>, Fault> {
        let open = match self.connection.take() {
            Some(mut connection) => connection.sender.ready().await.is_ok().then_some(connection),
            None => None,
        };
        let connection = match open {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        Ok(&mut self.connection.insert(connection).sender)
    }

    async fn connect(&mut self) -> Result<Connection, Fault> {
        self.fallback = None;
        let (stream, fallback) = self.stream().await?;
        self.fallback = fallback;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Its error reaches the pending request too, so the task has nothing to report.
        let task = tokio::spawn(async move { connection.await.unwrap_or_default() });
        Ok(Connection { sender, task })
    }

    /// A connection to the server that answered last, or else to the first that answers of all; and the fallback that
    /// it leads to. Nothing was sent to those that failed, so no change is made twice.
    async fn stream(&self) -> Result<(TlsStream<TcpStream>, Option<IpAddr>), Fault> {
        let (transport, limit) = (self.transport, self.transport.limits.connect);
        let connected = async |fallback: Option<IpAddr>| {
            let host = fallback.map_or_else(|| self.host.clone(), |address| address.to_string());
            match timeout(limit, transport.handshake(&host)).await {
                Ok(stream) => Ok((stream?, fallback)),
                Err(_) => Err(Fault::ConnectDeadline(limit)),
            }
        };
        let first = transport.answered().filter(|address| self.fallbacks.contains(address));
        let fault = match connected(first).await {
            Ok(stream) => return Ok(stream),
            Err(fault) if self.fallbacks.is_empty() => return Err(fault),
            Err(fault) => fault,
        };
        let others = self.fallbacks.iter().copied().map(Some).chain([None]).filter(|other| *other != first);
        match select_ok(others.map(|other| Box::pin(connected(other)))).await {
            Ok((stream, _)) => {
                transport.set_answered(stream.1);
                Ok(stream)
            }
            Err(_) => Err(fault),
        }
    }
}
