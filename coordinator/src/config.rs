//! Settings of an operator, on the command line or in a file (a flag wins), and the paths of the coordinator's files.
//! `main.rs` reads them; the code below is independent of their origin.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown},
    path::{Path, PathBuf},
    time::Duration,
};

use muster_proto::daemon::{
    config_file::{self, ConfigFileError},
    state_dir::{self, StateDirFault},
};
use nix::{fcntl::OFlag, unistd::geteuid};
use serde::{Deserialize, Deserializer};

use crate::pki::AGENT_LIFETIME;

/// Default state directory.
pub const STATE_DIR_DEFAULT: &str = "/var/lib/muster/coordinator";
/// Default path of the key file: outside the state directory.
pub const KEY_FILE_DEFAULT: &str = "/etc/muster/coordinator.key";
/// Default address to listen on: every address of both families.
pub const LISTEN_DEFAULT: &str = "[::]:7443";
/// Default interval of an agent's heartbeats.
pub const HEARTBEAT_DEFAULT: Duration = Duration::from_secs(10);
/// Default silence after which a machine is Lost.
pub const LOST_AFTER_DEFAULT: Duration = Duration::from_secs(30);
/// Mode of the state directory.
const DIR_MODE: u32 = 0o700;
/// Mode bits that give others access.
const OTHERS_MASK: u32 = 0o077;

/// Why settings are invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is unusable.
    #[error(transparent)]
    File(#[from] ConfigFileError),
    /// A setting is out of range, or two settings conflict.
    #[error("{0}")]
    Range(String),
    /// The state directory is unusable.
    #[error("cannot use the state directory {} (--state-dir names another)", path.display())]
    StateDir {
        /// Path of the directory.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// It contains files and is open to others: restricting it could lock out its users.
    #[error(
        "{} is not empty, and open to others: a coordinator keeps its record in a directory of its own; name a new \
         one with --state-dir, or, if this one is the coordinator's, chmod 700 {}",
        path.display(), path.display()
    )]
    StateDirShared {
        /// Path of the directory.
        path: PathBuf,
    },
    /// It, or a part of its path, is a file.
    #[error("{} is no directory; --state-dir names the one that `muster-coordinator init` has made", path.display())]
    StateDirIsNone {
        /// Path of the directory.
        path: PathBuf,
    },
    /// It belongs to another user.
    #[error("cannot look into the state directory {}; run this as root, or as the coordinator's user", path.display())]
    StateDirClosed {
        /// Path of the directory.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// Other users can change it or redirect its path.
    #[error(transparent)]
    Untrusted(#[from] StateDirFault),
    /// Giving the record to the directory's owner failed.
    #[error("cannot make {} over to the owner of the state directory", path.display())]
    Owner {
        /// Path of the record.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// It lacks a record.
    #[error(
        "{} holds no record of a coordinator (its file `store`): where it is, --state-dir says; a backup is copied to \
         {}; a new coordinator is made by `muster-coordinator init`", path.display(), path.join("store").display()
    )]
    NotInitialised {
        /// Path of the directory.
        path: PathBuf,
    },
}

/// Parse an option's path of a new file; `-` is invalid.
///
/// # Errors
/// A message for `-`.
pub fn new_file(text: &str) -> Result<PathBuf, String> {
    match text {
        "-" => Err("it names a new file, and - is none".to_owned()),
        path => Ok(PathBuf::from(path)),
    }
}

/// Parse a time: `500ms`, `30s`, `24h`.
///
/// # Errors
/// A message for people.
pub fn duration(text: &str) -> Result<Duration, String> {
    let expected = || "expected a time with a unit, like 500ms, 30s or 24h".to_owned();
    let parsed: jiff::SignedDuration = text.parse().map_err(|_| expected())?;
    let time = Duration::try_from(parsed).map_err(|_| expected())?;
    if time.is_zero() { Err("expected more than no time, like 500ms, 30s or 24h".to_owned()) } else { Ok(time) }
}

