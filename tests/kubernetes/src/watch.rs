//! Watches: a stream of changes, one JSON object a line.

use std::{sync::Arc, time::Duration};

use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

use super::{
    Shared,
    call::Call,
    failure::Failure,
    kinds::Kind,
    lists::{metadata_only, parse_revision},
    selectors::Filter,
    server::Life,
    state::lock,
    store::Event,
};

/// A watch without `timeoutSeconds` ends after this time.
const DEFAULT_TIMEOUT: u64 = 1800;

/// One open watch.
struct Watch {
    shared: Arc<Shared>,
    kind: Arc<Kind>,
    filter: Filter,
    metadata_only: bool,
    bookmarks: bool,
    seen: u64,
    /// Revision of the last event of this kind, which bookmarks carry.
    last: u64,
    to: mpsc::Sender<Bytes>,
}

/// Open a watch. The receiver yields its lines; it ends when the stream ends.
pub(super) fn open(
    shared: &Arc<Shared>,
    life: watch::Receiver<Life>,
    floor: u64,
    call: &Call,
    kind: &Arc<Kind>,
) -> Result<mpsc::Receiver<Bytes>, Failure> {
    let filter = Filter::parse(call, kind)?;
    let from = parse_revision(call.parameter("resourceVersion"))?.unwrap_or(0);
    let (to, lines) = mpsc::channel(64);
    let initial = call.is_set("sendInitialEvents") || from == 0;
    let current = lock(&shared.state).store.revision();
    let start = if initial { current } else { from };
    let watch = Watch {
        shared: shared.clone(),
        kind: kind.clone(),
        filter,
        metadata_only: call.wants_metadata_only(),
        bookmarks: call.is_set("allowWatchBookmarks"),
        seen: start,
        last: start,
        to,
    };
    let mut first = Vec::new();
    if initial {
        first = watch.initial(call.is_set("sendInitialEvents"));
    } else if from < floor {
        let message = format!("too old resource version: {from} ({floor})");
        first.push(line("ERROR", &Failure::new(410, Some("Expired"), message).status()));
    }
    let expired = !initial && from < floor;
    let seconds = call.parameter("timeoutSeconds").parse().unwrap_or(DEFAULT_TIMEOUT);
    let end = Instant::now() + Duration::from_secs(seconds);
    tokio::spawn(async move {
        if watch.send(first).await && !expired {
            watch.run(life, end).await;
        }
    });
    Ok(lines)
}

impl Watch {
    /// Everything that exists, as if it was added now.
    fn initial(&self, with_end: bool) -> Vec<Bytes> {
        let state = lock(&self.shared.state);
        let objects = state.store.snapshot(&self.kind.resource(), self.seen);
        let chosen = objects.iter().filter(|object| self.filter.matches(object));
        let mut lines: Vec<Bytes> = chosen.map(|object| line("ADDED", &self.shown(object))).collect();
        if with_end && self.bookmarks {
            lines.push(self.bookmark(&json!({"k8s.io/initial-events-end": "true"})));
        }
        lines
    }

    fn bookmark(&self, annotations: &Value) -> Bytes {
        let mut metadata = json!({"resourceVersion": self.last.to_string()});
        if annotations.is_object() {
            super::objects::set(&mut metadata, &["annotations"], annotations.clone());
        }
        let object = json!({"kind": self.kind.kind, "apiVersion": self.kind.api_version(), "metadata": metadata});
        line("BOOKMARK", &object)
    }

    fn shown(&self, object: &Value) -> Value {
        if self.metadata_only { metadata_only(object) } else { object.clone() }
    }

    /// The line for an event. An object that stops to match the selectors is a deletion for this watch.
    fn line_of(&self, event: &Event) -> Option<Bytes> {
        let before = event.before.as_ref().is_some_and(|object| self.filter.matches(object));
        let after = !event.deleted && self.filter.matches(&event.object);
        let name = match (before, after) {
            (false, false) => return None,
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
        };
        Some(line(name, &self.shown(&event.object)))
    }

    /// Send lines. False: the client is gone.
    async fn send(&self, lines: Vec<Bytes>) -> bool {
        for line in lines {
            if self.to.send(line).await.is_err() {
                return false;
            }
        }
        true
    }

    async fn run(mut self, mut life: watch::Receiver<Life>, end: Instant) {
        let (mut changes, every) = {
            let state = lock(&self.shared.state);
            (state.store.subscribe(), self.shared.config.bookmark_every)
        };
        let mut next_bookmark = Instant::now() + every;
        while *life.borrow_and_update() == Life::Running {
            let (lines, expired) = self.pending_lines();
            if !self.send(lines).await || expired {
                return;
            }
            tokio::select! {
                _ = changes.changed() => {}
                _ = life.changed() => {}
                () = self.to.closed() => return,
                () = sleep_until(next_bookmark) => {
                    next_bookmark = Instant::now() + every;
                    if self.bookmarks && !self.send(vec![self.bookmark(&Value::Null)]).await {
                        return;
                    }
                }
                () = sleep_until(end) => break,
            }
        }
        // A server that terminates leaves its watches open and silent.
        tokio::select! {
            () = sleep_until(end) => {}
            () = self.to.closed() => return,
        }
        if self.bookmarks {
            self.send(vec![self.bookmark(&Value::Null)]).await;
        }
    }

    /// The lines since the last call, and whether they are missing because the history starts later.
    fn pending_lines(&mut self) -> (Vec<Bytes>, bool) {
        let shared = self.shared.clone();
        let state = lock(&shared.state);
        let floor = state.store.floor();
        if self.seen < floor {
            let message = format!("too old resource version: {} ({floor})", self.seen);
            return (vec![line("ERROR", &Failure::new(410, Some("Expired"), message).status())], true);
        }
        let events = state.store.events_after(&self.kind.resource(), self.seen);
        if let Some(newest) = events.last() {
            self.last = newest.revision;
        }
        // A watch from the future stays silent until the store has caught up.
        self.seen = self.seen.max(state.store.revision());
        (events.iter().filter_map(|event| self.line_of(event)).collect(), false)
    }
}

fn line(kind: &str, object: &Value) -> Bytes {
    Bytes::from(format!("{}\n", json!({"type": kind, "object": object})))
}
