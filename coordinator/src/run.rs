//! The daemon: all parts together, until a signal or a failure.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, anyhow};
use muster_coordinator::{
    admin::Admin,
    config::Config,
    engine::{self, EngineError, EngineHandle},
    facts::Facts,
    health::{self, Listening},
    listen::listen,
    pki::{Ca, StateKey, Vault},
    plan::Limits,
    server::{self, Sessions, Settings},
    store::{EmbeddedStore, Place, Store, StoreError},
};
use muster_proto::{
    daemon::{
        service_manager::{self, StatusLine},
        signals::Signals,
    },
    model::Epoch,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::{
    net::TcpListener,
    sync::{oneshot, watch},
};

/// Fewest open files for a thousand machines, each with two connections while it renews its certificate, plus strangers
/// and operators.
const OPEN_FILES_MIN: u64 = 8192;

/// Timeout for the engine to end after its last use.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval of checks that the store's file and its mark are in place. It bounds how long acknowledgements may be given
/// for a record that a restart would miss.
const PLACE_EVERY: Duration = Duration::from_secs(5);

/// Shortest interval between two status lines.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// Run until a signal (a success), or until a fatal failure.
pub(crate) async fn run(
    config: &Config,
    port_file: Option<&Path>,
    ready: impl FnOnce(SocketAddr, Epoch),
) -> anyhow::Result<()> {
    // First of all: a signal during the start must be caught.
    let mut signals = Signals::new()?;
    raise_open_files();
    config.state_dir.check_to_run()?;
    let key = StateKey::read(&config.key_file)?;
    let store = EmbeddedStore::open(&config.state_dir.store())?;
    let rows = store.load()?;
    let ca = Arc::new(Ca::load(&rows, &key)?);
    let key_check = key.check().context("no random bytes from the system")?;
    let vault = Arc::new(Vault::new(key));
    drop(rows);
    let listener = bind(config).await?;
    let bound = listener.local_addr()?;

    let sessions = Sessions::default();
    let lost_after_ms = u64::try_from(config.lost_after.as_millis()).context("lost-after is out of range")?;
    let (place, closing) = (store.clone(), store.clone());
    let (engine, thread) = engine::start(store.clone(), sessions.clone(), Limits { lost_after_ms }, ca.proof_key()?)?;
    let admin = Admin {
        state_dir: config.state_dir.clone(),
        store,
        ca: Arc::clone(&ca),
        engine: engine.clone(),
        copying: Mutex::default(),
    };
    let admin_socket = admin.listen()?;
    let admin = tokio::spawn(admin.run(admin_socket));

    let listening = Listening { address: bound, ca_pin: ca.pin(), key_check, key_file: key_file_of(&config.key_file)? };
    write_down(&listening, config, port_file)?;
    let epoch = engine.facts().meta.epoch;
    tracing::info!(address = %bound, %epoch, version = muster_proto::VERSION, "ready");
    ready(bound, epoch);
    let status = tokio::spawn(tell_status(engine.watch(), bound));
    service_manager::ready();

    let gone = engine_gone(&engine);
    let (tell_moved, mut moved) = oneshot::channel();
    let shutdown = async move {
        tokio::select! {
            error = until_moved(place) => {
                tracing::error!(%error, "shutting down");
                // Only an ending coordinator drops the receiver.
                drop(tell_moved.send(error));
            }
            signal = signals.wait_for_end() => tracing::info!("{signal}: shutting down"),
            () = gone => {}
        }
    };
    let settings = Settings { heartbeat: config.heartbeat, agent_lifetime: config.agent_lifetime };
    let shutdown = async move {
        shutdown.await;
        status.abort();
        service_manager::stopping();
    };
    let served = server::serve(listener, engine, sessions, (ca, vault), settings, shutdown).await;
    admin.abort();
    end_of_engine(thread).await?;
    keep_mark(&closing);
    // A failure: systemd restarts it, and the new start reports what is in place now, or continues if the file is back.
    if let Ok(error) = moved.try_recv() {
        return Err(error.into());
    }
    Ok(served?)
}

/// The next start requires the mark, which may have been lost since the last check.
fn keep_mark(store: &EmbeddedStore) {
    if let Ok(Place::MarkMade { mark }) = store.check_place() {
        tracing::warn!("{} was lost or damaged; it is made again", mark.display());
    }
}

async fn bind(config: &Config) -> anyhow::Result<TcpListener> {
    listen(&config.listen).await.with_context(|| {
        let listen = &config.listen;
        format!("cannot listen on {listen}; --listen takes an address of this machine ([::]: all) and a free port")
    })
}

/// Write where the coordinator listens, for other programs on this machine.
fn write_down(listening: &Listening, config: &Config, port_file: Option<&Path>) -> anyhow::Result<()> {
    listening
        .write(&config.state_dir)
        .with_context(|| format!("cannot write {}", config.state_dir.listening().display()))?;
    let Some(file) = port_file else { return Ok(()) };
    let port = listening.address.port().to_string();
    health::replace(file, &port).with_context(|| format!("cannot write {}", file.display()))
}

/// Path of the key for the next start. None: systemd knows it, and we were passed a copy.
fn key_file_of(path: &Path) -> anyhow::Result<Option<PathBuf>> {
    let path = std::path::absolute(path).context("the key file's path")?;
    let handed_over =
        std::env::var_os("CREDENTIALS_DIRECTORY").is_some_and(|credentials| path.starts_with(credentials));
    Ok((!handed_over).then_some(path))
}

/// Completes when the store's file is gone or replaced. A lost mark is created again.
async fn until_moved(store: EmbeddedStore) -> StoreError {
    let mut said: Option<String> = None;
    loop {
        tokio::time::sleep(PLACE_EVERY).await;
        // A broken disk or an unreachable file server may hang.
        let looking = store.clone();
        let Ok(found) = tokio::task::spawn_blocking(move || looking.check_place()).await else { continue };
        let problem = match found {
            Err(error @ StoreError::Moved { .. }) => return error,
            Ok(Place::Kept) => None,
            Ok(Place::MarkMade { mark }) => {
                let mark = mark.display();
                tracing::warn!(
                    "{mark} was lost or damaged; it is made again, and names the newest commit of the store"
                );
                None
            }
            Ok(Place::Unknown { source }) => {
                Some(format!("nobody can tell whether the store is at its place: {source}"))
            }
            Err(error) => Some(format!("{:#}", anyhow!(error))),
        };
        // Log each problem once.
        if let Some(problem) = problem.as_ref().filter(|problem| said.as_ref() != Some(problem)) {
            tracing::error!("{problem}");
        }
        said = problem;
    }
}

/// Keep the status line of `systemctl status` up to date.
async fn tell_status(mut facts: watch::Receiver<Arc<Facts>>, address: SocketAddr) {
    let mut line = StatusLine::default();
    loop {
        line.say(&status_line(&facts.borrow_and_update(), address));
        tokio::time::sleep(STATUS_EVERY).await;
        if facts.changed().await.is_err() {
            return;
        }
    }
}

fn status_line(facts: &Facts, address: SocketAddr) -> String {
    let connected = facts.live.machines.values().filter(|machine| machine.session.is_some()).count();
    let open = facts.rollouts.values().filter(|rollout| rollout.finished_at_ms.is_none()).count();
    format!(
        "epoch {} on {address}: {connected} of {} machines connected, {open} rollout(s) under way",
        facts.meta.epoch,
        facts.machines.len()
    )
}

/// Completes when the engine has ended by itself: its store failed.
fn engine_gone(engine: &EngineHandle) -> impl Future<Output = ()> + Send + 'static {
    let mut facts = engine.watch();
    async move {
        // This returns only when the publisher of facts is gone.
        drop(facts.wait_for(|_| false).await);
        tracing::error!("the engine has ended");
    }
}

