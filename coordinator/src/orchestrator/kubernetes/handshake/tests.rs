use muster_proto::model::Epoch;

use super::*;
use crate::facts::handshake::RequestMark;

fn object(text: &str) -> Object {
    serde_json::from_str(text).expect("an object")
}

#[test]
fn recorded_lock_is_read() {
    let recorded = include_str!("60-rockoon-lock.json");
    let recorded: Value = serde_json::from_str(recorded).expect("JSON");
    let lock = lock(Subject::Node("node-3".to_owned()), object(&recorded["body"].to_string()));
    assert_eq!(
        (lock.controller.as_str(), lock.state, lock.release.as_str()),
        ("openstack", LockState::Inactive, "21.0.0")
    );
    assert_eq!((lock.name.as_str(), lock.uid.as_str()), ("openstack-node-3", "695391ab-cb5f-4c62-83b2-926c7517edc0"));
}

/// A new lock has no status for a moment, and one of another state is no consent.
#[test]
fn lock_without_known_state_is_active() {
    for status in ["", r#","status":null"#, r#","status":{"state":"Inactive"}"#, r#","status":{"errorMessage":"x"}"#] {
        let text = format!(r#"{{"metadata":{{"name":"l","uid":"u"}},"spec":{{"controllerName":"c"}}{status}}}"#);
        assert_eq!(lock(Subject::Cluster, object(&text)).state, LockState::Active, "{status}");
    }
}

#[test]
fn time_before_message_is_left_out() {
    for (message, shown) in [
        ("2026-11-27 02:12:28.309325 Number of locks", "Number of locks"),
        ("2026-11-27T02:12:28Z Waiting", "Waiting"),
        ("3 servers are left", "3 servers are left"),
        ("Waiting", "Waiting"),
        ("", ""),
    ] {
        assert_eq!(without_time(message), shown);
    }
}

#[test]
fn request_shows_who_has_seen_it() {
    let text = r#"{"metadata":{"name":"n","uid":"u","deletionTimestamp":"2026-11-27T02:12:28Z","finalizers":["a/b"],
        "annotations":{"muster/requested-by":"edge-7","muster/request":MARK}},"spec":{"nodeName":"n"}}"#;
    let request = |mark: &str| request(Subject::Node("n".to_owned()), object(&text.replace("MARK", mark)));
    let whole = RequestMark { epoch: Epoch(3), since_ms: 9, revision: 5, scope: Scope::Os };
    let written = json!(json!(whole).to_string()).to_string();
    assert_eq!(request(&written).mark, Some(whole), "{written}");
    for other in [r#""""#, r#""{}""#, r#""3""#] {
        assert_eq!(request(other).mark, None, "{other}");
    }
    let request = request(r#""""#);
    assert!(request.deleting && request.finalizers == ["a/b"]);
    assert_eq!((request.requested_by.as_deref(), request.annotations.len()), (Some("edge-7"), 2));
}
