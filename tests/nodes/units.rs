//! Items on machines with systemd: each in its own unit, with distinct outcomes and with its records in the journal.
//! Also units and reboots as items.

use anyhow::{Context as _, Result, ensure};
use muster_proto::resource::Machine;
use muster_tests::{
    fleet::manifest::other,
    nodes::{Nodes, node::Node},
};

use crate::site::{Alone, item};

/// A daemon that forks twice, opens its own session and ignores TERM, below a program that ignores TERM too.
const STUBBORN: &str = "trap '' TERM
(setsid bash -c 'trap \"\" TERM; while :; do sleep 0.987; done' &) &
while :; do sleep 0.987; done";
/// Units to act upon: two that run, one that fails, and one that systemd generates from an init script.
const WRITE_UNITS: &str = "cd /etc/systemd/system
for unit in good spare; do
    printf '[Service]\\nExecStart=/bin/sleep infinity\\nExecReload=/bin/touch /run/%s-reloaded\\n' $unit >$unit.service
    printf '[Install]\\nWantedBy=multi-user.target\\n' >>$unit.service
done
printf '[Service]\\nExecStart=/bin/sh -c \"echo no such disk; exit 7\"\\n' >bad.service
cd /etc/init.d
printf '#!/bin/sh\\n### BEGIN INIT INFO\\n# Provides: old\\n# Required-Start:\\n# Required-Stop:\\n' >old
printf '# Default-Start: 2 3 4 5\\n# Default-Stop: 0 1 6\\n### END INIT INFO\\n' >>old
chmod +x old
systemctl daemon-reload";
/// Units on which actions fail, or have another effect than requested.
const WRITE_REFUSING: &str = "cd /etc/systemd/system
printf '[Unit]\\nRequires=lame.service\\nAfter=lame.service\\n[Service]\\nExecStart=/bin/true\\n' >needs.service
printf '[Service]\\nType=oneshot\\nExecStart=/bin/false\\n' >lame.service
printf '[Unit]\\nAssertPathExists=/no\\n[Service]\\nType=oneshot\\nExecStart=/bin/true\\n' >asserts.service
printf '[Unit]\\nConditionPathExists=/no\\n[Service]\\nType=oneshot\\nExecStart=/bin/true\\n' >conditional.service
printf '[Service]\\nExecStart=/bin/sleep infinity\\nExecReload=/bin/false\\n' >stiff.service
printf '[Service]\\nType=oneshot\\nExecStart=/bin/true\\nExecReload=/bin/true\\n' >once.service
ln -sf /dev/null hidden.service
systemctl daemon-reload; systemctl start stiff.service";
/// The item, the action, its unit, and the expected message.
const REFUSING: &[(&str, &str, &str, &str)] = &[
    ("needs", "start", "needs.service", "systemd did not start unit needs.service: a unit that it requires"),
    ("asserts", "start", "asserts.service", "systemd did not start unit asserts.service: an Assert"),
    ("skipped", "start", "conditional.service", "unit conditional.service was left as it is, inactive (dead): not met"),
    ("stiff", "reload", "stiff.service", "systemd did not reload unit stiff.service: "),
    ("idle", "reload", "once.service", "systemd did not reload unit once.service: "),
    ("hidden", "start", "hidden.service", "unit hidden.service is masked"),
];
/// From now on each boot appends a line to a file.
pub(crate) const COUNT_BOOTS: &str = "rm -f /var/tmp/boots; cd /etc/systemd/system
printf '[Service]\\nType=oneshot\\nExecStart=/bin/sh -c \"echo boot >>/var/tmp/boots\"\\n' >boots.service
printf '[Install]\\nWantedBy=multi-user.target\\n' >>boots.service
systemctl daemon-reload; systemctl enable boots.service";

/// Reason why a machine waits, and its item's message.
fn why(machine: &Machine, item: &str) -> String {
    let said = machine.status.state_item_statuses.get(item).map(|status| status.message.clone()).unwrap_or_default();
    let reason = machine.status.blocked.as_ref().map(|wait| wait.blocked.reason.to_string()).unwrap_or_default();
    format!("{reason}: {said}")
}

