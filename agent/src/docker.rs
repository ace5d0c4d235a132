//! The machine's Docker Engine: how it is reached, and what can go wrong on the way. What is asked of it stands in
//! `swarm` and in the runners.

use std::{io, path::Path, time::Duration};

use bollard::{API_DEFAULT_VERSION, Docker, errors::Error};

/// Where the engine listens.
pub const SOCKET: &str = "/var/run/docker.sock";

/// The engine could not do what it was asked to.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}")]
pub struct DockerError {
    /// What we were doing.
    pub what: &'static str,
    /// What the engine, or the way to it, says.
    #[source]
    pub source: Error,
}

impl DockerError {
    /// For `map_err`: names what we were doing.
    pub fn while_doing(what: &'static str) -> impl Fn(Error) -> Self + Copy {
        move |source| Self { what, source }
    }

    /// The status of the engine's answer, if it answered.
    #[must_use]
    pub const fn status(&self) -> Option<u16> {
        match &self.source {
            Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
            _ => None,
        }
    }
}

/// A client of the engine behind a socket. Every request has this deadline. Its paths name no version of the API, so
/// each engine, from 20.10 on, answers in its own.
///
/// # Errors
/// [`DockerError`] if there is no such socket.
pub fn connect(socket: &Path, deadline: Duration) -> Result<Docker, DockerError> {
    let path = socket.to_string_lossy();
    Docker::connect_with_unix(&path, deadline.as_secs(), API_DEFAULT_VERSION)
        .map_err(DockerError::while_doing("reach the Docker Engine"))
}

/// Runs what a runner has to ask of the engine, in the thread it was given.
///
/// # Errors
/// What the system says if it gives no runtime.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> io::Result<T> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work))
}
