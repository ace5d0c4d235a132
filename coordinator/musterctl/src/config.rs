//! Address of the coordinator and our credentials: the TOML file that `muster-coordinator init` and `… credentials`
//! write.

use std::{
    env, fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

use muster_proto::tls::Identity;
use serde::Deserialize;

use crate::{
    client::Coordinator,
    errors::{Exit, Failure},
    terminal,
};

/// Connecting normally takes less; after this, print what is awaited.
const TELL_AFTER: Duration = Duration::from_secs(2);
/// Mode bits that let users other than the owner read or write a file.
const OTHERS: u32 = 0o077;

/// Content of the file.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// `HOST:PORT`.
    pub coordinator: String,
    /// PEM.
    pub ca: String,
    certificate: String,
    key: String,
}

impl Config {
    /// Our certificate and its key.
    pub fn identity(&self) -> Identity {
        Identity { certificate_pem: self.certificate.clone(), key_pem: self.key.clone() }
    }

    /// Read and check the file.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let text = fs::read_to_string(path).map_err(|source| {
            let missing = source.kind() == io::ErrorKind::NotFound;
            let failure = Failure::bad_input(format!("cannot read the config {shown}")).because(source);
            failure.next(if missing { ORIGIN } else { "--config names a file that you may read, as `init` wrote it." })
        })?;
        let config = toml::from_str(&text).map_err(|error| {
            // The parser's Display quotes the line, which may be the key. For a missing field there is no line.
            let place = error.span().filter(|span| span.start > 0).and_then(|span| text.get(..span.start));
            let line = place.map(|before| before.matches('\n').count() + 1);
            let at = line.map(|line| format!(" in line {line}")).unwrap_or_default();
            Failure::bad_input(format!("the config {shown} is not right{at}: {}", error.message())).next(ORIGIN)
        })?;
        warn_if_open(path)?;
        Ok(config)
    }
}

const ORIGIN: &str = "\
A config has `coordinator = \"HOST:PORT\"`, `ca`, `certificate` and `key`. On the coordinator's machine
  muster-coordinator init …          writes the first operator's,
  muster-coordinator credentials …   writes one for everybody else.
Then: musterctl --config FILE …, or MUSTER_CONFIG=FILE, or ~/.config/muster/config.toml.
Just looking? musterctl demo needs none.";

/// Warn if others may read the file: it holds a private key.
fn warn_if_open(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let mode = fs::metadata(path)
        .map_err(|source| Failure::bad_input(format!("cannot look at the config {shown}")).because(source))?
        .permissions()
        .mode();
    if mode & OTHERS == 0 {
        return Ok(());
    }
    if mode & 0o007 != 0 {
        return Err(Failure::new(
            Exit::BadInput,
            format!("the config {shown} holds a private key and everybody on this machine may read it"),
        )
        .next(format!("chmod 600 {shown}   (and if others were here: make new credentials)")));
    }
    terminal::say(&format!(
        "warning: the config {shown} holds a private key and its group may read it; chmod 600 {shown}"
    ));
    Ok(())
}

/// Input of every command.
pub(crate) struct Context {
    given: Option<PathBuf>,
}

impl Context {
    pub(crate) const fn new(given: Option<PathBuf>) -> Self {
        Self { given }
    }

    /// The config, from the first place that names one.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        if let Some(path) = &self.given {
            return Config::read(path);
        }
        if let Some(path) = env::var_os("MUSTER_CONFIG").filter(|path| !path.is_empty()) {
            return Config::read(Path::new(&path));
        }
        let home = env::var_os("HOME").filter(|home| !home.is_empty()).ok_or_else(|| {
            Failure::bad_input("no config: neither --config nor $MUSTER_CONFIG nor $HOME is set").next(ORIGIN)
        })?;
        Config::read(&Path::new(&home).join(".config/muster/config.toml"))
    }

    /// Connect to the coordinator; print a notice if that takes long.
    pub(crate) async fn coordinator(&self) -> Result<Coordinator, Failure> {
        let config = self.config()?;
        let mut connecting = pin!(Coordinator::connect(&config));
        if let Ok(outcome) = tokio::time::timeout(TELL_AFTER, &mut connecting).await {
            return outcome;
        }
        terminal::say(&format!("no connection to the coordinator at {} yet; trying on …", config.coordinator));
        connecting.await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, mode: u32) -> Result<Config, Failure> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("config.toml");
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mode set");
        Config::read(&path)
    }

    const GOOD: &str = "coordinator = 'a:1'\nca = 'c'\ncertificate = 'd'\nkey = 'SECRET'\n";

    #[test]
    fn a_config_is_checked() {
        assert_eq!(read(GOOD, 0o600).map(|config| config.coordinator).ok().as_deref(), Some("a:1"));
        for (text, mode, expected) in [
            (GOOD, 0o604, "everybody on this machine may read it"),
            ("hello", 0o644, "is not right"),
            ("coordinator = 'a:1'", 0o600, "missing field `ca`"),
            ("coordinator = 'a:1'", 0o600, "config.toml is not right: missing"),
            ("coordinator = 'a:1'\nca = 'c'\ncertificate = 'd'\nkey = 'SECRET", 0o600, "is not right in line 4: "),
            ("coordinator = 'a:1'\n\ncertificates = 'SECRET'\n", 0o600, "is not right in line 3: unknown field"),
        ] {
            let failure = read(text, mode).err().expect("refused");
            assert_eq!(failure.exit, Exit::BadInput);
            assert!(failure.line().contains(expected), "{}", failure.line());
            assert!(!failure.line().contains("SECRET"), "a key in a message: {}", failure.line());
        }
    }
}
