//! What kopf is for Rockoon: it watches collections, gives each object a task of its own, keeps finalizers and
//! annotations on the objects, and runs a handler again that failed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Error, Result};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::{
    runtime::Builder,
    sync::{oneshot, watch},
    time::{Instant, sleep, timeout_at},
};

use super::{
    super::objects::{is_terminating, list, name, set, text, uid, unset},
    client::Client,
};

/// Prefix of kopf's annotations. They do not count as changes of an object.
const KOPF: &str = "kopf.zalando.org/";
/// Annotation with the object as it was when its handler succeeded.
const HANDLED: &str = "kopf.zalando.org/last-handled-configuration";
/// Annotation that kopf writes when it is time for another try.
const TOUCHED: &str = "kopf.zalando.org/touch-dummy";

/// A collection that is watched, and the traces on its objects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Collection {
    pub(super) path: &'static str,
    /// Finalizer of objects whose deletion is handled.
    pub(super) finalizer: Option<&'static str>,
    /// Name of the handler, for the annotation with its progress.
    pub(super) handler: &'static str,
    /// False: another handler of these objects never succeeds, and all progress stays in the annotations.
    pub(super) finishes: bool,
}

/// How a controller works with its API server.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) client: Client,
    /// Time until a handler that failed is tried again.
    pub(super) retry: Duration,
    /// Pause after a request that failed.
    pub(super) reconnect: Duration,
}

/// What a controller does.
pub(super) trait Handlers: fmt::Debug + Send + Sync + 'static {
    fn link(&self) -> &Link;

    fn collections(&self) -> Vec<Collection> {
        Vec::new()
    }

    /// What runs beside the handlers.
    fn started(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// An object is new, was changed, or is seen for the first time since the start.
    fn changed(&self, _: &Collection, _: &Value) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// An object is being deleted, and waits for the finalizer.
    fn deleted(&self, _: &Collection, _: &Value) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }
}

/// A controller that can be stopped and started.
#[derive(Debug)]
pub(super) struct Daemon<H: Handlers> {
    handlers: Arc<H>,
    process: Mutex<Option<Process>>,
}

