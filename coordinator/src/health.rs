//! Whether a coordinator does its work: where it listens is written down in its state directory, and
//! `muster-coordinator health` knocks there. A container's health check calls it, on the machine or in the container
//! of the coordinator.

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

/// Where a coordinator listens. News, not a record: each start writes it anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listening {
    /// What its socket is bound to.
    pub address: SocketAddr,
    /// SHA-256 of its CA's public key info, so that nobody else can answer for it.
    pub ca_pin: [u8; 32],
    /// Opens with the key of the record, and with no other.
    pub key_check: KeyCheck,
    /// Where its key was read. None: systemd handed it over, and the file is elsewhere.
    pub key_file: Option<PathBuf>,
}

impl Listening {
    /// What the coordinator of that state directory has written down.
    ///
    /// # Errors
    /// [`HealthError::NeverListened`].
    pub fn read(state_dir: &StateDir) -> Result<Self, HealthError> {
        let path = state_dir.listening();
        let error = |source| HealthError::NeverListened { path: path.clone(), source };
        let text = fs::read_to_string(&path).map_err(error)?;
        serde_json::from_str(&text).map_err(|fault| error(fault.into()))
    }

    /// Does the key that the next start reads open the record? `named`: the file, where that is said.
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

/// Why a coordinator is not healthy.
#[derive(Debug, thiserror::Error)]
pub enum HealthError {
    /// It has not got so far as to listen.
    #[error("cannot read {}, where a coordinator says that it listens; {}", path.display(), where_to_look(source))]
    NeverListened {
        /// The file that says where.
        path: PathBuf,
        /// Why it cannot be read.
        #[source]
        source: io::Error,
    },
    /// Nobody answers, or somebody else does.
    #[error("it does not answer; systemctl status muster-coordinator")]
    Connect(#[from] ConnectError),
    /// It goes on with the key that it has read, and the next start would fail.
    #[error(
        "the coordinator runs, but its next start would fail, and no backup could be opened: do not stop it before \
         the copy of the key file that was kept is back in its place (--key-file names another)"
    )]
    KeyLost(#[source] KeyFileError),
    /// No connection can even be tried.
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
    /// Writes it down, whole or not at all.
    ///
    /// # Errors
    /// What the file system says.
    pub fn write(&self, state_dir: &StateDir) -> io::Result<()> {
        replace(&state_dir.listening(), &serde_json::to_string(self).map_err(io::Error::other)?)
    }

    /// Where one knocks: an address that stands for all of the machine's is reached by loopback.
    fn reachable_at(&self) -> SocketAddr {
        let ip = self.address.ip();
        // [::] is of both families, and many a container has no loopback of IPv6.
        let ip = if ip.is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { ip };
        SocketAddr::new(ip, self.address.port())
    }
}

/// Writes a file that others wait for: whole or not at all.
///
/// # Errors
/// What the file system says.
pub fn replace(path: &Path, line: &str) -> io::Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    fs::write(&part, format!("{line}\n"))?;
    fs::rename(&part, path)
}

/// Makes one connection to the coordinator of that state directory, as an agent would: TCP, TLS, HTTP/2. Then looks
/// whether the next start has its key. Returns where it answered.
///
/// # Errors
/// [`HealthError`]: it is not healthy.
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
        for (bound, knock) in [
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
            assert_eq!(listening.reachable_at().to_string(), knock);
        }
    }
}
