//! The address at which Muster finds the API server: a port on loopback, where the suite's control machines are too. So
//! one real API server, wherever it is, answers for each of them.
//!
//! A plain relay passes bytes: Muster speaks TLS with the real server, by its own certificate name. A recording relay
//! ends TLS itself and sends each request on with the same credentials. So it knows what Muster asked and was answered.

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context as _, Result};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, RETRY_AFTER, TRANSFER_ENCODING},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use serde_json::Value;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;

use super::client::Client;

/// Name in the certificate of a recording relay.
const NAME: &str = "relay.muster.test";

/// A request of Muster's, and its answer.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    pub(super) method: Method,
    /// Path without query.
    pub(super) path: String,
    pub(super) body: Value,
    /// None: no answer came yet, or none at all.
    pub(super) status: Option<u16>,
    /// The answer, where it is no success.
    pub(super) refusal: String,
}

impl Exchange {
    /// Does it change something that operators care for? Reviews of rights change nothing, and Events are words.
    pub(super) fn is_change(&self) -> bool {
        self.method != Method::GET
            && !self.path.ends_with("/events")
            && !self.path.ends_with("/selfsubjectaccessreviews")
    }

    /// Name of the node that it patches.
    pub(super) fn patched_node(&self) -> Option<&str> {
        self.path.strip_prefix("/api/v1/nodes/").filter(|_| self.method == Method::PATCH)
    }

    /// Name of the pod that it evicts.
    pub(super) fn evicted_pod(&self) -> Option<&str> {
        self.path.strip_suffix("/eviction")?.rsplit('/').next()
    }
}

type Log = Arc<Mutex<Vec<Exchange>>>;

/// A running relay. Drop ends it.
#[derive(Debug)]
pub(super) struct Relay {
    address: SocketAddr,
    /// Certificate name and authority of a recording relay.
    identity: Option<(String, String)>,
    log: Log,
    task: JoinHandle<()>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Relay {
    /// Pass bytes to the client's API server.
    pub(super) fn plain(client: &Client) -> Result<Self> {
        Self::start(client, None)
    }

    /// Record requests to the client's API server. The client must not show a certificate: it would stand for Muster's
    /// token.
    pub(super) fn recording(client: &Client) -> Result<Self> {
        Self::start(client, Some(Identity::make()?))
    }

    fn start(client: &Client, identity: Option<Identity>) -> Result<Self> {
        let runtime = client.runtime()?;
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let (address, log) = (listener.local_addr()?, Log::default());
        let named = identity.as_ref().map(|identity| (NAME.to_owned(), identity.authority.clone()));
        let acceptor = identity.map(|identity| identity.acceptor);
        let (client, recorded) = (client.clone(), Arc::clone(&log));
        let task = runtime.spawn(async move {
            loop {
                let Ok((near, _)) = listener.accept().await else { continue };
                let (client, log) = (client.clone(), Arc::clone(&recorded));
                match acceptor.clone() {
                    None => drop(tokio::spawn(pass(near, client))),
                    Some(acceptor) => drop(tokio::spawn(serve(near, acceptor, client, log))),
                }
            }
        });
        Ok(Self { address, identity: named, log, task })
    }

    /// `HOST:PORT` for Muster.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Name and authority of the certificate that Muster is shown. None: those of the API server itself.
    pub(super) fn identity(&self) -> Option<(&str, &str)> {
        self.identity.as_ref().map(|(name, authority)| (name.as_str(), authority.as_str()))
    }

    /// What was recorded so far.
    pub(super) fn log(&self) -> Vec<Exchange> {
        lock(&self.log).clone()
    }

    /// The recorded requests that change something.
    pub(super) fn changes(&self) -> Vec<Exchange> {
        self.log().into_iter().filter(Exchange::is_change).collect()
    }

    /// Forget what was recorded.
    pub(super) fn clear(&self) {
        lock(&self.log).clear();
    }
}

fn lock(log: &Mutex<Vec<Exchange>>) -> MutexGuard<'_, Vec<Exchange>> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn pass(mut near: TcpStream, client: Client) {
    // The end of either side ends both: Muster sees a closed connection, as it would without the relay.
    if let Ok(mut far) = client.connect().await {
        let _ = copy_bidirectional(&mut near, &mut far).await;
    }
}

async fn serve(near: TcpStream, acceptor: TlsAcceptor, client: Client, log: Log) {
    let Ok(stream) = acceptor.accept(near).await else { return };
    let service = service_fn(move |request| forward(request, client.clone(), Arc::clone(&log)));
    // Only Muster can tell why a connection broke.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// Send a request on, and record it. What cannot be sent on is a bad gateway.
async fn forward(request: Request<Incoming>, client: Client, log: Log) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let number = {
        let mut log = lock(&log);
        log.push(Exchange {
            method: head.method.clone(),
            path: head.uri.path().to_owned(),
            body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
            status: None,
            refusal: String::new(),
        });
        log.len() - 1
    };
    let mut onward = Request::new(Full::new(bytes));
    *onward.method_mut() = head.method;
    *onward.uri_mut() = head.uri;
    *onward.headers_mut() = head.headers;
    for own in [HOST, CONTENT_LENGTH, TRANSFER_ENCODING] {
        onward.headers_mut().remove(own);
    }
    let (response, refusal) = match exchange(&client, onward).await {
        Ok(answer) => answer,
        Err(error) => {
            let text = format!("the relay got no answer: {error:#}");
            let mut response = Response::new(Full::new(Bytes::from(text.clone())));
            *response.status_mut() = StatusCode::BAD_GATEWAY;
            (response, text)
        }
    };
    // The log may have been cleared meanwhile.
    if let Some(entry) = lock(&log).get_mut(number) {
        (entry.status, entry.refusal) = (Some(response.status().as_u16()), refusal);
    }
    Ok(response)
}

async fn exchange(client: &Client, request: Request<Full<Bytes>>) -> Result<(Response<Full<Bytes>>, String)> {
    let answer = client.exchange(request).await?;
    let (head, body) = answer.into_parts();
    let bytes = body.collect().await?.to_bytes();
    let refusal = if head.status.is_success() { String::new() } else { String::from_utf8_lossy(&bytes).into_owned() };
    let mut response = Response::new(Full::new(bytes));
    *response.status_mut() = head.status;
    for kept in [CONTENT_TYPE, RETRY_AFTER] {
        if let Some(value) = head.headers.get(&kept) {
            response.headers_mut().insert(kept, value.clone());
        }
    }
    Ok((response, refusal))
}

/// A certificate for loopback, and the authority that signed it.
struct Identity {
    authority: String,
    acceptor: TlsAcceptor,
}

impl Identity {
    fn make() -> Result<Self> {
        let authority_key = KeyPair::generate().context("cannot make a key")?;
        let mut authority = CertificateParams::new(Vec::new())?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        authority.distinguished_name.push(DnType::CommonName, "relay");
        let pem = authority.self_signed(&authority_key)?.pem();
        let key = KeyPair::generate().context("cannot make a key")?;
        let params = CertificateParams::new(vec![NAME.to_owned()])?;
        let certificate = params.signed_by(&key, &Issuer::new(authority, authority_key))?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { authority: pem, acceptor: TlsAcceptor::from(Arc::new(config)) })
    }
}
