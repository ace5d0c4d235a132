//! The admin socket in the state directory, through which `muster-coordinator backup` and `credentials` reach a running
//! coordinator. It is for root and for the coordinator's own user. A request is one line of JSON. One line accepts it,
//! unless the client has gone; one line answers. A backup's bytes follow its answer.

mod client;

use std::{
    fs, io,
    os::{fd::AsRawFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

pub use client::AdminClient;
use muster_proto::address::Addresses;
use nix::sys::statvfs::statvfs;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    task::JoinSet,
};

use crate::{
    config::StateDir,
    core::{Input, Request as DesiredState},
    engine::EngineHandle,
    pki::{Ca, PERSON_LIFETIME, Peer, Role},
    setup::{Credentials, Issued, LOCAL_ACTOR},
    store::{EmbeddedStore, Store, StoreError},
};

const SOCKET: &str = "admin.sock";
/// Shortest lifetime of a certificate.
const LIFETIME_MIN: Duration = Duration::from_secs(10);
/// Longest request or answer line.
const LINE_BYTES_MAX: u64 = 64 * 1024;
/// Timeout for the request, from the connection on.
const REQUEST_LINE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for a healthy coordinator to accept a request; it detects one that hangs.
const TAKE_UP_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for one request, a backup's bytes included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);
/// Space that a copy of the store must leave on its disk for the store itself.
const ROOM_KEPT_BYTES: u64 = 4 << 20;
/// Most concurrent requests; further ones wait.
const REQUESTS_MAX: usize = 16;
/// Pause after `accept` failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Mode of a backup: it contains the sealed CA key and digests of tokens.
const FILE_MODE: u32 = 0o600;

/// Why an operation on the socket failed.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The socket cannot be created or reached.
    #[error("cannot use the socket {}", path.display())]
    Socket {
        /// Path of the socket.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The coordinator hangs or is busy.
    #[error(
        "a coordinator is there, but did not take this up within {} s, and will not do it later: does it hang, or is \
         it busy with {REQUESTS_MAX} others? systemctl status muster-coordinator",
        TAKE_UP_TIMEOUT.as_secs()
    )]
    Hangs,
    /// The connection failed.
    #[error("the coordinator did not answer as it should")]
    Talk(#[source] io::Error),
    /// The coordinator refused.
    #[error("{0}")]
    Refused(String),
    /// The copy cannot be written here.
    #[error("cannot write {}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
}

/// Role and name for new credentials.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wanted {
    /// `operator`, `viewer` or `controller`.
    pub role: String,
    /// Name of the person or program.
    pub name: String,
    /// The only clusters they apply to; empty: all.
    pub clusters: Vec<String>,
    /// Lifetime of their certificate in milliseconds. None: a year.
    #[serde(default)]
    pub lifetime_ms: Option<u64>,
}

impl Wanted {
    /// Lifetime of the certificate.
    ///
    /// # Errors
    /// A message for people.
    pub fn lifetime(&self) -> Result<Duration, String> {
        let lifetime = self.lifetime_ms.map_or(PERSON_LIFETIME, Duration::from_millis);
        let fits = (LIFETIME_MIN..=PERSON_LIFETIME).contains(&lifetime);
        fits.then_some(lifetime).ok_or_else(|| "--lifetime: expected 10s to 365d".to_owned())
    }

