//! The rows "download" of the bad-input table, against a real misbehaving server.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::MetadataExt,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use muster_proto::model::{ClusterName, Generation, ItemHash, ItemName, MachineId, MachineName, Phase};

use super::*;
use crate::attempt::{AttemptDir, AttemptKey};
use web::{Asked, Web, send, send_cut, send_file};

#[path = "../../../tests/attempts/web.rs"]
mod web;

/// Short retries for fast tests. The stall time is long, so that a server on a busy computer still passes.
const HASTY: RetryPolicy = RetryPolicy {
    stall: Duration::from_secs(30),
    backoff: Duration::from_millis(1),
    passes: 3,
    asked: Duration::from_millis(1500),
};
/// Short stall time and one pass.
const STRICT: RetryPolicy = RetryPolicy { stall: Duration::from_secs(1), passes: 1, ..HASTY };

fn body() -> Vec<u8> {
    (0..300_000_u32).flat_map(|n| n.to_le_bytes()).collect()
}

fn digest(body: &[u8]) -> String {
    let mut part = Part::open(tempfile::tempdir().expect("a directory").path().join("x")).expect("a part");
    part.append(body).expect("append");
    part.digest().to_string()
}

struct Site {
    dir: tempfile::TempDir,
    params: Vec<(&'static str, String)>,
    policy: RetryPolicy,
    proxies: Proxies,
}

impl Site {
    /// Requests the file of `body` from these mirrors.
    fn wanting(body: &[u8], urls: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("sub/file").display().to_string();
        let params = vec![("url", urls.to_owned()), ("sha256", digest(body)), ("path", path)];
        Self { dir, params, policy: HASTY, proxies: Proxies::default() }
    }

    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.params.push((name, value.to_owned()));
        self
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("sub/file")
    }

    fn part(&self) -> PathBuf {
        part::beside(&self.path())
    }

    fn keep_part(self, bytes: &[u8]) -> Self {
        fs::create_dir(self.dir.path().join("sub")).expect("a directory");
        fs::write(self.part(), bytes).expect("a part");
        self
    }

    /// Runs it; returns the outcome and the reported lines.
    fn run(&self) -> (Result<String, DownloadError>, String) {
        let request = request(&self.params);
        let wanted = Wanted::of(&request, self.proxies.clone()).expect("good params");
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let report = Report::new(writer, AttemptDir::new(self.dir.path().to_owned()));
        let result = bring_about(&wanted, &self.policy, &report);
        drop(report);
        let mut lines = String::new();
        reader.read_to_string(&mut lines).expect("lines");
        (result, lines)
    }

    fn succeeds(&self, body: &[u8]) -> String {
        let (result, lines) = self.run();
        let message = result.unwrap_or_else(|error| panic!("{}\n{lines}", with_sources(&error)));
        assert!(fs::read(self.path()).expect("the file") == body);
        assert!(!self.part().exists());
        message
    }

    /// Expects a failure that leaves the path empty; returns its text.
    fn fails(&self, retryable: bool, why: &str) -> String {
        let (result, lines) = self.run();
        let error = result.expect_err(why);
        let message = with_sources(&error);
        assert!(message.contains(why), "{message}\nexpected: {why}\n{lines}");
        assert_eq!(error.is_retryable(), retryable, "{message}");
        assert!(!self.path().exists());
        message + &lines
    }
}

fn request(params: &[(&str, String)]) -> Request {
    Request {
        key: AttemptKey { item: ItemName::new("it").expect("a label"), generation: Generation(1), attempt: 1 },
        hash: ItemHash([0; 32]),
        machine: MachineName::new("worker-1").expect("a label"),
        machine_id: MachineId(uuid::Uuid::nil()),
        cluster: ClusterName::new("edge").expect("a label"),
        runner: "downloader".to_owned(),
        version: "1".to_owned(),
        phase: Phase::Prepare,
        params: params.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        secret_params: std::collections::BTreeMap::new(),
        timeout_ms: 60_000,
    }
}

