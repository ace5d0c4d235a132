//! Throughput of the downloader against `curl | tee file | sha256sum`, on the same file over loopback, in one run:
//!
//!     make bench
//!
//! The two take turns, so that both run under the same conditions. Both leave the file in the page cache or on disk;
//! the downloader makes it durable, the pipeline does not. Fails below [`RATIO_MIN`]. `MIB` and `ROUNDS` in the
//! environment set the size of the file and the number of turns.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "a bench fails by panicking and prints its result")]

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Instant,
};

use muster_agent::attempt::{AttemptKey, Attempts, Exit, Found, Request};
use muster_proto::model::{ClusterName, Generation, ItemHash, ItemName, ItemState, MachineId, MachineName, Phase};

/// Required by the issue.
const RATIO_MIN: f64 = 0.9;

fn main() {
    let number = |name: &str, default: u32| std::env::var(name).map_or(default, |text| text.parse().unwrap_or(default));
    let (mib, rounds) = (number("MIB", 1024), number("ROUNDS", 3));
    let dir = tempfile::tempdir_in(target_dir()).expect("a directory");
    let source = dir.path().join("source");
    let sha256 = make_file(&source, mib);
    let url = serve(source);
    let attempts = Attempts::open(dir.path(), agent(), muster_agent::host::Host::Processes).expect("attempts");
    let (mut pipeline, mut downloader) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        pipeline.push(measure(|| run_pipeline(&url, &dir.path().join("piped"), &sha256)));
        downloader.push(measure(|| run_downloader(&attempts, round, &url, &dir.path().join("fetched"), &sha256)));
    }
    let (pipeline, downloader) = (median(pipeline), median(downloader));
    let rate = |seconds: f64| f64::from(mib) / seconds;
    let ratio = pipeline / downloader;
    println!("curl | tee | sha256sum: {:6.0} MiB/s", rate(pipeline));
    println!("downloader:             {:6.0} MiB/s", rate(downloader));
    println!("ratio:                  {ratio:6.2} (at least {RATIO_MIN})");
    assert!(ratio >= RATIO_MIN, "the downloader is too slow");
}

/// Build directory of this bench: `target/release/deps/download-…`.
fn target_dir() -> PathBuf {
    let own = std::env::current_exe().expect("own path");
    own.ancestors().nth(2).expect("a target directory").to_owned()
}

fn agent() -> PathBuf {
    let agent = target_dir().join("muster-agent");
    assert!(agent.exists(), "{} is missing: run `make bench`", agent.display());
    agent
}

/// Makes a file of distinct blocks, so that no layer can deduplicate or compress them.
fn make_file(path: &Path, mib: u32) -> String {
    let mut file = File::create(path).expect("a file");
    let mut block: Vec<u8> = (0..1_u32 << 20).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    for number in 0..mib {
        block[..4].copy_from_slice(&number.to_le_bytes());
        file.write_all(&block).expect("write");
    }
    let output = Command::new("sha256sum").arg(path).output().expect("sha256sum");
    String::from_utf8_lossy(&output.stdout).split(' ').next().expect("a digest").to_owned()
}

/// Serves the file to every client, from the page cache by sendfile.
fn serve(source: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/file", listener.local_addr().expect("an address"));
    thread::spawn(move || {
        for stream in listener.incoming() {
            // The client itself reports a broken connection.
            let _ = stream.and_then(|stream| answer(stream, &source));
        }
    });
    url
}

fn answer(mut stream: TcpStream, source: &Path) -> io::Result<()> {
    let head = BufReader::new(stream.try_clone()?).lines();
    head.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
    let mut file = File::open(source)?;
    let length = file.metadata()?.len();
    write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n")?;
    io::copy(&mut file, &mut stream)?;
    Ok(())
}

fn measure(run: impl FnOnce()) -> f64 {
    let began = Instant::now();
    run();
    began.elapsed().as_secs_f64()
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn run_pipeline(url: &str, path: &Path, sha256: &str) {
    let script = "curl -sf \"$1\" | tee \"$2\" | sha256sum";
    let output = Command::new("bash").args(["-c", script, "bash", url]).arg(path).output().expect("bash");
    assert!(output.stdout.starts_with(sha256.as_bytes()), "curl, tee and sha256sum are needed");
    fs::remove_file(path).expect("remove");
}

fn run_downloader(attempts: &Attempts, round: u32, url: &str, path: &Path, sha256: &str) {
    let params = [("url", url), ("sha256", sha256), ("path", &path.display().to_string())];
    let request = Request {
        key: AttemptKey { item: ItemName::new("bench").expect("a label"), generation: Generation(1), attempt: round },
        hash: ItemHash([0; 32]),
        machine: MachineName::new("bench").expect("a label"),
        machine_id: MachineId(uuid::Uuid::nil()),
        cluster: ClusterName::new("bench").expect("a label"),
        runner: "downloader".to_owned(),
        version: String::new(),
        phase: Phase::Prepare,
        params: params.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        secret_params: std::collections::BTreeMap::new(),
        timeout_ms: 600_000,
    };
    attempts.create(&request, &[]).expect("create");
    let hosted = Command::new(agent())
        .arg(muster_agent::exec_item::STAGE)
        .arg(attempts.directory(&request.key))
        .stdout(Stdio::null())
        .status();
    assert!(hosted.expect("exec-item").success());
    let found = attempts.inspect(&request.key).expect("a record");
    assert!(matches!(&found, Found::Exited(Exit { state: ItemState::Succeeded, .. })), "{found:?}");
    fs::remove_file(path).expect("remove");
}
