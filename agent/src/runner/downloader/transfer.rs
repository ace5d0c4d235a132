//! The transfer: mirrors in turn, passes with backoff, and requests that resume where the last one stopped. Only the
//! digest decides: regardless of what a server claims, the partial file is correct or removed.

mod response;

use std::{
    fmt, io,
    path::PathBuf,
    time::{Duration, Instant},
};

use reqwest::{Client, StatusCode, Url, redirect};
use tokio::runtime::{self, Runtime};

use super::{Part, Sha256, Wanted};
use crate::{
    exec_item::{Report, with_sources},
    proxy::Proxies,
};

/// Maximum of redirects per request.
const REDIRECTS_MAX: usize = 5;
/// Timeout of the connection, TLS included.
const CONNECT_DEADLINE: Duration = Duration::from_secs(15);
/// Passes over the mirrors without progress before the attempt fails.
const PASSES_MAX: u32 = 5;
/// Bytes in one pass that count as progress and reset the number of passes.
const PROGRESS_BYTES_MIN: u64 = 1 << 20;
/// Delay after the first pass; doubles with each.
const BACKOFF: Duration = Duration::from_millis(500);
/// Longest delay between two passes.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Longest honoured Retry-After: with the number of passes, it stays below the usual time limit of an item.
const ASKED_WAIT_MAX: Duration = Duration::from_secs(300);
/// Time in which [`response::STALL_BYTES_MIN`] must arrive.
const STALL: Duration = Duration::from_secs(30);

const NO_ROOTS: &str = " (this machine has no CA certificates: install them for https)";
const NO_TLS: &str = " (what answers there speaks no TLS: is it http://?)";
const HTML_PAGE: &str = "; it is an HTML page: a login or error page?";

/// Timeouts and retries for slow and failing servers.
#[derive(Clone, Copy, Debug)]
pub(super) struct RetryPolicy {
    pub(super) stall: Duration,
    pub(super) backoff: Duration,
    pub(super) passes: u32,
    /// Longest wait that a server may request.
    pub(super) asked: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { stall: STALL, backoff: BACKOFF, passes: PASSES_MAX, asked: ASKED_WAIT_MAX }
    }
}

