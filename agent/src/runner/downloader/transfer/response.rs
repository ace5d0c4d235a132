//! One request and its answer: the range to request, the check of the answer, and its body into the partial file. One
//! thread receives, another writes and hashes.

use std::{
    io,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::{Duration, Instant, SystemTime},
};

use bytes::Bytes;
use reqwest::{
    Response, StatusCode, Url,
    header::{ACCEPT_ENCODING, CONTENT_RANGE, RANGE, RETRY_AFTER},
};
use tokio::time::timeout_at;

use super::{Courier, FetchError, NO_ROOTS, NO_TLS};
use crate::{attempt::Progress, exec_item::Report, runner::downloader::Part};

/// Minimum of bytes in the stall time; fewer count as a stall.
pub(super) const STALL_BYTES_MIN: u64 = 16 * 1024;
/// Maximum of chunks between the two threads. Each is one read of the socket, at most some hundred KiB.
const CHUNKS_MAX: usize = 16;
/// Interval of progress reports.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

impl Courier<'_> {
    /// Appends the answer's body to the partial file. On success the server has sent everything.
    pub(super) fn receive(&self, url: &Url, part: &mut Part) -> Result<(), FetchError> {
        let response = self.runtime.block_on(self.ask(url, part.bytes()))?;
        let total = match self.fits(&response, part.bytes())? {
            Fits::Complete => return Ok(()),
            Fits::Continues { total } => total,
            Fits::Whole { total } => {
                self.restart(part)?;
                total
            }
        };
        if total.is_some_and(|total| total > self.wanted.max_bytes) {
            return Err(FetchError::TooLong { limit: self.wanted.max_bytes });
        }
        let path = part.path().to_owned();
        let have = part.bytes();
        let missing = total.map_or(0, |total| total.saturating_sub(have));
        fits_the_disk(part, missing).map_err(|source| FetchError::Disk { path: path.clone(), source })?;
        thread::scope(|scope| {
            let (sender, chunks) = sync_channel(CHUNKS_MAX);
            let writer = scope.spawn(|| write_all(part, chunks));
            let received = self.runtime.block_on(self.pump(response, have, total, sender));
            match writer.join() {
                Ok(Ok(())) => received,
                Ok(Err(source)) => Err(FetchError::Disk { path, source }),
                Err(_) => Err(FetchError::Disk { path, source: io::Error::other("the writing thread panicked") }),
            }
        })?;
        // A server may truncate its answer and still report it as complete.
        if total.is_some_and(|total| part.bytes() < total) {
            return Err(FetchError::Cut { have: part.bytes() });
        }
        Ok(())
    }

    async fn ask(&self, url: &Url, from: u64) -> Result<Response, FetchError> {
        // The digest covers the file's own bytes, so disable compression in transit.
        let mut request = self.client.get(url.clone()).header(ACCEPT_ENCODING, "identity");
        if from > 0 {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        let answer = tokio::time::timeout(self.policy.stall, request.send());
        answer.await.map_err(|_| FetchError::Stalled(self.policy.stall))?.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: reqwest::Error) -> FetchError {
        let hint = match error.is_connect() {
            true if speaks_no_tls(&error) => NO_TLS,
            true if self.rootless => NO_ROOTS,
            _ => "",
        };
        FetchError::Request { hint, source: error.without_url() }
    }

    fn fits(&self, response: &Response, have: u64) -> Result<Fits, FetchError> {
        let range = response.headers().get(CONTENT_RANGE).and_then(|value| ContentRange::parse(value.to_str().ok()?));
        match (response.status(), range) {
            (StatusCode::OK, _) => Ok(Fits::Whole { total: response.content_length() }),
            (StatusCode::PARTIAL_CONTENT, Some(ContentRange { first: Some(first), total }))
                if have > 0 && first == have =>
            {
                Ok(Fits::Continues { total })
            }
            (StatusCode::RANGE_NOT_SATISFIABLE, Some(ContentRange { first: None, total }))
                if have > 0 && total == Some(have) =>
            {
                Ok(Fits::Complete)
            }
            (StatusCode::RANGE_NOT_SATISFIABLE | StatusCode::PARTIAL_CONTENT, _) => Err(FetchError::Range),
            (status, _) => Err(FetchError::Status { status, retry_after: retry_after(response) }),
        }
    }

    /// Passes the body to the writer, chunk by chunk, while the rate is sufficient.
    async fn pump(
        &self,
        mut response: Response,
        have: u64,
        total: Option<u64>,
        writer: SyncSender<Bytes>,
    ) -> Result<(), FetchError> {
        let mut pace = Pace::new(have, self.policy.stall);
        let mut notifier = ProgressNotifier::new(have, total);
        let mut done = have;
        loop {
            let chunk = match timeout_at(pace.deadline.into(), response.chunk()).await {
                Ok(Ok(Some(chunk))) => chunk,
                Ok(Ok(None)) => break,
                Ok(Err(error)) if error.is_timeout() || done == have => return Err(self.failed(error)),
                Ok(Err(_)) => return Err(FetchError::Cut { have: done }),
                Err(_) if pace.keeps_up(done) => continue,
                Err(_) => return Err(FetchError::Stalled(self.policy.stall)),
            };
            done += chunk.len() as u64;
            if done > self.wanted.max_bytes {
                return Err(FetchError::TooLong { limit: self.wanted.max_bytes });
            }
            let waiting_since = Instant::now();
            if writer.send(chunk).is_err() {
                // The writer reports its own error.
                return Ok(());
            }
            pace.forgive(waiting_since.elapsed());
            notifier.tell(done, self.report);
        }
        notifier.tell_last(done, self.report);
        Ok(())
    }
}