fn some_duration<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(input)?;
    duration(&text).map(Some).map_err(serde::de::Error::custom)
}

/// Settings as they are given; what is not given is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Given {
    /// Where the coordinator keeps its record [default: /var/lib/muster/coordinator]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// File with the key that opens the CA's key [default: /etc/muster/coordinator.key]
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Where to listen for agents and operators; port 0 takes a free one [default: [::]:7443, all addresses]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
    /// How often an agent gives a sign of life [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    #[serde(default, deserialize_with = "some_duration")]
    pub heartbeat: Option<Duration>,
    /// A machine not heard of for so long is Lost [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    #[serde(default, deserialize_with = "some_duration")]
    pub lost_after: Option<Duration>,
    /// Life of an agent's certificate; renewed at half of it [default: 24h]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    #[serde(default, deserialize_with = "some_duration")]
    pub agent_cert_ttl: Option<Duration>,
}

/// Checked settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// State directory with the record.
    pub state_dir: StateDir,
    /// Path of the key file.
    pub key_file: PathBuf,
    /// Address to listen on.
    pub listen: String,
    /// Interval of an agent's heartbeats.
    pub heartbeat: Duration,
    /// Silence after which a machine is Lost.
    pub lost_after: Duration,
    /// Lifetime of an agent's certificate.
    pub agent_lifetime: Duration,
}

impl Given {
    /// Read the settings of the file.
    ///
    /// # Errors
    /// [`ConfigError::File`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Ok(config_file::read(path)?)
    }

    /// These settings, with missing ones from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            state_dir: self.state_dir.or(other.state_dir),
            key_file: self.key_file.or(other.key_file),
            listen: self.listen.or(other.listen),
            heartbeat: self.heartbeat.or(other.heartbeat),
            lost_after: self.lost_after.or(other.lost_after),
            agent_cert_ttl: self.agent_cert_ttl.or(other.agent_cert_ttl),
        }
    }

    /// Fill in the defaults and check the result.
    ///
    /// # Errors
    /// [`ConfigError::Range`].
    pub fn check(self) -> Result<Config, ConfigError> {
        let config = Config {
            state_dir: StateDir::new(self.state_dir.unwrap_or_else(|| STATE_DIR_DEFAULT.into())),
            key_file: self.key_file.unwrap_or_else(|| KEY_FILE_DEFAULT.into()),
            listen: self.listen.unwrap_or_else(|| LISTEN_DEFAULT.to_owned()),
            heartbeat: self.heartbeat.unwrap_or(HEARTBEAT_DEFAULT),
            lost_after: self.lost_after.unwrap_or(LOST_AFTER_DEFAULT),
            agent_lifetime: self.agent_cert_ttl.unwrap_or(AGENT_LIFETIME),
        };
        let range = |bad: bool, text: String| if bad { Err(ConfigError::Range(text)) } else { Ok(()) };
        let port = config.listen.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        range(port.is_none(), format!("listen ({}) must be ADDRESS:PORT, as {LISTEN_DEFAULT}", config.listen))?;
        range(
            config.lost_after < config.heartbeat.saturating_mul(2),
            format!(
                "lost-after ({:?}) must be at least twice heartbeat ({:?}): one heartbeat may be late",
                config.lost_after, config.heartbeat
            ),
        )?;
        range(
            !(Duration::from_secs(2)..=crate::pki::PERSON_LIFETIME).contains(&config.agent_lifetime),
            "agent-cert-ttl must be between 2s and a year".to_owned(),
        )?;
        range(
            !(Duration::from_millis(50)..=Duration::from_secs(3600)).contains(&config.heartbeat),
            "heartbeat must be between 50ms and 1h".to_owned(),
        )?;
        Ok(config)
    }
}

/// The coordinator's state directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDir(PathBuf);

