//! Identity of this machine towards its coordinator: enrolment with a join token, the identity file, renewal. One file
//! holds certificate and key, so that they change atomically. This module never logs and keeps secrets hidden.

mod key;
mod rpc;
mod token;

use std::{io, os::unix::fs::OpenOptionsExt as _, path::Path};

use muster_proto::{
    address::Addresses,
    model::{ClusterName, MachineId, MachineName, MachineType},
    tls::{self, ConnectError, TlsError},
};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

pub use key::EnrolmentKey;
pub use rpc::{RPC_TIMEOUT, enroll};
pub use token::{JoinToken, TOKEN_BYTES_MAX, TokenFault};

use crate::{attempt::durable, config::command};

/// Renewal jitter. A certificate is renewed at half its life, or earlier by up to a tenth of it, so that a fleet
/// enrolled together spreads its renewals.
const RENEW_JITTER_PART: u64 = 10;

/// Error in handling an identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The text is an invalid join token.
    #[error("this is no join token: {0}; copy the whole line that `musterctl token create` printed")]
    Token(TokenFault),
    /// The token itself was given instead of its file.
    #[error(
        "--token-file names the file that holds the token, or is - for standard input; this is the token itself, which \
         others may have seen: `musterctl token revoke ID` (what stands before its first dot), and make another"
    )]
    TokenGiven,
    /// The token's file is unreadable.
    #[error("cannot read the join token from {from}")]
    TokenFile {
        /// A path, or standard input.
        from: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The machine is already enrolled.
    #[error(
        "this machine is enrolled already, as {name} with {coordinator}; `--force` enrols it anew, as another machine \
         that begins from nothing"
    )]
    AlreadyEnrolled {
        /// Its name.
        name: MachineName,
        /// Its coordinator.
        coordinator: Addresses,
    },
    /// The machine lacks an identity.
    #[error(
        "this machine is not enrolled ({} is not there); run {} first",
        path.display(),
        command("enroll --coordinator HOST:PORT --token-file FILE", path.parent())
    )]
    NotEnrolled {
        /// The identity file.
        path: std::path::PathBuf,
    },
    /// The identity file has invalid content.
    #[error(
        "{} is damaged; enrol this machine anew: `musterctl replace NAME`, then here, with a new token, {}",
        path.display(),
        command("enroll --force --name NAME --coordinator HOST:PORT --token-file FILE", path.parent())
    )]
    Damaged {
        /// The identity file.
        path: std::path::PathBuf,
        /// The parse error.
        #[source]
        source: serde_json::Error,
    },
    /// A file system error.
    #[error("cannot {what} {}", path.display())]
    File {
        /// The operation.
        what: &'static str,
        /// The file.
        path: std::path::PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Creating a key, request or signature failed.
    #[error("cannot make a {what}")]
    Crypto {
        /// Name of the object.
        what: &'static str,
    },
    /// The connection failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The credentials are invalid.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The coordinator refused.
    #[error("the coordinator refused: {message}")]
    Refused {
        /// Its message.
        message: String,
        /// The gRPC status code.
        code: tonic::Code,
    },
    /// The coordinator's record says that this machine's identity was revoked.
    #[error("this machine's identity was revoked, or the machine was removed")]
    Revoked,
    /// The connection ended before the answer.
    #[error("the connection broke before the coordinator answered")]
    Broken(#[source] tonic::Status),
    /// Timeout of the coordinator's answer.
    #[error("the coordinator did not answer within {} s", RPC_TIMEOUT.as_secs())]
    Silent,
    /// The coordinator's answer is invalid.
    #[error("the coordinator's answer cannot be used: {0}")]
    Answer(&'static str),
}

impl IdentityError {
    /// Hint for the next step, if the message itself lacks one.
    #[must_use]
    pub fn next_step(&self) -> Option<&'static str> {
        match self {
            Self::Connect(ConnectError::Tcp { .. } | ConnectError::Timeout { .. }) => Some(
                "Does the coordinator run, and is this its address? `musterctl token create` says it with the token.",
            ),
            Self::Connect(ConnectError::Resolve { .. } | ConnectError::Tls { .. } | ConnectError::Http { .. }) => Some(
                "Is this the coordinator's address, port and all? `musterctl token create` says it with the token.",
            ),
            Self::File { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some("Run this as root, as systemd runs the agent.")
            }
            Self::TokenFile { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some("Run this as root, or as whoever may read it.")
            }
            Self::TokenFile { .. } => Some(
                "A token comes from `musterctl token create --cluster C --type worker --out FILE`; bring that file to \
                 this machine.",
            ),
            Self::Connect(ConnectError::PinMismatch { .. }) => Some(
                "Is this the address of the coordinator that the token is from (`musterctl token create` says it), and \
                 is the token whole, letter by letter?",
            ),
            _ => None,
        }
    }

    /// Is the operator's input the cause?
    #[must_use]
    pub fn is_bad_input(&self) -> bool {
        match self {
            Self::Token(_) | Self::TokenGiven | Self::TokenFile { .. } => true,
            Self::Connect(error) => error.is_malformed_address(),
            _ => false,
        }
    }

    /// Is an unreachable coordinator the cause?
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Silent | Self::Broken(_) | Self::Refused { code: tonic::Code::Unavailable, .. } => true,
            Self::Connect(error) => !matches!(error, ConnectError::PinMismatch { .. }) && !self.is_bad_input(),
            _ => false,
        }
    }
}

