//! Where the agent keeps what it keeps. There is no configuration file: what a machine should be comes from the
//! coordinator.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::attempt::private_dir;

/// Unless told otherwise.
pub const STATE_DIR_DEFAULT: &str = "/var/lib/muster/agent";

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

    /// How the link is; news, not a record.
    #[must_use]
    pub fn link(&self) -> PathBuf {
        self.0.join("link.json")
    }
}