/// A server that answers its n-th request, from 0, by `answer(n, …)`.
fn counting(answer: impl Fn(usize, &Asked, &mut TcpStream) + Send + Sync + 'static) -> Web {
    let count = AtomicUsize::new(0);
    Web::new(move |asked, stream| answer(count.fetch_add(1, Ordering::SeqCst), asked, stream))
}

#[test]
fn a_file_is_fetched_once() {
    let web = Web::file(body());
    let site = Site::wanting(&body(), &web.url("/file")).with("mode", "750");
    assert!(site.succeeds(&body()).starts_with("downloaded 1200000 bytes in "));
    assert_eq!(fs::metadata(site.path()).expect("the file").permissions().mode() & 0o7777, 0o750);
    assert_eq!(site.succeeds(&body()), "already there");
    assert_eq!(web.asked().len(), 1);
    fs::write(site.path(), "something else").expect("damage");
    site.succeeds(&body());
    assert_eq!(web.asked().len(), 2);
}

#[test]
fn a_wrong_digest_says_both_and_leaves_nothing() {
    let web = Web::file(b"another file".to_vec());
    let site = Site::wanting(&body(), &web.url("/file"));
    let message = site.fails(true, &format!("sha256 is {}, expected {}", digest(b"another file"), digest(&body())));
    assert!(!message.contains("HTML"), "{message}");
    assert!(!site.part().exists());
    assert_eq!(web.asked().len(), 1, "once in each attempt");
}

#[test]
fn what_was_there_stays_until_the_new_file_is_whole() {
    let web = Web::file(b"another file".to_vec());
    let site = Site::wanting(&body(), &web.url("/file")).keep_part(b"");
    fs::write(site.path(), "the old version").expect("a file");
    site.run().0.expect_err("wrong digest");
    assert_eq!(fs::read_to_string(site.path()).expect("the file"), "the old version");
}

#[test]
fn an_html_page_is_named() {
    let web = Web::file(b"\n<!DOCTYPE HTML><title>Please log in</title>".to_vec());
    Site::wanting(&body(), &web.url("/file")).fails(true, "it is an HTML page");
}

#[test]
fn a_cut_download_goes_on_where_it_stopped() {
    let web = counting(|n, asked, stream| match n {
        0 => send_cut(stream, &body(), 500_000),
        _ => send_file(stream, asked, &body()),
    });
    Site::wanting(&body(), &web.url("/file")).succeeds(&body());
    let ranges: Vec<_> = web.asked().iter().map(Asked::from).collect();
    assert_eq!(ranges, [None, Some(500_000)]);
}

#[test]
fn a_part_from_before_is_used() {
    let web = Web::file(body());
    let site = Site::wanting(&body(), &web.url("/file")).keep_part(&body()[..700_000]);
    assert!(site.succeeds(&body()).ends_with(", 700000 of them kept from before"));
    assert_eq!(web.asked().iter().map(Asked::from).collect::<Vec<_>>(), [Some(700_000)]);
}

#[test]
fn a_part_that_is_whole_needs_no_network() {
    let web = Web::file(body());
    Site::wanting(&body(), &web.url("/file")).keep_part(&body()).succeeds(&body());
    assert_eq!(web.asked().len(), 0);
}

