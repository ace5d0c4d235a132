//! A small HTTPS client of an API server: each request has a connection of its own.

use std::{fmt, sync::Arc};

use anyhow::{Context as _, Result};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    client::conn::http1,
    header::HeaderMap,
};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{
    Kubernetes,
    objects::{list, text},
};

/// A client of one API server, with the identity of a token or with none.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    /// `HOST:PORT`.
    address: String,
    /// The name that the server's certificate has to have.
    name: ServerName<'static>,
    token: Option<String>,
    tls: TlsConnector,
}

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Client").field(&self.0.address).finish()
    }
}

/// An answer that was read to its end.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub text: String,
    /// The body as JSON; null if it is none.
    pub body: Value,
}

impl Answer {
    /// A header, if it is there.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The text at this place of the body; empty if there is none.
    pub fn text_at(&self, pointer: &str) -> &str {
        text(&self.body, pointer)
    }
}

impl Client {
    /// A client of an API server of the stand-in, by its index.
    pub fn new(kubernetes: &Kubernetes, server: usize, token: Option<&str>) -> Result<Self> {
        let address = *kubernetes.addresses().get(server).context("no server")?;
        Self::of(address.to_string(), ServerName::from(address.ip()), kubernetes.ca_pem().as_bytes(), token)
    }

    /// The server and the token of a kubeconfig's current context. Nothing is sent.
    pub fn of_kubeconfig(kubeconfig: &str) -> Result<Self> {
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
        let name = match text(cluster, "/cluster/tls-server-name") {
            "" => host.trim_matches(['[', ']']),
            name => name,
        };
        let ca = BASE64_STANDARD.decode(text(cluster, "/cluster/certificate-authority-data"))?;
        let token = Some(text(user, "/user/token")).filter(|token| !token.is_empty());
        Self::of(format!("{host}:{port}"), ServerName::try_from(name.to_owned())?, &ca, token)
    }

    fn of(address: String, name: ServerName<'static>, ca: &[u8], token: Option<&str>) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca) {
            roots.add(certificate.ok().context("the certificate authority is not PEM")?)?;
        }
        let tls = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let (token, tls) = (token.map(str::to_owned), TlsConnector::from(Arc::new(tls)));
        Ok(Self(Arc::new(Inner { address, name, token, tls })))
    }

    /// Send a request. The answer's body is still to be read.
    pub async fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Result<Response<Incoming>> {
        let Inner { address, name, token, tls } = &*self.0;
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let stream = tls.connect(name.clone(), stream).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header("Host", address);
        if let Some(token) = token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        Ok(sender.send_request(request.body(Full::new(bytes))?).await?)
    }

    /// Send a request and read the answer.
    pub async fn send_with(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Result<Answer> {
        let response = self.open(method, path, headers, body).await?;
        let (parts, body) = response.into_parts();
        let text = String::from_utf8(body.collect().await?.to_bytes().to_vec())?;
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, text, body })
    }

    /// The same with a body of this type.
    pub async fn send(&self, method: &str, path: &str, content_type: &str, body: &Value) -> Result<Answer> {
        self.send_with(method, path, &[("Content-Type", content_type)], body).await
    }

    /// Get what is at this path.
    pub async fn get(&self, path: &str) -> Result<Answer> {
        self.send("GET", path, "", &Value::Null).await
    }

    /// All lines of a watch until it ends, and its status.
    pub async fn watch(&self, path: &str) -> Result<(u16, Vec<Value>)> {
        let answer = self.get(path).await?;
        let lines = answer.text.lines().map(serde_json::from_str).collect::<Result<_, _>>();
        Ok((answer.status, lines?))
    }

    /// Evict a pod, whichever has this name.
    pub async fn evict(&self, namespace: &str, pod: &str) -> Result<Answer> {
        let body = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
        });
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/eviction");
        self.send("POST", &path, "application/json", &body).await
    }
}
