//! Changes as they happen, over a connection that is restored when the coordinator restarts.

use std::{pin::pin, time::Duration};

use futures_util::{StreamExt as _, stream};
use muster_proto::{
    resource::Kind,
    wire::{GetRequest, Resource, WatchEvent, watch_event},
};
use tokio::{
    sync::mpsc,
    task::AbortHandle,
    time::{Instant, sleep, timeout},
};
use tonic::{Code, Status};

use crate::{
    client::{CALL_DEADLINE, Coordinator, request},
    config::Config,
    errors::{Exit, Failure},
};

/// First wait before a reconnection; doubled up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Give up after this long: a restart takes less.
const AWAY_MAX: Duration = Duration::from_secs(15 * 60);
/// Most news queued for display; then the stream waits.
const QUEUE_MAX: usize = 1024;

/// A change.
#[derive(Debug)]
pub(crate) enum FeedItem {
    /// A complete document.
    Put { kind: Kind, key: String, name: String, json: Vec<u8> },
    /// A deletion.
    Deleted { kind: Kind, key: String, name: String },
    /// Everything known at the start has been sent; repeated after [`News::Back`].
    Synced,
    /// The connection broke for this reason, and is being restored.
    Lost(String),
    /// The connection is restored.
    Back,
}

/// What to watch.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) kind: Kind,
    /// Empty: every name.
    pub(crate) name: String,
    /// Empty: every cluster.
    pub(crate) cluster: String,
}

impl Subject {
    fn request(&self) -> GetRequest {
        request(self.kind, &self.name, &self.cluster)
    }
}

/// News of some subjects, in order. Dropping it closes the connection.
pub(crate) struct Feed {
    item: mpsc::Receiver<Result<FeedItem, Failure>>,
    task: AbortHandle,
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Feed {
    /// Start to watch. If the first connection fails, that is the first and last news.
    pub(crate) fn open(config: Config, subjects: Vec<Subject>) -> Self {
        let (sender, item) = mpsc::channel(QUEUE_MAX);
        let task = tokio::spawn(async move {
            if let Err(failure) = keep_reading(&config, &subjects, &sender).await {
                let _ = sender.send(Err(failure)).await; // the reader may have gone
            }
        });
        Self { item, task: task.abort_handle() }
    }

    /// The next news. Fails once, at the end.
    pub(crate) async fn next(&mut self) -> Result<FeedItem, Failure> {
        self.item
            .recv()
            .await
            .unwrap_or_else(|| Err(Failure::new(Exit::Unreachable, "the coordinator closed the watch")))
    }
}

type Sender = mpsc::Sender<Result<FeedItem, Failure>>;

/// Read until the receiver is dropped or a failure is final.
async fn keep_reading(config: &Config, subjects: &[Subject], sender: &Sender) -> Result<(), Failure> {
    let mut connected_once = false;
    let mut pause = PAUSE_FIRST;
    let mut away_since = Instant::now();
    loop {
        let failure = match Coordinator::connect(config).await {
            Ok(coordinator) => match read(&coordinator, subjects, sender, &mut connected_once).await {
                Ok(()) => return Ok(()),
                Err((failure, was_up)) => {
                    if was_up {
                        (pause, away_since) = (PAUSE_FIRST, Instant::now());
                        post(sender, FeedItem::Lost(failure.line())).await;
                    }
                    failure
                }
            },
            Err(failure) => failure,
        };
        if !connected_once || failure.exit != Exit::Unreachable || away_since.elapsed() > AWAY_MAX {
            return Err(failure);
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Read one connection to its end. Ok: the receiver was dropped. Err: why it ended, and whether it had been up.
async fn read(
    coordinator: &Coordinator,
    subjects: &[Subject],
    sender: &Sender,
    connected_once: &mut bool,
) -> Result<(), (Failure, bool)> {
    let mut streams = Vec::new();
    for subject in subjects {
        let mut fleet = coordinator.fleet();
        let opened = coordinator.call(fleet.watch(subject.request())).await.map_err(|failure| (failure, false))?;
        streams.push(opened.map(|event| (subject.kind, event)).chain(stream::once(ended(subject.kind))));
    }
    if *connected_once && !post(sender, FeedItem::Back).await {
        return Ok(());
    }
    *connected_once = true;
    let fail = |status: &Status| (Failure::status(coordinator.address(), status), true);
    let mut merged = pin!(stream::select_all(streams.into_iter().map(Box::pin)));
    let mut unsynced = subjects.len();
    loop {
        // The initial documents have a deadline; afterwards silence is normal, and HTTP/2 pings detect a dead peer.
        let next = if unsynced > 0 {
            timeout(CALL_DEADLINE, merged.next())
                .await
                .unwrap_or_else(|_| Some((Kind::Machines, Err(Status::deadline_exceeded("the watch says nothing")))))
        } else {
            merged.next().await
        };
        let Some((kind, event)) = next else { return Err(fail(&Status::unavailable("the watch ended"))) };
        let event = event.map_err(|status| fail(&as_outage(status)))?;
        let Some(item) = item(kind, event, &mut unsynced).map_err(|status| fail(&status))? else { continue };
        if !post(sender, item).await {
            return Ok(());
        }
    }
}

async fn ended(kind: Kind) -> (Kind, Result<WatchEvent, Status>) {
    (kind, Err(Status::unavailable("the coordinator ended the watch")))
}

/// Treat a stream that broke in the middle as an outage, whatever code the transport gives.
fn as_outage(status: Status) -> Status {
    match status.code() {
        Code::Unknown | Code::Internal | Code::Cancelled => {
            Status::unavailable(format!("the connection broke: {}", status.message()))
        }
        _ => status,
    }
}

fn item(kind: Kind, event: WatchEvent, unsynced: &mut usize) -> Result<Option<FeedItem>, Status> {
    let sort = event.r#type();
    match (sort, event.resource) {
        (watch_event::Type::Synced, _) => {
            *unsynced = unsynced.saturating_sub(1);
            Ok((*unsynced == 0).then_some(FeedItem::Synced))
        }
        (watch_event::Type::Put, Some(resource)) => {
            let Resource { key, name, json, .. } = resource;
            Ok(Some(FeedItem::Put { kind, key, name, json }))
        }
        (watch_event::Type::Deleted, Some(Resource { key, name, .. })) => {
            Ok(Some(FeedItem::Deleted { kind, key, name }))
        }
        (watch_event::Type::Put | watch_event::Type::Deleted, None) | (watch_event::Type::Unspecified, _) => {
            Err(Status::internal("the coordinator sent a watch event that makes no sense; is it a newer version?"))
        }
    }
}

/// False: the receiver was dropped.
async fn post(sender: &Sender, item: FeedItem) -> bool {
    sender.send(Ok(item)).await.is_ok()
}
