//! A client of the API server, for the suite itself: blocking requests, each on a connection of its own.

use std::{
    fmt,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    client::conn::http1,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue},
};
use hyper_util::rt::TokioIo;
use muster_coordinator::orchestrator::kubernetes::kubeconfig::{Credentials, Kubeconfig};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use serde_json::{Value, json};
use tokio::{
    net::TcpStream,
    runtime::{Builder, Handle, Runtime},
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::{admin, text};

/// Time for one request, from connecting to the answer's last byte.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);
/// Time for a request and its repetitions, while the server says that it is busy.
const BUSY_LIMIT: Duration = Duration::from_secs(60);
/// Pause before a request is sent again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Media type of patches of built-in kinds. Lists such as conditions are merged, so nobody else's condition is lost.
pub(super) const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub(super) const MERGE: &str = "application/merge-patch+json";
const JSON: &str = "application/json";

/// A client of one API server with one identity. Clones share the runtime.
#[derive(Clone)]
pub(super) struct Client(Arc<Inner>);

struct Inner {
    runtime: Option<Runtime>,
    address: (String, u16),
    host: String,
    name: ServerName<'static>,
    tls: TlsConnector,
    authorization: Option<HeaderValue>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Allowed within a runtime, unlike a shutdown that waits.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Client").field(&self.0.host).finish()
    }
}

/// An answer that was read to its end.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// Null if it is not JSON.
    pub(super) body: Value,
}

impl Answer {
    /// The object, if the request succeeded.
    pub(super) fn object(self, what: &str) -> Result<Value> {
        if (200..300).contains(&self.status) {
            return Ok(self.body);
        }
        bail!("{what}: the API server answers {}: {}", self.status, text(&self.body, "/message"))
    }
}

impl Client {
    /// Prepare a client. Nothing is sent.
    pub(super) fn new(kubeconfig: &Kubeconfig) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(2).thread_name("api-client").enable_all().build()?;
        let authorization = match &kubeconfig.credentials {
            Credentials::Token(token) => {
                let mut value = HeaderValue::from_str(&format!("Bearer {}", token.reveal()))?;
                value.set_sensitive(true);
                Some(value)
            }
            Credentials::ClientCertificate { .. } => None,
        };
        let (host, port) = (kubeconfig.server.host.clone(), kubeconfig.server.port);
        Ok(Self(Arc::new(Inner {
            runtime: Some(runtime),
            host: if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") },
            address: (host, port),
            name: ServerName::try_from(admin::certificate_name(kubeconfig).to_owned())?,
            tls: TlsConnector::from(Arc::new(tls_config(kubeconfig)?)),
            authorization,
        })))
    }

    /// Where the client's tasks run.
    pub(super) fn runtime(&self) -> Result<&Handle> {
        Ok(self.0.runtime.as_ref().context("the client is shut down")?.handle())
    }

    /// `HOST:PORT` of the API server.
    pub(super) fn host(&self) -> &str {
        &self.0.host
    }

    /// A TCP connection to the API server.
    pub(super) async fn connect(&self) -> Result<TcpStream> {
        let (host, port) = &self.0.address;
        let stream = TcpStream::connect((host.as_str(), *port)).await;
        stream.with_context(|| format!("cannot connect to {}", self.0.host))
    }

    /// Send a request on a connection of its own. The answer's body is still to be read. `Authorization` is the
    /// client's own where the request has none.
    pub(super) async fn exchange(&self, mut request: Request<Full<Bytes>>) -> Result<Response<Incoming>> {
        let stream = self.connect().await?;
        stream.set_nodelay(true)?;
        let stream = self.0.tls.connect(self.0.name.clone(), stream).await;
        let stream = stream.with_context(|| format!("TLS with {} failed", self.0.host))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_str(&self.0.host)?);
        if let (false, Some(own)) = (headers.contains_key(AUTHORIZATION), &self.0.authorization) {
            headers.insert(AUTHORIZATION, own.clone());
        }
        Ok(sender.send_request(request).await?)
    }

    /// Send a request once and read the answer, whatever its status.
    fn send_once(&self, method: &str, path: &str, media_type: &str, body: &Value) -> Result<Answer> {
        let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let request = Request::builder().method(method).uri(path).header(ACCEPT, JSON).header(CONTENT_TYPE, media_type);
        let request = request.body(Full::new(bytes))?;
        let exchange = async {
            let response = self.exchange(request).await?;
            let status = response.status().as_u16();
            let bytes = response.into_body().collect().await?.to_bytes();
            Ok(Answer { status, body: serde_json::from_slice(&bytes).unwrap_or(Value::Null) })
        };
        let exchanged = self.runtime()?.block_on(async { timeout(REQUEST_LIMIT, exchange).await });
        let answer = exchanged.unwrap_or_else(|_| Err(anyhow!("no answer within {} s", REQUEST_LIMIT.as_secs())));
        answer.with_context(|| format!("{method} https://{}{path}", self.0.host))
    }

    /// Send a request, again while the server is busy or starting: such an answer means that nothing was done.
    pub(super) fn send(&self, method: &str, path: &str, media_type: &str, body: &Value) -> Result<Answer> {
        let deadline = Instant::now() + BUSY_LIMIT;
        loop {
            let answer = self.send_once(method, path, media_type, body)?;
            if !matches!(answer.status, 429 | 503) || Instant::now() > deadline {
                return Ok(answer);
            }
            thread::park_timeout(AGAIN_AFTER);
        }
    }

    /// An object; None if it does not exist.
    pub(super) fn get(&self, path: &str) -> Result<Option<Value>> {
        let answer = self.send("GET", path, JSON, &Value::Null)?;
        if answer.status == 404 { Ok(None) } else { answer.object(path).map(Some) }
    }

    /// The objects of a collection, and the list's resourceVersion.
    pub(super) fn list(&self, path: &str) -> Result<(Vec<Value>, String)> {
        let mut answer = self.send("GET", path, JSON, &Value::Null)?.object(path)?;
        let items = answer.get_mut("items").map(Value::take);
        let version = text(&answer, "/metadata/resourceVersion").to_owned();
        // Null is Go's empty list.
        Ok((items.and_then(|items| items.as_array().cloned()).unwrap_or_default(), version))
    }

    /// Create an object in a collection.
    pub(super) fn post(&self, collection: &str, object: &Value) -> Result<Answer> {
        self.send("POST", collection, JSON, object)
    }

    /// Patch an object.
    pub(super) fn patch(&self, path: &str, media_type: &str, patch: &Value) -> Result<Answer> {
        self.send("PATCH", path, media_type, patch)
    }

    /// Delete an object if it is the one with this UID. A pod has its own grace period unless one is given.
    pub(super) fn delete(&self, path: &str, uid: &str, grace: Option<u64>) -> Result<Answer> {
        let mut options = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        });
        if let Some(seconds) = grace {
            options["gracePeriodSeconds"] = seconds.into();
        }
        self.send("DELETE", path, JSON, &options)
    }
}

