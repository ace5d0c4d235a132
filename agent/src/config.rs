//! Settings of the machine's administrator, and paths of the agent's files. The settings are few: the coordinator
//! defines what a machine should be.

use std::{
    io,
    path::{Path, PathBuf},
};

use muster_proto::daemon::{
    config_file::{self, ConfigFileError},
    state_dir::{self, StateDirFault},
};
use nix::unistd::geteuid;
use serde::Deserialize;

use crate::attempt::private_dir;

/// Default configuration file; it may be missing.
pub const FILE_DEFAULT: &str = "/etc/muster/agent.toml";
/// Default state directory, with the agent's identity and record.
pub const STATE_DIR_DEFAULT: &str = "/var/lib/muster/agent";

/// `` `muster-agent …` `` as typed on this machine, with the state directory if it differs from the default.
#[must_use]
pub(crate) fn command(words: &str, state_dir: Option<&Path>) -> String {
    match state_dir.filter(|dir| *dir != Path::new(STATE_DIR_DEFAULT)) {
        Some(dir) => format!("`muster-agent {words} --state-dir {}`", dir.display()),
        None => format!("`muster-agent {words}`"),
    }
}

/// Settings of the file; a command line option takes precedence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// Directory of the agent's identity and record.
    pub state_dir: Option<PathBuf>,
    /// `HOST:PORT` of the coordinator for `muster-agent enroll`; several are separated by commas.
    pub coordinator: Option<String>,
    /// Proxy for downloads, or `none`. It may hold a password.
    pub proxy: Option<String>,
    /// Hosts that are reached without the proxy, in the usual `no_proxy` syntax.
    pub no_proxy: Option<String>,
}

impl Settings {
    /// Reads the named file, which must exist, or else [`FILE_DEFAULT`] if it exists.
    ///
    /// # Errors
    /// [`ConfigFileError`].
    pub fn read(named: Option<&Path>) -> Result<Self, ConfigFileError> {
        match config_file::read(named.unwrap_or(Path::new(FILE_DEFAULT))) {
            Err(error) if named.is_none() && error.is_not_found() => Ok(Self::default()),
            read => read,
        }
    }
}

/// The agent's state directory.
#[derive(Clone, Debug)]
pub struct StateDir(PathBuf);

impl StateDir {
    /// The directory at that path, which may be missing so far. A relative path is made absolute because attempts
    /// receive it.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self(std::path::absolute(path).unwrap_or_else(|_| path.to_owned()))
    }

    /// Creates it, readable by its owner only.
    ///
    /// # Errors
    /// The file system's error.
    pub fn create(&self) -> io::Result<()> {
        private_dir(&self.0)
    }

    /// Checks that only we can change the directory and the record of attempts in it, as far as they exist.
    ///
    /// # Errors
    /// [`StateDirFault`], which says how to fix it.
    pub fn check(&self) -> Result<(), StateDirFault> {
        let us = geteuid().as_raw();
        state_dir::check(&self.0, us, &[us])?;
        state_dir::check(&self.0.join("attempts"), us, &[us])
    }

    /// Is it the state directory of a coordinator on this host?
    #[must_use]
    pub fn is_coordinators(&self) -> bool {
        self.0.join("store").is_file()
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Path of the machine's identity with its key.
    #[must_use]
    pub fn identity(&self) -> PathBuf {
        self.0.join("identity.json")
    }

    /// Path of the key used for enrolment, until there is an identity.
    #[must_use]
    pub fn enrolment_key(&self) -> PathBuf {
        self.0.join("enrolment.key")
    }

    /// Path of the reason why the agent is blocked; best effort, present only while a reason holds.
    #[must_use]
    pub fn blocked(&self) -> PathBuf {
        self.0.join("blocked.json")
    }

    /// Path of the link's status; best effort.
    #[must_use]
    pub fn link(&self) -> PathBuf {
        self.0.join("link.json")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_says_what_it_says_or_what_is_wrong_with_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("agent.toml");
        let settings = |state_dir: Option<&str>, coordinator: Option<&str>| Settings {
            state_dir: state_dir.map(PathBuf::from),
            coordinator: coordinator.map(str::to_owned),
            ..Settings::default()
        };
        let check = |text: &str, expected: Result<Settings, &str>| {
            fs::write(&path, text).expect("write");
            match (Settings::read(Some(&path)), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{text}"),
                (Err(ConfigFileError::Parse { source, .. }), Err(expected)) => {
                    assert!(source.to_string().contains(expected), "{text}: {source}");
                }
                (found, _) => panic!("{text}: {found:?}"),
            }
        };
        check("", Ok(settings(None, None)));
        check("state-dir = \"/srv/m\"", Ok(settings(Some("/srv/m"), None)));
        check("# c\ncoordinator = \"c.example:7443\"\n", Ok(settings(None, Some("c.example:7443"))));
        let proxied = |proxy: &str, no_proxy: &str| Settings {
            proxy: Some(proxy.to_owned()),
            no_proxy: Some(no_proxy.to_owned()),
            ..Settings::default()
        };
        check("proxy = \"http://p:3128\"\nno-proxy = \".x\"", Ok(proxied("http://p:3128", ".x")));
        check("coordinater = \"c.example:7443\"", Err("unknown field `coordinater`"));
        check("state-dir = 7", Err("invalid type"));
        assert!(matches!(Settings::read(Some(&dir.path().join("none"))), Err(ConfigFileError::Read { .. })));
        fs::write(&path, "# ".repeat(40_000)).expect("write");
        assert!(matches!(Settings::read(Some(&path)), Err(ConfigFileError::TooLong { .. })));
    }
}
