//! HTTP/1.1 over plain TCP. Limits apply to everything that a peer can occupy: connections, and the time for sending a
//! head and taking the answer.

use std::{
    convert::Infallible,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::PathBuf,
    pin::pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use futures_util::stream;
use http::{
    Method, Request, Response, StatusCode,
    header::{ACCEPT_RANGES, ALLOW, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, LAST_MODIFIED},
};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::socket::{setsockopt, sockopt::TcpUserTimeout};
use percent_encoding::percent_decode_str;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::spawn_blocking,
    time::sleep,
};

use super::{
    answer::{Answer, Version, answer},
    files::Files,
};

/// Bytes of a file read at a time.
const CHUNK_BYTES: usize = 256 * 1024;
/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Wait after a failed accept: all file descriptors are in use.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Limits for peers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Concurrent connections; further ones wait.
    pub(super) connections: usize,
    /// Time for the head of a request, and between two requests.
    pub(super) head: Duration,
    /// Time for which the peer may stop reading the answer.
    pub(super) stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 512, head: Duration::from_secs(10), stall: Duration::from_secs(30) }
    }
}

/// Serve forever.
pub(super) async fn run(listener: &TcpListener, files: Files, limits: Limits) {
    let files = Arc::new(files);
    let places = Arc::new(Semaphore::new(limits.connections));
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_AGAIN_AFTER).await;
            continue;
        };
        let files = Arc::clone(&files);
        tokio::spawn(async move {
            serve(stream, files, limits).await;
            drop(place);
        });
    }
}

