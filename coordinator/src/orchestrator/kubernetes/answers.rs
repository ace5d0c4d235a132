//! What the API server's answers mean. Pure: status code, Retry-After and body in, a verdict out.

use std::time::Duration;

use serde::{Deserialize, de::DeserializeOwned};

use crate::facts::kubernetes::{Deletion, Eviction, KubernetesFailure};
use crate::orchestrator::kubernetes::text::one_line;

/// Wait before asking a busy server again, where it names no time.
pub(crate) const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Longest wait that a server may ask for.
pub(crate) const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// An HTTP answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// HTTP status code.
    pub(crate) status: u16,
    /// Value of the header Retry-After.
    pub(crate) retry_after: Option<String>,
    /// The body, whole.
    pub(crate) body: Vec<u8>,
}

/// The object `Status` of apimachinery, by which the API server says what went wrong.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    kind: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    reason: String,
    details: Option<Details>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Details {
    kind: String,
    causes: Vec<Cause>,
    retry_after_seconds: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Cause {
    reason: String,
    message: String,
    field: String,
}

impl Status {
    fn causes(&self) -> &[Cause] {
        self.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default()
    }

    fn cause(&self, reason: &str) -> Option<&Cause> {
        self.causes().iter().find(|cause| cause.reason == reason)
    }

    /// Kind of the object in question, such as `pods`. Empty: it names none.
    fn subject(&self) -> &str {
        self.details.as_ref().map(|details| details.kind.as_str()).unwrap_or_default()
    }
}

impl Answer {
    /// Is it 2xx?
    pub(crate) fn is_success(&self) -> bool {
        (200..=299).contains(&self.status)
    }

    /// 404 without a Status: the API server does not serve such a path (recording 20).
    pub(crate) fn is_unserved(&self) -> bool {
        self.status == 404 && self.status_object().is_none()
    }

    /// The object in the body of a success, or the failure.
    pub(crate) fn object<T: DeserializeOwned>(&self) -> Result<T, KubernetesFailure> {
        if !self.is_success() {
            return Err(self.failure());
        }
        serde_json::from_slice(&self.body).map_err(|error| {
            let words = one_line(&error.to_string());
            KubernetesFailure::Other(format!("cannot read the API server's answer: {words}"))
        })
    }

    /// What an answer other than a success means, whatever the request.
    pub(crate) fn failure(&self) -> KubernetesFailure {
        let status = self.status_object();
        let words = self.words(status.as_ref());
        let subject = status.as_ref().map(Status::subject).unwrap_or_default();
        match self.status {
            401 => KubernetesFailure::Unauthorized(words),
            403 => KubernetesFailure::Forbidden(words),
            404 if subject == "nodes" => KubernetesFailure::NotFound(words),
            409 => KubernetesFailure::Conflict(words),
            // The only 410 left here is a list's: its pages expired faster than they were read, twice.
            410 | 429 | 503 => KubernetesFailure::Busy { after: self.wait(status.as_ref()), message: words },
            422 if status
                .as_ref()
                .is_some_and(|status| status.causes().iter().any(|cause| cause.field == "metadata.uid")) =>
            {
                KubernetesFailure::Conflict(words)
            }
            502 | 504 => KubernetesFailure::Unreachable(words),
            500 if is_of_etcd(&words) => KubernetesFailure::Unreachable(words),
            300..=399 => KubernetesFailure::Other(format!(
                "the API server redirects (HTTP {}); correct the kubeconfig's server",
                self.status
            )),
            _ => KubernetesFailure::Other(words),
        }
    }

    /// The failure without the API server's words, which may quote what was sent: HTTP status, reason, and the fields
    /// that are wrong. What RBAC lacks is said in words of ours.
    pub(crate) fn failure_in_outline(&self) -> KubernetesFailure {
        let status = self.status_object();
        let is_name = |reason: &&str| !reason.is_empty() && reason.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let reason = status.as_ref().map(|status| status.reason.as_str()).filter(is_name);
        let mut outline = format!("HTTP {}", self.status);
        outline.extend(reason.into_iter().flat_map(|reason| [" ", reason]));
        let causes = status.as_ref().map(Status::causes).unwrap_or_default().iter();
        let fields: Vec<&str> = causes.map(|cause| cause.field.as_str()).filter(|field| !field.is_empty()).collect();
        if !fields.is_empty() {
            outline.extend([" (", &fields.join(", "), ")"]);
        }
        let failure = self.failure();
        if failure.lacks_right() {
            let subject = status.as_ref().map(Status::subject).unwrap_or_default();
            outline = format!("{outline}: the account cannot patch resource \"{subject}\"");
        }
        failure.with_words(|_| one_line(&outline))
    }

    /// What the answer to an eviction means.
    pub(crate) fn eviction(&self) -> Result<Eviction, KubernetesFailure> {
        if self.status == 200 || self.status == 201 {
            return Ok(Eviction::Accepted);
        }
        // Without a Status the answer is a proxy's, or of API Priority and Fairness: the pod was not looked at.
        let Some(status) = self.status_object() else {
            return Err(self.failure());
        };
        let words = self.words(Some(&status));
        match self.status {
            404 if matches!(status.subject(), "pods" | "namespaces") => Ok(Eviction::Gone),
            409 if matches!(status.subject(), "Pod" | "pods") => Ok(Eviction::Replaced),
            429 => self.too_many(&status, words),
            403 if status.cause("NamespaceTerminating").is_some() => Ok(Eviction::NamespaceTerminating),
            // A missing right names the pod; an admission webhook's refusal names nothing.
            403 if status.subject().is_empty() => Ok(Eviction::Refused(words)),
            500 if names_two_budgets(&status.message) => Ok(Eviction::TwoBudgets(words)),
            500 if is_of_etcd(&words) => Err(self.failure()),
            // 400 is a webhook's default too, but has no reason then.
            400 if matches!(status.reason.as_str(), "BadRequest") => Err(self.failure()),
            401 | 403 | 404 | 503 => Err(self.failure()),
            400.. => Ok(Eviction::Refused(words)),
            _ => Err(self.failure()),
        }
    }

    /// What the answer to the deletion of a pod means.
    pub(crate) fn deletion(&self) -> Result<Deletion, KubernetesFailure> {
        if self.is_success() {
            return Ok(Deletion::Accepted);
        }
        let Some(status) = self.status_object() else {
            return Err(self.failure());
        };
        let words = self.words(Some(&status));
        let of_pod = matches!(status.subject(), "Pod" | "pods");
        match self.status {
            404 if of_pod || status.subject() == "namespaces" => Ok(Deletion::Gone),
            409 if of_pod => Ok(Deletion::Replaced),
            // A missing right names the pod; an admission webhook's refusal names nothing.
            403 if of_pod => Ok(Deletion::Forbidden(words)),
            403 => Ok(Deletion::Refused(words)),
            429 if self.named_wait(Some(&status)).is_some() => Err(self.failure()),
            500 if is_of_etcd(&words) => Err(self.failure()),
            // 400 is a webhook's default too, but has no reason then.
            400 if matches!(status.reason.as_str(), "BadRequest") => Err(self.failure()),
            401 | 404 | 503 => Err(self.failure()),
            400.. => Ok(Deletion::Refused(words)),
            _ => Err(self.failure()),
        }
    }

    /// A 429 with a Status: of a budget, of a server that is not ready, or of a webhook such as KubeVirt's.
    fn too_many(&self, status: &Status, words: String) -> Result<Eviction, KubernetesFailure> {
        match status.cause("DisruptionBudget") {
            Some(cause) if names_unobserved_budget(&cause.message) => {
                Ok(Eviction::Unobserved(one_line(&cause.message)))
            }
            Some(cause) if cause.message.is_empty() => Ok(Eviction::Budget(words)),
            Some(cause) => Ok(Eviction::Budget(one_line(&cause.message))),
            None if self.named_wait(Some(status)).is_some() => Err(self.failure()),
            None => Ok(Eviction::Refused(words)),
        }
    }

    /// The first check that `/readyz` calls failed, or the status code. None: the server is ready.
    pub(crate) fn failed_check(&self) -> Option<String> {
        if self.is_success() {
            return None;
        }
        let text = String::from_utf8_lossy(&self.body);
        let line = text.lines().find_map(|line| line.strip_prefix("[-]"));
        let name = line.map(|line| line.split_once(" failed").map_or(line, |(name, _)| name));
        Some(name.map_or_else(|| format!("HTTP {}", self.status), one_line))
    }

    fn status_object(&self) -> Option<Status> {
        serde_json::from_slice(&self.body).ok().filter(|status: &Status| status.kind == "Status")
    }

    /// The server's words, or at least the status code.
    fn words(&self, status: Option<&Status>) -> String {
        let words = match status {
            Some(status) => one_line(&status.message),
            None => one_line(&String::from_utf8_lossy(&self.body)),
        };
        match (status, words.is_empty()) {
            (_, true) => format!("HTTP {} without a message", self.status),
            (Some(_), false) => words,
            (None, false) => one_line(&format!("HTTP {}: {words}", self.status)),
        }
    }

    fn wait(&self, status: Option<&Status>) -> Duration {
        self.named_wait(status).map_or(DEFAULT_RETRY_AFTER, |wait| wait.min(MAX_RETRY_AFTER))
    }

    /// The wait that header or body names. The API server names seconds; a proxy's date counts as none.
    fn named_wait(&self, status: Option<&Status>) -> Option<Duration> {
        let header = self.retry_after.as_deref().and_then(|text| text.trim().parse().ok());
        let body = || status.and_then(|status| status.details.as_ref()).and_then(|details| details.retry_after_seconds);
        header.or_else(body).filter(|seconds| *seconds > 0).map(Duration::from_secs)
    }
}

/// Is it etcd's own error, passed through? A write that it cut off may have been made.
fn is_of_etcd(words: &str) -> bool {
    words.starts_with("etcdserver: ")
}

/// Two budgets select the pod: the API server tells it by these words alone (recording 04).
fn names_two_budgets(words: &str) -> bool {
    words.contains("more than one PodDisruptionBudget")
}

/// The budget's controller has not seen its spec: told by these words alone (recording 34b).
fn names_unobserved_budget(words: &str) -> bool {
    words.contains("still being processed")
}

#[cfg(test)]
mod tests;
