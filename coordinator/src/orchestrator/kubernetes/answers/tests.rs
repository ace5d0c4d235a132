use std::{collections::BTreeSet, fs, path::Path};

use serde_json::{Value, json};

use super::*;

fn recordings() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/kubernetes")
}

fn recording(name: &str) -> Value {
    serde_json::from_slice(&fs::read(recordings().join(format!("{name}.json"))).unwrap()).unwrap()
}

fn answer_of(recording: &Value) -> Answer {
    let body = match &recording["body"] {
        Value::String(text) => text.clone().into_bytes(),
        object => object.to_string().into_bytes(),
    };
    let retry_after = recording["headers"]["Retry-After"].as_str().map(str::to_owned);
    Answer { status: recording["status"].as_u64().unwrap().try_into().unwrap(), retry_after, body }
}

fn recorded(name: &str) -> Answer {
    answer_of(&recording(name))
}

fn answer(status: u16, body: &Value) -> Answer {
    Answer { status, retry_after: None, body: body.to_string().into_bytes() }
}

fn status(code: u16, message: &str) -> Answer {
    answer(code, &json!({ "kind": "Status", "message": message, "code": code }))
}

/// The outcome without the words, but for the short ones of budgets.
fn outcome(result: &Result<Eviction, KubernetesFailure>) -> String {
    match result {
        Ok(Eviction::Budget(words)) => format!("Budget: {words}"),
        Ok(Eviction::Unobserved(words)) => format!("Unobserved: {words}"),
        Ok(Eviction::TwoBudgets(_)) => "TwoBudgets".to_owned(),
        Ok(Eviction::Refused(words)) => format!("Refused: {words}"),
        Ok(other) => format!("{other:?}"),
        Err(KubernetesFailure::Busy { after, .. }) => format!("Busy {after:?}"),
        Err(KubernetesFailure::Forbidden(_)) => "Forbidden".to_owned(),
        Err(other) => format!("{other:?}"),
    }
}

/// Every recorded answer to an eviction, and what it means.
const EVICTIONS: &[(&str, &str)] = &[
    ("01-eviction-ok", "Accepted"),
    ("02-eviction-blocked-pdb", "Budget: The disruption budget pdb-b needs 2 healthy pods and has 2 currently"),
    ("02c-eviction-blocked-dryrun", "Budget: The disruption budget pdb-b needs 2 healthy pods and has 2 currently"),
    (
        "02d-eviction-blocked-dryrun-in-body",
        "Budget: The disruption budget pdb-b needs 2 healthy pods and has 2 currently",
    ),
    ("03-eviction-dryrun-allowed", "Accepted"),
    ("03b-eviction-dryrun-allowed-second-pod", "Accepted"),
    ("03c-eviction-allowed-with-pdb", "Accepted"),
    ("03e-eviction-second-blocked", "Budget: The disruption budget pdb-c needs 1 healthy pods and has 1 currently"),
    ("04-eviction-two-pdbs", "TwoBudgets"),
    ("05-eviction-gone", "Gone"),
    ("05b-eviction-name-mismatch", "Other(\"name in URL does not match name in Eviction object\")"),
    ("05c-eviction-empty-name", "Other(\"name in URL does not match name in Eviction object\")"),
    ("05d-eviction-namespace-gone", "Gone"),
    ("06-eviction-uid-mismatch", "Replaced"),
    ("06b-eviction-uid-match", "Accepted"),
    (
        "06c-eviction-uid-mismatch-and-pdb-0",
        "Budget: The disruption budget pdb-b needs 2 healthy pods and has 2 currently",
    ),
    ("06d-eviction-uid-mismatch-consumes-budget", "Replaced"),
    ("06f-eviction-stale-resourceversion", "Budget: "),
    ("07-eviction-already-terminating", "Accepted"),
    ("07b-eviction-already-terminating-shorter-grace", "Accepted"),
    ("07d-eviction-already-terminating-longer-grace", "Accepted"),
    ("08-eviction-failed", "Accepted"),
    ("08-eviction-pending-on-node", "Accepted"),
    ("08-eviction-pending-unscheduled", "Accepted"),
    ("08-eviction-succeeded", "Accepted"),
    ("09-unready-ualwaysallow-budget-not-met", "Accepted"),
    ("09-unready-udefault-budget-not-met", "Budget: "),
    ("09-unready-uifhealthybudget-budget-not-met", "Budget: "),
    ("09b-unready-udefault-budget-met", "Accepted"),
    ("09b-unready-uifhealthybudget-budget-met", "Accepted"),
    ("10-eviction-pdb-syncfailed", "Budget: The disruption budget pdb-h does not allow evicting pods currently"),
    ("11-eviction-v1beta1", "Budget: "),
    ("12-eviction-forbidden", "Forbidden"),
    ("13-evict-pod-with-finalizer", "Accepted"),
    ("13c-evict-pod-held-by-finalizer", "Accepted"),
    ("31g-ds-pod-evict", "Accepted"),
    ("31l-evict-ds-pod-with-pdb", "Unobserved: The disruption budget vrouter is still being processed by the server."),
    ("32b-mirror-pod-evict", "Accepted"),
    ("33b-evict-in-terminating-namespace", "NamespaceTerminating"),
    ("33b2-evict-in-terminating-namespace-dryrun", "NamespaceTerminating"),
    ("33d-evict-terminating-pod-in-terminating-namespace", "NamespaceTerminating"),
    ("34b-evict-pdb-unobserved", "Unobserved: The disruption budget new is still being processed by the server."),
    ("34d-evict-1-of-2", "Accepted"),
    ("34f-evict-2-of-2", "Accepted"),
    ("34g-evict-third", "Budget: The disruption budget new does not allow evicting pods currently"),
    ("35b-pf-429-on-eviction", "Busy 1s"),
];

