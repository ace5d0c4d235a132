//! Tokens and names: the messages an operator reads when a machine may not join.

use muster_proto::model::Reason;
use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, time::Duration};

use anyhow::{Context as _, Result};
use muster_agent::{host::unix_ms, identity::Identity};
use muster_proto::resource::Machine;
use muster_tests::fleet::{
    CLUSTER, Fleet, TIME_LIMIT,
    manifest::{bash, cluster},
    pause,
    programs::Ran,
    wait_for,
};

fn new_fleet(name: &str) -> Result<Fleet> {
    let fleet = Fleet::start(name, &[])?;
    let items = [bash("work", "deploy", &fleet.effects_log(), ":", &[])];
    fleet.apply(&cluster(1, 1, &items, &items, &[]))?;
    Ok(fleet)
}

/// Checks that the command failed, printed all these words, and kept the secret.
fn refused(ran: Ran, token_file: &str, words: &[&str]) -> Result<()> {
    let token = fs::read_to_string(token_file)?;
    let ran = ran.says(words)?;
    assert!(ran.code.is_some_and(|code| code != 0), "{ran:?}");
    for secret in token.trim().split('.').skip(1).take(1).filter(|secret| !secret.is_empty()) {
        assert!(!ran.err.contains(secret) && !ran.out.contains(secret), "a secret in a message: {ran:?}");
    }
    assert!(!ran.err.contains("panicked"), "{ran:?}");
    Ok(())
}

#[test]
fn tokens_that_are_good_no_more() -> Result<()> {
    let mut fleet = new_fleet("tokens")?;
    let once = fleet.token("worker", &["--uses", "1"])?;
    fleet.enroll("worker-1", &once, &[])?.ok()?;
    refused(fleet.enroll("worker-2", &once, &[])?, &once, &["used up", "musterctl token create"])?;

    let short = fleet.token("worker", &["--ttl", "1s", "--uses", "1"])?;
    wait_for("the token's end", TIME_LIMIT, || {
        let tokens = fleet.ctl(&["get", "tokens", "-o", "json"])?.ok()?;
        Ok(tokens.contains("\"Expired\"").then_some(()))
    })?;
    refused(fleet.enroll("worker-3", &short, &[])?, &short, &["expired", "musterctl token create"])?;

    let bound = fleet.token("worker", &["--machine", "worker-9"])?;
    refused(fleet.enroll("worker-4", &bound, &[])?, &bound, &["for another machine"])?;

    fleet.ctl(&["token", "create", "--cluster", CLUSTER, "--type", "worker"])?.exits(4)?.says(&[
        "NothingLacking: every worker machine that the manifest of cluster e2e names has enrolled",
        "--uses N",
    ])?;
    let revoked = fleet.token("worker", &["--uses", "1"])?;
    let id = fs::read_to_string(&revoked)?.split('.').next().context("an id")?.to_owned();
    fleet.ctl(&["token", "revoke", &id])?.ok()?;
    refused(fleet.enroll("worker-5", &revoked, &[])?, &revoked, &["revoked"])?;
    fleet.done()
}

/// Runs musterctl with a full disk as standard output.
fn into_a_full_disk(fleet: &Fleet, words: &[&str]) -> Result<(Option<i32>, String)> {
    let full = fs::File::options().write(true).open("/dev/full")?;
    let mut command = fleet.musterctl();
    let ran = command.args(["--config", "operator.toml"]).args(words).stdout(full).output()?;
    Ok((ran.status.code(), String::from_utf8_lossy(&ran.stderr).into_owned()))
}

#[test]
fn what_was_done_is_said_though_stdout_is_full() -> Result<()> {
    let fleet = new_fleet("full")?;
    let (code, said) = into_a_full_disk(&fleet, &["token", "create", "--cluster", CLUSTER, "--type", "worker"])?;
    assert!(code == Some(1) && said.contains("The token is lost: `musterctl token revoke "), "{code:?} {said}");
    let (code, said) = into_a_full_disk(&fleet, &["deploy", CLUSTER])?;
    assert!(code != Some(1) && !said.contains("cannot write"), "{code:?} {said}");
    let (code, said) = into_a_full_disk(&fleet, &["get", "clusters"])?;
    assert!(code == Some(1) && said.contains("cannot write to stdout"), "{code:?} {said}");
    fleet.done()
}