async fn serve(stream: TcpStream, files: Arc<Files>, limits: Limits) {
    // The kernel ends the connection if data stays unacknowledged, or the window full, for this long.
    let stall_ms = u32::try_from(limits.stall.as_millis()).unwrap_or(u32::MAX);
    let _ = setsockopt(&stream, TcpUserTimeout, &stall_ms);
    let service = service_fn(move |request: Request<Incoming>| {
        let files = Arc::clone(&files);
        async move { Ok::<_, Infallible>(respond(&request, files).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    // Only the peer would need the outcome.
    let _ = pin!(connection).await;
}

async fn respond(request: &Request<Incoming>, files: Arc<Files>) -> Response<Body> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refused = empty(StatusCode::METHOD_NOT_ALLOWED);
        refused.headers_mut().insert(ALLOW, http::HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    let Ok(path) = percent_decode_str(request.uri().path().trim_start_matches('/')).decode_utf8() else {
        return empty(StatusCode::NOT_FOUND);
    };
    let path = PathBuf::from(path.into_owned());
    // The disk may be slow, and one thread serves all peers.
    let opened = spawn_blocking(move || {
        let file = files.open(&path)?;
        file.map(|file| file.metadata().map(|found| (file, Version::of(&found)))).transpose()
    });
    match opened.await.unwrap_or_else(|error| Err(io::Error::other(error))) {
        Ok(Some((file, version))) => send(request, file, &version).unwrap_or_else(|_| empty(StatusCode::NOT_FOUND)),
        Ok(None) => empty(StatusCode::NOT_FOUND),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => empty(StatusCode::FORBIDDEN),
        Err(_) => empty(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::new()).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response
}

fn send(request: &Request<Incoming>, file: File, version: &Version) -> http::Result<Response<Body>> {
    // Ranges apply to GET only.
    let answer = match answer(request.headers(), version, SystemTime::now()) {
        Answer::Part(..) | Answer::NoSuchRange if request.method() == Method::HEAD => Answer::Whole,
        answer => answer,
    };
    let response = Response::builder()
        .header(ACCEPT_RANGES, "bytes")
        .header(ETAG, &version.tag)
        .header(LAST_MODIFIED, httpdate::fmt_http_date(version.modified));
    let total = version.bytes;
    let (status, first, bytes) = match answer {
        Answer::Whole => (StatusCode::OK, 0, total),
        Answer::Part(first, last) => (StatusCode::PARTIAL_CONTENT, first, last - first + 1),
        Answer::NotModified => {
            return response.status(StatusCode::NOT_MODIFIED).body(empty(StatusCode::OK).into_body());
        }
        Answer::PreconditionFailed => {
            return response.status(StatusCode::PRECONDITION_FAILED).body(empty(StatusCode::OK).into_body());
        }
        Answer::NoSuchRange => {
            let response = response.status(StatusCode::RANGE_NOT_SATISFIABLE);
            return response.header(CONTENT_RANGE, format!("bytes */{total}")).body(empty(StatusCode::OK).into_body());
        }
    };
    let response =
        response.status(status).header(CONTENT_TYPE, "application/octet-stream").header(CONTENT_LENGTH, bytes);
    let response = match answer {
        Answer::Part(first, last) => response.header(CONTENT_RANGE, format!("bytes {first}-{last}/{total}")),
        _ => response,
    };
    if request.method() == Method::HEAD {
        return response.body(empty(StatusCode::OK).into_body());
    }
    response.body(StreamBody::new(chunks(file, first, bytes)).boxed_unsync())
}

/// This many bytes of the file. If the file is truncated meanwhile, the connection ends: its length has been sent.
fn chunks(file: File, first: u64, bytes: u64) -> impl stream::Stream<Item = io::Result<Frame<Bytes>>> + Send {
    stream::try_unfold((file, first, bytes), |(mut file, at, left)| async move {
        if left == 0 {
            return Ok(None);
        }
        let read = spawn_blocking(move || {
            let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK_BYTES);
            let mut chunk = vec![0; wanted];
            file.seek(SeekFrom::Start(at))?;
            file.read_exact(&mut chunk)?;
            Ok::<_, io::Error>((file, chunk))
        });
        let (file, chunk) = read.await.map_err(io::Error::other)??;
        let count = chunk.len() as u64;
        Ok(Some((Frame::data(Bytes::from(chunk)), (file, at + count, left - count))))
    })
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::Write,
        net::{self, SocketAddr},
        os::unix::fs::symlink,
        path::Path,
        time::Instant,
    };

    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;

    const LIMITS: Limits =
        Limits { connections: 2, head: Duration::from_millis(300), stall: Duration::from_millis(500) };

    /// Serve a directory on a thread of its own.
    fn served(dir: &Path, limits: Limits) -> SocketAddr {
        let files = Files::of(dir).expect("a directory");
        let (sender, address) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
                sender.send(listener.local_addr().expect("bound")).expect("awaited");
                run(&listener, files, limits).await;
            });
        });
        address.recv().expect("served")
    }

    fn connect(address: SocketAddr) -> net::TcpStream {
        let stream = net::TcpStream::connect(address).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit");
        stream
    }

    fn ask(address: SocketAddr, head: &str) -> String {
        let mut stream = connect(address);
        write!(stream, "{head}\r\nHost: x\r\nConnection: close\r\n\r\n").expect("asked");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("answered");
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[test]
    fn only_regular_files_below_dir_are_served() {
        let site = tempfile::tempdir().expect("a directory");
        let dir = site.path().join("dir");
        fs::create_dir_all(dir.join("sub")).expect("directories");
        fs::write(site.path().join("secret"), "outside").expect("a file");
        fs::write(dir.join("sub/a file"), "inside").expect("a file");
        symlink("../secret", dir.join("out")).expect("a link");
        symlink(site.path().join("secret"), dir.join("absolute")).expect("a link");
        symlink(site.path(), dir.join("up")).expect("a link");
        symlink("/proc/self/root/etc/passwd", dir.join("magic")).expect("a link");
        symlink("loop", dir.join("loop")).expect("a link");
        symlink("sub/a file", dir.join("latest")).expect("a link");
        mkfifo(&dir.join("fifo"), Mode::S_IRWXU).expect("a fifo");
        let _socket = std::os::unix::net::UnixListener::bind(dir.join("socket")).expect("a socket");
        let address = served(&dir, Limits::default());
        for (path, expected) in [
            ("/sub/a%20file", Some("inside")),
            ("/latest", Some("inside")),
            ("//sub/../latest", Some("inside")),
            ("/out", None),
            ("/absolute", None),
            ("/up/secret", None),
            ("/magic", None),
            ("/loop", None),
            ("/fifo", None),
            ("/socket", None),
            ("/sub", None),
            ("/", None),
            ("/../secret", None),
            ("/%2e%2e/secret", None),
            ("/latest/", None),
            ("/a%00b", None),
            ("/%ff", None),
            (&format!("/{}", "x".repeat(5000)), None),
        ] {
            let answer = ask(address, &format!("GET {path} HTTP/1.1"));
            let good = match expected {
                Some(body) => answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with(&format!("\r\n\r\n{body}")),
                None => answer.starts_with("HTTP/1.1 404 Not Found\r\n") && answer.ends_with("\r\n\r\n"),
            };
            assert!(good, "{path}: {answer}");
        }
    }

    #[test]
    fn ranges_and_methods_are_answered() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("f"), "0123456789").expect("a file");
        let address = served(dir.path(), Limits::default());
        for (head, status, told, body) in [
            ("GET /f HTTP/1.1\r\nRange: bytes=3-5", "206", "content-range: bytes 3-5/10", "345"),
            ("GET /f HTTP/1.1\r\nRange: bytes=3-5\r\nIf-Range: \"other\"", "200", "content-length: 10", "0123456789"),
            ("GET /f HTTP/1.1\r\nRange: bytes=10-", "416", "content-range: bytes */10", ""),
            ("HEAD /f HTTP/1.1\r\nRange: bytes=3-5", "200", "content-length: 10", ""),
            ("POST /f HTTP/1.1\r\nContent-Length: 0", "405", "allow: GET, HEAD", ""),
        ] {
            let answer = ask(address, head);
            let good = answer.starts_with(&format!("HTTP/1.1 {status} "))
                && answer.contains(&format!("\r\n{told}\r\n"))
                && answer.ends_with(&format!("\r\n\r\n{body}"));
            assert!(good, "{head}: {answer}");
        }
    }

    #[test]
    fn silent_and_slow_peers_give_way() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("f"), "here").expect("a file");
        let address = served(dir.path(), LIMITS);
        let began = Instant::now();
        // One connection is silent, the other sends an endless head; both places are taken.
        let mut silent = connect(address);
        let mut slow = connect(address);
        slow.write_all(b"GET /f HTTP/1.1\r\nX: ").expect("sent");
        assert!(ask(address, "GET /f HTTP/1.1").ends_with("here"), "in its turn");
        assert!(began.elapsed() >= LIMITS.head, "not before one of them gave way");
        let mut rest = Vec::new();
        assert_eq!(silent.read_to_end(&mut rest).expect("closed"), 0);
        let _ = slow.read_to_end(&mut rest);
        // A connection that was answered and stays idle.
        let mut idle = connect(address);
        idle.write_all(b"GET /f HTTP/1.1\r\nHost: x\r\n\r\n").expect("asked");
        idle.read_to_end(&mut rest).expect("closed");
    }

    #[test]
    fn long_head_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("f"), "here").expect("a file");
        let address = served(dir.path(), Limits::default());
        let head = |bytes: usize| ask(address, &format!("GET /f HTTP/1.1\r\nX: {}", "x".repeat(bytes)));
        assert!(head(HEAD_BYTES_MAX / 2).ends_with("here"));
        let refused = head(HEAD_BYTES_MAX);
        assert!(refused.starts_with("HTTP/1.1 431 "), "{refused}");
    }

    #[test]
    fn peer_that_takes_nothing_gives_way() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = File::create(dir.path().join("f")).expect("a file");
        file.set_len(64 << 20).expect("long");
        fs::write(dir.path().join("g"), "here").expect("a file");
        let address = served(dir.path(), LIMITS);
        let greedy = [connect(address), connect(address)];
        for mut stream in &greedy {
            stream.write_all(b"GET /f HTTP/1.1\r\nHost: x\r\n\r\n").expect("asked");
        }
        assert!(ask(address, "GET /g HTTP/1.1").ends_with("here"), "in its turn");
    }
}
