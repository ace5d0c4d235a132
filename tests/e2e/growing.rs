//! The control plane grows: machines that were Ready before are reconfigured as in an update, with real processes.

use muster_proto::model::Reason;
use std::{fs, process::Child};

use anyhow::{Context as _, Result, ensure};
use muster_tests::fleet::{
    Fleet, TIME_LIMIT,
    manifest::{bash, cluster},
    wait_for,
};

const OLD: [&str; 4] = ["control-1", "control-2", "control-3", "worker-1"];

/// The cluster; its machines have an item that uses the list of control machines.
fn manifest(fleet: &Fleet) -> Result<String> {
    let effects = fleet.effects_log();
    let configure = bash("configure", "deploy", &effects, "echo", &[]);
    let params = format!("effects: {effects}\n");
    let members = bash("members", "reconfigure", &effects, "echo \"$MUSTER_PARAM_CONTROLS\"", &[]);
    let knowing =
        members.replace(&params, &format!("{params}          controls: \"${{cluster.controlPlaneNodes}}\"\n"));
    ensure!(knowing != members, "the item's params stand elsewhere now:\n{members}");
    let items = [configure, knowing];
    Ok(cluster(3, 1, &items, &items, &[]))
}

/// A toy controller of the machines that existed before; it never releases the refused one.
fn controller(fleet: &Fleet, refuses: Option<&str>) -> Result<Child> {
    let (machines, log) = (OLD.join(","), fleet.path("toy.log"));
    let words = ["demo", "toy-controller", "--config", "controller.toml", "--cluster", "e2e", "--machines", &machines];
    let refuse = refuses.map_or(Vec::new(), |machine| vec!["--refuse", machine]);
    let child = fleet.start_ctl(&[&words[..], &["--effects", &log], &refuse].concat(), "toy")?;
    wait_for("the controller's locks", TIME_LIMIT, || {
        let locks = fleet.ctl(&["get", "locks"])?.ok()?;
        Ok(OLD.iter().all(|machine| locks.contains(&format!("toy-{machine} "))).then_some(()))
    })?;
    Ok(child)
}

/// Time of the controller's last such action for a machine, Unix milliseconds.
fn said(fleet: &Fleet, machine: &str, word: &str) -> Result<u64> {
    let log = fs::read_to_string(fleet.path("toy.log"))?;
    let of_it = |line: &&str| line.ends_with(&format!(" {machine} {word}"));
    let line = log.lines().rfind(of_it).with_context(|| format!("nobody said {word} of {machine}:\n{log}"))?;
    Ok(line.split(' ').next().context("a time")?.parse()?)
}

#[test]
fn machines_are_reconfigured_when_their_workloads_are_away() -> Result<()> {
    let mut fleet = Fleet::start("growing", &[])?;
    fleet.apply(&manifest(&fleet)?)?;
    fleet.add_machines(3, 1)?;
    fleet.wait_ready(4)?;
    let credentials = ["credentials", "--role", "controller", "--name", "toy", "--out", "controller.toml"];
    let place = ["--state-dir", "coordinator", "--key-file", "coordinator.key"];
    fleet.coordinator_command(&[&credentials[..], &place].concat())?.exits(0)?;
    let mut refusing = controller(&fleet, Some("worker-1"))?;
    let deployed = fleet.effects()?.len();

    let token = fleet.token("control", &["--uses", "1"])?;
    fleet.enroll("control-4", &token, &[])?.ok()?;
    fleet.start_agent("control-4")?;
    // Before the first turn all machines wait for the lock of the whole cluster, with the same reason.
    wait_for("the turns of the control machines", TIME_LIMIT, || Ok(said(&fleet, "control-3", "lock-active").ok()))?;
    let kept = |reason: Reason| reason == Reason::LocksActive;
    fleet.wait_machine("worker-1", "its controller does not let it go", |machine| {
        machine.status.blocked.as_ref().is_some_and(|since| kept(since.blocked.reason))
    })?;
    let ran = |machine: &str| -> Result<Vec<u64>> {
        let effects = fleet.effects()?;
        let of_it =
            effects.iter().skip(deployed).filter(|effect| effect.machine == machine && effect.item == "members");
        Ok(of_it.map(|effect| effect.at_ms).collect())
    };
    assert_eq!(ran("worker-1")?, [0; 0], "its workloads are there");
    fleet.ctl(&["plan", "e2e"])?.exits(0)?.says(&["(reconfigure)", "waiting", "LocksActive"])?;
    fleet.ctl(&["get", "rollouts", "-o", "wide"])?.exits(0)?.says(&["e2e-reconfigure-3", "muster"])?;
    fleet.ctl(&["get", "audit"])?.exits(0)?.says(&["reconfigure", "e2e-reconfigure-3 started"])?;
    fleet.ctl(&["update", "e2e", "--yes"])?.exits(4)?.says(&["RolloutOpen", "e2e-reconfigure-3"])?;
    refusing.kill()?;
    refusing.wait()?;

    let mut willing = controller(&fleet, None)?;
    fleet.ctl(&["watch", "e2e"])?.exits(0)?.says(&["Ready"])?;
    let mut before = 0;
    for machine in OLD {
        let at = ran(machine)?;
        ensure!(at.len() == 2, "{machine}: a start and an end, once: {at:?}");
        let (let_go, gone) = (said(&fleet, machine, "lock-inactive")?, said(&fleet, machine, "request-gone")?);
        ensure!(before <= let_go, "{machine}: let go at {let_go}, and the one before had its turn until {before}");
        ensure!(at.iter().all(|at| (let_go..=gone).contains(at)), "{machine}: {let_go} {at:?} {gone}");
        before = gone;
    }
    assert_eq!(ran("control-4")?, [0; 0], "it has seen them all");
    willing.kill()?;
    willing.wait()?;
    fleet.ctl(&["get", "requests"])?.exits(0)?.says(&["No requests"])?;
    fleet.done()
}
