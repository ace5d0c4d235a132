//! A small HTTPS client, and waiting for conditions.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    client::conn::http1,
    header::HeaderMap,
};
use hyper_util::rt::TokioIo;
use muster_kubernetes_stand_in::Kubernetes;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use serde_json::Value;
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use tokio_rustls::TlsConnector;

/// How long a test waits for a condition.
const DEADLINE: Duration = Duration::from_secs(30);

pub(crate) const APPLY: &str = "application/apply-patch+yaml";
pub(crate) const MERGE: &str = "application/merge-patch+json";

/// A client of one API server with one token.
#[derive(Clone)]
pub(crate) struct Client {
    address: String,
    name: ServerName<'static>,
    token: Option<String>,
    connector: TlsConnector,
}

/// An answer that was read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub(crate) fn text_at(&self, pointer: &str) -> &str {
        self.body.pointer(pointer).and_then(Value::as_str).unwrap_or("")
    }
}

impl Client {
    pub(crate) fn new(kubernetes: &Kubernetes, server: usize, token: Option<&str>) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(kubernetes.ca_pem().as_bytes()).ok().context("no certificate")?)?;
        let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let address = *kubernetes.addresses().get(server).context("no server")?;
        let name = ServerName::from(address.ip());
        let address = address.to_string();
        Ok(Self { address, name, token: token.map(ToOwned::to_owned), connector: TlsConnector::from(Arc::new(config)) })
    }

    /// Send a request and return its response without the body.
    pub(crate) async fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Result<Response<Incoming>> {
        let stream = TcpStream::connect(&self.address).await?;
        let stream = self.connector.connect(self.name.clone(), stream).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header("Host", &self.address);
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let response = sender.send_request(request.body(Full::new(Bytes::from(text)))?).await?;
        Ok(response)
    }

    pub(crate) async fn send_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Result<Answer> {
        let response = self.open(method, path, headers, body).await?;
        let (parts, body) = response.into_parts();
        let text = String::from_utf8(body.collect().await?.to_bytes().to_vec())?;
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, text, body })
    }

    pub(crate) async fn send(&self, method: &str, path: &str, content_type: &str, body: &Value) -> Result<Answer> {
        self.send_with(method, path, &[("Content-Type", content_type)], body).await
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Answer> {
        self.send("GET", path, "", &Value::Null).await
    }

    /// All lines of a watch until it ends.
    pub(crate) async fn watch(&self, path: &str) -> Result<(u16, Vec<Value>)> {
        let answer = self.get(path).await?;
        let lines = answer.text.lines().map(serde_json::from_str).collect::<Result<_, _>>();
        Ok((answer.status, lines?))
    }

    pub(crate) async fn evict(&self, namespace: &str, pod: &str) -> Result<Answer> {
        let body = serde_json::json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
        });
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/eviction");
        self.send("POST", &path, "application/json", &body).await
    }
}

/// Wait until the condition holds.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) -> Result<()> {
    let end = Instant::now() + DEADLINE;
    while !condition() {
        if Instant::now() > end {
            bail!("not within {DEADLINE:?}: {what}");
        }
        sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Bound a future that could hang.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> Result<T> {
    timeout(DEADLINE, future).await.context("took too long")
}
