//! The coordinator moves: agents learn its new address, use it when the old one is gone, and can be told by hand.

use anyhow::{Context as _, Result};
use muster_agent::identity::Identity;
use muster_tests::fleet::{
    Fleet, TIME_LIMIT,
    manifest::{bash, cluster},
    proxy::Proxy,
    wait_for,
};

/// An unused port.
const NOWHERE: u16 = 1;

fn known(fleet: &Fleet, name: &str) -> Result<String> {
    Ok(Identity::load(&fleet.agent_dir(name).join("identity.json"))?.coordinators.to_string())
}

/// Waits until this field of the agent's link status equals the text; for `error`, until it contains the text.
fn wait_link(fleet: &Fleet, place: &str, text: &str) -> Result<()> {
    let what = format!("{place} of the link: {text}");
    wait_for(&what, TIME_LIMIT, || {
        let status: serde_json::Value = serde_json::from_str(&fleet.agent_status("control-1")?.ok()?)?;
        let said = status["link"][place].as_str().unwrap_or_default();
        Ok((said == text || (place == "error" && said.contains(text))).then_some(()))
    })
    .with_context(|| fleet.log("control-1"))
}

#[test]
fn agents_follow_a_coordinator_that_moves() -> Result<()> {
    let mut fleet = Fleet::start("moving", &[])?;
    let items = [bash("work", "deploy", &fleet.effects_log(), ":", &[])];
    fleet.apply(&cluster(1, 1, &items, &items, &[]))?;
    fleet.add_machines(1, 0)?;
    fleet.wait_machine("control-1", "connected", |machine| machine.status.connected)?;
    let port = fleet.coordinator_port().context("it runs")?;
    let (new, another) = (Proxy::open()?, Proxy::open()?);
    new.lead_to(port);
    another.lead_to(port);
    let (old, new_address, place) =
        (fleet.proxy("control-1")?.address(), new.address(), ["--state-dir", "coordinator"]);
    assert_eq!(known(&fleet, "control-1")?, old, "an address of loopback is told to nobody");

    // Before the move: connected agents are told, and record it.
    let set = fleet.coordinator_command(&[&["set-address", &new_address], &place[..]].concat())?.exits(0)?;
    set.says(&[&new_address, "connected are told now", "muster-agent set-coordinator"])?;
    let both = format!("{old}, {new_address}");
    wait_for("the new address beside the old one", TIME_LIMIT, || {
        Ok((known(&fleet, "control-1")? == both).then_some(()))
    })?;
    fleet.ctl(&["get", "audit"])?.exits(0)?.says(&["set-address", &new_address])?;
    let credentials = ["credentials", "--role", "viewer", "--name", "bo", "--out", "bo.toml"];
    fleet.coordinator_command(&[&credentials[..], &place].concat())?.ok()?;
    fleet.ctl_as("bo.toml", &["get", "machines"])?.exits(0)?;
    assert!(std::fs::read_to_string(fleet.path("bo.toml"))?.contains(&new_address));

    // It has moved.
    fleet.proxy("control-1")?.lead_to(NOWHERE);
    fleet.kill_agent("control-1")?;
    fleet.start_agent("control-1")?;
    wait_link(&fleet, "coordinator", &new_address)?;
    assert_eq!(known(&fleet, "control-1")?, format!("{new_address}, {old}"), "where it was reached last comes first");

    // It has moved again without notice: the agent reports where it looks, and is told while it runs.
    new.lead_to(NOWHERE);
    fleet.kill_agent("control-1")?;
    fleet.start_agent("control-1")?;
    wait_link(&fleet, "error", &new_address)?;
    wait_link(&fleet, "error", &old)?;
    let at = another.address();
    fleet.agent_command("control-1", &["set-coordinator", "nowhere"])?.exits(2)?.says(&["its port is missing"])?;
    fleet.agent_command("control-1", &["set-coordinator", &at])?.exits(0)?.says(&["control-1 turns to", &at])?;
    wait_link(&fleet, "coordinator", &at)?;

    // An enrolment may name several addresses.
    let token = fleet.token("worker", &[])?;
    fleet.enroll_at("worker-1", &token, &["--coordinator", &format!("127.0.0.1:{NOWHERE},{at}")])?.ok()?;
    assert_eq!(known(&fleet, "worker-1")?, format!("{at}, 127.0.0.1:{NOWHERE}"));
    fleet.done()
}