#[test]
fn what_others_can_change_is_neither_taken_nor_followed() {
    let web = Web::file(body());
    let victim = tempfile::NamedTempFile::new().expect("a file");
    fs::write(victim.path(), "untouched").expect("written");
    fs::set_permissions(victim.path(), Permissions::from_mode(0o600)).expect("private");
    let half = &body()[..500_000];
    for sort in ["writable by others", "linked", "a link", "owned by another"] {
        let site = Site::wanting(&body(), &web.url("/file")).keep_part(half);
        let part = site.part();
        match sort {
            "linked" => fs::hard_link(&part, site.dir.path().join("other")).expect("linked"),
            "a link" => {
                fs::remove_file(&part).expect("removed");
                std::os::unix::fs::symlink(victim.path(), &part).expect("a link");
            }
            "owned by another" if nix::unistd::geteuid().is_root() => {
                std::os::unix::fs::chown(&part, Some(4_000_000), None).expect("given away");
            }
            _ => fs::set_permissions(&part, Permissions::from_mode(0o666)).expect("opened up"),
        }
        let message = site.succeeds(&body());
        assert!(!message.contains("kept from before"), "{sort}: {message}");
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(site.path(), Some(4_000_000), None).expect("given away");
            assert!(site.succeeds(&body()).starts_with("downloaded"), "the right file, but another's");
        }
    }
    assert_eq!(fs::read_to_string(victim.path()).expect("there"), "untouched");
    assert_eq!(fs::metadata(victim.path()).expect("there").permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_part_of_something_else_is_thrown_away() {
    for part in [&b"damaged"[..], &[0; 1_200_000], &[0; 1_300_000]] {
        let web = Web::file(body());
        Site::wanting(&body(), &web.url("/file")).keep_part(part).succeeds(&body());
        let ranges: Vec<_> = web.asked().iter().map(Asked::from).collect();
        assert_eq!(ranges, [Some(part.len()), None]);
    }
}

#[test]
fn a_server_without_ranges_starts_over() {
    let web = counting(|n, _, stream| match n {
        0 => send_cut(stream, &body(), 500_000),
        _ => send_cut(stream, &body(), body().len()),
    });
    Site::wanting(&body(), &web.url("/file")).succeeds(&body());
    assert_eq!(web.asked().len(), 2);
}

#[test]
fn games_with_206_end_in_one_new_start() {
    let partial = |headers: &'static str| {
        move |n: usize, asked: &Asked, stream: &mut TcpStream| match (n, asked.from()) {
            (0, _) => send_cut(stream, &body(), 500_000),
            (_, Some(_)) => send(stream, "206 Partial Content", headers, &body()[500_000..]),
            (_, None) => send_cut(stream, &body(), body().len()),
        }
    };
    for headers in [
        "",
        "Content-Range: bytes 0-1199999/1200000\r\n",
        "Content-Range: bytes 400000-1199999/1200000\r\n",
        "Content-Range: bytes 500001-1199999/1200000\r\n",
        "Content-Range: bytes 500000-1200000/1200000\r\n",
        "Content-Range: bytes */1200000\r\n",
        "Content-Range: nonsense\r\n",
        "Content-Type: multipart/byteranges; boundary=x\r\n",
    ] {
        let web = counting(partial(headers));
        Site::wanting(&body(), &web.url("/file")).succeeds(&body());
        assert_eq!(web.asked().iter().map(Asked::from).collect::<Vec<_>>(), [None, Some(500_000), None], "{headers}");
    }
    // A server that keeps sending the wrong range is abandoned.
    let web = counting(|_, _, stream| send(stream, "206 Partial Content", "", &body()));
    let site = Site::wanting(&body(), &web.url("/file")).keep_part(&body()[..10]);
    site.fails(true, "a range other than the one asked for");
    assert_eq!(web.asked().len(), 2);
    assert!(!site.part().exists());
}

#[test]
fn a_range_that_is_short_is_followed_by_another() {
    let web = Web::new(|asked, stream| match asked.from() {
        None => send_cut(stream, &body(), 400_000),
        Some(from) => {
            let to = (from + 400_000).min(body().len());
            let headers = format!("Content-Range: bytes {from}-{}/{}\r\n", to - 1, body().len());
            send(stream, "206 Partial Content", &headers, &body()[from..to]);
        }
    });
    Site::wanting(&body(), &web.url("/file")).succeeds(&body());
    let ranges: Vec<_> = web.asked().iter().map(Asked::from).collect();
    assert_eq!(ranges, [None, Some(400_000), Some(800_000)]);
}