#[test]
fn recorded_evictions_match_table() {
    for (name, expected) in EVICTIONS {
        let found = outcome(&recorded(name).eviction());
        // "Budget: " alone leaves the words open.
        let matches = if expected.ends_with(": ") { found.starts_with(expected) } else { found == *expected };
        assert!(matches, "{name}: {found}");
    }
}

#[test]
fn eviction_table_is_complete() {
    let listed: BTreeSet<String> = EVICTIONS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(recordings()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let name = name.trim_end_matches(".json").to_owned();
        let recording = recording(&name);
        if recording["request"]["path"].as_str().is_some_and(|path| path.contains("/eviction")) {
            found.insert(name);
        }
    }
    let unlisted: Vec<_> = found.difference(&listed).collect();
    assert!(unlisted.is_empty() && found.len() > 40, "{unlisted:?}");
}

#[test]
fn recorded_failures_match_table() {
    use KubernetesFailure::{Conflict, Forbidden, NotFound, Unauthorized, Unreachable};
    let words = |name: &str| recording(name)["body"]["message"].as_str().unwrap().to_owned();
    let named = |name: &str, kind: fn(String) -> KubernetesFailure| {
        assert_eq!(recorded(name).failure(), kind(one_line(&words(name))), "{name}");
    };
    named("12-eviction-forbidden", Forbidden);
    named("12b-token-invalid", Unauthorized);
    named("12c-anonymous", Forbidden);
    named("12e-token-expired", Unauthorized);
    named("23d-patch-other-uid", Conflict);
    named("30i-cordon-stale-rv", Conflict);
    named("30l-cordon-no-rights", Forbidden);
    named("30m-cordon-node-gone", NotFound);
    named("40e-list-future-rv", Unreachable);
    let busy = |seconds, message: &str| KubernetesFailure::Busy {
        after: Duration::from_secs(seconds),
        message: message.to_owned(),
    };
    let too_many = "HTTP 429: Too many requests, please try again later.";
    assert_eq!(recorded("35-priority-and-fairness-429").failure(), busy(1, too_many));
    assert_eq!(recorded("41b-list-exact-old").failure(), busy(1, &one_line(&words("41b-list-exact-old"))));
    let starting = answer_of(&recording("42-apiserver-starting")["body"]["answers"]["503 ServiceUnavailable"]);
    let message = "the request has been made before all known HTTP paths have been installed, please try again";
    assert_eq!(starting.failure(), busy(5, message));
    assert_eq!(starting.eviction(), Err(busy(5, message)));
    let other = KubernetesFailure::Other("HTTP 404: 404 page not found".to_owned());
    assert_eq!(recorded("20-cr-before-crd").failure(), other);
}

