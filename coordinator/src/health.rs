//! Health of a coordinator: its address is in its state directory, and `muster-coordinator health` connects there. A
//! container's health check calls it, on the coordinator's machine or in its container.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use muster_proto::tls::{self, ConnectError, TlsError};
use serde::{Deserialize, Serialize};

use crate::{
    config::{KEY_FILE_DEFAULT, StateDir},
    pki::{KeyCheck, KeyFileError, StateKey},
};

/// Where a coordinator listens. Informational: each start rewrites it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listening {
    /// Address of its socket.
    pub address: SocketAddr,
    /// SHA-256 of its CA's public key info, which authenticates it.
    pub ca_pin: [u8; 32],
    /// Opens only with the record's key.
    pub key_check: KeyCheck,
    /// Path from which its key was read. None: systemd passed it on, and the file is elsewhere.
    pub key_file: Option<PathBuf>,
}

impl Listening {
    /// Read what the coordinator of that state directory has written.
    ///
    /// # Errors
    /// [`HealthError::NeverListened`].
    pub fn read(state_dir: &StateDir) -> Result<Self, HealthError> {
        let path = state_dir.listening();
        let error = |source| HealthError::NeverListened { path: path.clone(), source };
        let text = fs::read_to_string(&path).map_err(error)?;
        serde_json::from_str(&text).map_err(|fault| error(fault.into()))
    }

    /// Check that the key of the next start opens the record. `named`: the key file, if given.
    ///
    /// # Errors
    /// [`HealthError::KeyLost`].
    pub fn check_key(&self, named: Option<&Path>) -> Result<(), HealthError> {
        let path = named.or(self.key_file.as_deref()).unwrap_or(Path::new(KEY_FILE_DEFAULT));
        let problem = match StateKey::read(path) {
            Ok(key) if self.key_check.opens_with(&key) => return Ok(()),
            Ok(_) => KeyFileError::Other { path: path.to_owned() },
            Err(problem) => problem,
        };
        Err(HealthError::KeyLost(problem))
    }
}

/// Why a coordinator is unhealthy.
#[derive(Debug, thiserror::Error)]
pub enum HealthError {
    /// It has not started to listen yet.
    #[error("cannot read {}, where a coordinator says that it listens; {}", path.display(), where_to_look(source))]
    NeverListened {
        /// Path of the file with its address.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// It is silent, or another program answers.
    #[error("it does not answer; systemctl status muster-coordinator")]
    Connect(#[from] ConnectError),
    /// It continues with the key in memory, but the next start would fail.
    #[error(
        "the coordinator runs, but its next start would fail, and no backup could be opened: do not stop it before \
         the copy of the key file that was kept is back in its place (--key-file names another)"
    )]
    KeyLost(#[source] KeyFileError),
    /// The connection could not be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

fn where_to_look(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => "run this as root, or as the coordinator's user",
        _ => {
            "is --state-dir right, and has it been started? Its log says why it ended: journalctl -u muster-coordinator"
        }
    }
}

impl Listening {
    /// Write the file atomically.
    ///
    /// # Errors
    /// The file system's error.
    pub fn write(&self, state_dir: &StateDir) -> io::Result<()> {
        replace(&state_dir.listening(), &serde_json::to_string(self).map_err(io::Error::other)?)
    }

    /// Address to connect to: loopback if the socket is bound to a wildcard.
    fn reachable_at(&self) -> SocketAddr {
        let ip = self.address.ip();
        // [::] covers both families, and many containers lack the IPv6 loopback.
        let ip = if ip.is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { ip };
        SocketAddr::new(ip, self.address.port())
    }
}

/// Write a file that other processes wait for, atomically.
///
/// # Errors
/// The file system's error.
pub fn replace(path: &Path, line: &str) -> io::Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    fs::write(&part, format!("{line}\n"))?;
    fs::rename(&part, path)
}

/// Connect once to the coordinator of that state directory, as an agent does: TCP, TLS, HTTP/2. Then check that the
/// next start has its key. Return the address that answered.
///
/// # Errors
/// [`HealthError`]: it is unhealthy.
pub async fn probe(state_dir: &StateDir, key_file: Option<&Path>) -> Result<SocketAddr, HealthError> {
    let listening = Listening::read(state_dir)?;
    let address = listening.reachable_at();
    tls::connect(&address.to_string(), tls::pinned_config(listening.ca_pin)?).await?;
    listening.check_key(key_file)?;
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_knocks_where_somebody_can_answer() {
        let key_check = KeyCheck::of_test;
        for (bound, probed) in [
            ("0.0.0.0:7443", "127.0.0.1:7443"),
            ("[::]:7443", "127.0.0.1:7443"),
            ("10.1.2.3:7443", "10.1.2.3:7443"),
            ("[fd00::1]:1", "[fd00::1]:1"),
        ] {
            let listening = Listening {
                address: bound.parse().expect("an address"),
                ca_pin: [7; 32],
                key_check: key_check(),
                key_file: None,
            };
            assert_eq!(listening.reachable_at().to_string(), probed);
        }
    }
}