#[test]
fn a_wrong_length_is_a_cut() {
    let web = counting(|_, _, stream| send(stream, "200 OK", "Content-Length: 1200001\r\n", &body()));
    let site = Site::wanting(&body(), &web.url("/file"));
    site.fails(true, "cut off after 1200000 bytes");
    assert_eq!(web.asked().len(), 3, "tried on each pass");
    // A length that is too short yields another file.
    let web = counting(|_, _, stream| send(stream, "200 OK", "Content-Length: 1199999\r\n", &body()));
    Site::wanting(&body(), &web.url("/file")).fails(true, "sha256 is");
}

#[test]
fn an_endless_file_ends_at_the_limit() {
    let web = counting(|_, _, stream| {
        send(stream, "200 OK", "", b"");
        while stream.write_all(&[0; 65536]).is_ok() {}
    });
    let site = Site::wanting(&body(), &web.url("/file")).with("max_bytes", "2000000");
    site.fails(false, "longer than the 2000000 bytes allowed");
    assert!(!site.part().exists());
    // A file that is announced as too long is refused before its start.
    let web = counting(|_, _, stream| send(stream, "200 OK", "Content-Length: 2000001\r\n", b""));
    Site::wanting(&body(), &web.url("/file")).with("max_bytes", "2000000").fails(false, "longer than the 2000000");
}

/// Another writer, or a chunk that a full disk stored in part: the digest misses those bytes.
#[test]
fn what_is_not_what_was_hashed_is_never_put_in_place() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, beside) = (dir.path().join("file"), dir.path().join("file.muster-part"));
    let mut part = Part::open(beside.clone()).expect("a part");
    part.append(b"wanted").expect("append");
    let mut other = fs::OpenOptions::new().append(true).open(&beside).expect("the same file");
    other.write_all(b" and more").expect("written");
    let error = part.persist(&path, 0o644).expect_err("refused").to_string();
    assert!(error.starts_with("6 bytes were received, and 15 are in "), "{error}");
    assert!(!path.exists() && !beside.exists(), "neither is kept");
}

#[test]
fn what_cannot_be_put_in_place_is_not_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, beside) = (dir.path().join("file"), dir.path().join("file.muster-part"));
    fs::create_dir(&path).expect("a directory in its place");
    let mut part = Part::open(beside.clone()).expect("a part");
    part.append(b"wanted").expect("append");
    part.persist(&path, 0o644).expect_err("no file replaces a directory");
    assert!(path.is_dir() && !beside.exists());
}

/// The announced length exceeds the disk's free space.
#[test]
fn what_does_not_fit_the_disk_is_not_begun() {
    let huge = (1_u64 << 50).to_string();
    let length = format!("Content-Length: {huge}\r\n");
    let web = counting(move |_, _, stream| send(stream, "200 OK", &length, b"bytes"));
    let site = Site::wanting(b"bytes", &web.url("/file")).with("max_bytes", &huge);
    site.fails(true, &format!("{huge} bytes are to come, and there is room for"));
    assert_eq!(web.asked().len(), 1, "once is enough");
    assert!(!site.part().exists());
}

#[test]
fn a_slow_server_is_left_and_its_part_kept() {
    // Stays silent; sends a head only; sends a byte now and then.
    let mute = |stream: &mut TcpStream| while stream.read(&mut [0; 64]).is_ok_and(|count| count > 0) {};
    for stage in 0..3 {
        let web = counting(move |_, _, stream| {
            if stage > 0 {
                send_cut(stream, &body(), 100_000);
            }
            while stage == 2 && stream.write_all(&[0]).is_ok() {
                let (sender, never) = std::sync::mpsc::channel::<()>();
                let _ = never.recv_timeout(Duration::from_millis(20));
                drop(sender);
            }
            mute(stream);
        });
        let site = Site { policy: STRICT, ..Site::wanting(&body(), &web.url("/file")) };
        site.fails(true, "less than 16 KiB came in 1s");
        assert_eq!(fs::metadata(site.part()).is_ok_and(|part| part.len() >= 100_000), stage > 0);
    }
}

