//! An HTTPS server with a CA of its own, which gives scripted answers and records what it was asked.

use std::{
    collections::VecDeque,
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{RootCertStore, ServerConfig, crypto::aws_lc_rs, pki_types::PrivateKeyDer, server::WebPkiClientVerifier};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_rustls::TlsAcceptor;

use crate::orchestrator::kubernetes::kubeconfig::{Credentials, Kubeconfig, Secret, Server as Address};

/// A scripted answer.
#[derive(Clone)]
pub(super) struct Reply {
    status: u16,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Bytes,
    hangs: bool,
}

impl Reply {
    pub(super) fn json(status: u16, body: Value) -> Self {
        Self::text(status, &body.to_string()).with_header("content-type", "application/json")
    }

    pub(super) fn text(status: u16, body: &str) -> Self {
        Self { status, headers: Vec::new(), body: Bytes::copy_from_slice(body.as_bytes()), hangs: false }
    }

    /// The request is read and never answered.
    pub(super) fn hang() -> Self {
        Self { hangs: true, ..Self::text(200, "") }
    }

    pub(super) fn with_header(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.push((HeaderName::from_static(name), HeaderValue::from_static(value)));
        self
    }
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// Number of the connection, from 0.
    pub(super) connection: usize,
    pub(super) method: String,
    pub(super) target: String,
    headers: HeaderMap,
    body: Bytes,
    /// Did the client show a certificate?
    pub(super) certified: bool,
}

impl Seen {
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

struct Script {
    replies: Mutex<VecDeque<Reply>>,
    seen: Mutex<Vec<Seen>>,
}

/// The server; it ends with this value.
pub(super) struct Server {
    address: SocketAddr,
    ca: CertifiedIssuer<'static, KeyPair>,
    script: Arc<Script>,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn new_ca() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// PEM of a CA that signed nothing.
pub(super) fn other_ca() -> String {
    new_ca().pem()
}

impl Server {
    /// A server that gives these answers, one a request.
    pub(super) async fn in_order(replies: Vec<Reply>) -> Self {
        let ca = new_ca();
        let tls = TlsAcceptor::from(Arc::new(tls_config(&ca)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let script = Arc::new(Script { replies: Mutex::new(replies.into()), seen: Mutex::new(Vec::new()) });
        let task = tokio::spawn(serve(listener, tls, Arc::clone(&script)));
        Self { address, ca, script, task }
    }

    /// A kubeconfig for it, with token `t0ken`.
    pub(super) fn kubeconfig(&self) -> Kubeconfig {
        Kubeconfig {
            server: Address { host: self.address.ip().to_string(), port: self.address.port(), path: String::new() },
            tls_server_name: None,
            ca: self.ca.pem(),
            credentials: Credentials::Token(Secret::new("t0ken".to_owned())),
        }
    }

    /// A file with a kubeconfig for it, with this token.
    pub(super) fn file(&self, token: &str) -> String {
        json!({
            "current-context": "c",
            "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u" } }],
            "clusters": [{ "name": "k", "cluster": {
                "server": format!("https://{}", self.address),
                "certificate-authority-data": STANDARD.encode(self.ca.pem()),
            } }],
            "users": [{ "name": "u", "user": { "token": token } }],
        })
        .to_string()
    }

    /// A client certificate that it accepts.
    pub(super) fn client_certificate(&self) -> Credentials {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["muster".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.ca).unwrap().pem();
        Credentials::ClientCertificate { certificate, key: Secret::new(key.serialize_pem()) }
    }

    /// What it was asked so far.
    pub(super) fn seen(&self) -> Vec<Seen> {
        self.script.seen.lock().unwrap().clone()
    }
}

fn tls_config(ca: &CertifiedIssuer<'static, KeyPair>) -> ServerConfig {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "kubernetes".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, ca).unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(ca.der().clone()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.allow_unauthenticated().build().unwrap())
        .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
        .unwrap()
}

async fn serve(listener: TcpListener, tls: TlsAcceptor, script: Arc<Script>) {
    let mut connections = tokio::task::JoinSet::new();
    for connection in 0.. {
        let (tcp, _) = listener.accept().await.unwrap();
        let (tls, script) = (tls.clone(), Arc::clone(&script));
        connections.spawn(async move {
            let Ok(stream) = tls.accept(tcp).await else { return };
            let certified = stream.get_ref().1.peer_certificates().is_some();
            let service = service_fn(move |request| answer(Arc::clone(&script), connection, certified, request));
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(
    script: Arc<Script>,
    connection: usize,
    certified: bool,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    script.seen.lock().unwrap().push(Seen {
        connection,
        method: head.method.to_string(),
        target: head.uri.to_string(),
        headers: head.headers,
        body,
        certified,
    });
    let reply = script.replies.lock().unwrap().pop_front().unwrap_or_else(|| Reply::text(599, "no reply is left"));
    if reply.hangs {
        std::future::pending::<()>().await;
    }
    let mut response = Response::new(Full::new(reply.body));
    *response.status_mut() = reply.status.try_into().unwrap();
    response.headers_mut().extend(reply.headers.into_iter().map(|(name, value)| (Some(name), value)));
    Ok(response)
}
