//! The suite of `make test-kubernetes` over the stand-in. It runs in a process of its own, without nodes and kubelets,
//! and is reached by an administrator's kubeconfig alone, as a real control plane is.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use muster_tests::{
    fleet::{TIME_LIMIT, wait_for},
    kubernetes::{ClusterUnderTest, Refusal, SCENARIOS, clean_up},
};
use tempfile::TempDir;

const KUBECONFIG: &str = "kubeconfig";

/// A stand-in in a process of its own. Drop ends it.
struct Served {
    child: Child,
    directory: TempDir,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

impl Served {
    fn start() -> Result<Self> {
        let test = env::current_exe()?;
        let build = test.parent().and_then(Path::parent).context("a test lies in a build directory")?;
        let program = build.join("examples/serve");
        ensure!(program.is_file(), "there is no {}: test the whole workspace, as `make test` does", program.display());
        let directory = tempfile::tempdir()?;
        let kubeconfig = directory.path().join(KUBECONFIG);
        let child = Command::new(program).arg(&kubeconfig).arg("--bare").stdin(Stdio::piped()).spawn()?;
        let mut served = Self { child, directory };
        wait_for("the stand-in's kubeconfig", TIME_LIMIT, || {
            if let Some(status) = served.child.try_wait()? {
                bail!("the stand-in ended: {status}");
            }
            Ok(kubeconfig.exists().then_some(()))
        })?;
        Ok(served)
    }

    /// The administrator's kubeconfig, and the directory with the journals of runs.
    fn paths(&self) -> (PathBuf, PathBuf) {
        (self.directory.path().join(KUBECONFIG), self.directory.path().join("records"))
    }
}

fn run(name: &str) -> Result<()> {
    let served = Served::start()?;
    let scenario = SCENARIOS.iter().find(|scenario| scenario.name == name).context("the scenario")?;
    let (kubeconfig, records) = served.paths();
    let cluster = ClusterUnderTest::start(&kubeconfig, &records)?;
    scenario.run(&cluster)?;
    cluster.end()?;
    ensure!(records.read_dir()?.next().is_none(), "nothing is left, so nothing is recorded");
    Ok(())
}

/// A clean-up would take away what a run works with: it is refused for as long as the run lives.
#[test]
fn clean_up_beside_run_is_refused() -> Result<()> {
    let served = Served::start()?;
    let (kubeconfig, records) = served.paths();
    let cluster = ClusterUnderTest::start(&kubeconfig, &records)?;
    let refused = clean_up(&kubeconfig, &records).err().context("it cleaned up a run that lives")?;
    let words = format!("{refused:#}");
    ensure!(refused.is::<Refusal>() && words.contains(cluster.run()) && words.contains("still runs"), "{words}");
    cluster.end()?;
    ensure!(clean_up(&kubeconfig, &records)?.is_empty(), "the run removed everything itself");
    Ok(())
}

/// No scenario is left out here.
#[test]
fn every_scenario_has_its_test() {
    let source = include_str!("cluster.rs");
    for scenario in SCENARIOS {
        assert!(source.contains(&format!("run(\"{}\")", scenario.name)), "{}", scenario.name);
    }
}

#[test]
fn check_over_stand_in_process() -> Result<()> {
    run("check_misses_no_right")
}

#[test]
fn update_over_stand_in_process() -> Result<()> {
    run("update_honours_budgets")
}

#[test]
fn cordon_over_stand_in_process() -> Result<()> {
    run("operators_cordon_stays")
}

#[test]
fn undrainable_over_stand_in_process() -> Result<()> {
    run("undrainable_machine_is_deferred")
}

#[test]
fn kills_over_stand_in_process() -> Result<()> {
    run("kills_leave_no_node_cordoned")
}

#[test]
fn aborts_over_stand_in_process() -> Result<()> {
    run("aborts_give_back")
}

#[test]
fn handshake_over_stand_in_process() -> Result<()> {
    run("controller_releases_machines")
}

#[test]
fn renewal_over_stand_in_process() -> Result<()> {
    run("daemon_pods_are_renewed")
}