/// Wait that the server requests: in seconds, or until a date.
fn retry_after(response: &Response) -> Option<Duration> {
    let busy = matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let text = response.headers().get(RETRY_AFTER).filter(|_| busy)?.to_str().ok()?.trim();
    match text.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => Some(httpdate::parse_http_date(text).ok()?.duration_since(SystemTime::now()).unwrap_or_default()),
    }
}

/// Did the peer answer without TLS? rustls reports it only in its text.
fn speaks_no_tls(error: &reqwest::Error) -> bool {
    let first: &dyn std::error::Error = error;
    std::iter::successors(Some(first), |&error| error.source())
        .any(|error| error.to_string().contains("InvalidContentType"))
}

fn write_all(part: &mut Part, chunks: Receiver<Bytes>) -> io::Result<()> {
    chunks.into_iter().try_for_each(|chunk| part.append(&chunk))
}

/// Is there space for this many more bytes? Checked before the first of them, because others need the disk too.
fn fits_the_disk(part: &Part, missing: u64) -> io::Result<()> {
    let Some(room) = part.room()?.filter(|room| missing > *room) else { return Ok(()) };
    let message = format!("{missing} bytes are to come, and there is room for {room}");
    Err(io::Error::new(io::ErrorKind::StorageFull, message))
}

/// Relation of an answer to the partial file.
enum Fits {
    /// Its body is the whole file.
    Whole { total: Option<u64> },
    /// Its body continues the partial file.
    Continues { total: Option<u64> },
    /// The file is complete.
    Complete,
}

/// Content-Range: `bytes 5-9/10`, or `bytes */10` in a refusal.
#[derive(Debug, PartialEq, Eq)]
struct ContentRange {
    first: Option<u64>,
    total: Option<u64>,
}

impl ContentRange {
    fn parse(text: &str) -> Option<Self> {
        let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
        let total = if total == "*" { None } else { Some(total.parse().ok()?) };
        if range == "*" {
            return Some(Self { first: None, total });
        }
        let (first, last) = range.split_once('-')?;
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last && total.is_none_or(|total| last < total)).then_some(Self { first: Some(first), total })
    }
}

/// Checks that enough bytes arrive per period.
struct Pace {
    stretch: Duration,
    deadline: Instant,
    at_start: u64,
}

impl Pace {
    fn new(done: u64, stretch: Duration) -> Self {
        Self { stretch, deadline: Instant::now() + stretch, at_start: done }
    }

    /// At the deadline: did enough arrive? Starts the next period.
    fn keeps_up(&mut self, done: u64) -> bool {
        let enough = done - self.at_start >= STALL_BYTES_MIN;
        *self = Self::new(done, self.stretch);
        enough
    }

    /// Excludes the time of a slow disk.
    fn forgive(&mut self, waited: Duration) {
        self.deadline += waited;
    }
}

/// Reports the progress once a second.
struct ProgressNotifier {
    total_bytes: u64,
    told_at: Instant,
    told_bytes: u64,
}

impl ProgressNotifier {
    fn new(done: u64, total: Option<u64>) -> Self {
        Self { total_bytes: total.unwrap_or(0), told_at: Instant::now(), told_bytes: done }
    }

    fn tell(&mut self, done: u64, report: &Report) {
        if self.told_at.elapsed() >= PROGRESS_EVERY {
            self.tell_last(done, report);
        }
    }

    fn tell_last(&mut self, done: u64, report: &Report) {
        let ms = u64::try_from(self.told_at.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        let bytes_per_second = (done - self.told_bytes).saturating_mul(1000) / ms;
        let total_bytes = self.total_bytes;
        report.progress(Progress { done_bytes: done, total_bytes, bytes_per_second, task: None });
        (self.told_at, self.told_bytes) = (Instant::now(), done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges() {
        let check = |text, expected: Option<(Option<u64>, Option<u64>)>| {
            let expected = expected.map(|(first, total)| ContentRange { first, total });
            assert_eq!(ContentRange::parse(text), expected, "{text}");
        };
        check("bytes 5-9/10", Some((Some(5), Some(10))));
        check("bytes 5-9/*", Some((Some(5), None)));
        check("bytes */10", Some((None, Some(10))));
        for bad in
            ["", "bytes", "bytes 5-9", "bytes 9-5/10", "bytes 5-10/10", "bytes -5/10", "lines 5-9/10", "bytes 5-x/10"]
        {
            check(bad, None);
        }
    }
}
