//! An application controller, a process of its own. It logs what it hears and does: evidence for the order of request,
//! consent, cordon and uncordon that is not Muster's own.

use std::process::Child;

use super::{evidence::unix_ms, *};

const LOG: &str = "toy.log";

/// Starts the demo's controller over all machines, and waits for its locks.
pub(super) fn start(fleet: &Fleet) -> Result<Child> {
    let place = ["--state-dir", "coordinator", "--key-file", "coordinator.key", "--out", "controller.toml"];
    let words = [&["credentials", "--role", "controller", "--name", "toy"], &place[..]].concat();
    fleet.coordinator_command(&words)?.exits(0)?;
    let (config, log, machines) = (fleet.path("controller.toml"), fleet.path(LOG), MACHINES.join(","));
    let words = ["demo", "toy-controller", "--config", &config, "--cluster", "e2e", "--machines", &machines];
    let controller = fleet.start_ctl(&[&words[..], &["--effects", &log]].concat(), "toy")?;
    wait_for("the controller's locks", TIME_LIMIT, || {
        let locks = fleet.ctl(&["get", "locks"])?.ok()?;
        Ok(MACHINES.iter().all(|machine| locks.contains(&format!("toy-{machine} "))).then_some(()))
    })?;
    Ok(controller)
}

/// When the controller logged this word for this machine, Unix milliseconds.
fn said(fleet: &Fleet, machine: &str, word: &str) -> Result<u64> {
    let log = fs::read_to_string(fleet.path(LOG))?;
    let line = log.lines().find(|line| line.ends_with(&format!(" {machine} {word}")));
    let at_ms = line.and_then(|line| line.split(' ').next()).with_context(|| format!("{machine} {word}\n{log}"))?;
    Ok(at_ms.parse()?)
}

/// Each node's cordon begins after its request was seen and its lock released, and ends before the request goes.
pub(super) fn cordons_lie_within_consent(fleet: &Fleet, kubernetes: &Kubernetes) -> Result<()> {
    let patches = changes(kubernetes).into_iter().filter(|request| request.resource == "nodes");
    let patches: Vec<LoggedRequest> = patches.collect();
    for machine in MACHINES {
        let at = |cordons: bool| {
            let of_it = |patch: &&LoggedRequest| {
                patch.name == machine && (patch.body["spec"]["unschedulable"] == true) == cordons
            };
            patches.iter().find(of_it).map(|patch| unix_ms(patch.at)).context("its patch")
        };
        let moments = [
            said(fleet, machine, "request-seen")?,
            said(fleet, machine, "lock-inactive")?,
            at(true)?,
            at(false)?,
            said(fleet, machine, "request-gone")?,
        ];
        ensure!(moments.is_sorted(), "{machine}: request, consent, cordon, uncordon, request gone at {moments:?}");
    }
    Ok(())
}