    /// The peer, if role and names are valid.
    ///
    /// # Errors
    /// A message for people.
    pub fn peer(&self) -> Result<Peer, String> {
        if !muster_proto::model::is_label(&self.name) {
            return Err(format!("--name: {}", muster_proto::model::InvalidName));
        }
        let name = self.name.clone();
        let role = match self.role.as_str() {
            "operator" => Role::Operator(name),
            "viewer" => Role::Viewer(name),
            "controller" if self.clusters.is_empty() => Role::Controller(name),
            "controller" => return Err("--cluster: a controller is not limited to clusters".to_owned()),
            _ => return Err("--role: expected operator, viewer or controller".to_owned()),
        };
        let names = self.clusters.iter().map(|name| muster_proto::model::ClusterName::new(name.clone()));
        let clusters: std::collections::BTreeSet<_> =
            names.collect::<Result<_, _>>().map_err(|error| format!("--cluster: {error}"))?;
        Ok(Peer { role, clusters: Some(clusters).filter(|clusters| !clusters.is_empty()) })
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Request {
    Backup,
    Credentials(Wanted),
    SetAddress(Addresses),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Answer {
    /// The request has been read, and the client is still connected.
    TakenUp,
    Backup {
        bytes: u64,
    },
    Credentials(Issued),
    /// It is done.
    Done,
    Error(String),
}

/// Call `act` with a short path of the socket. A socket's path has at most 107 bytes and a state directory may be deep,
/// so the socket is reached through the open directory.
fn with_socket<T>(state_dir: &StateDir, act: impl FnOnce(&Path) -> io::Result<T>) -> Result<T, AdminError> {
    let path = state_dir.path().join(SOCKET);
    let error = |source| AdminError::Socket { path: path.clone(), source };
    let directory = fs::File::open(state_dir.path()).map_err(error)?;
    act(&PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd()))).map_err(error)
}

/// The server side of the admin socket.
pub struct Admin {
    /// State directory with the socket.
    pub state_dir: StateDir,
    /// The store to copy.
    pub store: EmbeddedStore,
    /// Signs credentials.
    pub ca: Arc<Ca>,
    /// Records what is issued.
    pub engine: EngineHandle,
    /// Held while a copy is made: all copies use one file name.
    pub copying: Mutex<()>,
}

impl Admin {
    /// Create the socket. The caller holds the store's lock, so an existing socket, or an outgoing copy, is left over
    /// from a dead coordinator.
    ///
    /// # Errors
    /// [`AdminError::Socket`].
    pub fn listen(&self) -> Result<UnixListener, AdminError> {
        let outgoing = self.state_dir.outgoing();
        for left in [outgoing.with_extension("outgoing.part"), outgoing] {
            let _ = fs::remove_file(left); // as a rule there is none, and the next backup tries again
        }
        with_socket(&self.state_dir, |path| {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            let listener = UnixListener::bind(path)?;
            fs::set_permissions(path, fs::Permissions::from_mode(FILE_MODE))?;
            Ok(listener)
        })
    }

    /// Serve until it is cancelled.
    pub async fn run(self, listener: UnixListener) {
        let admin = Arc::new(self);
        let mut requests = JoinSet::new();
        loop {
            while requests.len() >= REQUESTS_MAX {
                requests.join_next().await;
            }
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let admin = Arc::clone(&admin);
                        requests.spawn(async move { admin.serve(stream).await });
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the admin socket takes no request");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = requests.join_next() => {}
            }
        }
    }

