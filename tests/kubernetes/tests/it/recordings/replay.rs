//! Recordings of a real API server, and the comparison of answers with them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result};
use muster_kubernetes_stand_in::{Config, Kubernetes};
use serde_json::{Value, json};

use crate::client::{Answer, Client};

/// Metadata that both servers must agree on.
const METADATA: [&str; 5] = ["name", "namespace", "generation", "finalizers", "deletionGracePeriodSeconds"];

/// A replay of all recordings.
pub(crate) struct Replay {
    recordings: BTreeMap<String, Value>,
    pub(crate) replayed: BTreeSet<String>,
    pub(crate) failures: Vec<String>,
}

impl Replay {
    /// Read `tests/golden/kubernetes`.
    pub(crate) fn load() -> Result<Self> {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../golden/kubernetes"));
        let mut recordings = BTreeMap::new();
        for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("").to_owned();
            if let Some(stem) = name.strip_suffix(".json") {
                let value = serde_json::from_slice(&fs::read(&path)?).with_context(|| name.clone())?;
                recordings.insert(stem.to_owned(), value);
            }
        }
        Ok(Self { recordings, replayed: BTreeSet::new(), failures: Vec::new() })
    }

    pub(crate) fn files(&self) -> BTreeSet<String> {
        self.recordings.keys().cloned().collect()
    }

    /// The recording with this name.
    pub(crate) fn recording(&self, file: &str) -> Result<Value> {
        self.recordings.get(file).cloned().with_context(|| format!("there is no recording {file}"))
    }

    /// Note a difference unless the condition holds.
    pub(crate) fn check(&mut self, file: &str, what: &str, holds: bool) {
        self.replayed.insert(file.to_owned());
        if !holds {
            self.failures.push(format!("{file}: {what}"));
        }
    }

    /// Compare two values.
    pub(crate) fn equal(&mut self, file: &str, what: &str, recorded: &Value, actual: &Value) {
        let message = format!("{what}: recorded {recorded}, answered {actual}");
        self.check(file, &message, recorded == actual);
    }

    /// Compare fields of the recorded body with an object.
    pub(crate) fn fields(&mut self, file: &str, actual: &Value, pointers: &[&str]) -> Result<()> {
        let recorded = self.recording(file)?;
        for pointer in pointers {
            let at = |value: &Value| value.pointer(pointer).cloned().unwrap_or(Value::Null);
            self.equal(file, pointer, &at(&recorded["body"]), &at(actual));
        }
        Ok(())
    }

    /// Send the recorded request and compare the answer.
    pub(crate) async fn send(&mut self, client: &Client, file: &str) -> Result<Answer> {
        self.send_edited(client, file, |_| {}).await
    }

    /// Send the recorded request to another path, for recordings that name only an object.
    pub(crate) async fn send_to(&mut self, client: &Client, file: &str, path: &str) -> Result<Answer> {
        self.send_edited(client, file, |request| request["path"] = path.into()).await
    }

    /// Send the recorded request after a change, such as of a resourceVersion.
    pub(crate) async fn send_edited(
        &mut self,
        client: &Client,
        file: &str,
        edit: impl FnOnce(&mut Value),
    ) -> Result<Answer> {
        let recording = self.recording(file)?;
        let mut request = recording["request"].clone();
        edit(&mut request);
        let at = |field: &str| request[field].as_str().unwrap_or("");
        let accept = if file == "25e-list-partial-metadata" {
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
        } else {
            "application/json"
        };
        let headers = [("Content-Type", at("contentType")), ("Accept", accept)];
        let answer = client.send_with(at("method"), at("path"), &headers, &request["body"]).await;
        let answer = answer.with_context(|| file.to_owned())?;
        self.compare(file, &recording, &answer);
        Ok(answer)
    }

    /// Compare status, headers and body.
    pub(crate) fn compare(&mut self, file: &str, recording: &Value, answer: &Answer) {
        self.equal(file, "HTTP status", &recording["status"], &answer.status.into());
        if let Some(headers) = recording["headers"].as_object().filter(|headers| !headers.is_empty()) {
            for header in ["Content-Type", "Retry-After"] {
                let recorded = headers.get(header).cloned().unwrap_or(Value::Null);
                let actual = answer.header(header).map_or(Value::Null, Value::from);
                self.equal(file, header, &recorded, &actual);
            }
        }
        let recorded = &recording["body"];
        match recorded["kind"].as_str() {
            _ if recorded.is_string() => self.equal(file, "text", recorded, &answer.text.as_str().into()),
            Some("Status") => self.compare_status(file, recorded, &answer.body),
            Some(kind) => {
                self.equal(file, "kind", &kind.into(), &answer.body["kind"]);
                self.equal(file, "apiVersion", &recorded["apiVersion"], &answer.body["apiVersion"]);
                self.compare_metadata(file, &recorded["metadata"], &answer.body["metadata"]);
                if let Some(items) = recorded["items"].as_array() {
                    let actual = answer.body["items"].as_array().map_or(0, Vec::len);
                    self.equal(file, "number of items", &items.len().into(), &actual.into());
                }
            }
            None => {}
        }
    }

    /// Compare a Status: reason, code, details with all causes, and the message but for its numbers.
    pub(crate) fn compare_status(&mut self, file: &str, recorded: &Value, actual: &Value) {
        for field in ["kind", "status", "reason", "code"] {
            self.equal(file, field, &recorded[field], &actual[field]);
        }
        self.equal(file, "details", &without_uids(&recorded["details"]), &without_uids(&actual["details"]));
        self.equal(file, "message", &without_numbers(&recorded["message"]), &without_numbers(&actual["message"]));
        let token = |status: &Value| Value::from(status["metadata"]["continue"].is_string());
        self.equal(file, "metadata.continue", &token(recorded), &token(actual));
    }

    fn compare_metadata(&mut self, file: &str, recorded: &Value, actual: &Value) {
        for field in METADATA {
            self.equal(file, field, &recorded[field], &actual[field]);
        }
        let present = ["uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "remainingItemCount"];
        for field in present {
            let is_there = |metadata: &Value| Value::from(!metadata[field].is_null());
            self.equal(file, &format!("presence of {field}"), &is_there(recorded), &is_there(actual));
        }
        let token =
            |metadata: &Value| Value::from(metadata["continue"].as_str().is_some_and(|token| !token.is_empty()));
        self.equal(file, "presence of continue", &token(recorded), &token(actual));
    }
}

