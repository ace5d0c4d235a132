//! Streams the output of attempts to its readers while the session lasts.

use std::{collections::BTreeMap, time::Duration};

use muster_proto::wire::{AgentMessage, LogChunk, agent_message::Body};
use tokio::{sync::mpsc, task::AbortHandle, time::timeout};

use crate::{
    attempt::{AttemptKey, Attempts, Found},
    core::ATTEMPTS_KEPT,
    link::{chain, session::message_of},
};

/// Maximum of queued output chunks, of 32 KiB each.
pub(super) const LOG_QUEUE_MAX: usize = 8;
/// Maximum of concurrent readers.
const READERS_MAX: usize = 16;
/// Timeout of a reader for an attempt that is recorded as started to begin.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Polling interval of such a reader.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The readers of one session.
#[derive(Debug, Default)]
pub struct LogStreams {
    readers: BTreeMap<u64, AbortHandle>,
}

impl LogStreams {
    /// Starts to send the output of `attempt`; None before the first attempt.
    pub fn start(
        &mut self,
        request_id: u64,
        attempt: Option<(Attempts, AttemptKey)>,
        follow: bool,
        to: mpsc::Sender<AgentMessage>,
    ) {
        self.readers.retain(|_, task| !task.is_finished());
        let task = if self.readers.len() >= READERS_MAX {
            tokio::spawn(end(request_id, to, "too many readers of this machine's output; try again later".to_owned()))
        } else if let Some((attempts, key)) = attempt {
            tokio::spawn(copy(request_id, attempts, key, follow, to))
        } else {
            tokio::spawn(end(request_id, to, "nothing has run here under that name".to_owned()))
        };
        if let Some(old) = self.readers.insert(request_id, task.abort_handle()) {
            old.abort();
        }
    }

    /// Stops one stream.
    pub fn cancel(&mut self, request_id: u64) {
        if let Some(task) = self.readers.remove(&request_id) {
            task.abort();
        }
    }

    /// Stops all streams: the session is over.
    pub fn cancel_all(&mut self) {
        std::mem::take(&mut self.readers).into_values().for_each(|task| task.abort());
    }
}

async fn copy(request_id: u64, attempts: Attempts, key: AttemptKey, follow: bool, to: mpsc::Sender<AgentMessage>) {
    if follow {
        // Sends an empty chunk first, so that the reader of a silent item sees the connection.
        if to.send(message_of(Body::Log(LogChunk { request_id, ..LogChunk::default() }))).await.is_err() {
            return;
        }
        // After a timeout, the output itself shows the state.
        timeout(BEGIN_TIMEOUT, begun(&attempts, &key)).await.ok();
    }
    let mut reader = attempts.output(&key, None);
    let mut silent = true;
    let error = loop {
        let chunk = if follow { reader.next().await.map(Option::unwrap_or_default) } else { reader.next_now() };
        match chunk {
            Ok(data) if data.is_empty() => break if silent { absent(&attempts, &key) } else { String::new() },
            Ok(data) => {
                silent = false;
                let chunk = LogChunk { request_id, data, end: false, error: String::new() };
                if to.send(message_of(Body::Log(chunk))).await.is_err() {
                    return;
                }
            }
            Err(error) => break chain(&error),
        }
    };
    end(request_id, to, error).await;
}

/// Explains missing output. Empty: the attempt has written none.
fn absent(attempts: &Attempts, key: &AttemptKey) -> String {
    match attempts.inspect(key) {
        Ok(Found::NotStarted) => format!(
            "no output of it is here: no program of it has begun, or {ATTEMPTS_KEPT} others came after it or wrote so \
             much that it went for them; musterctl describe machine shows why, or the end of what it wrote"
        ),
        _ => String::new(),
    }
}

/// Waits for the process: the start is recorded some milliseconds before it begins.
async fn begun(attempts: &Attempts, key: &AttemptKey) {
    let mut look = tokio::time::interval(LOOK_EVERY);
    while matches!(attempts.inspect(key), Ok(Found::NotStarted)) {
        look.tick().await;
    }
}

async fn end(request_id: u64, to: mpsc::Sender<AgentMessage>, error: String) {
    let chunk = LogChunk { request_id, data: Vec::new(), end: true, error };
    // A closed session has lost its reader.
    to.send(message_of(Body::Log(chunk))).await.ok();
}