impl StateDir {
    /// The directory at that path, which may be created later.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self(std::path::absolute(&path).unwrap_or(path))
    }

    /// Create it if needed, and close it to other users; an existing directory that is open to others must be empty.
    /// Missing parent directories get the default mode: root creates the record, and the service's own user must reach
    /// it.
    ///
    /// # Errors
    /// [`ConfigError::StateDir`], [`ConfigError::StateDirShared`].
    pub fn create(&self) -> Result<(), ConfigError> {
        let error = |source| ConfigError::StateDir { path: self.0.clone(), source };
        self.check_trust()?;
        if let Some(parent) = self.0.parent() {
            fs::create_dir_all(parent).map_err(error)?;
        }
        fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(&self.0).map_err(error)?;
        let mode = fs::metadata(&self.0).map_err(error)?.permissions().mode();
        if mode & OTHERS_MASK != 0 {
            let mut entries = fs::read_dir(&self.0).map_err(error)?;
            // A file system of its own has a `lost+found` from the start.
            if entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() != "lost+found")) {
                return Err(ConfigError::StateDirShared { path: self.0.clone() });
            }
            fs::set_permissions(&self.0, fs::Permissions::from_mode(DIR_MODE)).map_err(error)?;
        }
        Ok(())
    }

    /// Check that it belongs to our user. A coordinator in another user's directory could be led anywhere. And root's
    /// files in the service's directory are unusable for the service.
    ///
    /// # Errors
    /// [`ConfigError::Untrusted`]; as [`Self::check`].
    pub fn check_to_run(&self) -> Result<(), ConfigError> {
        self.check()?;
        let us = geteuid().as_raw();
        Ok(state_dir::check(&self.0, us, &[us])?)
    }

    /// Check that only our user can change it. Root may also work in the service's directory.
    fn check_trust(&self) -> Result<(), ConfigError> {
        let us = geteuid();
        let service = fs::metadata(&self.0).ok().filter(|_| us.is_root()).map(|found| found.uid());
        let owners: Vec<u32> = [us.as_raw()].into_iter().chain(service).collect();
        Ok(state_dir::check(&self.0, us.as_raw(), &owners)?)
    }

    /// Check that it contains a record, and that only our user can change it.
    ///
    /// # Errors
    /// [`ConfigError::NotInitialised`]; [`ConfigError::StateDirIsNone`]; [`ConfigError::StateDirClosed`] if permission
    /// is missing; [`ConfigError::Untrusted`].
    pub fn check(&self) -> Result<(), ConfigError> {
        match self.store().try_exists() {
            Ok(true) => self.check_trust(),
            Ok(false) => Err(ConfigError::NotInitialised { path: self.0.clone() }),
            Err(source) if source.kind() == io::ErrorKind::NotADirectory => {
                Err(ConfigError::StateDirIsNone { path: self.0.clone() })
            }
            Err(source) => Err(ConfigError::StateDirClosed { path: self.0.clone(), source }),
        }
    }

    /// Give the record to the directory's owner: the service's own user could not open what root created or copied
    /// here. Only root can do this; for other users it does nothing.
    ///
    /// # Errors
    /// [`ConfigError::Owner`].
    pub fn give_record(&self) -> Result<(), ConfigError> {
        self.give(self.store())?;
        let mark = self.mark();
        if mark.exists() { self.give(mark) } else { Ok(()) }
    }

    fn give(&self, path: PathBuf) -> Result<(), ConfigError> {
        // An operator who stores it elsewhere manages that place.
        if !geteuid().is_root() || path.is_symlink() {
            return Ok(());
        }
        let error = |source| ConfigError::Owner { path: path.clone(), source };
        let owner = fs::metadata(&self.0).map_err(error)?;
        // Refuse links: the directory's owner could place one that leads to another user's file.
        let mut options = fs::File::options();
        let file = options.read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(&path).map_err(error)?;
        let metadata = file.metadata().map_err(error)?;
        if (metadata.uid(), metadata.gid()) == (owner.uid(), owner.gid()) {
            return Ok(());
        }
        fchown(&file, Some(owner.uid()), Some(owner.gid())).map_err(error)
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Path of the record.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.0.join("store")
    }

    /// Path of the mark, which names the record's newest commit.
    #[must_use]
    pub fn mark(&self) -> PathBuf {
        self.0.join("store.mark")
    }

    /// File with the coordinator's address; informational.
    #[must_use]
    pub fn listening(&self) -> PathBuf {
        self.0.join("listening.json")
    }

    /// Path of an outgoing copy of the record.
    #[must_use]
    pub fn outgoing(&self) -> PathBuf {
        self.0.join("backup.outgoing")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        for (text, millis) in [("500ms", 500), ("30s", 30_000), ("24h", 86_400_000), ("1h 30m", 5_400_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for bad in ["", "30", "-5s", "0s", "soon", "5 parsecs"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert_eq!(duration("0s"), Err("expected more than no time, like 500ms, 30s or 24h".to_owned()));
    }

    #[test]
    fn a_state_directory_is_closed_and_what_is_above_it_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let mode = |path: &str| fs::metadata(dir.path().join(path)).expect("it is there").permissions().mode() & 0o777;
        fs::create_dir(dir.path().join("ordinary")).expect("made");
        StateDir::new(dir.path().join("muster/coordinator")).create().expect("made");
        assert_eq!((mode("muster"), mode("muster/coordinator")), (mode("ordinary"), DIR_MODE));
    }

    #[test]
    fn a_directory_in_use_is_not_closed_to_its_users() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("shared");
        let mode = || fs::metadata(&path).expect("it is there").permissions().mode() & 0o777;
        fs::create_dir(&path).expect("made");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("opened");
        fs::write(path.join("theirs"), "").expect("written");
        let refused = StateDir::new(path.clone()).create().expect_err("it is theirs").to_string();
        assert!(refused.contains("--state-dir") && refused.contains("chmod 700"), "{refused}");
        assert_eq!(mode(), 0o755);
        fs::remove_file(path.join("theirs")).expect("removed");
        fs::create_dir(path.join("lost+found")).expect("made");
        StateDir::new(path.clone()).create().expect("an empty one is taken");
        assert_eq!(mode(), DIR_MODE);
    }

    #[test]
    fn a_flag_wins_over_the_file_and_both_are_checked() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("coordinator.toml");
        let check = |text: &str, flags: Given, expected: Result<&str, &str>| {
            fs::write(&path, text).expect("write");
            let config = Given::read(&path).and_then(|file| flags.or(file).check());
            let found = config.map(|config| format!("{} {:?}", config.listen, config.lost_after));
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{text}"),
                (Err(error), Err(expected)) => {
                    let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                    assert!(format!("{error}: {source}").contains(expected), "{error}: {source}");
                }
                (found, _) => panic!("{text}: {found:?}"),
            }
        };
        let listen = |text: &str| Given { listen: Some(text.to_owned()), ..Given::default() };
        check("", Given::default(), Ok("[::]:7443 30s"));
        check("listen = \"[::1]:1\"\nlost-after = \"60s\"", Given::default(), Ok("[::1]:1 60s"));
        check("listen = \"[::1]:1\"", listen("127.0.0.1:2"), Ok("127.0.0.1:2 30s"));
        check("", listen("127.0.0.1"), Err("listen (127.0.0.1) must be ADDRESS:PORT, as [::]:7443"));
        check("heartbeat = \"20s\"", Given::default(), Err("at least twice heartbeat"));
        check("lost-after = 60", Given::default(), Err("invalid type"));
        check("lost-after = \"60\"", Given::default(), Err("expected a time with a unit"));
        check("agent-cert-ttl = \"1s\"", Given::default(), Err("between 2s and a year"));
        check("lisen = \"[::1]:1\"", Given::default(), Err("unknown field `lisen`"));
        assert!(matches!(Given::read(&dir.path().join("none")), Err(ConfigError::File(_))));
    }
}