/// Waits until an item brings its machine into this state.
fn ends_so(alone: &Alone, item: &str, expected: &str) -> Result<Machine> {
    alone.fleet.wait_machine(&alone.name, expected, |machine| why(machine, item).starts_with(expected))
}

fn units(alone: &Alone) -> Result<String> {
    let listed = alone.node.sh("systemctl list-units --all --plain --no-legend 'muster-item-*' | cut -d' ' -f1")?;
    Ok(listed.trim().to_owned())
}

pub(crate) fn dies_as_a_whole(fleet: &Nodes, node: &Node) -> Result<()> {
    let more = ["timeout: 20s", "retries: 0"];
    let alone = Alone::begin(fleet, node, "stubborn", &[item("stubborn", "deploy", STUBBORN, &more)])?;
    alone.node.wait_started("stubborn")?;
    let running = units(&alone)?;
    // exec-item must report the outcome of the others, so the OOM killer takes it last.
    let scores = alone.node.sh(&format!(
        "host=$(systemctl show --property MainPID --value {running})
        cat /proc/$host/oom_score_adj /proc/$(pgrep --parent $host | head -n 1)/oom_score_adj"
    ))?;
    let scores: Vec<i32> = scores.split_whitespace().filter_map(|score| score.parse().ok()).collect();
    ensure!(matches!(scores.as_slice(), [host, program] if host < program), "their scores are {scores:?}");
    let named = running.starts_with("muster-item-stubborn-") && running.ends_with("-1.service");
    ensure!(named, "its unit is {running}");
    ends_so(&alone, "stubborn", "Failed: timed out after 20 s")?;
    // The brackets keep the searching shell from matching itself.
    let left = alone.node.sh("pgrep --full '[s]leep 0.987' || true")?;
    ensure!(left.trim().is_empty(), "these are left: {left}");
    // The agent releases the unit in the background.
    alone.node.wait_until("no unit is left whose outcome is recorded", || Ok(units(&alone)?.is_empty()))
}

pub(crate) fn ends_are_told_apart(fleet: &Nodes, node: &Node) -> Result<()> {
    let waits = "sleep 1000";
    // The action on the running item, and the expected result.
    let cases = [
        ("exits", "exit 7", "true", "Failed: exit status 7"),
        ("signalled", "kill -SEGV $$", "true", "Failed: killed by SIGSEGV"),
        ("stopped", waits, "systemctl stop 'muster-item-*'", "Indeterminate: systemd ended it"),
        (
            "hostless",
            waits,
            "pkill -KILL --full '[m]uster-agent exec-item'",
            "Indeterminate: its process ended without",
        ),
    ];
    for (name, body, act, expected) in cases {
        let alone = Alone::begin(fleet, node, name, &[item(name, "deploy", body, &["retries: 0"])])?;
        alone.node.wait_started(name)?;
        alone.node.sh(act)?;
        ends_so(&alone, name, expected).with_context(|| name.to_owned())?;
        ensure!(alone.node.story()? == format!("{name}/1"), "it ran again");
    }
    Ok(())
}

pub(crate) fn journal_has_fields(fleet: &Nodes, node: &Node) -> Result<()> {
    let items = [item("one", "deploy", ":", &[]), item("two", "deploy", ":", &[])];
    let alone = Alone::begin(fleet, node, "journal", &items)?;
    alone.wait_ready()?;
    let read =
        "journalctl --sync && journalctl --unit muster-agent --output cat MUSTER_MACHINE=journal MUSTER_ITEM=two";
    let records = alone.node.sh(read)?;
    ensure!(records == "started\nexit status 0\n", "{records}");
    Ok(())
}