#[test]
fn another_cidr_takes_effect_at_once() -> Result<()> {
    let mut fleet = new_fleet("cidr")?;
    let token = fleet.token("worker", &[])?;
    fleet.enroll("worker-1", &token, &[])?.ok()?;
    fleet.start_agent("worker-1")?;
    let has_address = |machine: &Machine| machine.status.addresses.iter().any(|address| address.kind == "InternalIP");
    fleet.wait_machine("worker-1", "its address", has_address)?;
    let document = |cidr: &str| {
        format!(
            "apiVersion: muster/v1alpha1\nkind: Machine\nmetadata: {{name: worker-1}}\n\
             spec: {{clusterName: {CLUSTER}, type: worker, cidr: {cidr}}}\n"
        )
    };
    fleet.apply(&document("192.0.3.0/24"))?;
    fleet.wait_machine("worker-1", "no address that fits", |machine| !has_address(machine))?;
    fleet.apply(&document("127.0.0.0/8"))?;
    fleet.wait_machine("worker-1", "its address again", has_address)?;
    fleet.done()
}

#[test]
fn a_token_goes_into_a_new_file_of_one_s_own() -> Result<()> {
    let mut fleet = new_fleet("token-file")?;
    let create = ["token", "create", "--cluster", CLUSTER, "--type", "worker", "--out", "new.token"];
    let made = fleet.ctl(&create)?.exits(0)?.says(&["--token-file new.token"])?;
    let token = fs::read_to_string(fleet.path("new.token"))?;
    assert!(made.out.is_empty() && !made.err.contains(token.trim()), "{made:?}");
    assert_eq!(fs::metadata(fleet.path("new.token"))?.permissions().mode() & 0o777, 0o600);
    fleet.ctl(&create)?.exits(2)?.says(&["cannot make new.token", "not overwritten"])?;
    assert_eq!(fs::read_to_string(fleet.path("new.token"))?, token);
    let nowhere = ["token", "create", "--cluster", "nope", "--type", "worker", "--out", "no.token"];
    fleet.ctl(&nowhere)?.exits(2)?.says(&["no cluster named"])?;
    assert!(!Path::new(&fleet.path("no.token")).exists(), "an empty file is left behind");
    let of_coordinator = fleet.agent_dir("worker-1");
    fs::create_dir_all(&of_coordinator)?;
    fs::write(of_coordinator.join("store"), "")?;
    let refused = fleet.enroll("worker-1", &fleet.path("new.token"), &[])?.exits(2)?;
    refused.says(&["the state directory of a muster-coordinator", "--state-dir"])?;
    fs::remove_file(of_coordinator.join("store"))?;
    fleet.enroll("worker-1", &fleet.path("new.token"), &[])?.ok()?;
    fleet.done()
}

#[test]
fn a_cluster_that_was_mistyped() -> Result<()> {
    let mut fleet = new_fleet("mistyped")?;
    let items = [bash("work", "deploy", &fleet.effects_log(), ":", &[])];
    let mistyped = cluster(1, 1, &items, &items, &[]).replace(&format!("name: {CLUSTER}"), "name: mistyped");
    fleet.apply(&mistyped)?;
    fleet.ctl(&["delete", "cluster", "mistyped"])?.exits(2)?.says(&["no terminal", "--yes"])?;
    fleet.ctl(&["delete", "cluster", "mistypd", "--yes"])?.exits(2)?.says(&["mistyped"])?;
    fleet.ctl(&["delete", "cluster", "mistyped", "--yes"])?.exits(0)?.says(&["cluster mistyped deleted"])?;
    let left = fleet.ctl(&["get", "clusters", "-o", "name"])?.ok()?;
    assert!(!left.contains("mistyped") && left.contains(CLUSTER), "{left}");
    let token = fleet.token("worker", &[])?;
    fleet.enroll("worker-1", &token, &[])?.ok()?;
    fleet.start_agent("worker-1")?;
    fleet.wait_machine("worker-1", "connected", |machine| machine.status.connected)?;
    fleet.ctl(&["delete", "cluster", CLUSTER, "--yes"])?.exits(4)?.says(&["worker-1", "musterctl remove worker-1"])?;
    fleet.done()
}

