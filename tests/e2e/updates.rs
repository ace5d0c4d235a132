//! Updates, end to end: `musterctl demo --update`, and a machine that its controller refuses.

mod examples;
mod faults;
mod place;

use std::fs;

use anyhow::{Context as _, Result, bail};
use muster_tests::fleet::{TIME_LIMIT, wait_for};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use place::{Place, deployed, second_release};

const WHOLE: [&str; 6] = ["request-seen", "workloads-moved", "lock-inactive", "items", "request-gone", "lock-active"];

#[test]
fn the_demo_updates_its_fleet() -> Result<()> {
    let place = Place::new()?;
    let shape = ["--control", "3", "--workers", "12", "--seconds-per-item", "0.1", "--artifact-mib", "1"];
    let ran = place.demo(&[&shape[..], &["--update", "--upgrade-width", "4", "--keep"]].concat())?.exits(0)?;
    ran.says(&["keep what they have until an update is started", "control machines", "4 allowed"])?;
    let stories = place.stories()?;
    assert_eq!(stories.len(), 15);
    for (machine, story) in stories {
        assert_eq!(story, WHOLE, "{machine}");
    }
    let away = place.away()?;
    let controls = away.iter().take_while(|away| away.iter().all(|name| name.starts_with("control-"))).count();
    assert_eq!(controls, 3, "control machines before all workers: {away:?}");
    assert!(away[..controls].iter().all(|away| away.len() == 1), "control machines one by one: {away:?}");
    let most = away[controls..].iter().map(Vec::len).max();
    assert!(most.is_some_and(|most| (2..=4).contains(&most)), "more than one at once, and never more than 4: {away:?}");
    place.ctl(&["get", "requests"])?.exits(0)?.says(&["No requests"])?;
    wait_for("every lock active again", TIME_LIMIT, || {
        let locks: Vec<String> = place.items("locks", "/status/state")?;
        Ok((locks.len() == 16 && locks.iter().all(|state| state == "active")).then_some(()))
    })?;
    let releases: Vec<String> = place.items("locks", "/status/release")?;
    assert!(releases.len() == 16 && releases.iter().all(|release| release == "2.0"), "{releases:?}");
    for (kind, count) in [("nodeworkloadlocks", 15), ("clusterworkloadlocks", 1)] {
        let of_this: Vec<String> = place.items(kind, "/metadata/name")?;
        assert_eq!(of_this.len(), count, "{kind}: {of_this:?}");
    }
    place.ctl(&["update", "demo", "--yes"])?.exits(4)?.says(&["NothingToDo"])?;
    place.ctl(&["update", "demo"])?.exits(4)?.says(&["NothingToDo"])?;
    Ok(())
}

/// Ctrl-C only detaches.
#[test]
fn ctrl_c_detaches_and_aborts_nothing() -> Result<()> {
    let place = deployed("2")?;
    let mut controller = place.controller("control-1,control-2,control-3,worker-1,worker-2", &[])?;
    second_release(&place, 1, ("30s", "0.1"))?;
    let said = place.dir().join("update.out");
    let mut update = place.start_ctl(&["update", "demo", "--yes"], &said)?;
    wait_for("the first request", TIME_LIMIT, || {
        Ok(place.lines()?.iter().any(|line| line == "control-1 request-seen").then_some(()))
    })?;
    kill(Pid::from_raw(i32::try_from(update.id())?), Signal::SIGINT)?;
    let status = wait_for("its end", TIME_LIMIT, || Ok(update.try_wait()?))?;
    let said = fs::read_to_string(&said)?;
    assert!(status.success() && said.contains("detached") && said.contains("musterctl watch demo"), "{status} {said}");
    place.ctl(&["watch", "demo"])?.exits(0)?;
    controller.kill()?;
    controller.wait()?;
    for (machine, story) in place.stories()? {
        assert_eq!(story, WHOLE, "{machine}");
    }
    assert!(!place.ctl(&["get", "audit"])?.ok()?.contains("abort"));
    Ok(())
}

