//! Asks this machine's etcd member for its own health.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use muster_proto::{
    convert::as_line,
    model::{EtcdHealth, EtcdProbe},
};
use reqwest::{Certificate, Client, Identity, Response, StatusCode, Url, redirect};
use serde::Deserialize;
use tokio::task::spawn_blocking;

use super::{
    ANSWER_DEADLINE,
    file::{self, FileError},
};
use crate::facts;

/// Most bytes of an answer: etcd's has less than a hundred.
const BODY_BYTES_MAX: usize = 16 << 10;
/// Timeout of the connection, TLS included.
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);

/// Why the health is unknown.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    #[error("{0} is not http://ADDRESS or https://ADDRESS")]
    Url(String),
    #[error("{0} is no address of this machine")]
    Foreign(IpAddr),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{what} is not usable")]
    Pem {
        what: &'static str,
        #[source]
        source: reqwest::Error,
    },
    #[error("cannot set up HTTP")]
    Client(#[source] reqwest::Error),
    #[error("cannot ask {url}")]
    Request {
        url: String,
        #[source]
        source: reqwest::Error,
    },
    #[error("{url} answers {status}, which is not etcd's health")]
    Answer { url: String, status: StatusCode },
    #[error("the files cannot be read: the agent is stopping")]
    Stopping,
}

/// etcd's answer. Version 3.4 gives no reason.
#[derive(Deserialize)]
struct Health {
    health: String,
    #[serde(default)]
    reason: String,
}

/// The health of the member, in its own words.
pub(super) async fn health(probe: &EtcdProbe) -> Result<EtcdHealth, ProbeError> {
    let url = own_url(&probe.health)?;
    let client = client(probe).await?;
    let shown = || url.to_string();
    let failed = |source: reqwest::Error| ProbeError::Request { url: shown(), source: source.without_url() };
    let answer = client.get(url.clone()).send().await.map_err(failed)?;
    let status = answer.status();
    let body = body(answer).await.map_err(failed)?;
    let said = body.and_then(|body| serde_json::from_slice::<Health>(&body).ok());
    match said {
        Some(said) if status.is_success() && said.health == "true" => Ok(EtcdHealth::Healthy),
        Some(said) if said.health == "false" => Ok(EtcdHealth::Unhealthy(as_line(&said.reason))),
        _ => Err(ProbeError::Answer { url: shown(), status }),
    }
}

/// The URL, if it leads to this machine alone.
fn own_url(text: &str) -> Result<Url, ProbeError> {
    let not = || ProbeError::Url(as_line(text));
    let url = Url::parse(text).map_err(|_| not())?;
    let is_plain = matches!(url.scheme(), "http" | "https") && url.username().is_empty() && url.password().is_none();
    let address = url.host_str().map(|host| host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>());
    let (true, Some(Ok(address))) = (is_plain, address) else { return Err(not()) };
    let is_own = address.is_loopback() || facts::own_addresses().contains(&address);
    if is_own { Ok(url) } else { Err(ProbeError::Foreign(address)) }
}

/// A client that trusts nothing but the given CA, and follows nobody elsewhere.
async fn client(probe: &EtcdProbe) -> Result<Client, ProbeError> {
    let pem = |what: &'static str| move |source| ProbeError::Pem { what, source };
    let cas = match probe.ca_file.clone() {
        None => Vec::new(),
        Some(path) => Certificate::from_pem_bundle(&read(path).await?).map_err(pem("the CA of etcd"))?,
    };
    let builder = Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .connect_timeout(CONNECT_DEADLINE)
        .timeout(ANSWER_DEADLINE)
        .tls_certs_only(cas);
    let builder = match probe.client.clone() {
        None => builder,
        Some(files) => {
            let mut both = read(files.key_file).await?;
            both.push(b'\n');
            both.extend(read(files.certificate_file).await?);
            builder.identity(Identity::from_pem(&both).map_err(pem("the certificate for etcd, or its key,"))?)
        }
    };
    builder.build().map_err(ProbeError::Client)
}

async fn read(path: String) -> Result<Vec<u8>, ProbeError> {
    let read = spawn_blocking(move || file::read(&PathBuf::from(path))).await;
    Ok(read.map_err(|_| ProbeError::Stopping)??)
}

/// The body. None: it is too long.
async fn body(mut answer: Response) -> reqwest::Result<Option<Vec<u8>>> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        body.extend_from_slice(&chunk);
        if body.len() > BODY_BYTES_MAX {
            return Ok(None);
        }
    }
    Ok(Some(body))
}

#[cfg(test)]
mod tests;
