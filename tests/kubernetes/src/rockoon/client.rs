//! What a controller asks of an API server, each request with a deadline.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::time::{Instant, timeout, timeout_at};

use super::super::{
    client::{self, Answer},
    objects::{list, text},
};

/// Time for one request, from connecting to the answer's last byte.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);
/// Life of a watch that the server is asked for, in seconds, and the longest that it is read (Rockoon's settings.py).
const WATCH_SECONDS: u64 = 300;
const WATCH_LIMIT: Duration = Duration::from_secs(600);

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";

/// A client with the identity of a token.
#[derive(Clone, Debug)]
pub(super) struct Client(client::Client);

impl Client {
    /// The server and the token of a kubeconfig's current context. Nothing is sent.
    pub(super) fn of_kubeconfig(kubeconfig: &str) -> Result<Self> {
        client::Client::of_kubeconfig(kubeconfig).map(Self)
    }

    /// Send a request and read the answer: its status and its object.
    async fn send(&self, method: &str, path: &str, content_type: &str, body: &Value) -> Result<(u16, Value)> {
        let headers = [("Accept", JSON), ("Content-Type", content_type)];
        let sent = timeout(REQUEST_LIMIT, self.0.send_with(method, path, &headers, body)).await;
        let Answer { status, body, .. } = sent.with_context(|| format!("no answer to {method} {path}"))??;
        Ok((status, body))
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
        let response = timeout(REQUEST_LIMIT, self.0.open("GET", &path, &[("Accept", JSON)], &Value::Null)).await??;
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