#[test]
fn tokens_that_never_were() -> Result<()> {
    let mut fleet = new_fleet("no-tokens")?;
    let good = fleet.token("worker", &[])?;
    let text = fs::read_to_string(&good)?;
    let [id, secret, digest] = text.trim().split('.').collect::<Vec<_>>()[..] else { anyhow::bail!("three parts") };
    let other = "0".repeat(64);
    for (what, text, expected) in [
        ("garbage", "hunter2 is no token".to_owned(), "musterctl token create"),
        ("empty", String::new(), "it is empty"),
        ("cut", format!("{id}.{secret}"), "three parts"),
        ("pin", format!("{id}.{secret}.{other}"), "is not the coordinator"),
        ("secret", format!("{id}.{}.{digest}", "A".repeat(secret.len())), "musterctl token create"),
        ("id", format!("zzzzzzzz.{secret}.{digest}"), "musterctl token create"),
    ] {
        let file = fleet.path(&format!("tokens/{what}"));
        fs::write(&file, text)?;
        refused(fleet.enroll("worker-1", &file, &[])?, &file, &[expected]).context(what)?;
    }
    assert!(fleet.enroll("worker-1", "no-such-file", &[])?.code != Some(0));
    fleet.enroll("worker-1", &good, &[])?.ok()?;
    fleet.done()
}

/// A reinstalled machine returns under its name.
#[test]
fn a_name_that_is_taken_and_replaced() -> Result<()> {
    let mut fleet = new_fleet("replaced")?;
    fleet.add_machines(1, 1)?;
    fleet.wait_ready(2)?;
    let before = fleet.machines()?;
    fleet.kill_agent("worker-1")?;
    let token = fleet.token("worker", &["--uses", "1"])?;
    let again = fleet.enroll("worker-1", &token, &[])?;
    refused(again, &token, &["enrolled already", "--force"])?;
    fs::rename(fleet.agent_dir("worker-1"), fleet.path("machines/old-worker-1"))?;
    refused(fleet.enroll("worker-1", &token, &[])?, &token, &["worker-1", "musterctl replace worker-1"])?;
    fleet.ctl(&["replace", "worker-1"])?.exits(0)?;
    fleet.enroll("worker-1", &token, &[])?.ok()?;
    fleet.start_agent("worker-1")?;
    fleet.wait_ready(2)?;
    let after = fleet.machines()?;
    assert_ne!(before["worker-1"].status.machine_id, after["worker-1"].status.machine_id);
    let starts = fleet.effects()?.iter().filter(|e| e.machine == "worker-1" && e.is_start).count();
    assert_eq!(starts, 2, "a reinstalled machine does everything again");
    fleet.done()
}

/// The session moves to the renewed certificate; the link never appears down.
#[test]
fn a_renewal_does_not_cut_the_link() -> Result<()> {
    let mut fleet = Fleet::start("renewed", &["--agent-cert-ttl", "12s"])?;
    let items = [bash("work", "deploy", &fleet.effects_log(), ":", &[])];
    fleet.apply(&cluster(1, 0, &items, &[], &[]))?;
    fleet.add_machines(1, 0)?;
    fleet.wait_ready(1)?;
    let count = |fleet: &Fleet, words: &str| fleet.log("control-1").matches(words).count();
    wait_for("two renewals, and a session after each", TIME_LIMIT, || {
        Ok((count(&fleet, "certificate renewed") >= 2 && count(&fleet, "connected") >= 3).then_some(()))
    })?;
    assert_eq!(count(&fleet, "no link to the coordinator"), 0, "{}", fleet.log("control-1"));
    fleet.done()
}

/// A machine that was off for longer than its certificate is valid stays enrolled.
#[test]
fn a_certificate_that_ran_out_is_renewed() -> Result<()> {
    let mut fleet = Fleet::start("expired", &["--agent-cert-ttl", "4s"])?;
    let items = [bash("work", "deploy", &fleet.effects_log(), ":", &[])];
    fleet.apply(&cluster(1, 0, &items, &[], &[]))?;
    fleet.add_machines(1, 0)?;
    fleet.wait_ready(1)?;
    let before = fleet.machines()?;
    fleet.kill_agent("control-1")?;
    fleet.wait_machine("control-1", "disconnected", |machine| !machine.status.connected)?;
    let identity = |fleet: &Fleet| Identity::load(&fleet.agent_dir("control-1").join("identity.json"));
    let expired = identity(&fleet)?;
    wait_for("the certificate's end", TIME_LIMIT, || Ok((unix_ms() > expired.not_after_ms).then_some(())))?;
    let renewals = |fleet: &Fleet| fleet.log("control-1").matches("certificate renewed").count();
    let renewed_before = renewals(&fleet);
    fleet.start_agent("control-1")?;
    let ready = |machine: &Machine| machine.status.connected && machine.status.state == "Ready";
    let after = fleet.wait_machine("control-1", "connected and Ready again", ready)?;
    assert!(renewals(&fleet) > renewed_before, "{}", fleet.log("control-1"));
    assert_ne!(identity(&fleet)?.certificate_pem, expired.certificate_pem);
    assert_eq!(after.status.machine_id, before["control-1"].status.machine_id, "the same machine");
    assert_eq!(fleet.effects()?.iter().filter(|effect| effect.is_start).count(), 1, "and nothing ran again");
    fleet.done()
}

