//! `make test-kubernetes KUBECONFIG=FILE`: updates of machines under the cluster of an administrator's kubeconfig. One
//! line for each scenario; whatever ends the run, what it made in the cluster is removed.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Arc, mpsc},
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, bail};
use muster_tests::kubernetes::{ClusterUnderTest, Refusal, SCENARIOS, Scenario, clean_up};
use tokio::{
    runtime::Builder,
    signal::unix::{SignalKind, signal},
};

const USAGE: &str = "usage: make test-kubernetes KUBECONFIG=FILE [ARGS='SCENARIO...' | ARGS=--clean-up]";
/// The run was not started: the command line is wrong, or the cluster is refused.
const REFUSED: u8 = 2;
/// The run was ended by a signal.
const INTERRUPTED: u8 = 130;

/// What the threads tell the main one.
enum Event {
    /// All scenarios were run; this many failed.
    Ended(usize),
    /// Somebody wants the end of the run.
    Interrupted,
    /// A pod of somebody else is where Muster would evict it.
    Disturbed(String),
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("test-kubernetes: {error:#}");
            let refused = error.is::<Refusal>() || error.is::<Usage>();
            if refused { REFUSED.into() } else { ExitCode::FAILURE }
        }
    }
}

/// The command line is wrong.
#[derive(Debug)]
struct Usage(String);

impl std::fmt::Display for Usage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}\n{USAGE}\nscenarios:", self.0)?;
        SCENARIOS.iter().try_for_each(|scenario| write!(formatter, " {}", scenario.name))
    }
}

impl std::error::Error for Usage {}

fn run(args: &[String]) -> Result<ExitCode> {
    let [kubeconfig, records, rest @ ..] = args else { bail!(Usage("a kubeconfig is missing".to_owned())) };
    let (kubeconfig, records) = (PathBuf::from(kubeconfig), PathBuf::from(records));
    if rest.iter().any(|word| word == "--clean-up") {
        let runs = clean_up(&kubeconfig, &records)?;
        let said = if runs.is_empty() { "nothing is recorded for this cluster".to_owned() } else { runs.join(", ") };
        eprintln!("test-kubernetes: cleaned up: {said}");
        return Ok(ExitCode::SUCCESS);
    }
    let scenarios = chosen(rest)?;
    let events = signals()?;
    let cluster = Arc::new(ClusterUnderTest::start(Path::new(&kubeconfig), &records)?);
    eprintln!("test-kubernetes: run {} at {}, {}", cluster.run(), cluster.server(), cluster.version()?);
    let (sender, receiver) = events;
    let under_test = Arc::clone(&cluster);
    let began = Instant::now();
    let to_main = sender.clone();
    thread::spawn(move || to_main.send(Event::Ended(run_all(&scenarios, &under_test))));
    let watched = Arc::clone(&cluster);
    thread::spawn(move || sender.send(Event::Disturbed(watched.wait_foreign_pod())));
    let ended = receiver.recv().context("the scenarios were not run")?;
    let cleaned = cluster.end();
    match ended {
        Event::Interrupted => {
            cleaned?;
            eprintln!("test-kubernetes: interrupted; everything that the run made is removed");
            Ok(INTERRUPTED.into())
        }
        Event::Disturbed(why) => {
            cleaned?;
            bail!(why)
        }
        Event::Ended(failed) => {
            let seconds = began.elapsed().as_secs();
            let passed = chosen(rest)?.len() - failed;
            eprintln!("test-kubernetes: {passed} passed, {failed} failed, in {seconds} s");
            cleaned?;
            Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

/// The scenarios with these names; all if none is given.
fn chosen(names: &[String]) -> Result<Vec<Scenario>> {
    if names.is_empty() {
        return Ok(SCENARIOS.to_vec());
    }
    let find = |name: &String| {
        let known = SCENARIOS.iter().find(|scenario| scenario.name == name);
        known.copied().with_context(|| Usage(format!("there is no scenario {name}")))
    };
    names.iter().map(find).collect()
}

/// Run the scenarios, and return how many failed.
fn run_all(scenarios: &[Scenario], cluster: &ClusterUnderTest) -> usize {
    let mut failed = 0;
    for scenario in scenarios {
        let began = Instant::now();
        let result = scenario.run(cluster);
        let seconds = began.elapsed().as_secs();
        match result {
            Ok(()) => eprintln!("ok      {} ({seconds} s)", scenario.name),
            Err(error) => {
                eprintln!("FAILED  {} ({seconds} s): {error:#}", scenario.name);
                failed += 1;
            }
        }
    }
    failed
}

/// A channel that SIGINT and SIGTERM are told on.
fn signals() -> Result<(mpsc::Sender<Event>, mpsc::Receiver<Event>)> {
    let (sender, receiver) = mpsc::channel();
    let to = sender.clone();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (mut interrupt, mut terminate) = {
        let _guard = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        to.send(Event::Interrupted)
    });
    Ok((sender, receiver))
}
