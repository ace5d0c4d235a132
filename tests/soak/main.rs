//! `make soak HOURS=…`: runs the simulator from a random seed for this long, on every core. A seed that breaks an
//! invariant is recorded with its trace, and the others continue.

use std::{
    env,
    fs::{self, File},
    panic,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use muster_tests::sim;

const USAGE: &str = "usage: soak DIRECTORY HOURS [START]";
/// Seeds that a thread takes at a time: a few seconds of work.
const BLOCK: u64 = 50;
/// A progress line is printed after this many seeds.
const TOLD_EVERY: u64 = 5_000;

/// State shared by all threads.
struct Soak {
    directory: PathBuf,
    start: u64,
    until: Instant,
    /// The first seed not yet taken.
    next: AtomicU64,
    failed: Mutex<Vec<(u64, String)>>,
}

fn main() -> Result<ExitCode> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["--story", seed] => {
            if let Err(violation) = sim::run(seed.parse().context("a seed")?) {
                eprintln!("seed {seed}: {violation}");
            }
            Ok(ExitCode::SUCCESS)
        }
        [directory, hours] => soak(directory, hours, random_start()),
        [directory, hours, start] => soak(directory, hours, start.parse().context("START is a number")?),
        _ => bail!("{USAGE}"),
    }
}

/// A random start: far from the first seeds, and short enough to type.
fn random_start() -> u64 {
    let (high, _) = uuid::Uuid::new_v4().as_u64_pair();
    high >> 16
}

fn soak(directory: &str, hours: &str, start: u64) -> Result<ExitCode> {
    let hours: f64 = hours.parse().with_context(|| format!("HOURS is a number, not {hours:?}"))?;
    let lasts = Duration::try_from_secs_f64(hours * 3600.0).context("HOURS")?;
    fs::create_dir_all(directory).with_context(|| format!("cannot create {directory}"))?;
    let threads = thread::available_parallelism().context("cannot count the cores")?.get();
    eprintln!("soak: from seed {start} on {threads} cores for {hours} h; stories of failing seeds go to {directory}");
    let soak = Soak {
        directory: directory.into(),
        start,
        until: Instant::now() + lasts,
        next: AtomicU64::new(start),
        failed: Mutex::default(),
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(|| soak.take_blocks())).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(ended) => ended,
            Err(_) => bail!("a thread panicked outside of a seed"),
        })
    })?;
    let (end, failed) = (soak.next.into_inner(), soak.failed.into_inner().unwrap_or_else(PoisonError::into_inner));
    eprintln!("soak: looked at seeds {start}..{end}: {} seeds, {} failed", end - start, failed.len());
    for (seed, what) in &failed {
        eprintln!("  seed {seed}: {what}");
    }
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Soak {
    /// Runs one block after another until the time is over. A block once taken is completed.
    fn take_blocks(&self) -> Result<()> {
        while Instant::now() < self.until {
            let first = self.next.fetch_add(BLOCK, Ordering::Relaxed);
            for seed in first..first + BLOCK {
                self.look_at(seed)?;
            }
            if (first - self.start).is_multiple_of(TOLD_EVERY) {
                let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).len();
                eprintln!("soak: at seed {first}, {} looked at, {failed} failed", first - self.start);
            }
        }
        Ok(())
    }

    fn look_at(&self, seed: u64) -> Result<()> {
        let what = match panic::catch_unwind(|| sim::run(seed)) {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(violation)) => violation.to_string(),
            Err(_) => "it panicked".to_owned(),
        };
        let story = self.directory.join(format!("seed-{seed}"));
        eprintln!("soak: seed {seed}: {what}\n  its story: {}", story.display());
        tell(seed, &story).with_context(|| format!("cannot write {}", story.display()))?;
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).push((seed, what));
        Ok(())
    }
}

/// Runs a seed once more, with every event traced into a file.
fn tell(seed: u64, story: &Path) -> Result<()> {
    let program = env::current_exe().context("cannot find itself")?;
    let mut again = Command::new(program);
    again.args(["--story", &seed.to_string()]).env("MUSTER_SIM_TRACE", "1");
    again.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(story)?).status()?;
    Ok(())
}
