//! Wrong or missing credentials: permissions, and the exit status that a script sees.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result};
use muster_tests::fleet::{
    Fleet, TIME_LIMIT,
    manifest::{bash, cluster},
    programs::{self, Programs},
    wait_for,
};
use nix::sys::signal::Signal;

/// The lines of a key in `operator.toml`, verbatim; its value may span several lines.
fn section(text: &str, key: &str) -> Result<String> {
    let start = text.find(&format!("{key} = ")).with_context(|| key.to_owned())?;
    let rest = &text[start..];
    let end = match rest.find("\"\"\"") {
        Some(open) if open < rest.find('\n').unwrap_or(rest.len()) => {
            open + 3 + rest[open + 3..].find("\"\"\"").context("an end")? + 3
        }
        _ => rest.find('\n').unwrap_or(rest.len()),
    };
    Ok(rest[..end].to_owned())
}

#[test]
fn operators_with_the_wrong_credentials() -> Result<()> {
    let (fleet, other) = (Fleet::start("ours", &[])?, Fleet::start("theirs", &[])?);
    let items = [bash("work", "deploy", &fleet.effects_log(), ":", &[])];
    fleet.apply(&cluster(1, 0, &items, &[], &[]))?;
    let ours = fs::read_to_string(fleet.path("operator.toml"))?;
    let theirs = fs::read_to_string(other.path("operator.toml"))?;

    // The client trusts this coordinator, and presents a certificate of its own CA.
    let mixed = ["certificate", "key"]
        .iter()
        .try_fold(ours.clone(), |text, key| anyhow::Ok(text.replace(&section(&ours, key)?, &section(&theirs, key)?)))?;
    fleet.write_secret("mixed.toml", &mixed)?;
    fleet.ctl_as("mixed.toml", &["get", "machines"])?.exits(3)?.says(&["muster-coordinator credentials"])?;
    // The client distrusts this coordinator.
    fleet.write_secret("theirs.toml", &theirs.replace(&other.address(), &fleet.address()))?;
    fleet.ctl_as("theirs.toml", &["get", "machines"])?.exits(3)?.says(&["CA"])?;

    let place = ["credentials", "--state-dir", "coordinator", "--key-file", "coordinator.key"];
    let viewer = ["--role", "viewer", "--name", "vera", "--out", "viewer.toml"];
    fleet.coordinator_command(&[&place[..], &viewer].concat())?.ok()?;
    fleet.ctl_as("viewer.toml", &["get", "clusters"])?.exits(0)?.says(&["e2e"])?;
    for words in [
        &["apply", "-f", "manifest.yaml"][..],
        &["deploy", "e2e"],
        &["retry", "control-1"],
        &["revoke", "control-1"],
        &["token", "create", "--cluster", "e2e", "--type", "worker"],
    ] {
        let ran = fleet.ctl_as("viewer.toml", words)?.exits(3)?;
        assert!(ran.out.is_empty(), "{ran:?}");
    }

    let nowhere = ours.replace(&fleet.address(), "127.0.0.1:1");
    fleet.write_secret("nowhere.toml", &nowhere)?;
    fleet
        .ctl_as("nowhere.toml", &["get", "machines"])?
        .exits(5)?
        .says(&["127.0.0.1:1", "Is the coordinator running"])?;
    let none = programs::run(fleet.musterctl().args(["get", "machines"]))?;
    none.exits(2)?.says(&["config.toml", "muster-coordinator init", "--config"])?;
    fleet.ctl(&["get", "machine", "control-7"])?.exits(2)?.says(&["control-7"])?;
    other.done()?;
    fleet.done()
}

/// Unreachable addresses.
#[test]
fn a_coordinator_is_somewhere() -> Result<()> {
    let fleet = Fleet::start("somewhere", &[])?;
    let place = ["--state-dir", "other", "--key-file", "other.key", "--out", "other.toml"];
    for address in ["0.0.0.0:7443", "[::]:7443"] {
        let init = fleet.coordinator_command(&[&["init", "--address", address][..], &place].concat())?.exits(2)?;
        init.says(&[address, "name this machine", "--listen"])?;
        assert!(["other", "other.key", "other.toml"].iter().all(|name| !Path::new(&fleet.path(name)).exists()));
    }
    fleet.done()
}

