//! RFC 3339 timestamps in whole seconds, as Kubernetes writes them.

use std::time::Duration;

use jiff::Timestamp;

/// The current time as a Kubernetes timestamp.
pub(super) fn now() -> String {
    format(Timestamp::now())
}

/// `seconds` after the current time.
pub(super) fn after_now(seconds: u64) -> String {
    format(Timestamp::now() + Duration::from_secs(seconds))
}

/// Write a time as `2026-11-27T01:53:46Z`.
pub(super) fn format(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Read a timestamp.
pub(super) fn parse(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}
