//! The case without faults: from no machine enrolled to every machine Ready, in the right order.

use std::{fs, process::Command};

use anyhow::{Context as _, Result};
use muster_tests::fleet::{
    Fleet, TIME_LIMIT,
    effects::{Promise, examine},
    manifest::{bash, cluster, download},
    programs, wait_for,
};

/// Size of the artifact: more than one chunk of any component.
const ARTIFACT_BYTES: usize = 3 * 1024 * 1024;

/// Serves a file to the downloader. Returns its URL and SHA-256.
pub(crate) fn serve_artifact(fleet: &Fleet) -> Result<(String, String)> {
    fs::create_dir(fleet.path("artifacts"))?;
    let file = fleet.path("artifacts/artifact.bin");
    let bytes: Vec<u8> = (0..ARTIFACT_BYTES).map(|at| (at * 7 % 251).to_le_bytes()[0]).collect();
    fs::write(&file, bytes)?;
    let sum = programs::run(Command::new("sha256sum").arg(&file))?.ok()?;
    let sum = sum.split(' ').next().context("a digest")?.to_owned();
    let url_file = fleet.path("artifacts.url");
    let dir = fleet.path("artifacts");
    drop(fleet.start_ctl(&["artifacts", "serve", "--dir", &dir, "--url-file", &url_file], "artifacts")?);
    let url = wait_for("the file server's URL", TIME_LIMIT, || Ok(fs::read_to_string(&url_file).ok()))?;
    Ok((format!("{url}artifact.bin"), sum))
}

#[test]
fn three_controls_and_six_workers() -> Result<()> {
    let mut fleet = Fleet::start("happy", &[])?;
    let (url, sum) = serve_artifact(&fleet)?;
    let effects = fleet.effects_log();
    let target = fleet.path("machines/${machine.name}/artifact.bin");
    let artifact = download("artifact", &url, &sum, &target);
    let item = |name: &str| bash(name, "deploy", &effects, "echo \"$MUSTER_ITEM says hello\"\nsleep 0.2", &[]);
    let members = bash("members", "reconfigure", &effects, "sleep 0.1", &[]);
    let controls = [artifact.clone(), item("configure"), item("launch"), members];
    // Four workers wait for each other: all slots are used, even on a slow computer.
    let four = "began() { grep -c ' worker-[0-9]* configure start ' \"$MUSTER_PARAM_EFFECTS\"; }
                until [ \"$(began)\" -ge 4 ]; do sleep 0.05; done";
    let workers = [artifact, bash("configure", "deploy", &effects, four, &[]), item("launch")];
    fleet.apply(&cluster(3, 6, &controls, &workers, &["maxWorkerDeployCount: 4"]))?;
    fleet.ctl(&["plan", "e2e"])?.exits(0)?.says(&["control", "worker", "have reported"])?;

    let machines = fleet.add_machines(3, 6)?;
    let watched = fleet.ctl(&["watch", "e2e"])?.exits(0)?.says(&["all 9 machines are Ready"])?;
    assert!(!watched.out.contains('\u{1b}'), "plain where there is no terminal: {watched:?}");
    fleet.wait_ready(9)?;

    let promise = Promise {
        machines: &machines,
        control_items: &["configure", "launch"],
        worker_items: &["configure", "launch"],
        reconfigure_items: &["members"],
        workers_max: 4,
    };
    let findings = examine(&fleet.effects()?, &promise);
    assert_eq!(findings.violations, Vec::<String>::new());
    assert_eq!(findings.workers_at_once, 4, "the slots are used: {findings:?}");
    for machine in &machines {
        let bytes = fs::read(fleet.agent_dir(machine).join("artifact.bin"))?;
        assert_eq!(bytes.len(), ARTIFACT_BYTES, "{machine}");
    }
    all_is_told(&fleet)?;
    fleet.done()
}

/// Information that an operator can read afterwards.
fn all_is_told(fleet: &Fleet) -> Result<()> {
    let machines = fleet.machines()?;
    let worker = machines.get("worker-1").context("worker-1")?;
    let facts = worker.status.host_info.as_ref().context("facts")?;
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    assert_eq!(facts.kernel_version, release.trim());
    let hardware = &facts.hardware;
    assert!(hardware.memory.size_bytes > 0 && hardware.cpu.count > 0 && !facts.boot_id.is_empty(), "{facts:?}");
    let kinds: Vec<&str> = worker.status.addresses.iter().map(|address| address.kind.as_str()).collect();
    assert!(kinds.contains(&"InternalIP") && kinds.contains(&"Hostname"), "{kinds:?}");
    let standings: Vec<&str> = worker.status.items.iter().map(|item| item.standing.as_str()).collect();
    assert_eq!(standings, ["done"; 3]);
    fleet.ctl(&["get", "machines"])?.exits(0)?.says(&["NAME", "control-3", "worker-6", "Ready"])?;
    fleet.ctl(&["get", "lcmmachines", "-o", "wide"])?.exits(0)?.says(&["worker-6"])?;
    fleet.ctl(&["get", "clusters", "-o", "yaml"])?.exits(0)?.says(&["requestedNodes: 9", "readyNodes: 9"])?;
    fleet.ctl(&["logs", "worker-2", "launch"])?.exits(0)?.says(&["launch says hello"])?;
    fleet.ctl(&["describe", "machine", "control-1"])?.exits(0)?.says(&["artifact", "members", "Ready"])?;
    fleet.ctl(&["describe", "cluster", "e2e"])?.exits(0)?.says(&["Ready"])?;
    fleet.ctl(&["get", "rollouts"])?.exits(0)?.says(&["Ready"])?;
    fleet.ctl(&["get", "audit"])?.exits(0)?.says(&["operator/admin", "apply"])?;
    fleet.ctl(&["get", "tokens"])?.exits(0)?.says(&["UsedUp"])?;
    // An acknowledgement may be recorded a second late.
    wait_for("an empty outbox", TIME_LIMIT, || {
        let status: serde_json::Value = serde_json::from_str(&fleet.agent_status("worker-1")?.ok()?)?;
        Ok((status["ledger"]["outbox"] == 0).then_some(()))
    })
}