    async fn serve(self: Arc<Self>, stream: UnixStream) {
        match tokio::time::timeout(REQUEST_TIMEOUT, self.answer(stream)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "a request on the admin socket failed"),
            Err(_) => tracing::warn!("a request on the admin socket took too long"),
        }
    }

    async fn answer(self: &Arc<Self>, stream: UnixStream) -> io::Result<()> {
        let uid = stream.peer_cred()?.uid();
        if uid != 0 && uid != nix::unistd::geteuid().as_raw() {
            return Err(io::Error::other(format!("user {uid} is neither root nor the coordinator's")));
        }
        let (read, mut write) = stream.into_split();
        let mut read = BufReader::new(read);
        let request = tokio::time::timeout(REQUEST_LINE_TIMEOUT, read_line(&mut read)).await;
        let silent = || format!("nothing was asked within {} s", REQUEST_LINE_TIMEOUT.as_secs());
        let request: Request = request.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, silent()))??;
        if let Request::Credentials(_) | Request::SetAddress(_) = request {
            // Requests need the engine to record them: check first that it responds.
            self.engine.submit(Input::Tick).await.map_err(io::Error::other)?;
        }
        // Fails if the client has gone: then the result would be lost.
        write_line(&mut write, &Answer::TakenUp).await?;
        match request {
            Request::Credentials(wanted) => {
                let answer = self.credentials(&wanted).await.map_or_else(Answer::Error, Answer::Credentials);
                write_line(&mut write, &answer).await
            }
            Request::SetAddress(addresses) => {
                let set =
                    Input::Operator { actor: LOCAL_ACTOR.to_owned(), request: DesiredState::SetAddress(addresses) };
                let set = self.engine.submit(set).await;
                let answer = set.map_or_else(|error| Answer::Error(with_sources(&error)), |_| Answer::Done);
                write_line(&mut write, &answer).await
            }
            Request::Backup => match self.copy().await {
                Ok(file) => {
                    let mut file = tokio::fs::File::from_std(file);
                    let bytes = file.metadata().await?.len();
                    write_line(&mut write, &Answer::Backup { bytes }).await?;
                    tokio::io::copy(&mut file, &mut write).await?;
                    tracing::info!(bytes, "backup taken");
                    Ok(())
                }
                Err(error) => write_line(&mut write, &Answer::Error(with_sources(&error))).await,
            },
        }
    }

    async fn credentials(&self, wanted: &Wanted) -> Result<Issued, String> {
        let (peer, lifetime) = (wanted.peer()?, wanted.lifetime()?);
        let (facts, now_ms) = (self.engine.facts(), self.engine.now().wall_ms);
        let known = facts.credentials.get(&peer.to_string()).map(|row| &**row);
        let (credentials, row) = Credentials::issue(&self.ca, &facts.meta.address, (&peer, lifetime), known, now_ms)
            .map_err(|error| with_sources(&error))?;
        let record = Input::Operator { actor: LOCAL_ACTOR.to_owned(), request: DesiredState::RecordCredentials(row) };
        self.engine.submit(record).await.map_err(|error| with_sources(&error))?;
        tracing::info!(%peer, "credentials issued");
        Ok(Issued::new(credentials, &peer, &facts))
    }

    /// A copy of the store, open and already unlinked.
    async fn copy(self: &Arc<Self>) -> Result<fs::File, StoreError> {
        let admin = Arc::clone(self);
        let path = self.state_dir.outgoing();
        let error = |source: io::Error| StoreError::Backup { path: path.clone(), source: source.into() };
        let copied = tokio::task::spawn_blocking(move || {
            let _one = admin.copying.lock().unwrap_or_else(PoisonError::into_inner);
            outgoing_copy(&admin.state_dir, &admin.store)
        });
        copied.await.map_err(|panic| error(io::Error::other(panic)))?
    }
}

/// Make a copy of the store, open and already unlinked. One at a time: all copies use one file name. A file left there
/// by an earlier process is removed.
///
/// # Errors
/// [`StoreError::Backup`], [`StoreError::Full`].
pub fn outgoing_copy(state_dir: &StateDir, store: &EmbeddedStore) -> Result<fs::File, StoreError> {
    let path = state_dir.outgoing();
    let error = |source: io::Error| StoreError::Backup { path: path.clone(), source: source.into() };
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(error(source)),
        Ok(()) | Err(_) => {}
    }
    let bytes = fs::metadata(state_dir.store()).map_err(error)?.len();
    has_room(state_dir.path(), bytes).map_err(error)?;
    store.backup(&path)?;
    let file = fs::File::open(&path).map_err(error)?;
    fs::remove_file(&path).map_err(error)?;
    Ok(file)
}

/// Is there room for a copy of the store? The coordinator itself must be able to continue writing.
fn has_room(dir: &Path, bytes: u64) -> io::Result<()> {
    let space = statvfs(dir)?;
    let free = space.blocks_available().saturating_mul(space.fragment_size());
    let needed = bytes.saturating_add(ROOM_KEPT_BYTES);
    if needed <= free {
        return Ok(());
    }
    let message = format!("it takes up to {needed} bytes in {}, and {free} are free: make room there", dir.display());
    Err(io::Error::new(io::ErrorKind::StorageFull, message))
}

/// An error and all its causes, on one line.
fn with_sources(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |error| error.source())
        .fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

async fn read_line<T: for<'de> Deserialize<'de>>(read: &mut (impl AsyncBufReadExt + Unpin)) -> io::Result<T> {
    let mut line = String::new();
    read.take(LINE_BYTES_MAX).read_line(&mut line).await?;
    serde_json::from_str(&line).map_err(io::Error::other)
}

async fn write_line(write: &mut (impl AsyncWriteExt + Unpin), value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value).map_err(io::Error::other)?;
    line.push(b'\n');
    write.write_all(&line).await?;
    write.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_does_not_fit_is_not_begun() {
        let dir = tempfile::tempdir().expect("a directory");
        has_room(dir.path(), 0).expect("an empty store fits");
        let error = has_room(dir.path(), 8 << 40).expect_err("8 TiB do not").to_string();
        assert!(error.starts_with("it takes up to 8796097216512 bytes in ") && error.contains("are free"), "{error}");
    }
}