#[test]
fn a_refused_machine_is_listed_and_completed_later() -> Result<()> {
    let place = deployed("4")?;
    let machines = "control-1,control-2,control-3,worker-1,worker-2,worker-3,worker-4";
    let mut refusing = place.controller(machines, &["--refuse", "worker-3"])?;
    second_release(&place, 2, ("3s", "0.1"))?;
    place.ctl(&["plan", "demo"])?.exits(0)?.says(&["one by one", "at most 2 at once", "move away first"])?;
    let ran = place.ctl(&["update", "demo", "--yes"])?.exits(4)?;
    ran.says(&["needs a person", "worker-3: Deferred", "toy: ToyWorkloadsStay", "musterctl retry worker-3"])?;
    let stories = place.stories()?;
    for (machine, story) in &stories {
        if machine == "worker-3" {
            assert!(story.iter().all(|word| word == "request-seen"), "{story:?}");
        } else {
            assert_eq!(*story, WHOLE, "{machine}");
        }
    }
    assert_eq!(stories.len(), 7);
    refusing.kill()?;
    refusing.wait()?;
    let mut willing = place.controller(machines, &[])?;
    place.ctl(&["retry", "worker-3"])?.exits(0)?;
    place.ctl(&["watch", "demo"])?.exits(0)?;
    willing.kill()?;
    willing.wait()?;
    let story = place.stories()?.remove("worker-3").context("its story")?;
    assert!(story.ends_with(&WHOLE.map(str::to_owned)), "{story:?}");
    Ok(())
}

/// A paused update completes what has begun and starts nothing; an aborted update returns everything; the next update
/// does the rest.
#[test]
fn an_update_is_paused_resumed_aborted_and_started_again() -> Result<()> {
    const MODE: &str = "openstack.lcm.mirantis.com/instance_migration_mode";
    let place = deployed("2")?;
    let mut controller = place.controller("control-1,control-2,control-3,worker-1,worker-2", &["--move-ms", "100"])?;
    second_release(&place, 1, ("600s", "1.5"))?;
    place.ctl(&["annotate", "machine", "worker-1", &format!("{MODE}=manual")])?.exits(0)?;
    let said =
        |line: &str| wait_for(line, TIME_LIMIT, || Ok(place.lines()?.iter().any(|known| known == line).then_some(())));
    place.ctl(&["update", "demo", "--yes", "--detach"])?.exits(0)?;
    wait_for("items of control-1", TIME_LIMIT, || {
        let begun = |story: &Vec<String>| story.iter().any(|word| word == "items");
        Ok(place.stories()?.get("control-1").is_some_and(begun).then_some(()))
    })?;
    let rollout = place.items("rollouts", "/metadata/name")?.into_iter().find(|name| name.contains("-update-"));
    let rollout = rollout.context("an update")?;
    place.ctl(&["pause", "demo"])?.exits(0)?.says(&[&rollout])?;
    said("control-1 lock-active")?;
    place.ctl(&["watch", "demo"])?.exits(4)?.says(&["Paused", "musterctl resume"])?;
    let stories = place.stories()?;
    assert_eq!((stories.len(), &stories["control-1"][..]), (1, &WHOLE.map(str::to_owned)[..]), "{stories:?}");

    place.ctl(&["resume", &format!("rollout/{rollout}")])?.exits(0)?;
    said("worker-1 request-seen")?;
    let by_hand = format!("musterctl annotate machine worker-1 {MODE}=skip");
    wait_for("the controller's answer", TIME_LIMIT, || {
        let told = place.ctl(&["describe", "machine", "worker-1"])?.ok()?;
        Ok((told.contains("ToyWorkloadsStay: somebody moves them by hand") && told.contains(&by_hand)).then_some(()))
    })?;
    place.ctl(&["abort", &rollout])?.exits(0)?;
    place.ctl(&["pause", "dmo"])?.exits(2)?.says(&["no rollout and no cluster named", "Did you mean \"demo\"?"])?;
    place.ctl(&["watch", "demo"])?.says(&["the update was aborted: 3 of 5 machines are at release 2.0"])?;
    place.ctl(&["abort", "demo"])?.exits(4)?.says(&["nothing is under way in cluster demo"])?;
    place.ctl(&["get", "requests"])?.exits(0)?.says(&["No requests"])?;
    let stories = place.stories()?;
    assert_eq!((stories.len(), &stories["worker-1"][..]), (4, &["request-seen".to_owned()][..]), "{stories:?}");

    place.ctl(&by_hand.split(' ').skip(1).collect::<Vec<_>>())?.exits(0)?;
    place.ctl(&["update", "demo", "--yes"])?.exits(0)?;
    controller.kill()?;
    controller.wait()?;
    for (machine, story) in place.stories()? {
        assert!(story.ends_with(&WHOLE.map(str::to_owned)), "{machine}: {story:?}");
        assert_eq!(story.iter().filter(|word| *word == "items").count(), 1, "{machine}: {story:?}");
    }
    Ok(())
}