/// Reason why one request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("request failed{hint}")]
    Request {
        hint: &'static str,
        #[source]
        source: reqwest::Error,
    },
    #[error("the server answered {status}{}", asking(*retry_after))]
    Status { status: StatusCode, retry_after: Option<Duration> },
    #[error("less than {} KiB came in {:?}", response::STALL_BYTES_MIN / 1024, .0)]
    Stalled(Duration),
    #[error("cut off after {have} bytes")]
    Cut { have: u64 },
    #[error("the server answered a range other than the one asked for")]
    Range,
    #[error("longer than the {limit} bytes allowed")]
    TooLong { limit: u64 },
    #[error("sha256 is {got}, expected {expected}{}", if *html { HTML_PAGE } else { "" })]
    Digest { got: Sha256, expected: Sha256, html: bool },
    #[error("cannot write {}", path.display())]
    Disk {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

fn asking(wait: Option<Duration>) -> String {
    wait.map_or_else(String::new, |wait| format!(" and asks to wait {wait:?}"))
}

impl FetchError {
    /// Will this mirror repeat the answer, at least for a while?
    fn gives_up_mirror(&self) -> bool {
        match self {
            Self::Request { source, .. } => source.is_redirect(),
            Self::Status { status, .. } => {
                !status.is_server_error()
                    && ![StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS]
                        .contains(status)
            }
            Self::Range | Self::TooLong { .. } | Self::Digest { .. } => true,
            // A local fault: it ends the whole transfer.
            Self::Stalled(_) | Self::Cut { .. } | Self::Disk { .. } => false,
        }
    }

    /// May another attempt help? A truncated answer of unknown length, or one from a middlebox, has the wrong digest;
    /// the next may be right.
    const fn is_retryable(&self) -> bool {
        !matches!(self, Self::TooLong { .. })
    }

    /// Wait that this mirror requests.
    const fn asked_wait(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// Reason of a failed transfer.
#[derive(Debug, thiserror::Error)]
pub(super) enum TransferError {
    #[error("cannot set up HTTP")]
    Client(#[source] reqwest::Error),
    #[error("cannot set up the runtime")]
    Runtime(#[source] io::Error),
    #[error("no mirror delivered: {}", list(.0))]
    Mirrors(Vec<(Shown, FetchError)>),
}

impl TransferError {
    pub(super) fn is_retryable(&self) -> bool {
        match self {
            Self::Client(_) | Self::Runtime(_) => true,
            Self::Mirrors(errors) => errors.iter().any(|(_, error)| error.is_retryable()),
        }
    }
}

fn list(errors: &[(Shown, FetchError)]) -> String {
    errors.iter().map(|(url, error)| format!("{url}: {}", with_sources(error))).collect::<Vec<_>>().join("; ")
}

/// A URL for people. It omits user, password, query and fragment, any of which may be secret.
#[derive(Clone, Debug)]
pub(super) struct Shown(String);

impl From<&Url> for Shown {
    fn from(url: &Url) -> Self {
        let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
        Self(format!("{}://{}{port}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path()))
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A source of the file.
struct Mirror<'a> {
    url: &'a Url,
    /// Its last error.
    error: Option<FetchError>,
    /// End of the wait that it requested.
    not_before: Option<Instant>,
}

impl Mirror<'_> {
    fn is_given_up(&self) -> bool {
        self.error.as_ref().is_some_and(FetchError::gives_up_mirror)
    }

    fn wait(&self) -> Duration {
        self.not_before.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()))
    }
}

/// Everything for a request except its URL.
struct Courier<'a> {
    wanted: &'a Wanted,
    policy: &'a RetryPolicy,
    report: &'a Report,
    runtime: Runtime,
    client: Client,
    /// CA certificates are missing: only http works.
    rootless: bool,
}

/// Completes the partial file so that it has the wanted digest.
pub(super) fn transfer(
    wanted: &Wanted,
    policy: &RetryPolicy,
    part: &mut Part,
    report: &Report,
) -> Result<(), TransferError> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(TransferError::Runtime)?;
    let (client, rootless) = client(&wanted.proxies)?;
    if !wanted.proxies.is_empty() {
        report.line(&format!("proxy: {}", wanted.proxies));
    }
    let courier = Courier { wanted, policy, report, runtime, client, rootless };
    let mut mirrors: Vec<Mirror<'_>> =
        wanted.urls.iter().map(|url| Mirror { url, error: None, not_before: None }).collect();
    let mut passes = 0;
    'passes: while passes < policy.passes {
        let before = part.bytes();
        for mirror in mirrors.iter_mut().filter(|mirror| !mirror.is_given_up() && mirror.wait().is_zero()) {
            match courier.fetch_verified(mirror.url, part) {
                Ok(()) => return Ok(()),
                Err(failure) => {
                    report.line(&format!("{}: {}", Shown::from(mirror.url), with_sources(&failure)));
                    let is_ours = matches!(failure, FetchError::Disk { .. });
                    mirror.not_before = failure.asked_wait().map(|wait| Instant::now() + wait.min(policy.asked));
                    mirror.error = Some(failure);
                    // A full local disk affects every mirror.
                    if is_ours {
                        break 'passes;
                    }
                }
            }
        }
        let usable = mirrors.iter().filter(|mirror| !mirror.is_given_up());
        let Some(asked) = usable.map(Mirror::wait).min() else { break };
        passes = if part.bytes() >= before + PROGRESS_BYTES_MIN { 1 } else { passes + 1 };
        if passes < policy.passes {
            let wait = asked + backoff(policy.backoff, passes);
            courier.runtime.block_on(async { tokio::time::sleep(wait).await });
        }
    }
    if part.bytes() == 0 {
        let _ = std::fs::remove_file(part.path());
    }
    let errors = mirrors.into_iter().filter_map(|mirror| Some((Shown::from(mirror.url), mirror.error?))).collect();
    Err(TransferError::Mirrors(errors))
}

/// Backoff that doubles with each pass, with jitter between half and all of it, so that a fleet spreads its requests.
fn backoff(first: Duration, passes: u32) -> Duration {
    let full = first.saturating_mul(1 << passes.saturating_sub(1).min(16)).min(BACKOFF_MAX);
    let mut random = [0; 1];
    // If randomness fails, there is no jitter.
    let _ = aws_lc_rs::rand::fill(&mut random);
    let [random] = random;
    full / 2 + full.mul_f64(f64::from(random) / 512.0)
}

/// Builds the client. True: CA certificates are missing, and only http works.
fn client(proxies: &Proxies) -> Result<(Client, bool), TransferError> {
    let rules = proxies.rules().map_err(TransferError::Client)?;
    let builder = || {
        let builder = Client::builder()
            .user_agent(concat!("muster-agent/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::limited(REDIRECTS_MAX))
            // A URL may hold a token: hide it from the next server.
            .referer(false)
            // Only configured proxies, independent of this process's environment.
            .no_proxy()
            .connect_timeout(CONNECT_DEADLINE);
        rules.iter().cloned().fold(builder, reqwest::ClientBuilder::proxy)
    };
    match builder().build() {
        Ok(client) => Ok((client, false)),
        Err(_) => builder().tls_certs_only([]).build().map(|client| (client, true)).map_err(TransferError::Client),
    }
}

impl Courier<'_> {
    /// Sends one request, or a second after a bad resume: a partial file that is foreign or damaged shows only at the
    /// end.
    fn fetch_verified(&self, url: &Url, part: &mut Part) -> Result<(), FetchError> {
        let resumed = part.bytes() > 0;
        match self.fetch(url, part) {
            Err(FetchError::Range | FetchError::Digest { .. }) if resumed => {
                self.report.line("the part that was here does not fit: starting over");
                self.restart(part)?;
                self.fetch(url, part)
            }
            other => other,
        }
        .inspect_err(|error| {
            // Invalid data, or data on a full disk that others need: remove it.
            if !matches!(
                error,
                FetchError::Request { .. }
                    | FetchError::Status { .. }
                    | FetchError::Stalled(_)
                    | FetchError::Cut { .. }
            ) {
                let _ = part.restart();
            }
        })
    }

    fn fetch(&self, url: &Url, part: &mut Part) -> Result<(), FetchError> {
        self.report.line(&format!("GET {} from byte {}", Shown::from(url), part.bytes()));
        self.receive(url, part)?;
        let got = part.digest();
        if got == self.wanted.sha256 {
            return Ok(());
        }
        Err(FetchError::Digest { got, expected: self.wanted.sha256, html: part.looks_like_html() })
    }

    fn restart(&self, part: &mut Part) -> Result<(), FetchError> {
        part.restart().map_err(|source| FetchError::Disk { path: part.path().to_owned(), source })
    }
}