/// Checks that the agent stays away for longer than its first retry intervals.
fn stays_away(fleet: &Fleet) -> Result<()> {
    let came = fleet.proxy("worker-1")?.came();
    pause(Duration::from_secs(4));
    assert_eq!(fleet.proxy("worker-1")?.came(), came, "{}", fleet.log("worker-1"));
    Ok(())
}

/// A revoked machine is cut off within 10 s; it cannot reconnect, stops trying, and says what to do.
#[test]
fn a_revoked_machine_is_cut_off() -> Result<()> {
    let mut fleet = Fleet::start("revoked", &["--agent-cert-ttl", "20s"])?;
    let items = [bash("work", "deploy", &fleet.effects_log(), ":", &[])];
    fleet.apply(&cluster(1, 1, &items, &items, &[]))?;
    fleet.add_machines(1, 1)?;
    fleet.wait_ready(2)?;
    let link = |fleet: &Fleet| -> Result<serde_json::Value> {
        let status: serde_json::Value = serde_json::from_str(&fleet.agent_status("worker-1")?.ok()?)?;
        Ok(status["link"].clone())
    };
    assert_eq!(link(&fleet)?["connected"], true);
    let asks = ["worker-1 of cluster e2e is connected (Ready)", "--yes"];
    fleet.ctl(&["revoke", "worker-1"])?.exits(2)?.says(&asks)?;
    fleet.ctl(&["replace", "machine/worker-1"])?.exits(2)?.says(&asks)?;
    let asks = ["control-1 of cluster e2e is connected (Ready), and no other control machine is"];
    fleet.ctl(&["revoke", "control-1"])?.exits(2)?.says(&asks)?;
    assert!(fleet.machines()?.values().all(|machine| machine.status.connected));
    let began = std::time::Instant::now();
    fleet.ctl(&["revoke", "worker-1", "--yes"])?.exits(0)?;
    let cut = |fleet: &Fleet| Ok(link(fleet)?["connected"].as_bool().filter(|connected| !connected));
    wait_for("the agent's link down", TIME_LIMIT, || cut(&fleet))?;
    let took = began.elapsed();
    muster_tests::fleet::programs::complain(&format!("revoked: cut off after {} ms", took.as_millis()));
    assert!(took < Duration::from_secs(10), "{took:?}");
    let machine = fleet.wait_machine("worker-1", "disconnected", |machine| !machine.status.connected)?;
    assert_eq!(machine.status.blocked.context("blocked")?.blocked.reason, Reason::Revoked);
    fleet.ctl(&["logs", "worker-1", "work"])?.exits(4)?.says(&["Revoked: worker-1", "/var/lib/muster/agent"])?;

    let gone = |fleet: &Fleet| Ok(link(fleet)?["error"].as_str().filter(|why| why.contains("dials no more")).map(drop));
    wait_for("the agent has given up", TIME_LIMIT, || gone(&fleet))?;
    stays_away(&fleet)?;
    // It also stays away after its restart, and after a permanent removal.
    for words in [&[][..], &["remove", "worker-1", "--policy", "forced", "--yes", "--detach"]] {
        if !words.is_empty() {
            fleet.ctl(words)?.exits(0)?;
        }
        fleet.kill_agent("worker-1")?;
        fs::remove_file(fleet.agent_dir("worker-1").join("link.json")).ok();
        fleet.start_agent("worker-1")?;
        wait_for("refused again, and it gave up", TIME_LIMIT, || gone(&fleet))?;
        stays_away(&fleet)?;
    }
    fleet.agent_status("worker-1")?.exits(0)?.says(&["was revoked", "musterctl replace", "enroll --force"])?;
    let log = fleet.log("coordinator");
    let said = log.lines().filter(|line| line.contains("refused") && line.contains("worker-1")).count();
    assert_eq!(said, 1, "its name, once an hour: {log}");

    fleet.kill_agent("worker-1")?;
    let token = fleet.token("worker", &[])?;
    fleet.enroll("worker-1", &token, &["--force"])?.ok()?;
    fleet.start_agent("worker-1")?;
    fleet.wait_machine("worker-1", "connected as another", |machine| machine.status.connected)?;
    fleet.done()
}