#[test]
fn one_machine_goes_out_of_service_and_comes_back() -> Result<()> {
    let place = deployed("2")?;
    let machines = "control-1,control-2,control-3,worker-1,worker-2";
    let mut controller = place.controller(machines, &[])?;
    let before = fs::read_to_string(place.dir().join("effects.log"))?.lines().count();
    let ran = place.ctl(&["maintenance", "enter", "worker-1", "--yes"])?.exits(0)?;
    ran.says(&["worker-1: goes out of service", "worker-1: in maintenance for"])?;
    let out = ["InMaintenance for", "no item is run on it"];
    place.ctl(&["get", "machines", "-o", "wide"])?.exits(0)?.says(&out)?;
    place.ctl(&["plan", "demo"])?.exits(0)?.says(&["(maintenance) is InMaintenance", "worker-1   in maintenance"])?;
    place.ctl(&["describe", "machine", "worker-1"])?.exits(0)?.says(&["out of service since"])?;
    place.ctl(&["get", "requests"])?.exits(0)?.says(&["worker-1", "granted"])?;
    place
        .ctl(&["maintenance", "enter", "worker-2", "--yes"])?
        .exits(4)?
        .says(&["NoRoom", "worker-1 is in maintenance"])?;
    second_release(&place, 1, ("30s", "0.1"))?;
    place.ctl(&["update", "demo"])?.exits(4)?.says(&["worker-1   in maintenance", "musterctl maintenance leave"])?;
    place.ctl(&["update", "demo", "--yes"])?.exits(4)?.says(&["RolloutOpen", "musterctl maintenance leave"])?;
    place.ctl(&["abort", "demo"])?.exits(2)?.says(&["Bring back into service: worker-1?", "--yes"])?;
    place.ctl(&["maintenance", "leave", "worker-1"])?.exits(0)?.says(&["worker-1 is back in service"])?;
    place.ctl(&["get", "rollouts"])?.exits(0)?.says(&["maintenance   Ready   1/1"])?;
    place.ctl(&["get", "clusters"])?.exits(0)?.says(&["update due: "])?;
    place.ctl(&["get", "requests"])?.exits(0)?.says(&["No requests"])?;
    place.ctl(&["get", "audit"])?.exits(0)?.says(&["maintenance-enter", "maintenance-leave"])?;
    controller.kill()?;
    controller.wait()?;
    let log = fs::read_to_string(place.dir().join("effects.log"))?;
    let since: Vec<&str> =
        log.lines().skip(before).filter_map(|line| line.split_once(' ').map(|(_, rest)| rest)).collect();
    let story = ["request-seen", "workloads-moved", "lock-inactive", "request-gone", "lock-active"];
    assert_eq!(since, story.map(|word| format!("worker-1 {word}")), "no item ran, and nobody else was disturbed");
    Ok(())
}