/// A server behind a restarting proxy: it omits the length, and the connection closes in the middle.
#[test]
fn short_answer_without_length_is_retried_by_next_attempt() {
    let web = counting(|n, _, stream| send(stream, "200 OK", "", if n == 0 { &[1; 1000] } else { b"whole" }));
    let site = Site::wanting(b"whole", &web.url("/file"));
    site.fails(true, "sha256 is");
    assert!(!site.part().exists());
    site.succeeds(b"whole");
}

#[test]
fn unasked_range_is_never_whole() {
    let partial = "Content-Range: bytes 0-1199999/1200000\r\n";
    let web = counting(move |n, asked, stream| match n {
        0 => send(stream, "206 Partial Content", partial, &body()),
        _ => send_file(stream, asked, &body()),
    });
    let site = Site::wanting(&body(), &web.url("/file"));
    site.fails(true, "a range other than the one asked for");
    site.succeeds(&body());
}

#[test]
fn retry_after_delays_next_request() {
    for (status, headers, waits) in [
        ("503 Service Unavailable", "Retry-After: 1\r\n", true),
        ("429 Too Many Requests", "Retry-After: 3600\r\n", true),
        ("503 Service Unavailable", "Retry-After: Tue, 14 Nov 2023 22:13:20 GMT\r\n", false),
        ("503 Service Unavailable", "Retry-After: soon\r\n", false),
        ("500 Internal Server Error", "Retry-After: 1\r\n", false),
    ] {
        let times = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = std::sync::Arc::clone(&times);
        let web = counting(move |n, asked, stream| {
            seen.lock().expect("not poisoned").push(Instant::now());
            match n {
                0 => send(stream, status, &format!("{headers}Content-Length: 0\r\n"), b""),
                _ => send_file(stream, asked, &body()),
            }
        });
        Site::wanting(&body(), &web.url("/file")).succeeds(&body());
        let times = times.lock().expect("not poisoned");
        let waited = times[1] - times[0];
        assert_eq!(waited >= Duration::from_millis(900), waits, "{status}, {headers}: {waited:?}");
    }
}

#[test]
fn busy_mirror_does_not_delay_others() {
    let busy = counting(|_, _, stream| {
        send(stream, "503 Service Unavailable", "Retry-After: 3600\r\nContent-Length: 0\r\n", b"");
    });
    let flaky = counting(|n, asked, stream| match n {
        0 | 1 => send(stream, "502 Bad Gateway", "Content-Length: 0\r\n", b""),
        _ => send_file(stream, asked, &body()),
    });
    let urls = format!("{} {}", busy.url("/a"), flaky.url("/b"));
    let policy = RetryPolicy { asked: Duration::from_secs(3600), ..HASTY };
    let site = Site { policy, ..Site::wanting(&body(), &urls) };
    site.succeeds(&body());
    assert_eq!((busy.asked().len(), flaky.asked().len()), (1, 3));
}

#[test]
fn proxy_brings_what_is_out_of_reach() {
    let proxy = Web::file(body());
    let direct = Web::file(body());
    let through = format!("http://robot:hunter2@{}", proxy.authority());
    let proxies = Proxies::of(&through, "127.0.0.1").expect("a proxy");
    let far = Site { proxies: proxies.clone(), ..Site::wanting(&body(), "http://mirror.corp.invalid/file") };
    let (result, lines) = far.run();
    result.expect("fetched");
    assert!(proxy.asked()[0].header("proxy-authorization").is_some_and(|value| value.starts_with("Basic ")));
    assert!(lines.contains(&format!("proxy: http://{}, but not for 127.0.0.1\n", proxy.authority())), "{lines}");
    assert!(!lines.contains("hunter") && !lines.contains("robot"), "{lines}");
    let near = Site { proxies: proxies.clone(), ..Site::wanting(&body(), &direct.url("/file")) };
    near.succeeds(&body());
    // The item's own setting takes precedence.
    let own = Site::wanting(&body(), "http://mirror.corp.invalid/file").with("proxy", &through);
    Site { proxies: Proxies::of("http://127.0.0.1:1", "").expect("a proxy"), ..own }.succeeds(&body());
    let none = Site::wanting(&body(), &direct.url("/file")).with("proxy", "none");
    Site { proxies: Proxies::of("http://127.0.0.1:1", "").expect("a proxy"), ..none }.succeeds(&body());
    assert_eq!((proxy.asked().len(), direct.asked().len()), (2, 2));
}

