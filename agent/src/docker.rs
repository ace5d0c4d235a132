//! The machine's Docker Engine: connection and errors. The requests are in `swarm` and in the runners.

use std::{io, path::Path, time::Duration};

use bollard::{API_DEFAULT_VERSION, Docker, errors::Error};

/// Socket of the engine.
pub const SOCKET: &str = "/var/run/docker.sock";

/// Failed request to the engine.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}")]
pub struct DockerError {
    /// The operation.
    pub what: &'static str,
    /// Error from the engine or the connection.
    #[source]
    pub source: Error,
}

impl DockerError {
    /// For `map_err`: adds the operation.
    pub fn while_doing(what: &'static str) -> impl Fn(Error) -> Self + Copy {
        move |source| Self { what, source }
    }

    /// HTTP status of the engine's answer, if it answered.
    #[must_use]
    pub const fn status(&self) -> Option<u16> {
        match &self.source {
            Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
            _ => None,
        }
    }
}

/// Connects to the engine at a socket. The deadline applies to every request. Request paths omit the API version, so
/// each engine, from 20.10 on, answers in its own.
///
/// # Errors
/// [`DockerError`] if the socket is missing.
pub fn connect(socket: &Path, deadline: Duration) -> Result<Docker, DockerError> {
    let path = socket.to_string_lossy();
    Docker::connect_with_unix(&path, deadline.as_secs(), API_DEFAULT_VERSION)
        .map_err(DockerError::while_doing("reach the Docker Engine"))
}

/// Runs a runner's requests to the engine in the current thread.
///
/// # Errors
/// The system's error if creating the runtime fails.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> io::Result<T> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work))
}