/// Its thread, which ends when `stop` is dropped.
#[derive(Debug)]
struct Process {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl<H: Handlers> Daemon<H> {
    pub(super) fn start(handlers: H) -> Result<Self> {
        let daemon = Self { handlers: Arc::new(handlers), process: Mutex::new(None) };
        daemon.start_again()?;
        Ok(daemon)
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn start_again(&self) -> Result<()> {
        let mut process = self.process();
        if process.is_some() {
            return Ok(());
        }
        let runtime = Builder::new_current_thread().enable_all().build().context("cannot start a controller")?;
        let (stop, stopped) = oneshot::channel();
        let handlers = self.handlers.clone();
        let thread = thread::Builder::new().name("controller".to_owned()).spawn(move || {
            runtime.block_on(async move {
                for collection in handlers.collections() {
                    tokio::spawn(follow(handlers.clone(), collection));
                }
                tokio::spawn(async move { handlers.started().await });
                // An error means that the sender was dropped: that is the signal.
                let _ = stopped.await;
            });
            // The runtime goes, and with it every task at the point where it waits.
        })?;
        *process = Some(Process { stop, thread });
        Ok(())
    }

    pub(super) fn stop(&self) {
        if let Some(Process { stop, thread }) = self.process().take() {
            drop(stop);
            // A thread that panicked is over, too.
            let _ = thread.join();
        }
    }
}

impl<H: Handlers> Drop for Daemon<H> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Objects with a task, by UID. None: the object is gone.
type Tasks = BTreeMap<String, watch::Sender<Option<Value>>>;

/// Follow a collection until the runtime ends.
async fn follow<H: Handlers>(handlers: Arc<H>, collection: Collection) {
    let mut tasks = Tasks::new();
    loop {
        if list_and_watch(&handlers, collection, &mut tasks).await.is_err() {
            sleep(handlers.link().reconnect).await;
        }
    }
}

/// One list, and the watch after it. Its end is followed by another list.
async fn list_and_watch<H: Handlers>(handlers: &Arc<H>, collection: Collection, tasks: &mut Tasks) -> Result<()> {
    let client = &handlers.link().client;
    let (objects, version) = client.list(collection.path).await?;
    let listed: BTreeSet<&str> = objects.iter().map(uid).collect();
    tasks.retain(|uid, task| {
        let stays = listed.contains(uid.as_str());
        if !stays {
            task.send_replace(None);
        }
        stays
    });
    for object in &objects {
        show(handlers, collection, tasks, object);
    }
    let mut events = client.watch(collection.path, &version).await?;
    while let Some(event) = events.next().await? {
        let object = event.get("object").unwrap_or(&Value::Null);
        match text(&event, "/type") {
            "ADDED" | "MODIFIED" => show(handlers, collection, tasks, object),
            "DELETED" => {
                if let Some(task) = tasks.remove(uid(object)) {
                    task.send_replace(None);
                }
            }
            "BOOKMARK" => {}
            _ => return Ok(()),
        }
    }
    Ok(())
}

/// Show the newest state of an object to its task.
fn show<H: Handlers>(handlers: &Arc<H>, collection: Collection, tasks: &mut Tasks, object: &Value) {
    if let Some(task) = tasks.get(uid(object)) {
        task.send_replace(Some(object.clone()));
        return;
    }
    let (task, seen) = watch::channel(Some(object.clone()));
    tasks.insert(uid(object).to_owned(), task);
    tokio::spawn(tend(handlers.clone(), collection, seen));
}

/// What an object waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Change,
    /// Another try of its handler: a change does not bring it forward (recording 67b), a deletion does.
    Retry,
}

/// The task of one object, until it is gone.
async fn tend<H: Handlers>(handlers: Arc<H>, collection: Collection, mut seen: watch::Receiver<Option<Value>>) {
    let mut handled = None;
    loop {
        let Some(object) = seen.borrow_and_update().clone() else { return };
        let next = step(&*handlers, &collection, &object, &mut handled).await;
        let pause = match &next {
            Ok(Next::Change) => None,
            Ok(Next::Retry) => Some(handlers.link().retry),
            Err(_) => Some(handlers.link().reconnect),
        };
        let due = pause.map(|pause| Instant::now() + pause);
        let retries = matches!(next, Ok(Next::Retry));
        loop {
            match wait(&mut seen, due).await {
                None => break,
                Some(false) => return,
                Some(true) => {}
            }
            let newest = seen.borrow_and_update().clone();
            let ends = newest.is_none_or(|newest| is_terminating(&newest) && !is_terminating(&object));
            if ends || !retries {
                break;
            }
        }
        if retries && seen.borrow().as_ref().is_some_and(|newest| !is_terminating(newest)) {
            let touch = json!({"metadata": {"annotations": {TOUCHED: Timestamp::now().to_string()}}});
            // What fails here fails in the handler, too.
            let _ = handlers.link().client.merge(&path(&collection, &object), &touch).await;
        }
    }
}

/// Wait for a change of an object. False: it is gone. None: it is time.
async fn wait(seen: &mut watch::Receiver<Option<Value>>, due: Option<Instant>) -> Option<bool> {
    let changed = seen.changed();
    match due {
        Some(due) => timeout_at(due, changed).await.ok().map(|changed| changed.is_ok()),
        None => Some(changed.await.is_ok()),
    }
}

fn path(collection: &Collection, object: &Value) -> String {
    format!("{}/{}", collection.path, name(object))
}

/// The next thing to do for an object. An error is a request of this module that failed.
async fn step<H: Handlers>(
    handlers: &H,
    collection: &Collection,
    object: &Value,
    handled: &mut Option<Value>,
) -> Result<Next> {
    let client = &handlers.link().client;
    let path = path(collection, object);
    let finalizers = list(object, "/metadata/finalizers");
    let held = collection.finalizer.filter(|own| finalizers.iter().any(|finalizer| finalizer == own));
    if is_terminating(object) {
        let Some(own) = held else { return Ok(Next::Change) };
        return match handlers.deleted(collection, object).await {
            Ok(()) => release(client, &path, own).await,
            Err(why) => note(client, collection, object, Some(&why)).await.map(|()| Next::Retry),
        };
    }
    if let (Some(own), None) = (collection.finalizer, held) {
        let mut all = finalizers.to_vec();
        all.push(own.into());
        let version = text(object, "/metadata/resourceVersion");
        client.merge(&path, &json!({"metadata": {"resourceVersion": version, "finalizers": all}})).await?;
        return Ok(Next::Change);
    }
    let essence = essence(object);
    if handled.as_ref() == Some(&essence) {
        return Ok(Next::Change);
    }
    if let Err(why) = handlers.changed(collection, object).await {
        return note(client, collection, object, Some(&why)).await.map(|()| Next::Retry);
    }
    if collection.finishes {
        let text = format!("{essence}\n");
        let annotations = json!({HANDLED: text, format!("{KOPF}{}", collection.handler): null, TOUCHED: null});
        client.merge(&path, &json!({"metadata": {"annotations": annotations}})).await?;
    } else {
        note(client, collection, object, None).await?;
    }
    *handled = Some(essence);
    Ok(Next::Change)
}

/// Remove the finalizer. Others may have gone since the object was seen.
async fn release(client: &Client, path: &str, own: &str) -> Result<Next> {
    if let Some(object) = client.get(path).await? {
        let mut rest = list(&object, "/metadata/finalizers").to_vec();
        rest.retain(|finalizer| finalizer != own);
        client.merge(path, &json!({"metadata": {"uid": uid(&object), "finalizers": rest}})).await?;
    }
    Ok(Next::Change)
}

/// Note on an object how its handler ended.
async fn note(client: &Client, collection: &Collection, object: &Value, why: Option<&Error>) -> Result<()> {
    let known = object.pointer("/metadata/annotations").is_some_and(|all| all.get(HANDLED).is_some());
    let mut progress = json!({
        "started": Timestamp::now().to_string(),
        "purpose": if known { "update" } else { "create" },
        "success": why.is_none(),
        "failure": false,
    });
    if let Some(why) = why {
        set(&mut progress, &["message"], why.to_string());
    }
    let handler = if is_terminating(object) { "delete" } else { "change" };
    let handler = collection.handler.replace("change", handler);
    // Each patch of kopf takes its last touch away.
    let annotations = json!({format!("{KOPF}{handler}"): progress.to_string(), TOUCHED: null});
    client.merge(&path(collection, object), &json!({"metadata": {"annotations": annotations}})).await
}

/// The part of an object whose change counts: no status, and of the metadata only labels and foreign annotations.
fn essence(object: &Value) -> Value {
    let mut essence = object.clone();
    for field in ["apiVersion", "kind", "status"] {
        unset(&mut essence, &[field]);
    }
    let Some(metadata) = essence.get_mut("metadata").and_then(Value::as_object_mut) else { return essence };
    metadata.retain(|field, _| field == "labels" || field == "annotations");
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|key, _| !key.starts_with(KOPF));
    }
    metadata.retain(|_, values| values.as_object().is_some_and(|values| !values.is_empty()));
    if metadata.is_empty() {
        unset(&mut essence, &["metadata"]);
    }
    essence
}