/// Identity of this machine. No `Debug`: it holds the key.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// Addresses of the coordinator, the one of the last session first.
    pub coordinators: Addresses,
    /// The machine's name.
    pub name: MachineName,
    /// Machine id of the certificate.
    pub machine_id: MachineId,
    /// Cluster at enrolment.
    pub cluster: ClusterName,
    /// Machine type at enrolment.
    pub machine_type: MachineType,
    /// Issue time of the certificate. Unix milliseconds by the coordinator's clock.
    pub issued_at_ms: u64,
    /// End of the certificate. Unix milliseconds by the coordinator's clock.
    pub not_after_ms: u64,
    /// All trusted CAs.
    pub ca_pem: String,
    /// Certificate chain, leaf first.
    pub certificate_pem: String,
    /// Private key, PKCS#8.
    pub key_pem: String,
}

impl Identity {
    /// Reads the identity file.
    ///
    /// # Errors
    /// [`IdentityError::NotEnrolled`], [`IdentityError::Damaged`] or [`IdentityError::File`].
    pub fn load(path: &Path) -> Result<Self, IdentityError> {
        let path = path.to_owned();
        match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|source| IdentityError::Damaged { path, source }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(IdentityError::NotEnrolled { path }),
            Err(source) => Err(IdentityError::File { what: "read", path, source }),
        }
    }

    /// Writes the identity file, durably, readable by its owner only.
    ///
    /// # Errors
    /// [`IdentityError::File`].
    pub fn save(&self, path: &Path) -> Result<(), IdentityError> {
        let failed = |source| IdentityError::File { what: "write", path: path.to_owned(), source };
        let text = serde_json::to_vec_pretty(self).map_err(|error| failed(error.into()))?;
        durable::replace(path, &text).map_err(failed)
    }

    /// Changes the identity file under its lock and returns the new content.
    ///
    /// # Errors
    /// As [`Self::load`] and [`Self::save`].
    pub fn change(path: &Path, change: impl FnOnce(&mut Self)) -> Result<Self, IdentityError> {
        let _only = locked(path)?;
        let mut identity = Self::load(path)?;
        change(&mut identity);
        identity.save(path)?;
        Ok(identity)
    }

    /// Writes a renewed identity. It keeps the coordinator addresses of the file, which may have been changed
    /// meanwhile.
    ///
    /// # Errors
    /// [`IdentityError::File`].
    pub fn save_renewed(&self, path: &Path) -> Result<(), IdentityError> {
        let _only = locked(path)?;
        let coordinators = Self::load(path).map_or_else(|_| self.coordinators.clone(), |kept| kept.coordinators);
        Self { coordinators, ..self.clone() }.save(path)
    }

    /// TLS configuration for connections as this machine.
    ///
    /// # Errors
    /// [`TlsError`] if certificate, key or CA is invalid.
    pub fn tls(&self) -> Result<std::sync::Arc<rustls::ClientConfig>, TlsError> {
        let pair = tls::Identity { certificate_pem: self.certificate_pem.clone(), key_pem: self.key_pem.clone() };
        tls::client_config(&self.ca_pem, Some(&pair))
    }

    /// Delay of the renewal after the issue, in milliseconds: half the certificate's life or a little less.
    #[must_use]
    pub fn renew_after_ms(&self) -> u64 {
        let life_ms = self.not_after_ms.saturating_sub(self.issued_at_ms);
        let jitter_ms = (self.machine_id.0.as_u64_pair().1 >> 2) % (life_ms / RENEW_JITTER_PART).max(1);
        (life_ms / 2).saturating_sub(jitter_ms)
    }

    /// Time left until the renewal, by this machine's clock. A clock that is behind delays it by at most the full delay
    /// of a new certificate.
    #[must_use]
    pub fn renew_in_ms(&self, unix_ms: u64) -> u64 {
        let age_ms = unix_ms.saturating_sub(self.issued_at_ms);
        self.renew_after_ms().saturating_sub(age_ms)
    }
}