fn tls_config(kubeconfig: &Kubeconfig) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(kubeconfig.ca.as_bytes()) {
        roots.add(certificate.ok().context("the certificate authority is not PEM")?)?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match &kubeconfig.credentials {
        Credentials::Token(_) => builder.with_no_client_auth(),
        Credentials::ClientCertificate { certificate, key } => {
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect();
            let chain = chain.ok().context("the client certificate is not PEM")?;
            let key = PrivateKeyDer::from_pem_slice(key.reveal().as_bytes()).ok();
            builder.with_client_auth_cert(chain, key.context("the client key is not PEM")?)?
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, prelude::BASE64_STANDARD};

    use super::*;

    /// An administrator's certificate is shown, but never beside the coordinator's token: it would stand for it.
    #[test]
    fn certificate_is_not_shown_with_token() -> Result<()> {
        let key = rcgen::KeyPair::generate()?;
        let certificate = rcgen::CertificateParams::new(vec!["admin".to_owned()])?.self_signed(&key)?.pem();
        let encoded = |text: &str| BASE64_STANDARD.encode(text);
        let user = json!({
            "client-certificate-data": encoded(&certificate),
            "client-key-data": encoded(&key.serialize_pem()),
        });
        let server = json!({"server": "https://10.0.0.1:6443", "certificate-authority-data": encoded(&certificate)});
        let file = json!({
            "current-context": "a",
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "clusters": [{"name": "a", "cluster": server}],
            "users": [{"name": "a", "user": user}],
        });
        let admin = Kubeconfig::parse(&file.to_string())?;
        assert!(tls_config(&admin)?.client_auth_cert_resolver.has_certs());
        assert!(!tls_config(&admin::with_token(&admin, "token"))?.client_auth_cert_resolver.has_certs());
        assert!(Client::new(&admin)?.0.authorization.is_none());
        Ok(())
    }
}
