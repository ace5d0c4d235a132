//! Downloads a file from the first mirror that delivers it, verifies its digest, and may unpack it. At every moment,
//! `path` holds either the former file or the complete new one; the same applies to the directory of `extract`. A
//! repeat of finished work uses no network.
//!
//! Invalid data is removed. A partial file that is still usable (`<path>.muster-part`) stays after a stall, a
//! disconnect or a kill, and the next attempt resumes it.

mod part;
mod transfer;

use std::{
    fmt,
    fs::{self, File, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Component, Path, PathBuf},
    time::Instant,
};

use muster_proto::model::{ItemHash, ItemState, Phase};
use reqwest::Url;

use super::{
    BuiltinWork, Outcome, Refused,
    archive::{self, ArchiveError, Format, Owners, Place, Surroundings, Unpacked},
    path_ownership,
};
use crate::{
    attempt::{AttemptDir, Request},
    exec_item::{Report, with_sources},
    proxy::Proxies,
};
use part::Part;
use transfer::{RetryPolicy, TransferError};

/// Maximum of mirrors for one file.
const MIRRORS_MAX: usize = 16;
/// Default of the param `max_bytes`: maximum file size.
const FILE_BYTES_MAX: u64 = 64 << 30;
/// Default of the param `mode`: mode of the file.
const MODE_DEFAULT: u32 = 0o644;

/// A SHA-256, written as 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Sha256([u8; 32]);

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&ItemHash(self.0), f)
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The checked params.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    urls: Vec<Url>,
    sha256: Sha256,
    path: PathBuf,
    mode: u32,
    max_bytes: u64,
    extract: Option<Extract>,
    surroundings: Surroundings,
    proxies: Proxies,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Extract {
    target: PathBuf,
    format: Format,
    owners: Owners,
}

/// Error after the params were checked.
#[derive(Debug, thiserror::Error)]
enum DownloadError {
    #[error("cannot {what} {}", path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Transfer(#[from] TransferError),
    #[error("cannot unpack {}", path.display())]
    Archive {
        path: PathBuf,
        #[source]
        source: ArchiveError,
    },
}

impl DownloadError {
    fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { what, path, source }
    }

    fn is_retryable(&self) -> bool {
        match self {
            Self::File { .. } => true,
            Self::Transfer(error) => error.is_retryable(),
            Self::Archive { source, .. } => source.is_retryable(),
        }
    }
}

/// Checks the params and returns the work.
pub(super) fn prepare(request: &Request, dir: &AttemptDir) -> Result<BuiltinWork, Refused> {
    let proxies = dir.proxies().map_err(|error| Refused::param("proxy", with_sources(&error)))?;
    let wanted = Wanted::of(request, proxies)?;
    Ok(Box::new(move |report| {
        bring_about(&wanted, &RetryPolicy::default(), report).map_or_else(
            |error| Outcome::failed(with_sources(&error), error.is_retryable()),
            |message| Outcome { state: ItemState::Succeeded, message, result_json: None },
        )
    }))
}

impl Wanted {
    /// `proxies`: the site's, used by default.
    fn of(request: &Request, proxies: Proxies) -> Result<Self, Refused> {
        let optional = |name| request.params.get(name).map(String::as_str);
        let required = |name| optional(name).ok_or(Refused::Missing(name));
        let urls = urls(required("url")?)?;
        let sha256 = sha256(required("sha256")?)?;
        let path = absolute("path", required("path")?)?;
        let mode = optional("mode").map_or(Ok(MODE_DEFAULT), mode)?;
        let max_bytes = match optional("max_bytes") {
            Some(text) => text.parse().map_err(|_| Refused::param("max_bytes", "is not a number of bytes"))?,
            None => FILE_BYTES_MAX,
        };
        let extract = match optional("extract") {
            Some(target) => {
                let target = absolute("extract", target)?;
                let unknown = || Refused::param("owners", "expected one of: archive, root");
                let owners = optional("owners").map_or(Some(Owners::Root), Owners::named).ok_or_else(unknown)?;
                Some(Extract { target, format: format(optional("format"), &path, &urls)?, owners })
            }
            None => None,
        };
        let proxies = proxies.with_params(optional("proxy"), optional("no_proxy"));
        let proxies = proxies.map_err(|error| Refused::param("proxy", error.to_string()))?;
        let surroundings = match request.phase {
            Phase::Prepare => Surroundings::Workloads,
            Phase::Deploy | Phase::Reconfigure => Surroundings::Cleared,
        };
        Ok(Self { urls, sha256, path, mode, max_bytes, extract, surroundings, proxies })
    }
}

fn urls(text: &str) -> Result<Vec<Url>, Refused> {
    let bad = |problem: String| Refused::param("url", problem);
    let urls = text
        .split_ascii_whitespace()
        .map(|text| {
            // The message omits the text, which may contain a password.
            let url = Url::parse(text).map_err(|error| bad(error.to_string()))?;
            if matches!(url.scheme(), "http" | "https") { Ok(url) } else { Err(bad("is not http or https".to_owned())) }
        })
        .collect::<Result<Vec<_>, _>>()?;
    match urls.len() {
        0 => Err(bad("is empty".to_owned())),
        1..=MIRRORS_MAX => Ok(urls),
        many => Err(bad(format!("has {many} mirrors, at most {MIRRORS_MAX}"))),
    }
}

