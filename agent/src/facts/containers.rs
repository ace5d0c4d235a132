//! Running containers that stay during a Swarm drain: those created with `docker run`. A separate task checks them, so
//! that a hanging engine only blocks that task. It never starts a stopped engine, as a connection to its socket would.

use std::{
    collections::{BTreeSet, HashMap},
    path::PathBuf,
    pin::pin,
    time::Duration,
};

use bollard::{
    Docker,
    models::ContainerSummary,
    query_parameters::{EventsOptionsBuilder, ListContainersOptions},
};
use futures_util::StreamExt;
use muster_proto::convert::{CONTAINERS_MAX, as_line};
use tokio::{
    join, select,
    sync::{Notify, watch},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::{
    docker::{SOCKET, connect},
    runner::mke::run::NAME as MKE_CONTAINER,
};

/// PID file, present while the engine runs.
const PID_FILE: &str = "/run/docker.pid";
/// Timeout of the engine's answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// Interval of checks for an engine that is down, or whose event stream ended, as at a restart. Each check reads one
/// file. Also the minimum interval of container checks, however often containers start and end.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Interval of container checks between events.
const LOOK_UNASKED_EVERY: Duration = Duration::from_secs(60);
/// Retry interval while the engine is unresponsive.
const RETRY_EVERY: Duration = Duration::from_secs(10);
/// Validity of the last answer while the engine is unresponsive: it restarts within minutes, and every reported change
/// costs the coordinator a commit.
const ANSWER_KEPT: Duration = Duration::from_secs(600);
/// Label of every container that belongs to a service task.
const TASK_LABEL: &str = "com.docker.swarm.task.id";
/// Prefixes of the names of MKE's own containers and of their labels.
const MKE_NAMES: &str = "ucp-";
const MKE_LABELS: &str = "com.docker.ucp.";

/// Location of an engine.
struct Engine {
    pid_file: PathBuf,
    socket: PathBuf,
    answer_kept: Duration,
}

impl Engine {
    /// A client. None: the engine is down.
    fn client(&self) -> Option<Docker> {
        if self.pid_file.exists() { connect(&self.socket, ANSWER_DEADLINE).ok() } else { None }
    }

    /// Names of its containers, the first ones. None: the engine is unresponsive.
    async fn running(&self) -> Option<Vec<String>> {
        let docker = self.client()?;
        let found = timeout(ANSWER_DEADLINE, docker.list_containers(None::<ListContainersOptions>)).await.ok()?.ok()?;
        let names: BTreeSet<String> = found.into_iter().filter_map(plain_name).collect();
        Some(names.into_iter().take(CONTAINERS_MAX).collect())
    }
}

/// Name of a container outside any scheduler.
fn plain_name(container: ContainerSummary) -> Option<String> {
    let labels = container.labels.unwrap_or_default();
    let of_task = labels.contains_key(TASK_LABEL);
    let of_mke = labels.keys().any(|label| label.starts_with(MKE_LABELS));
    let name = container.names.unwrap_or_default().into_iter().next().or(container.id)?;
    let name = name.trim_start_matches('/');
    let own = name.starts_with(MKE_NAMES) || name == MKE_CONTAINER;
    (!of_task && !of_mke && !own).then(|| as_line(name))
}

/// Watches the containers of this machine while its engine runs. Dropping it stops the watch.
pub struct Watch {
    known: watch::Receiver<Option<Vec<String>>>,
    task: JoinHandle<()>,
}

/// Listener of a [`Watch`]: the known containers.
pub struct Containers(watch::Receiver<Option<Vec<String>>>);

impl Watch {
    /// Starts the watch.
    #[must_use]
    pub fn begin() -> Self {
        let (pid_file, socket) = (PathBuf::from(PID_FILE), PathBuf::from(SOCKET));
        Self::of(Engine { pid_file, socket, answer_kept: ANSWER_KEPT })
    }

    fn of(engine: Engine) -> Self {
        let (tell, known) = watch::channel(None);
        let task = tokio::spawn(async move {
            // Stores one notification: the next check sees the current state.
            let changed = Notify::new();
            join!(listen(&engine, &changed), look(&engine, &changed, &tell));
        });
        Self { known, task }
    }

    /// Another listener, to which the current names are new.
    #[must_use]
    pub fn containers(&self) -> Containers {
        Containers(self.known.clone())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Containers {
    /// Their names after the first check, for which the engine has 5 s. Empty if there are none, or if the engine has
    /// been silent for too long.
    pub async fn names(&mut self) -> Vec<String> {
        // After a timeout or the end of the watch, the names are unknown.
        timeout(ANSWER_DEADLINE, self.0.wait_for(Option::is_some)).await.ok();
        self.0.borrow_and_update().clone().unwrap_or_default()
    }

    /// Waits until the names differ from those last reported.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Checks the running containers, at once and after each possible change.
async fn look(engine: &Engine, changed: &Notify, tell: &watch::Sender<Option<Vec<String>>>) {
    let mut answered = Instant::now();
    loop {
        let found = engine.running().await;
        let again_after = if found.is_some() { LOOK_UNASKED_EVERY } else { RETRY_EVERY };
        if found.is_some() {
            answered = Instant::now();
        }
        let is_kept = answered.elapsed() < engine.answer_kept;
        tell.send_if_modified(|known| {
            let names = found.or_else(|| known.clone().filter(|_| is_kept)).unwrap_or_default();
            known.replace(names.clone()) != Some(names)
        });
        select! {
            () = changed.notified() => {}
            () = sleep(again_after) => {}
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Listens for starts and ends of containers and of the engine.
async fn listen(engine: &Engine, changed: &Notify) {
    let filters = HashMap::from([("type", vec!["container"]), ("event", vec!["start", "die", "rename"])]);
    loop {
        if let Some(docker) = engine.client() {
            let mut events = pin!(docker.events(Some(EventsOptionsBuilder::new().filters(&filters).build())));
            changed.notify_one();
            while let Some(Ok(_)) = events.next().await {
                changed.notify_one();
            }
            changed.notify_one();
        }
        sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use std::{
        path::Path,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
    };

    use tokio::{
        io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
        net::{UnixListener, UnixStream},
        sync::mpsc,
    };

    use super::*;

    /// An engine with one container until it is told to stop answering. Reports each request.
    struct FakeEngine {
        dir: tempfile::TempDir,
        answers: Arc<AtomicBool>,
        asked: mpsc::Receiver<()>,
    }

    impl FakeEngine {
        fn start() -> Self {
            let dir = tempfile::tempdir().expect("a directory");
            std::fs::write(dir.path().join("pid"), "1").expect("a file");
            let listener = UnixListener::bind(dir.path().join("socket")).expect("a socket");
            let (answers, (tell, asked)) = (Arc::new(AtomicBool::new(true)), mpsc::channel(64));
            let also = Arc::clone(&answers);
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve(stream, Arc::clone(&also), tell.clone()));
                }
            });
            Self { dir, answers, asked }
        }

        fn engine(&self, answer_kept: Duration) -> Engine {
            let at = |name: &str| Path::join(self.dir.path(), name);
            Engine { pid_file: at("pid"), socket: at("socket"), answer_kept }
        }
    }

    async fn serve(stream: UnixStream, answers: Arc<AtomicBool>, asked: mpsc::Sender<()>) {
        let mut lines = BufReader::new(stream).lines();
        let mut request = String::new();
        while let Ok(Some(line)) = lines.next_line().await {
            if !line.is_empty() {
                request = if request.is_empty() { line } else { request };
                continue;
            }
            // The event stream ends at once, so the engine is asked again each second.
            if request.contains("/events") {
                return;
            }
            let list = r#"[{"Id": "1", "Names": ["/plain"]}]"#;
            let answer = match answers.load(Ordering::SeqCst) {
                true => format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{list}", list.len()),
                false => "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n".to_owned(),
            };
            lines.get_mut().write_all(answer.as_bytes()).await.ok();
            asked.send(()).await.ok();
            request.clear();
        }
    }

    #[tokio::test]
    async fn last_answer_is_kept_for_a_time() {
        for (kept, expected) in [(ANSWER_KEPT, &["plain"][..]), (Duration::ZERO, &[])] {
            let mut fake = FakeEngine::start();
            let watch = Watch::of(fake.engine(kept));
            let mut containers = watch.containers();
            assert_eq!(containers.names().await, ["plain"]);
            fake.answers.store(false, Ordering::SeqCst);
            while fake.asked.try_recv().is_ok() {}
            // A second request proves that the first answer was processed.
            for _ in 0..2 {
                timeout(Duration::from_secs(60), fake.asked.recv()).await.expect("asked in time");
            }
            assert_eq!(containers.names().await, expected);
            assert_eq!(watch.containers().names().await, expected, "a new session says the same");
        }
    }

    #[tokio::test]
    async fn engine_that_does_not_run_has_no_containers() {
        let fake = FakeEngine::start();
        std::fs::remove_file(fake.dir.path().join("pid")).expect("removed");
        assert_eq!(Watch::of(fake.engine(ANSWER_KEPT)).containers().names().await, [""; 0]);
    }

    fn container(name: &str, label: &str) -> ContainerSummary {
        ContainerSummary {
            names: Some(vec![format!("/{name}")]),
            labels: Some(HashMap::from([(label.to_owned(), String::new())])),
            ..ContainerSummary::default()
        }
    }

    #[test]
    fn containers_of_others_are_plain() {
        for (name, label, expected) in [
            ("plain", "", Some("plain")),
            ("web.1.x", TASK_LABEL, None),
            ("ucp-proxy", "", None),
            ("agent", "com.docker.ucp.version", None),
            (MKE_CONTAINER, "", None),
        ] {
            assert_eq!(plain_name(container(name, label)).as_deref(), expected, "{name} {label}");
        }
    }
}
