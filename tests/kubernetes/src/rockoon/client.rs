//! A client of an API server: each request has a connection of its own.

use std::{fmt, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use serde_json::Value;
use tokio::{
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};
use tokio_rustls::TlsConnector;

use super::super::objects::{list, text};

/// Time for one request, from connecting to the answer's last byte.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);
/// Life of a watch that the server is asked for, in seconds, and the longest that it is read (Rockoon's settings.py).
const WATCH_SECONDS: u64 = 300;
const WATCH_LIMIT: Duration = Duration::from_secs(600);

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";

/// A client with the identity of a token.
#[derive(Clone)]
pub(super) struct Client(Arc<Inner>);

struct Inner {
    /// `HOST:PORT`.
    address: String,
    name: ServerName<'static>,
    token: String,
    tls: TlsConnector,
}

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Client").field(&self.0.address).finish()
    }
}

impl Client {
    /// The server and the token of a kubeconfig's current context. Nothing is sent.
    pub(super) fn of_kubeconfig(kubeconfig: &str) -> Result<Self> {
        let config: Value = serde_saphyr::from_str(kubeconfig).context("the kubeconfig is not YAML")?;
        let named = |what: &str, name: &str| {
            let entry = list(&config, &format!("/{what}")).iter().find(|entry| text(entry, "/name") == name);
            entry.with_context(|| format!("the kubeconfig has no {what} {name}"))
        };
        let context = named("contexts", text(&config, "/current-context"))?;
        let cluster = named("clusters", text(context, "/context/cluster"))?;
        let user = named("users", text(context, "/context/user"))?;
        let server = text(cluster, "/cluster/server");
        let server = server.strip_prefix("https://").with_context(|| format!("{server} is not an https URL"))?;
        let server = server.split('/').next().unwrap_or("");
        let (host, port) = match server.rsplit_once(':') {
            Some((host, port)) if port.parse::<u16>().is_ok() => (host, port),
            _ => (server, "443"),
        };
        let ca = BASE64_STANDARD.decode(text(cluster, "/cluster/certificate-authority-data"))?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&ca) {
            roots.add(certificate.ok().context("the certificate authority is not PEM")?)?;
        }
        let tls = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(Arc::new(Inner {
            name: ServerName::try_from(host.trim_matches(['[', ']']).to_owned())?,
            address: format!("{host}:{port}"),
            token: text(user, "/user/token").to_owned(),
            tls: TlsConnector::from(Arc::new(tls)),
        })))
    }

    /// Send a request. The answer's body is still to be read.
    async fn exchange(&self, method: &str, path: &str, content_type: &str, body: &Value) -> Result<Response<Incoming>> {
        let Inner { address, name, token, tls } = &*self.0;
        let stream = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        let stream = tls.connect(name.clone(), stream).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("Host", address)
            .header("Accept", JSON)
            .header("Content-Type", content_type)
            .header("Authorization", format!("Bearer {token}"));
        Ok(sender.send_request(request.body(Full::new(bytes))?).await?)
    }

    /// Send a request and read the answer: its status and its object.
    async fn send(&self, method: &str, path: &str, content_type: &str, body: &Value) -> Result<(u16, Value)> {
        let exchange = async {
            let response = self.exchange(method, path, content_type, body).await?;
            let status = response.status().as_u16();
            let bytes = response.into_body().collect().await?.to_bytes();
            Ok((status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
        };
        timeout(REQUEST_LIMIT, exchange).await.with_context(|| format!("no answer to {method} {path}"))?
    }

    /// The same. Only an object is a success.
    async fn object(&self, method: &str, path: &str, content_type: &str, body: &Value) -> Result<Value> {
        let (status, object) = self.send(method, path, content_type, body).await?;
        if !(200..300).contains(&status) {
            bail!("{method} {path}: the API server answers {status}: {}", text(&object, "/message"));
        }
        Ok(object)
    }

    /// An object; None if it does not exist.
    pub(super) async fn get(&self, path: &str) -> Result<Option<Value>> {
        let (status, object) = self.send("GET", path, JSON, &Value::Null).await?;
        match status {
            200 => Ok(Some(object)),
            404 => Ok(None),
            _ => bail!("GET {path}: the API server answers {status}: {}", text(&object, "/message")),
        }
    }

    /// The objects of a collection, and the list's resourceVersion.
    pub(super) async fn list(&self, path: &str) -> Result<(Vec<Value>, String)> {
        let answer = self.object("GET", path, JSON, &Value::Null).await?;
        Ok((list(&answer, "/items").to_vec(), text(&answer, "/metadata/resourceVersion").to_owned()))
    }

    /// Create an object. False: its name is taken.
    pub(super) async fn create(&self, collection: &str, object: &Value) -> Result<bool> {
        let (status, answer) = self.send("POST", collection, JSON, object).await?;
        match status {
            201 => Ok(true),
            409 => Ok(false),
            _ => bail!("POST {collection}: the API server answers {status}: {}", text(&answer, "/message")),
        }
    }

    /// Apply a merge patch to an object that exists.
    pub(super) async fn merge(&self, path: &str, patch: &Value) -> Result<()> {
        self.object("PATCH", path, MERGE, patch).await.map(drop)
    }

    /// Delete an object, if it exists.
    pub(super) async fn delete(&self, path: &str) -> Result<()> {
        let (status, answer) = self.send("DELETE", path, JSON, &Value::Null).await?;
        match status {
            200 | 202 | 404 => Ok(()),
            _ => bail!("DELETE {path}: the API server answers {status}: {}", text(&answer, "/message")),
        }
    }

    /// Watch a collection from a resourceVersion.
    pub(super) async fn watch(&self, path: &str, version: &str) -> Result<Events> {
        let path = format!("{path}?watch=1&resourceVersion={version}&timeoutSeconds={WATCH_SECONDS}");
        let response = timeout(REQUEST_LIMIT, self.exchange("GET", &path, JSON, &Value::Null)).await??;
        if response.status() != 200 {
            bail!("GET {path}: the API server answers {}", response.status());
        }
        Ok(Events { body: response.into_body(), read: Vec::new(), end: Instant::now() + WATCH_LIMIT })
    }
}

/// The events of a watch.
pub(super) struct Events {
    body: Incoming,
    read: Vec<u8>,
    end: Instant,
}

impl Events {
    /// The next event; None at the end of the watch.
    pub(super) async fn next(&mut self) -> Result<Option<Value>> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            let Some(frame) = timeout_at(self.end, self.body.frame()).await? else { return Ok(None) };
            if let Ok(data) = frame?.into_data() {
                self.read.extend_from_slice(&data);
            }
        }
    }
}