/// The command that `init` prints starts a coordinator that is reachable at the given address.
#[test]
fn the_next_line_listens_where_the_address_is() -> Result<()> {
    let fleet = Fleet::start("next-line", &[])?;
    for (number, host) in ["127.0.0.1", "[::1]", "localhost"].into_iter().enumerate() {
        let free = std::net::TcpListener::bind("[::]:0")?.local_addr()?.port();
        let (state, key, out) = (format!("state-{number}"), format!("key-{number}"), format!("out-{number}.toml"));
        let (address, place) = (format!("{host}:{free}"), ["--state-dir", &state, "--key-file", &key, "--out", &out]);
        let said = fleet.coordinator_command(&[&["init", "--address", &address], &place[..]].concat())?.ok()?;
        let next =
            said.lines().find_map(|line| line.strip_prefix("Next: muster-coordinator ")).context("a next line")?;
        let mut running = Command::new(Programs::find()?.coordinator)
            .args(next.split(' '))
            .current_dir(fleet.dir())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let reached = wait_for(&format!("an answer at {address}"), TIME_LIMIT, || {
            Ok((fleet.ctl_as(&out, &["get", "clusters"])?.code == Some(0)).then_some(()))
        });
        running.kill()?;
        running.wait()?;
        reached.with_context(|| said)?;
    }
    fleet.done()
}

/// A coordinator hangs: local commands fail in time, and their requests are not carried out later.
#[test]
fn a_coordinator_that_hangs_makes_nothing_for_nobody() -> Result<()> {
    let fleet = Fleet::start("hangs", &[])?;
    let place = ["--state-dir", "coordinator"];
    let vera = ["--role", "viewer", "--name", "vera", "--out", "vera.toml", "--key-file", "coordinator.key"];
    fleet.signal_coordinator(Signal::SIGSTOP)?;
    for words in [&[&["credentials"], &vera[..]].concat()[..], &["backup", "copy"]] {
        let refused = fleet.coordinator_command(&[words, &place].concat())?.exits(1)?;
        refused.says(&["did not take this up within 10 s", "systemctl status"])?;
    }
    assert!(!Path::new(&fleet.path("vera.toml")).exists() && !Path::new(&fleet.path("copy")).exists());
    fleet.signal_coordinator(Signal::SIGCONT)?;
    // It serves requests in order: earlier ones are done.
    let bo = ["--role", "viewer", "--name", "bo", "--out", "bo.toml", "--key-file", "coordinator.key"];
    fleet.coordinator_command(&[&["credentials"], &bo[..], &place].concat())?.ok()?;
    let known = fleet.ctl(&["get", "credentials"])?.exits(0)?.says(&["viewer/bo"])?;
    assert!(!known.out.contains("vera"), "{known:?}");
    fleet.done()
}