#[test]
fn machines_are_removed_for_good() -> Result<()> {
    let place = deployed("3")?;
    let machines = "control-1,control-2,control-3,worker-1,worker-2,worker-3";
    let mut controller = place.controller(machines, &[])?;
    let ran = place.ctl(&["remove", "worker-1", "--yes"])?.exits(0)?;
    ran.says(&["is removed when its workloads are away", "spec.machines of demo says 3 worker", "worker-1: removed"])?;
    place.ctl(&["get", "machine", "worker-1"])?.exits(2)?;
    if place.ctl(&["get", "locks"])?.ok()?.contains("toy-worker-1") {
        bail!("its locks are still there");
    }
    place.ctl(&["get", "requests"])?.exits(0)?.says(&["No requests"])?;
    let release = ["locks", "release", "toy", "--cluster", "demo", "--yes"];
    place.ctl(&release)?.exits(4)?.says(&["ControllerConnected", "musterctl revoke controller/toy"])?;
    controller.kill()?;
    controller.wait()?;
    let story = place.stories()?.remove("worker-1").context("its story")?;
    if !story.starts_with(&WHOLE.map(str::to_owned)[..3]) {
        bail!("it went before its workloads: {story:?}");
    }
    // The next machine is never released.
    place.ctl(&["remove", "worker-2", "--yes", "--detach"])?.exits(0)?;
    place.ctl(&["get", "clusterstates"])?.exits(0)?.says(&["sr-worker-2", "swarm-remove"])?;
    place
        .ctl(&["remove", "worker-2", "--yes"])?
        .exits(4)?
        .says(&["RemovalUnderWay", "only unsafe or forced is looser"])?;
    place.ctl(&["remove", "worker-2", "--abort"])?.exits(0)?.says(&["worker-2: stays"])?;
    place.ctl(&["remove", "worker-3", "--policy", "forced", "--yes"])?.exits(0)?.says(&["worker-3: removed"])?;
    // A looser policy: running workloads are cut off.
    place.ctl(&["remove", "worker-2", "--yes", "--detach"])?.exits(0)?;
    place.ctl(&["remove", "worker-2", "--policy", "unsafe", "--yes"])?.exits(0)?.says(&["worker-2: removed"])?;
    place.ctl(&["get", "machine", "worker-2"])?.exits(2)?;
    place.ctl(&["remove", "worker-9", "--yes"])?.exits(2)?;
    place.ctl(&["remove", "control-1", "--policy", "soft", "--yes"])?.exits(2)?;
    place.ctl(&release)?.exits(0)?.says(&["locks of toy removed"])?;
    place.ctl(&["get", "locks"])?.exits(0)?.says(&["No locks"])?;
    place.ctl(&["get", "audit"])?.exits(0)?.says(&["remove-abort", "removed", "release-locks"])?;
    Ok(())
}

#[test]
fn a_controller_that_grants_one_at_a_time_never_deadlocks() -> Result<()> {
    let place = deployed("60")?;
    let workers = (1..=60).map(|n| format!("worker-{n}"));
    let machines: Vec<String> = (1..=3).map(|n| format!("control-{n}")).chain(workers).collect();
    let mut controller = place.controller(&machines.join(","), &["--at-once", "1"])?;
    // Fifty turns take longer than the deadline, one alone never does.
    second_release(&place, 50, ("20s", "0.1"))?;
    place.ctl(&["update", "demo", "--yes"])?.exits(0)?;
    controller.kill()?;
    controller.wait()?;
    for (machine, story) in place.stories()? {
        assert!(story.ends_with(&WHOLE.map(str::to_owned)), "{machine}: {story:?}");
    }
    Ok(())
}