/// Locks the identity file for a change: the agent renews its certificate while an operator may set the coordinator's
/// address.
fn locked(path: &Path) -> Result<Flock<std::fs::File>, IdentityError> {
    let path = path.with_extension("lock");
    let failed = |source| IdentityError::File { what: "lock", path: path.clone(), source };
    let mut options = std::fs::OpenOptions::new();
    let file = options.create(true).append(true).mode(0o600).open(&path).map_err(failed)?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| failed(errno.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(issued_at_ms: u64, not_after_ms: u64) -> Identity {
        Identity {
            coordinators: Addresses::parse("127.0.0.1:1").expect("an address"),
            name: MachineName::new("worker-1").expect("a label"),
            machine_id: "a0e1b2c3-0000-4000-8000-00000000ffff".parse().expect("a UUID"),
            cluster: ClusterName::new("c").expect("a label"),
            machine_type: MachineType::Worker,
            issued_at_ms,
            not_after_ms,
            ca_pem: String::new(),
            certificate_pem: String::new(),
            key_pem: "secret".to_owned(),
        }
    }

    #[test]
    fn renewal_is_at_half_life_or_a_little_before() {
        let (issued_ms, day_ms) = (1_000, 24 * 3600 * 1000);
        let identity = identity(issued_ms, issued_ms + day_ms);
        let after_ms = identity.renew_after_ms();
        assert!((day_ms * 4 / 10..=day_ms / 2).contains(&after_ms), "{after_ms}");
        for (unix_ms, expected) in [
            (issued_ms, after_ms),
            (issued_ms + 7, after_ms - 7),
            (issued_ms + day_ms, 0),
            (0, after_ms), // a clock that is behind
        ] {
            assert_eq!(identity.renew_in_ms(unix_ms), expected, "{unix_ms}");
        }
        assert_eq!(self::identity(5, 5).renew_after_ms(), 0);
    }

    #[test]
    fn the_file_is_private_and_reads_back() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("identity.json");
        assert!(matches!(Identity::load(&path), Err(IdentityError::NotEnrolled { .. })));
        identity(1, 2).save(&path).expect("saved");
        assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(Identity::load(&path).ok().map(|identity| identity.not_after_ms), Some(2));
        let renewed = identity(3, 4);
        Identity::change(&path, |kept| kept.coordinators = Addresses::parse("b:1,a:1").expect("addresses"))
            .expect("set");
        renewed.save_renewed(&path).expect("saved");
        let kept = Identity::load(&path).expect("there");
        assert_eq!((kept.not_after_ms, kept.coordinators.first()), (4, "b:1"), "a renewal leaves them alone");
        std::fs::write(&path, "{").expect("written");
        let error = Identity::load(&path).err().expect("an error").to_string();
        assert!(error.contains("enroll --force"), "{error}");
    }
}
