//! What the machine's own administrator may set, and where the agent keeps what it keeps. It is little: what a machine
//! should be comes from the coordinator.

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

/// The configuration file, unless told otherwise; need not be there.
pub const FILE_DEFAULT: &str = "/etc/muster/agent.toml";
/// Where the agent keeps its identity and its record, unless told otherwise.
pub const STATE_DIR_DEFAULT: &str = "/var/lib/muster/agent";

/// `` `muster-agent …` `` as it is typed on this machine: with the state directory, if it is not the usual one.
#[must_use]
pub(crate) fn command(words: &str, state_dir: Option<&Path>) -> String {
    match state_dir.filter(|dir| *dir != Path::new(STATE_DIR_DEFAULT)) {
        Some(dir) => format!("`muster-agent {words} --state-dir {}`", dir.display()),
        None => format!("`muster-agent {words}`"),
    }
}

/// Settings as the file has them; an option on the command line wins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// Where the agent keeps its identity and its record.
    pub state_dir: Option<PathBuf>,
    /// `HOST:PORT` of the coordinator that `muster-agent enroll` turns to; several with commas between them.
    pub coordinator: Option<String>,
    /// The proxy that downloads go through, or `none`. May hold a password.
    pub proxy: Option<String>,
    /// What is reached without it, as `no_proxy` has it everywhere.
    pub no_proxy: Option<String>,
}

impl Settings {
    /// What the file says: the one that was named, which must be there, or else [`FILE_DEFAULT`], if it is.
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
    /// The directory at that path, which need not be there yet. A relative path is made absolute: attempts are told it.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self(std::path::absolute(path).unwrap_or_else(|_| path.to_owned()))
    }

    /// Creates it, readable by its owner only.
    ///
    /// # Errors
    /// What the file system says.
    pub fn create(&self) -> io::Result<()> {
        private_dir(&self.0)
    }

    /// Is it, as far as it is there, ours alone to change, and so is the record of the attempts in it?
    ///
    /// # Errors
    /// [`StateDirFault`], which says what mends it.
    pub fn check(&self) -> Result<(), StateDirFault> {
        let us = geteuid().as_raw();
        state_dir::check(&self.0, us, &[us])?;
        state_dir::check(&self.0.join("attempts"), us, &[us])
    }

    /// Is it where a coordinator of this host keeps its record?
    #[must_use]
    pub fn is_coordinators(&self) -> bool {
        self.0.join("store").is_file()
    }

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Who this machine is, with its key.
    #[must_use]
    pub fn identity(&self) -> PathBuf {
        self.0.join("identity.json")
    }

    /// The key that an enrolment asks with, until there is an identity.
    #[must_use]
    pub fn enrolment_key(&self) -> PathBuf {
        self.0.join("enrolment.key")
    }

    /// Why nothing is started; news, there only while it is so.
    #[must_use]
    pub fn blocked(&self) -> PathBuf {
        self.0.join("blocked.json")
    }

    /// How the link is; news, not a record.
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