pub(crate) fn acts_on_units(fleet: &Nodes, node: &Node) -> Result<()> {
    let act = |name: &str, action: &str, unit: &str| {
        other(name, "service", "deploy", &[("unit", unit), ("action", action)], &["retries: 0", "timeout: 2m"])
    };
    let items = [
        item("write", "prepare", WRITE_UNITS, &[]),
        act("enable", "enable", "good.service"),
        act("start", "start", "good.service"),
        act("again", "start", "good.service"),
        act("restart", "restart", "good.service"),
        act("reload", "reload", "good.service"),
        act("enable-spare", "enable", "spare.service"),
        act("start-spare", "start", "spare.service"),
        act("stop-spare", "stop", "spare.service"),
        act("disable-spare", "disable", "spare.service"),
        act("stop-again", "stop", "spare.service"),
        act("enable-init-script", "enable", "old.service"),
        act("broken", "start", "bad.service"),
    ];
    let alone = Alone::begin(fleet, node, "service", &items)?;
    let expected = "Failed: unit bad.service failed: failed (failed), exit-code; its journal ends: ";
    let machine = ends_so(&alone, "broken", expected)?;
    for (name, message) in [
        ("enable", "unit good.service enabled"),
        ("start", "unit good.service started"),
        ("again", "unit good.service is active already"),
        ("restart", "unit good.service restarted"),
        ("reload", "unit good.service reloaded"),
        ("stop-spare", "unit spare.service stopped"),
        ("disable-spare", "unit spare.service disabled"),
        ("enable-init-script", "unit old.service enabled (an init script)"),
        ("stop-again", "unit spare.service is inactive (dead) already"),
        ("broken", "no such disk"),
    ] {
        let said = why(&machine, name);
        ensure!(said.contains(message), "{name}: {said}");
    }
    let stand =
        "for unit in good spare; do systemctl is-enabled $unit; systemctl is-active $unit; done; ls /run/*-reloaded";
    let found = node.sh(stand)?;
    ensure!(found == "enabled\nactive\ndisabled\ninactive\n/run/good-reloaded\n", "they are {found}");
    let links = node.sh("ls /etc/rc3.d")?;
    ensure!(links.lines().any(|link| link.starts_with('S') && link.ends_with("old")), "runlevel 3 has {links}");
    Ok(())
}

pub(crate) fn says_what_did_not_happen(fleet: &Nodes, node: &Node) -> Result<()> {
    for (name, action, unit, expected) in REFUSING {
        let more = ["retries: 0", "timeout: 2m"];
        let act = other(name, "service", "deploy", &[("unit", unit), ("action", action)], &more);
        let alone = Alone::begin(fleet, node, name, &[item("write", "prepare", WRITE_REFUSING, &[]), act])?;
        ends_so(&alone, name, &format!("Failed: {expected}")).with_context(|| (*name).to_owned())?;
    }
    Ok(())
}

pub(crate) fn reboots(fleet: &Nodes, node: &Node) -> Result<()> {
    let reboot = |name: &str, when: &str| other(name, "reboot", "deploy", &[("when", when)], &["timeout: 10m"]);
    let said = |alone: &Alone, name: &str, message: &str| -> Result<()> {
        let machine = fleet.machines()?.remove(&alone.name).context("the machine")?;
        let why = why(&machine, name);
        ensure!(why == format!(": {message}"), "{name}: {why}");
        Ok(())
    };
    let before = node.boot_id()?;
    let alone = Alone::begin(fleet, node, "no-reboot", &[reboot("not-required", "required")])?;
    alone.wait_ready()?;
    said(&alone, "not-required", "no reboot is required")?;
    ensure!(alone.node.boot_id()? == before, "it went down, though no reboot is required");

    // As Debian's packages request a reboot.
    let wants = "touch /run/reboot-required; echo linux-image >/run/reboot-required.pkgs";
    let items =
        [item("before", "prepare", COUNT_BOOTS, &[]), item("set", "deploy", wants, &[]), reboot("reboot", "required")];
    let alone = Alone::begin(fleet, node, "reboot", &items)?;
    fleet.wait_machine(&alone.name, "on its way", |machine| machine.status.state == "Reboot")?;
    alone.wait_ready()?;
    ensure!(alone.node.boot_id()? != before, "the boot id is the old one");
    let boots = alone.node.sh("cat /var/tmp/boots")?;
    ensure!(boots == "boot\n", "it booted more than once: {boots}");
    let story = alone.node.story()?;
    ensure!(story == "before/1 before/1. set/1 set/1.", "{story}");
    let logs = fleet.ctl(&["logs", &alone.name, "reboot"])?.exits(0)?;
    logs.says(&["going down (the host wants it: ", "linux-image"])?;
    let logind = node.sh("journalctl --unit systemd-logind --output cat")?;
    ensure!(logind.contains("Muster reboots this machine: item reboot"), "no word to who is logged in: {logind}");
    said(&alone, "reboot", "rebooted")
}
