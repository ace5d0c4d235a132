//! Packages in two versions, with the machine's own apt: brought to the wanted version, held against others, and
//! downgraded only on request. Also another program that holds dpkg's lock.

use anyhow::{Context as _, Result, ensure};
use muster_tests::{
    fleet::manifest::other,
    nodes::{Nodes, node::Node},
};

use crate::{
    site::{Alone, item},
    supplies,
};

/// Another package manager: a unit that holds dpkg's lock until it is stopped.
const LOCK: &str = "systemd-run --quiet --unit other-apt python3 -c 'import fcntl, time
lock = open(\"/var/lib/dpkg/lock-frontend\", \"w\")
fcntl.lockf(lock, fcntl.LOCK_EX)
open(\"/run/locked\", \"w\")
time.sleep(3600)'
until [ -e /run/locked ]; do sleep 0.1; done; rm /run/locked";
const UNLOCK: &str = "systemctl stop other-apt";
/// Undoes an earlier test's effects on the package.
const FORGET: &str = "dpkg --force-hold --purge site-tool";

/// An item that wants the package in this version. A failure is final.
fn tool(name: &str, version: &str, params: &[(&str, &str)], more: &[&str]) -> String {
    let install = format!("site-tool={version}");
    let params = [&[("install", install.as_str())], params].concat();
    other(name, "package", "deploy", &params, &[&["retries: 0"], more].concat())
}

/// Waits until an item has this state, and checks its message.
fn ends(alone: &Alone, item: &str, state: &str, expected: &str) -> Result<String> {
    let machine = alone.fleet.wait_machine(&alone.name, &format!("{item}: {state}"), |machine| {
        machine.status.state_item_statuses.get(item).is_some_and(|status| status.state == state)
    })?;
    let said = &machine.status.state_item_statuses.get(item).context("the item")?.message;
    ensure!(said.starts_with(expected), "{item}: {said}");
    Ok(said.clone())
}

/// The installed version, and its dpkg selection state.
fn found(node: &Node) -> Result<String> {
    node.sh("dpkg-query --show --showformat '${Version} ${db:Status-Want}' site-tool")
}

pub(crate) fn packages_are_held_and_not_taken_back(fleet: &Nodes, node: &Node) -> Result<()> {
    let (hold, release) = (("hold", "true"), ("hold", "false"));
    let items = [
        supplies::sources(),
        tool("first", "1.0", &[("update", "true"), hold], &[]),
        tool("unaware", "1.1", &[], &[]),
        tool("newer", "1.1", &[hold], &[]),
        tool("back", "1.0", &[hold], &[]),
        tool("older", "1.0", &[release, ("allow_downgrade", "true")], &[]),
    ];
    node.sh(FORGET)?;
    let alone = Alone::begin(fleet, node, "versions", &items)?;
    let skip = |item: &str| fleet.ctl(&["skip", &alone.name, item])?.exits(0);

    ends(&alone, "first", "Succeeded", "installed site-tool 1.0; held site-tool")?;
    ends(&alone, "unaware", "Failed", "Held: site-tool is on hold, but not by this item")?;
    // An upgrade of the whole machine does not change it either.
    node.sh("apt-get -qq upgrade --yes")?;
    ensure!(found(node)? == "1.0 hold", "it is {}", found(node)?);
    skip("unaware")?;
    ends(&alone, "newer", "Succeeded", "installed site-tool 1.1")?;
    ends(&alone, "back", "Failed", "DowngradeRefused: site-tool 1.1 is installed, which is newer than 1.0")?;
    ensure!(found(node)? == "1.1 hold", "it is {}", found(node)?);
    skip("back")?;
    ends(&alone, "older", "Succeeded", "installed site-tool 1.0; released site-tool")?;
    alone.wait_ready()?;
    ensure!(found(node)? == "1.0 install", "it is {}", found(node)?);
    node.sh(FORGET).map(drop)
}

pub(crate) fn another_that_has_locked_dpkg_is_waited_for(fleet: &Nodes, node: &Node) -> Result<()> {
    node.sh(FORGET)?;
    let waited = waits_for_another(fleet, node);
    // Unlocks after any result: otherwise no package could be installed there any more.
    node.sh(&format!("{UNLOCK} 2>/dev/null || true; {FORGET}"))?;
    waited
}

fn waits_for_another(fleet: &Nodes, node: &Node) -> Result<()> {
    let items = [
        supplies::sources(),
        item("lock", "deploy", LOCK, &[]),
        tool("patient", "1.0", &[("update", "true")], &[]),
        item("lock-again", "deploy", LOCK, &[]),
        tool("late", "1.1", &[], &["timeout: 12s"]),
    ];
    let alone = Alone::begin(fleet, node, "locked", &items)?;
    node.wait_until("the first waits", || {
        let logs = fleet.ctl(&["logs", &alone.name, "patient"])?.exits(0)?;
        Ok(logs.out.contains("waiting for python3 (process "))
    })?;
    node.sh(UNLOCK)?;
    ends(&alone, "patient", "Succeeded", "installed site-tool 1.0")?;

    // The other program outlasts this item's time limit: the message names it all the same.
    let said = ends(&alone, "late", "Failed", "PackagesLocked: python3 (process ")?;
    ensure!(said.contains("has held /var/lib/dpkg/lock-frontend for "), "{said}");
    node.sh(UNLOCK)?;
    fleet.ctl(&["retry", &alone.name])?.exits(0)?;
    alone.wait_ready()?;
    ensure!(found(node)? == "1.1 install", "it is {}", found(node)?);
    Ok(())
}