/// A viewer's credentials are revoked during a watch: the connection is closed, and new credentials work at once.
#[test]
fn credentials_that_are_taken_back() -> Result<()> {
    let fleet = Fleet::start("taken-back", &[])?;
    let items = [bash("work", "deploy", &fleet.effects_log(), ":", &[])];
    fleet.apply(&cluster(1, 0, &items, &[], &[]))?;
    let place = ["credentials", "--state-dir", "coordinator", "--key-file", "coordinator.key"];
    let issue = |file: &str| -> Result<()> {
        let words = ["--role", "viewer", "--name", "vera", "--cluster", "e2e", "--out", file];
        let said = fleet.coordinator_command(&[&place[..], &words].concat())?.ok()?;
        assert!(said.contains("musterctl revoke viewer/vera"), "{said}");
        Ok(())
    };
    issue("vera.toml")?;
    fleet.ctl(&["get", "credentials"])?.exits(0)?.says(&["operator/admin", "viewer/vera", "e2e", "Valid"])?;
    let mut watching = fleet.start_ctl(&["--config", "vera.toml", "get", "machines", "-w"], "vera")?;
    wait_for("vera's connection", TIME_LIMIT, || Ok(fleet.log("vera").contains("NAME").then_some(())))?;

    let began = std::time::Instant::now();
    fleet.ctl(&["revoke", "viewer/vera"])?.exits(0)?.says(&["credentials of viewer/vera revoked"])?;
    let status = wait_for("the end of vera's musterctl", TIME_LIMIT, || Ok(watching.try_wait()?))?;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(status.code(), Some(3), "{}", fleet.log("vera"));
    let refused = fleet.ctl_as("vera.toml", &["get", "machines"])?.exits(3)?;
    refused.says(&["these credentials are not accepted: they were revoked", "muster-coordinator credentials"])?;
    fleet.ctl(&["revoke", "viewer/vera"])?.exits(4)?.says(&["revoked already"])?;
    fleet.ctl(&["revoke", "operator/admin"])?.exits(4)?.says(&["make others first"])?;
    fleet.ctl(&["revoke", "viewer/vara"])?.exits(2)?.says(&["viewer/vera"])?;

    // No file may grow, as on a full disk.
    let mut full = Command::new("sh");
    full.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\""]).arg(Programs::find()?.coordinator);
    full.args(place).args(["--role", "viewer", "--name", "lost", "--out", "lost.toml"]);
    let lost = programs::run(full.current_dir(fleet.path("")))?.exits(1)?;
    lost.says(&["cannot write lost.toml", "musterctl revoke viewer/lost"])?;
    assert!(!Path::new(&fleet.path("lost.toml")).exists());

    issue("vera-2.toml")?;
    fleet.ctl_as("vera-2.toml", &["get", "clusters"])?.exits(0)?;
    let words = ["--role", "viewer", "--name", "vera", "--cluster", "other", "--out", "vera-3.toml"];
    fleet.coordinator_command(&[&place[..], &words].concat())?.ok()?;
    let listed = fleet.ctl(&["get", "credential", "viewer/vera"])?.ok()?;
    assert!(listed.lines().count() == 3 && listed.contains(" e2e ") && listed.contains(" other "), "{listed}");
    fleet.ctl_as("vera.toml", &["get", "clusters"])?.exits(3)?;
    let audit = fleet.ctl(&["get", "audit"])?.exits(0)?;
    audit.says(&["issue", "credentials/viewer/vera", "revoke", "operator/admin"])?;
    fleet.done()
}

/// An agent of another realm that trusts this CA: its own certificate is rejected.
#[test]
fn an_agent_of_another_ca() -> Result<()> {
    let (mut fleet, mut other) = (Fleet::start("realm", &[])?, Fleet::start("other-realm", &[])?);
    for fleet in [&mut fleet, &mut other] {
        let items = [bash("work", "deploy", &fleet.effects_log(), ":", &[])];
        fleet.apply(&cluster(1, 0, &items, &[], &[]))?;
        let token = fleet.token("control", &[])?;
        fleet.enroll("control-1", &token, &[])?.ok()?;
    }
    let identity = |fleet: &Fleet| -> Result<serde_json::Value> {
        Ok(serde_json::from_slice(&fs::read(fleet.agent_dir("control-1").join("identity.json"))?)?)
    };
    let (ours, mut theirs) = (identity(&fleet)?, identity(&other)?);
    for field in ["caPem", "coordinator"] {
        theirs[field] = ours[field].clone();
    }
    fs::write(fleet.agent_dir("control-1").join("identity.json"), serde_json::to_vec(&theirs)?)?;
    fleet.start_agent("control-1")?;
    let why = wait_for("a refusal", TIME_LIMIT, || {
        let status: serde_json::Value = serde_json::from_str(&fleet.agent_status("control-1")?.ok()?)?;
        Ok(status["link"]["error"].as_str().map(str::to_owned))
    })?;
    let machine = fleet.machines()?.remove("control-1").context("control-1")?;
    assert!(!machine.status.connected && machine.status.host_info.is_none(), "{why}: {machine:?}");
    other.done()?;
    fleet.done()
}
