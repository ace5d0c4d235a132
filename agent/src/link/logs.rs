//! Streams the output of attempts to whoever asked for it, while the session lasts.

use std::collections::BTreeMap;

use muster_proto::wire::{AgentMessage, LogChunk, agent_message::Body};
use tokio::{sync::mpsc, task::AbortHandle};

use crate::{
    link::{chain, session::message_of},
    output::OutputReader,
};

/// Chunks of output that are not on their way yet, of 32 KiB each.
pub(super) const LOG_QUEUE_MAX: usize = 8;
/// Readers at one time.
const READERS_MAX: usize = 16;

/// The readers of one session.
#[derive(Debug, Default)]
pub struct LogStreams {
    readers: BTreeMap<u64, AbortHandle>,
}

impl LogStreams {
    /// Starts sending; `reader` is None if there is nothing to read.
    pub fn start(
        &mut self,
        request_id: u64,
        reader: Option<OutputReader>,
        follow: bool,
        to: mpsc::Sender<AgentMessage>,
    ) {
        self.readers.retain(|_, task| !task.is_finished());
        let task = if self.readers.len() >= READERS_MAX {
            tokio::spawn(end(request_id, to, "too many readers of this machine's output; try again later".to_owned()))
        } else if let Some(reader) = reader {
            tokio::spawn(copy(request_id, reader, follow, to))
        } else {
            tokio::spawn(end(request_id, to, "nothing has run here under that name".to_owned()))
        };
        if let Some(old) = self.readers.insert(request_id, task.abort_handle()) {
            old.abort();
        }
    }

    /// Stops sending.
    pub fn cancel(&mut self, request_id: u64) {
        if let Some(task) = self.readers.remove(&request_id) {
            task.abort();
        }
    }

    /// Stops sending to anybody: the session is over.
    pub fn cancel_all(&mut self) {
        std::mem::take(&mut self.readers).into_values().for_each(|task| task.abort());
    }
}

async fn copy(request_id: u64, mut reader: OutputReader, follow: bool, to: mpsc::Sender<AgentMessage>) {
    let error = loop {
        let chunk = if follow { reader.next().await.map(Option::unwrap_or_default) } else { reader.next_now() };
        match chunk {
            Ok(data) if data.is_empty() => break String::new(),
            Ok(data) => {
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

async fn end(request_id: u64, to: mpsc::Sender<AgentMessage>, error: String) {
    let chunk = LogChunk { request_id, data: Vec::new(), end: true, error };
    // A session that is gone has no reader.
    to.send(message_of(Body::Log(chunk))).await.ok();
}