fn sha256(text: &str) -> Result<Sha256, Refused> {
    ItemHash::try_from(text.to_ascii_lowercase())
        .map(|digest| Sha256(digest.0))
        .map_err(|_| Refused::param("sha256", "is not 64 hex digits"))
}

fn mode(text: &str) -> Result<u32, Refused> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| Refused::param("mode", "is not an octal number up to 777"))
}

/// Checks for an absolute path without `..` that names a file.
fn absolute(name: &str, text: &str) -> Result<PathBuf, Refused> {
    let path = Path::new(text);
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if path.is_absolute() && plain && path.file_name().is_some() {
        // Removes a trailing slash, which would break the names of files beside it.
        let path: PathBuf = path.components().collect();
        path_ownership::is_ours(&path).map_err(|problem| Refused::param(name, problem))?;
        Ok(path)
    } else {
        Err(Refused::param(name, "is not an absolute path without `..`"))
    }
}

fn format(named: Option<&str>, path: &Path, urls: &[Url]) -> Result<Format, Refused> {
    let problem = || Refused::param("format", format!("expected one of: {}", Format::WORDS.join(", ")));
    match named {
        Some(name) => Format::named(name).ok_or_else(problem),
        None => Format::of_name(&path.to_string_lossy())
            .or_else(|| urls.iter().find_map(|url| Format::of_name(url.path())))
            .ok_or_else(problem),
    }
}

/// Does the work and summarizes it in one line. After the digest check it keeps one open file, and ignores a file that
/// others put at the path meanwhile.
fn bring_about(wanted: &Wanted, policy: &RetryPolicy, report: &Report) -> Result<String, DownloadError> {
    let digest = wanted.sha256.to_string();
    let refused = |source| DownloadError::Archive { path: wanted.path.clone(), source };
    let extract = wanted.extract.as_ref().map(|&Extract { ref target, format, owners }| {
        (Place { target, owners, digest: &digest, surroundings: wanted.surroundings }, format)
    });
    if let Some((place, _)) = &extract {
        place.check().map_err(refused)?;
    }
    let (file, mut message) = match there(wanted)? {
        Some(file) => (file, "already there".to_owned()),
        None => fetch(wanted, policy, report)?,
    };
    file.set_permissions(Permissions::from_mode(wanted.mode))
        .map_err(DownloadError::file("set the mode of", &wanted.path))?;
    if let Some((place, format)) = &extract {
        report.line(&format!("unpacking into {}", place.target.display()));
        message += &match archive::unpack(&file, *format, place).map_err(refused)? {
            Unpacked::Before => ", already unpacked".to_owned(),
            Unpacked::Now { disowned: 0 } => ", unpacked".to_owned(),
            Unpacked::Now { disowned } => {
                format!(", unpacked; entries that have other owners in the archive (param `owners`): {disowned}")
            }
        };
    }
    report.line(&message);
    Ok(message)
}

/// The wanted file, if it exists, is our own, and has the right digest.
fn there(wanted: &Wanted) -> Result<Option<File>, DownloadError> {
    if fs::symlink_metadata(&wanted.path).is_ok_and(|found| found.is_dir()) {
        let source = io::ErrorKind::IsADirectory.into();
        return Err(DownloadError::File { what: "replace", path: wanted.path.clone(), source });
    }
    let own = part::own(&wanted.path).map_err(DownloadError::file("look at", &wanted.path))?;
    let Some(mut file) = own else { return Ok(None) };
    let digest = part::digest_of(&mut file).map_err(DownloadError::file("read", &wanted.path))?;
    Ok((digest == wanted.sha256).then_some(file))
}

fn fetch(wanted: &Wanted, policy: &RetryPolicy, report: &Report) -> Result<(File, String), DownloadError> {
    let began = Instant::now();
    let directory = wanted.path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory).map_err(DownloadError::file("create", directory))?;
    let part_path = part::beside(&wanted.path);
    let mut part = Part::open(part_path.clone()).map_err(DownloadError::file("open", &part_path))?;
    let kept = part.bytes();
    if kept == 0 || part.digest() != wanted.sha256 {
        transfer::transfer(wanted, policy, &mut part, report)?;
    }
    let bytes = part.bytes();
    let file = part.persist(&wanted.path, wanted.mode).map_err(DownloadError::file("put in place", &wanted.path))?;
    let seconds = began.elapsed().as_secs_f64();
    let resumed = if kept > 0 { format!(", {kept} of them kept from before") } else { String::new() };
    Ok((file, format!("downloaded {bytes} bytes in {seconds:.1} s{resumed}")))
}

#[cfg(test)]
#[path = "downloader/tests.rs"]
mod tests;