#[test]
fn dead_proxy_keeps_its_password() {
    for url in ["http://mirror.corp.invalid/file", "https://mirror.corp.invalid/file"] {
        let proxies = Proxies::of("http://robot:hunter2@127.0.0.1:1", "").expect("a proxy");
        let site = Site { proxies, ..Site::wanting(&body(), url) };
        let message = site.fails(true, "Connection refused");
        assert!(message.contains("proxy: http://127.0.0.1:1"), "{message}");
        assert!(!message.contains("hunter") && !message.contains("robot"), "{message}");
    }
    let refusing = counting(|_, _, stream| {
        send(stream, "407 Proxy Authentication Required", "Content-Length: 0\r\n", b"");
    });
    let proxies = Proxies::of(&format!("http://robot:hunter2@{}", refusing.authority()), "").expect("a proxy");
    for (url, expected) in [("http://a.invalid/f", "407"), ("https://a.invalid/f", "proxy authorization required")] {
        let site = Site { proxies: proxies.clone(), ..Site::wanting(&body(), url) };
        let message = site.fails(true, expected);
        assert!(!message.contains("hunter") && !message.contains("robot"), "{message}");
    }
}

#[test]
fn mirrors_are_taken_in_turn() {
    let broken = counting(|_, _, stream| send(stream, "404 Not Found", "Content-Length: 0\r\n", b""));
    let flaky = counting(|n, asked, stream| match n {
        0 => send(stream, "503 Service Unavailable", "Content-Length: 0\r\n", b""),
        _ => send_file(stream, asked, &body()),
    });
    // The first port is closed.
    let urls = format!("http://127.0.0.1:1/file\n {} {}", broken.url("/file"), flaky.url("/file"));
    Site::wanting(&body(), &urls).succeeds(&body());
    assert_eq!((broken.asked().len(), flaky.asked().len()), (1, 2));
}

#[test]
fn a_mirror_goes_on_where_another_stopped() {
    let cuts = counting(|_, _, stream| send_cut(stream, &body(), 900_000));
    let whole = Web::file(body());
    Site::wanting(&body(), &format!("{} {}", cuts.url("/a"), whole.url("/b"))).succeeds(&body());
    assert_eq!(whole.asked().iter().map(Asked::from).collect::<Vec<_>>(), [Some(900_000)]);
}

#[test]
fn what_every_mirror_said_is_told() {
    let forbidden = counting(|_, _, stream| send(stream, "403 Forbidden", "Content-Length: 0\r\n", b""));
    let wrong = Web::file(b"another file".to_vec());
    let site = Site::wanting(&body(), &format!("{} {}", forbidden.url("/a"), wrong.url("/b")));
    let message =
        site.fails(true, &format!("no mirror delivered: {}: the server answered 403 Forbidden", forbidden.url("/a")));
    assert!(message.contains(&format!("{}: sha256 is ", wrong.url("/b"))), "{message}");
    assert_eq!((forbidden.asked().len(), wrong.asked().len()), (1, 1), "neither would answer otherwise");
}

#[test]
fn redirects_are_followed_five_times() {
    for (redirects, good) in [(5, true), (6, false)] {
        let web = counting(move |n, asked, stream| match n {
            n if n % 7 < redirects => {
                send(stream, "302 Found", &format!("Location: /{n}\r\nContent-Length: 0\r\n"), b"")
            }
            _ => send_file(stream, asked, &body()),
        });
        let site = Site::wanting(&body(), &web.url("/file"));
        if good {
            site.succeeds(&body());
        } else {
            site.fails(true, "too many redirects");
            assert_eq!(web.asked().len(), 6);
        }
    }
}

