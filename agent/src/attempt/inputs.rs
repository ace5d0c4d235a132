//! The inputs of one attempt on their way to its program: files of mode 0600 in a directory of mode 0700. The agent
//! writes them right before the start. exec-item removes them when the program is gone; the agent removes leftovers.
//! They lie in the runtime directory, on tmpfs, or else in the attempt's own directory.
//!
//! ```text
//! secret/NAME   must not appear in any output
//! plain/NAME    public
//! param/NAME    a param of a script with the values of its secrets; written by exec-item
//! scratch/      files that a runner derives from them for a program
//! ```

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, symlink},
    path::{Path, PathBuf},
};

use muster_proto::{
    model::ItemInput,
    variables::{SECRET_PREFIX, VariableError, replace_in_param, replace_late},
};

use super::private_dir;
use crate::output::Hidden;

/// Inputs of an attempt that exec-item found.
#[derive(Default)]
pub(crate) struct Inputs {
    dir: PathBuf,
    secrets: BTreeMap<String, Vec<u8>>,
}

/// Error in building a param from its text and the secrets.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    /// The value is not UTF-8.
    #[error("secret `{0}` is not UTF-8 text, so it cannot be part of a param")]
    NotText(String),
    /// The text has an invalid variable.
    #[error(transparent)]
    Variable(#[from] VariableError),
}

/// Writes inputs at `link` itself, or in `runtime` with `link` as a symlink to it. Old inputs are removed first.
pub(super) fn lay_down(link: &Path, runtime: Option<&Path>, inputs: &[ItemInput]) -> io::Result<()> {
    remove(link)?;
    if inputs.is_empty() {
        return Ok(());
    }
    let dir = runtime.unwrap_or(link);
    if let Some(runtime) = runtime {
        remove(runtime)?;
        symlink(runtime, link)?;
    }
    private_dir(dir)?;
    for sort in ["secret", "plain"] {
        private_dir(&dir.join(sort))?;
    }
    for input in inputs {
        let sort = if input.secret { "secret" } else { "plain" };
        write_private(&dir.join(sort).join(input.name.as_str()), &input.value)?;
    }
    Ok(())
}

/// Removes inputs, wherever they lie. Succeeds if they are missing.
pub(crate) fn remove(link: &Path) -> io::Result<()> {
    let gone = |error: io::Error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) };
    match fs::read_link(link) {
        Ok(target) => fs::remove_dir_all(target).or_else(gone).and_then(|()| fs::remove_file(link).or_else(gone)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(_) => fs::remove_dir_all(link).or_else(gone),
    }
}

fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(bytes)
}

impl Inputs {
    /// Reads the inputs at `link`; empty if the link is missing.
    pub(crate) fn read(link: &Path) -> io::Result<Self> {
        let dir = match fs::canonicalize(link) {
            Ok(dir) => dir,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error),
        };
        let mut secrets = BTreeMap::new();
        for entry in fs::read_dir(dir.join("secret"))? {
            let entry = entry?;
            secrets.insert(entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?);
        }
        Ok(Self { secrets, dir })
    }

    /// Values to hide in every output.
    pub(crate) fn to_hide(&self) -> Hidden {
        Hidden::of(self.secrets.values().map(Vec::as_slice))
    }

    /// The file of each secret, by its name.
    pub(crate) fn secret_files(&self) -> impl Iterator<Item = (&str, PathBuf)> {
        self.secrets.keys().map(|name| (name.as_str(), self.dir.join("secret").join(name)))
    }

    /// Resolves a param with the values of its secrets, minus their last newlines.
    pub(crate) fn resolve(&self, name: &str, text: &str) -> Result<String, InputError> {
        let mut values = BTreeMap::new();
        for (name, value) in &self.secrets {
            let value = std::str::from_utf8(without_newline(value)).map_err(|_| InputError::NotText(name.clone()))?;
            values.insert(format!("{SECRET_PREFIX}{name}"), value.to_owned());
        }
        Ok(replace_in_param(name, text, |text| replace_late(text, &values))?)
    }

    /// Directory for a runner's derived files, removed together with the inputs. If there are no inputs, it is
    /// `otherwise`.
    pub(crate) fn scratch(&self, otherwise: &Path) -> io::Result<PathBuf> {
        let dir = if self.secrets.is_empty() { otherwise.to_owned() } else { self.dir.join("scratch") };
        private_dir(&dir)?;
        Ok(dir)
    }

    /// Writes a param's value to a file beside the secrets.
    pub(crate) fn write_param(&self, name: &str, value: &str) -> io::Result<PathBuf> {
        let dir = self.dir.join("param");
        private_dir(&dir)?;
        let path = dir.join(name);
        write_private(&path, value.as_bytes())?;
        Ok(path)
    }
}

/// Removes the newline that an editor or `echo` appends.
fn without_newline(value: &[u8]) -> &[u8] {
    value.strip_suffix(b"\n").unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use muster_proto::model::SecretName;

    use super::*;

    fn input(name: &str, value: &[u8], secret: bool) -> ItemInput {
        ItemInput { name: SecretName::new(name).expect("a label"), value: value.to_vec(), secret }
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().expect("there").permissions().mode() & 0o777
    }

    #[test]
    fn inputs_lie_where_they_should_for_root_alone_and_go_as_a_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        let (link, run) = (dir.path().join("inputs"), dir.path().join("run"));
        for runtime in [None, Some(run.as_path())] {
            let inputs = [input("db", b"one\n", true), input("peer", b"two", false)];
            lay_down(&link, runtime, &inputs).expect("laid down");
            lay_down(&link, runtime, &inputs).expect("laid down again");
            assert_eq!(run.exists(), runtime.is_some());
            assert_eq!((mode(&link), mode(&link.join("secret/db"))), (0o700, 0o600));
            let found = Inputs::read(&link).expect("read");
            let files: Vec<_> =
                found.secret_files().map(|(name, path)| (name, fs::read(path).expect("read"))).collect();
            assert_eq!(files, [("db", b"one\n".to_vec())]);
            assert_eq!(fs::read(link.join("plain/peer")).expect("read"), b"two");
            found.write_param("dsn", "x").expect("written");
            remove(&link).expect("removed");
            remove(&link).expect("gone is as good");
            assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 0);
        }
        assert!(Inputs::read(&link).expect("none").to_hide().is_empty());
    }

    #[test]
    fn params_are_made_from_text_and_secrets() {
        let inputs = Inputs {
            secrets: [("db", &b"p$w\n"[..]), ("bin", &[0xff])].map(|(n, v)| (n.to_owned(), v.to_vec())).into(),
            ..Inputs::default()
        };
        assert!(matches!(inputs.resolve("x", "${secret.db@1}"), Err(InputError::NotText(name)) if name == "bin"));
        let inputs = Inputs { secrets: [("db".to_owned(), b"p$w\n".to_vec())].into(), ..inputs };
        assert_eq!(inputs.resolve("x", "u:${secret.db@12}$$").expect("resolved"), "u:p$w$");
        let error = inputs.resolve("x", "${secret.other@1}").expect_err("not there").to_string();
        assert_eq!(error, "variable 'secret.other' has no value here");
    }
}