/// The value with every UID replaced.
pub(crate) fn without_uids(value: &Value) -> Value {
    let text = value.to_string();
    let mut result = String::new();
    let mut rest = text.as_str();
    while !rest.is_empty() {
        if rest.get(..36).is_some_and(is_uid) {
            result.push_str("UID");
            rest = rest.get(36..).unwrap_or("");
        } else {
            let next = rest.chars().next().map_or(1, char::len_utf8);
            result.push_str(rest.get(..next).unwrap_or(""));
            rest = rest.get(next..).unwrap_or("");
        }
    }
    serde_json::from_str(&result).unwrap_or(Value::Null)
}

fn is_uid(text: &str) -> bool {
    text.char_indices().all(|(at, letter)| match at {
        8 | 13 | 18 | 23 => letter == '-',
        _ => letter.is_ascii_hexdigit(),
    })
}

/// The text without UIDs and with every number replaced.
fn without_numbers(value: &Value) -> Value {
    let value = without_uids(value);
    let mut text = String::new();
    for letter in value.as_str().unwrap_or("").chars() {
        if !letter.is_ascii_digit() {
            text.push(letter);
        } else if !text.ends_with('#') {
            text.push('#');
        }
    }
    text.into()
}

/// Fast settings.
pub(crate) fn config() -> Config {
    Config {
        tick: Duration::from_millis(5),
        pod_start: Duration::ZERO,
        pod_stop: Duration::from_secs(600),
        ..Config::default()
    }
}

/// A cluster with the nodes and the tokens of the recordings.
pub(crate) fn cluster(config: Config) -> Result<(Kubernetes, Client)> {
    let kubernetes = Kubernetes::start(config)?;
    kubernetes.add_admin("admin");
    for node in 1..=6 {
        kubernetes.add_node(&format!("node-{node}"), "127.0.0.1", "boot")?;
    }
    let client = Client::new(&kubernetes, 0, Some("admin"))?;
    Ok((kubernetes, client))
}

/// Give an object the UID that a recorded request names.
pub(crate) fn adopt_uid(kubernetes: &Kubernetes, at: (&str, &str, &str), uid: &Value) -> Result<()> {
    let uid = json!(uid.as_str().context("the request names no UID")?);
    kubernetes.modify(at.0, at.1, at.2, |object| object["metadata"]["uid"] = uid)
}