#[test]
fn credentials_stay_with_their_host_and_out_of_messages() {
    let other = Web::file(b"another file".to_vec());
    let target = other.url("/else");
    let web = counting(move |_, _, stream| {
        send(stream, "302 Found", &format!("Location: {target}\r\nContent-Length: 0\r\n"), b"");
    });
    let url = format!("http://robot:hunter2@{}/file?signature=hunter3", web.authority());
    let message = Site::wanting(&body(), &url).fails(true, "sha256 is");
    assert!(web.asked()[0].header("authorization").is_some_and(|value| value.starts_with("Basic ")));
    assert_eq!(other.asked()[0].header("authorization"), None);
    assert_eq!(other.asked()[0].header("referer"), None);
    assert!(message.contains(&format!("GET {} from byte 0", web.url("/file"))), "{message}");
    assert!(!message.contains("hunter") && !message.contains("robot"), "{message}");
}

#[test]
fn a_server_without_tls_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("https://{}/file", listener.local_addr().expect("bound"));
    let server = std::thread::spawn(move || {
        for _ in 0..HASTY.passes {
            let (mut stream, _) = listener.accept().expect("asked");
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    Site::wanting(&body(), &url).fails(true, "speaks no TLS: is it http://?");
    server.join().expect("it ends");
}

#[test]
fn a_refused_connection_does_not_tell_secrets() {
    let message =
        Site::wanting(&body(), "http://robot:hunter2@127.0.0.1:1/file?t=hunter3").fails(true, "request failed");
    assert!(message.contains("Connection refused") && !message.contains("hunter"), "{message}");
}

/// An archive with the file `app` of this content and of user `uid`.
fn archive(content: &[u8], uid: u64) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_uid(uid);
    header.set_size(content.len() as u64);
    builder.append_data(&mut header, "app", content).expect("appended");
    builder.into_inner().expect("an archive")
}

#[test]
fn owners_of_archive_are_said_or_kept() {
    let bytes = archive(b"app", 7);
    let web = Web::file(bytes.clone());
    let of = |site: Site| {
        let target = site.dir.path().join("app");
        let site = site.with("extract", &target.display().to_string());
        (site.succeeds(&bytes), fs::metadata(target.join("app")).expect("there").uid())
    };
    let wanting = || Site::wanting(&bytes, &web.url("/app.tar"));
    let (said, uid) = of(wanting());
    let own = nix::unistd::geteuid();
    let disowned = ", unpacked; entries that have other owners in the archive (param `owners`): 1";
    assert!(said.ends_with(disowned) && uid == own.as_raw(), "{said}");
    // Only root can change a file's owner.
    if own.is_root() {
        let (said, uid) = of(wanting().with("owners", "archive"));
        assert!(said.ends_with(", unpacked") && uid == 7, "{said}");
    }
}

#[test]
fn only_prepare_is_beside_workloads() {
    let site = Site::wanting(b"", "http://a/x");
    for (phase, surroundings) in [
        (Phase::Prepare, Surroundings::Workloads),
        (Phase::Deploy, Surroundings::Cleared),
        (Phase::Reconfigure, Surroundings::Cleared),
    ] {
        let wanted = Wanted::of(&Request { phase, ..request(&site.params) }, Proxies::default()).expect("good params");
        assert_eq!(wanted.surroundings, surroundings, "{phase}");
    }
}

#[test]
fn foreign_content_is_refused_before_transfer() {
    let (one, two) = (archive(b"one", 0), archive(b"two", 0));
    let (web, next) = (Web::file(one.clone()), Web::file(two.clone()));
    let site = Site::wanting(&one, &web.url("/app.tar"));
    let target = site.dir.path().join("app");
    let site = site.with("extract", &target.display().to_string());
    assert!(site.succeeds(&one).ends_with(", unpacked"));
    fs::write(target.join("db"), "precious").expect("written");
    let params = site.params.iter().map(|(name, value)| match *name {
        "url" => ("url", next.url("/app.tar")),
        "sha256" => ("sha256", digest(&two)),
        name => (name, value.clone()),
    });
    let params = params.collect();
    let site = Site { params, ..site };
    let (result, lines) = site.run();
    let error = with_sources(&result.expect_err("refused"));
    assert!(error.contains("changed since: db;"), "{error}\n{lines}");
    assert_eq!(next.asked().len(), 0);
    assert_eq!(fs::read_to_string(target.join("db")).expect("there"), "precious");
    assert!(fs::read(site.path()).expect("the former archive") == one);
}

#[test]
fn bad_params_are_refused() {
    let digest = "0".repeat(64);
    let good = [("url", "http://a/x".to_owned()), ("sha256", digest.clone()), ("path", "/srv/x".to_owned())];
    let check = |name: &'static str, value: Option<&str>, expected: &str| {
        let mut params: Vec<_> = good.iter().filter(|(given, _)| *given != name).cloned().collect();
        params.extend(value.map(|value| (name, value.to_owned())));
        let refused = Wanted::of(&request(&params), Proxies::default()).expect_err(expected);
        assert_eq!(refused.to_string(), expected, "{name}: {value:?}");
        assert!(!refused.is_retryable());
    };
    Wanted::of(&request(&good), Proxies::default()).expect("good params");
    for name in ["url", "sha256", "path"] {
        check(name, None, &format!("param `{name}` is missing"));
    }
    check("url", Some(" "), "param `url`: is empty");
    check("url", Some("ftp://a/x"), "param `url`: is not http or https");
    check("url", Some("http://a/x file:///etc/passwd"), "param `url`: is not http or https");
    check("url", Some("a/x"), "param `url`: relative URL without a base");
    check("url", Some(&"http://a/x ".repeat(17)), "param `url`: has 17 mirrors, at most 16");
    check("sha256", Some(&digest[1..]), "param `sha256`: is not 64 hex digits");
    check("sha256", Some(&"g".repeat(64)), "param `sha256`: is not 64 hex digits");
    for path in ["x", "", "/", "/srv/../etc/x", "/.."] {
        check("path", Some(path), "param `path`: is not an absolute path without `..`");
        check("extract", Some(path), "param `extract`: is not an absolute path without `..`");
    }
    for mode in ["8", "u+x", "4755", "-1", ""] {
        check("mode", Some(mode), "param `mode`: is not an octal number up to 777");
    }
    let no_proxy = "it is neither http://[USER:PASSWORD@]HOST[:PORT], nor https://…, nor `none`";
    check("proxy", Some("ftp://u:p@proxy"), &format!("param `proxy`: {no_proxy}"));
    check("max_bytes", Some("1 GiB"), "param `max_bytes`: is not a number of bytes");
    check("extract", Some("/opt/x"), "param `format`: expected one of: tar, tar.gz, tar.zst");
}

#[test]
fn the_format_is_named_or_read_from_a_name() {
    for (name, expected) in [
        ("a.tar", Some(Format::Tar)),
        ("a.tar.gz", Some(Format::TarGz)),
        ("a.tgz", Some(Format::TarGz)),
        ("a.tar.zst", Some(Format::TarZst)),
        ("a.zip", None),
        ("tar", None),
        ("atar", None),
    ] {
        assert_eq!(Format::of_name(name), expected, "{name}");
    }
    let urls = urls("http://a/x.tgz?token=y").expect("a url");
    assert_eq!(format(None, Path::new("/srv/x"), &urls).ok(), Some(Format::TarGz));
    assert_eq!(format(None, Path::new("/srv/x.tar"), &urls).ok(), Some(Format::Tar));
    assert_eq!(format(Some("tar.zst"), Path::new("/srv/x.tar"), &urls).ok(), Some(Format::TarZst));
    assert!(format(Some("zip"), Path::new("/srv/x.tar"), &urls).is_err());
}