/// The engine's result. Ignore handles in stuck calls: everything answered is durable.
async fn end_of_engine(thread: JoinHandle<Result<(), EngineError>>) -> anyhow::Result<()> {
    let joined = tokio::task::spawn_blocking(move || thread.join());
    match tokio::time::timeout(ENGINE_TIMEOUT, joined).await {
        Ok(Ok(Ok(outcome))) => Ok(outcome?),
        Ok(Ok(Err(_)) | Err(_)) => Err(anyhow!("the engine panicked; that is a bug, and its log line says where")),
        Err(_) => {
            tracing::warn!("some calls did not end in time");
            Ok(())
        }
    }
}

/// Raise the limit of open files: each connection is one, and the default is often low (1,024).
fn raise_open_files() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).map(|(soft, hard)| {
        let done = if soft < hard { setrlimit(Resource::RLIMIT_NOFILE, hard, hard) } else { Ok(()) };
        // If that is forbidden, continue with the present limit.
        done.map_or(soft, |()| hard)
    });
    match raised {
        Ok(open_files) if open_files >= OPEN_FILES_MIN => tracing::debug!(open_files, "connections are limited by"),
        Ok(open_files) => tracing::warn!(
            open_files,
            "few machines can be connected: raise LimitNOFILE= (systemd), --ulimit nofile (docker) or ulimit -Hn"
        ),
        Err(error) => tracing::warn!(%error, "cannot read how many files may be open"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_files_may_be_open_as_the_system_allows() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
        setrlimit(Resource::RLIMIT_NOFILE, hard.min(1024), hard).expect("lowered, as systemd does");
        raise_open_files();
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).expect("a limit"), (hard, hard));
    }
}