#[test]
fn eviction_404_of_proxy_is_no_absence() {
    let other = KubernetesFailure::Other("HTTP 404: 404 page not found".to_owned());
    assert_eq!(recorded("20-cr-before-crd").eviction(), Err(other));
    let words = "the server could not find the requested resource";
    assert_eq!(status(404, words).eviction(), Err(KubernetesFailure::Other(words.to_owned())));
}

#[test]
fn webhook_answers_are_refusals() {
    let denied = "admission webhook \"w\" denied the request: not now";
    for code in [400, 403, 409, 422, 429, 500] {
        assert_eq!(status(code, denied).eviction(), Ok(Eviction::Refused(denied.to_owned())), "{code}");
    }
    let timeout = "Timeout: request did not complete within requested timeout";
    assert_eq!(status(504, timeout).eviction(), Ok(Eviction::Refused(timeout.to_owned())));
}

#[test]
fn storage_initializing_is_busy() {
    let body =
        json!({ "kind": "Status", "message": "storage is (re)initializing", "details": { "retryAfterSeconds": 1 } });
    let busy =
        KubernetesFailure::Busy { after: DEFAULT_RETRY_AFTER, message: "storage is (re)initializing".to_owned() };
    assert_eq!(answer(429, &body).eviction(), Err(busy));
}

#[test]
fn etcd_error_leaves_outcome_open() {
    let words = "etcdserver: request timed out";
    let unreachable = KubernetesFailure::Unreachable(words.to_owned());
    assert_eq!(status(500, words).failure(), unreachable);
    assert_eq!(status(500, words).eviction(), Err(unreachable));
    let gateway = Answer { status: 502, retry_after: None, body: b"<html>Bad Gateway</html>".to_vec() };
    assert_eq!(
        gateway.eviction(),
        Err(KubernetesFailure::Unreachable("HTTP 502: <html>Bad Gateway</html>".to_owned()))
    );
}

#[test]
fn retry_after_is_bounded() {
    let busy = |header: Option<&str>| {
        let answer = Answer { status: 503, retry_after: header.map(str::to_owned), body: Vec::new() };
        match answer.failure() {
            KubernetesFailure::Busy { after, .. } => after.as_secs(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(busy(None), 1);
    assert_eq!(busy(Some("5")), 5);
    assert_eq!(busy(Some("0")), 1);
    assert_eq!(busy(Some("99999999999999999999")), 1);
    assert_eq!(busy(Some("86400")), 60);
    assert_eq!(busy(Some("Fri, 27 Nov 2026 01:56:53 GMT")), 1);
}

#[test]
fn server_text_is_one_bounded_line() {
    let words = "a\n\u{1b}[2Jb".to_owned() + &"c".repeat(2000);
    let KubernetesFailure::Other(text) = status(418, &words).failure() else { panic!() };
    assert!(text.starts_with("a \u{fffd}[2Jbccc") && text.chars().count() == 512, "{text}");
    let raw = Answer { status: 418, retry_after: None, body: words.into_bytes() };
    let KubernetesFailure::Other(text) = raw.failure() else { panic!() };
    assert!(text.starts_with("HTTP 418: a \u{fffd}[2Jbccc") && text.chars().count() == 512, "{text}");
    let KubernetesFailure::Other(text) = answer(200, &json!("\u{1b}")).object::<Status>().unwrap_err() else {
        panic!()
    };
    assert!(text.starts_with("cannot read the API server's answer: "), "{text}");
    assert!(!text.contains('\u{1b}'), "{text:?}");
}

#[test]
fn redirect_names_what_to_correct() {
    let text = "the API server redirects (HTTP 307); correct the kubeconfig's server".to_owned();
    assert_eq!(answer(307, &json!({})).failure(), KubernetesFailure::Other(text));
}

#[test]
fn readyz_names_first_failed_check() {
    let body = "[+]ping ok\n[-]etcd failed: reason withheld\n[-]informer-sync failed: x\nreadyz check failed\n";
    let failed =
        |status, body: &str| Answer { status, retry_after: None, body: body.as_bytes().to_vec() }.failed_check();
    assert_eq!(failed(200, "ok"), None);
    assert_eq!(failed(500, body).as_deref(), Some("etcd"));
    assert_eq!(failed(503, "").as_deref(), Some("HTTP 503"));
    assert_eq!(failed(301, "").as_deref(), Some("HTTP 301"));
}
