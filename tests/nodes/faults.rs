//! Faults on real machines, one at a time on each machine, which is reset before.

use anyhow::{Context as _, Result, ensure};
use muster_proto::model::Reason;
use muster_proto::resource::Machine;
use muster_tests::{
    fleet::manifest::{named_cluster, other},
    nodes::{Nodes, node::Node},
};

use crate::{
    site::{Alone, item, unit},
    supplies,
    units::COUNT_BOOTS,
};

/// An item that runs until the test lets it continue.
const WAITS: &str = "until [ -e /var/tmp/go ]; do sleep 0.1; done; rm /var/tmp/go";

/// How long a machine's reboot may take. Other machines are missed after 30 s.
const OVERDUE_AFTER_S: i64 = 40;

/// Lets the waiting item continue.
fn go(alone: &Alone) -> Result<()> {
    alone.node.sh("touch /var/tmp/go").map(drop)
}

/// The machine becomes Ready, and its items did exactly this.
fn ends(alone: &Alone, story: &str) -> Result<()> {
    alone.wait_ready()?;
    let told = alone.node.story()?;
    ensure!(told == story, "{told}\nis not: {story}");
    Ok(())
}

pub(crate) fn agent_killed(fleet: &Nodes, node: &Node) -> Result<()> {
    let alone = Alone::begin(fleet, node, "agent-killed", &[item("long", "deploy", WAITS, &[])])?;
    alone.node.wait_started("long")?;
    let pid = alone.node.agent_pid()?;
    alone.node.sh(&format!("kill -9 {pid}"))?;
    fleet.wait_machine(&alone.name, "its new agent follows the item", |machine| {
        machine.status.state == "Deploy" && alone.node.agent_pid().is_ok_and(|new| new != pid)
    })?;
    go(&alone)?;
    ends(&alone, "long/1 long/1.")
}

pub(crate) fn agent_restarted(fleet: &Nodes, node: &Node) -> Result<()> {
    let alone = Alone::begin(fleet, node, "agent-restarted", &[item("long", "deploy", WAITS, &[])])?;
    alone.node.wait_started("long")?;
    alone.node.sh("systemctl restart muster-agent")?;
    go(&alone)?;
    ends(&alone, "long/1 long/1.")
}

/// systemd's watchdog kills a hung agent; a new one follows the item. The unit's status shows what the agent is doing.
pub(crate) fn agent_wedged(fleet: &Nodes, node: &Node) -> Result<()> {
    let alone = Alone::begin(fleet, node, "agent-wedged", &[item("long", "deploy", WAITS, &[])])?;
    alone.node.wait_started("long")?;
    let status = || alone.node.sh("systemctl show --property StatusText --value muster-agent");
    alone.node.wait_until("its status names the item", || {
        Ok(status()?.contains("long") && status()?.contains("connected"))
    })?;
    let pid = alone.node.agent_pid()?;
    alone.node.sh(&format!("kill -STOP {pid}"))?;
    alone.node.wait_until("there is a new agent", || Ok(alone.node.agent_pid()? != pid))?;
    let result = alone.node.sh("journalctl --unit muster-agent --output cat --grep 'Watchdog timeout'")?;
    ensure!(!result.is_empty(), "it was not the watchdog");
    go(&alone)?;
    ends(&alone, "long/1 long/1.")
}

/// An item that may be rerun is rerun, once.
pub(crate) fn power_cut_in_prepare(fleet: &Nodes, node: &Node) -> Result<()> {
    let items = [item("fetch", "prepare", WAITS, &["onInterrupt: rerun"]), item("set", "deploy", ":", &[])];
    let alone = Alone::begin(fleet, node, "power-cut-prepare", &items)?;
    alone.node.wait_started("fetch")?;
    let before = alone.node.boot_id()?;
    alone.node.cut_power()?;
    alone.node.restore_power()?;
    ensure!(alone.node.boot_id()? != before, "the boot id is the old one");
    go(&alone)?;
    ends(&alone, "fetch/1 fetch/2 fetch/2. set/1 set/1.")
}

/// An item with a forbidden rerun waits for a person.
pub(crate) fn power_cut_holds(fleet: &Nodes, node: &Node) -> Result<()> {
    let alone = Alone::begin(fleet, node, "power-cut-holds", &[item("once", "deploy", WAITS, &[])])?;
    alone.node.wait_started("once")?;
    alone.node.cut_power()?;
    alone.node.restore_power()?;
    fleet.wait_machine(&alone.name, "Indeterminate", |machine| {
        machine.status.blocked.iter().any(|blocked| format!("{blocked:?}").contains("Indeterminate"))
    })?;
    ensure!(alone.node.story()? == "once/1", "it was run again");
    fleet.ctl(&["accept", &alone.name, "once"])?.ok()?;
    ends(&alone, "once/1")
}

/// Keeps the machine from going down completely: the shutdown waits for this unit.
const STOPS_SLOWLY: &str = "systemd-run --unit=slow --remain-after-exit --property='ExecStop=/bin/sleep 60' true";

/// Its boots as its journal has them.
const BOOTS_TOLD: &str = "journalctl --list-boots
journalctl --output short-precise | grep -iE 'muster|systemd.1.:.*(boots|reboot|target)' || true";

/// Its power is cut while it goes down for its item. The next boot counts as the reboot: there is no second.
pub(crate) fn power_cut_in_reboot(fleet: &Nodes, node: &Node) -> Result<()> {
    let reboot = other("reboot", "reboot", "deploy", &[("when", "always")], &[]);
    fleet.begin_anew(node)?;
    let before = node.boot_id()?;
    let set = item("set", "deploy", &format!("{COUNT_BOOTS}\n{STOPS_SLOWLY}"), &[]);
    let alone = Alone::enter(fleet, node, "power-cut-reboot", &[set, reboot])?;
    // Docker must not see the end of a shutdown and a kill at once: it may start the container twice after that.
    alone
        .node
        .wait_until("it goes down", || Ok(node.run(&["systemctl", "is-system-running"])?.out.trim() == "stopping"))?;
    node.cut_power()?;
    node.restore_power()?;
    ensure!(node.boot_id()? != before, "the boot id is the old one");
    ends(&alone, "set/1 set/1.")?;
    let boots = node.sh("cat /var/tmp/boots")?;
    ensure!(
        boots == "boot\n",
        "it booted more than once: {boots}Docker restarted it {} times\n{}",
        node.reboots()?,
        node.sh(BOOTS_TOLD)?
    );
    rebooted_at_once(&alone)
}

/// Checks that its reboot took one attempt.
fn rebooted_at_once(alone: &Alone) -> Result<()> {
    let machine = alone.fleet.machines()?.remove(&alone.name).context("the machine")?;
    let status = machine.status.state_item_statuses.get("reboot").context("its reboot")?;
    ensure!(status.attempt == 1 && status.message == "rebooted", "{status:?}");
    Ok(())
}

/// A machine that fails to return from its item's reboot is missed when the item's time limit has passed, later than
/// other machines. After an operator has powered it on, it continues by itself.
pub(crate) fn reboot_overdue(fleet: &Nodes, node: &Node) -> Result<()> {
    let limit = format!("timeout: {OVERDUE_AFTER_S}s");
    let reboot = other("reboot", "reboot", "deploy", &[("when", "always")], &[&limit]);
    fleet.begin_anew(node)?;
    node.stay_down()?;
    let before = node.boot_id()?;
    let alone = Alone::enter(fleet, node, "overdue", &[item("set", "deploy", ":", &[]), reboot])?;
    let waits = |reason: Reason| {
        move |machine: &Machine| machine.status.blocked.iter().any(|wait| wait.blocked.reason == reason)
    };
    fleet.wait_machine(&alone.name, "Rebooting", waits(Reason::Rebooting))?;
    let missed = fleet.wait_machine(&alone.name, "RebootOverdue", waits(Reason::RebootOverdue))?.status;
    let (heard, since) = missed.last_seen.zip(missed.blocked).context("it was seen")?;
    let silent = since.since.duration_since(heard).as_secs();
    ensure!(silent + 1 >= OVERDUE_AFTER_S, "it was missed after {silent} s");
    fleet.ctl(&["describe", "machine", &alone.name])?.exits(0)?.says(&["RebootOverdue", "look at its console"])?;
    fleet.ctl(&["watch", &alone.name])?.exits(4)?.says(&["RebootOverdue"])?;

    node.restore_power()?;
    ensure!(node.boot_id()? != before, "the boot id is the old one");
    ends(&alone, "set/1 set/1.")?;
    rebooted_at_once(&alone)
}

/// The operator finds the reason in the status, fixes it, and retries.
pub(crate) fn unit_fails(fleet: &Nodes, node: &Node) -> Result<()> {
    let items = [
        unit("failing.service", "/bin/sh -c \"echo the disk is upside down; exit 7\""),
        other("start", "service", "deploy", &[("unit", "failing.service"), ("action", "start")], &[]),
    ];
    let alone = Alone::begin(fleet, node, "unit-fails", &items)?;
    fleet.wait_machine(&alone.name, "Failed", |machine| machine.status.failed)?;
    let told = fleet.ctl(&["describe", "machine", &alone.name])?.exits(0)?;
    told.says(&["unit failing.service failed", "the disk is upside down"])?;
    alone
        .node
        .sh("sed -i 's/exit 7/sleep infinity/' /etc/systemd/system/failing.service && systemctl daemon-reload")?;
    fleet.ctl(&["retry", &alone.name])?.ok()?;
    ends(&alone, "unit/1 unit/1.")?;
    ensure!(alone.node.sh("systemctl is-active failing")?.trim() == "active", "the unit is not up");
    Ok(())
}

/// The operator finds the package's name in the status, and fixes the manifest.
pub(crate) fn package_absent(fleet: &Nodes, node: &Node) -> Result<()> {
    let items = |install| {
        let params = [("install", install), ("update", "true")];
        [supplies::sources(), other("tool", "package", "deploy", &params, &[])]
    };
    let alone = Alone::begin(fleet, node, "package-absent", &items("site-toll"))?;
    fleet.wait_machine(&alone.name, "Failed", |machine| machine.status.failed)?;
    let said = "PackageNotFound: no repository of this machine has site-toll";
    fleet.ctl(&["describe", "machine", &alone.name])?.exits(0)?.says(&[said])?;
    fleet.ctl(&["get", "machines", "-o", "wide"])?.exits(0)?.says(&["PackageNotFound"])?;

    fleet.apply(&named_cluster(&alone.name, (1, 0), &items("site-tool=1.2"), &[], &[]))?;
    let said = "VersionNotFound: site-tool 1.2 cannot be had here; there are: 1.1, 1.0";
    fleet.wait_machine(&alone.name, said, |machine| format!("{machine:?}").contains(said))?;
    fleet.apply(&named_cluster(&alone.name, (1, 0), &items("site-tool=1.1"), &[], &[]))?;
    ends(&alone, "sources/1 sources/1.")?;
    ensure!(alone.node.sh(supplies::PACKAGE)?.trim() == "1.1", "another version");
    Ok(())
}

pub(crate) fn coordinator_killed(fleet: &Nodes) -> Result<()> {
    let node = fleet.node("control-2")?;
    let items = [item("long", "deploy", WAITS, &[]), item("next", "deploy", ":", &[])];
    let alone = Alone::begin(fleet, node, "coordinator-killed", &items)?;
    alone.node.wait_started("long")?;
    fleet.kill_coordinator()?;
    go(&alone)?;
    // The machine's list already has the next item: it needs no coordinator.
    alone.node.wait_started("next")?;
    fleet.restart_coordinator()?;
    ends(&alone, "long/1 long/1. next/1 next/1.")?;
    fleet.wait_healthy()
}

pub(crate) fn network_cut(fleet: &Nodes, node: &Node) -> Result<()> {
    let alone = Alone::begin(fleet, node, "network-cut", &[item("long", "deploy", WAITS, &[])])?;
    alone.node.wait_started("long")?;
    alone.node.cut_network()?;
    fleet.wait_machine(&alone.name, "Lost", |machine| {
        machine.status.blocked.iter().any(|blocked| format!("{blocked:?}").contains("Lost"))
    })?;
    go(&alone)?;
    // The rest of the minute, measured by the node itself.
    alone.node.sh("sleep 30")?;
    alone.node.restore_network()?;
    ends(&alone, "long/1 long/1.")
}

pub(crate) fn reinstalled(fleet: &Nodes, node: &Node) -> Result<()> {
    let alone = Alone::begin(fleet, node, "reinstalled", &[item("set", "deploy", ":", &[])])?;
    ends(&alone, "set/1 set/1.")?;
    fleet.reinstall(&node.name)?;
    alone.enroll()?.exits(1)?.says(&["NameTaken", "musterctl replace"])?;
    fleet.ctl(&["replace", &alone.name, "--yes"])?.ok()?;
    alone.enroll()?.exits(0)?;
    // A new machine under the old name: its items run, once.
    ends(&alone, "set/1 set/1.")
}

/// The agent's record is on a small disk here, which fills up while an item runs. It needs 16 MiB to begin one.
pub(crate) fn disk_full(fleet: &Nodes, node: &Node) -> Result<()> {
    let state = "/var/lib/muster/agent";
    // The mount hides the directory that muster-agent.path has been watching.
    let mount = format!("mount -t tmpfs -o size=64M,mode=0700 tmpfs {state} && systemctl restart muster-agent.path");
    fleet.begin_anew(node)?;
    node.sh(&mount)?;
    let items = [item("long", "deploy", WAITS, &[]), item("next", "deploy", ":", &[])];
    let alone = Alone::enter(fleet, node, "disk-full", &items)?;
    alone.node.wait_started("long")?;
    // dd ends when the disk is full.
    let filled = alone.node.sh(&format!("dd if=/dev/zero of={state}/ballast bs=4k count=32k 2>&1 || true"))?;
    ensure!(filled.contains("No space left"), "the small disk is not small: {filled}");
    go(&alone)?;
    fleet.wait_machine(&alone.name, "DiskFull", |machine| format!("{:?}", machine.status).contains("DiskFull"))?;
    let told = alone.node.story()?;
    ensure!(!told.contains("next"), "an item began though nothing could be recorded: {told}");
    alone.node.sh(&format!("rm {state}/ballast"))?;
    alone.wait_ready().context("after there is room again")?;
    // An attempt without room for its own files did not begin, and does not count.
    let told = alone.node.story()?;
    ensure!(told == "long/1 long/1. next/1 next/1.", "not each item once, at the first attempt: {told}");
    fleet.ctl(&["revoke", &alone.name, "--yes"])?.ok()?; // its record goes with the disk
    let unmount = format!("systemctl stop muster-agent && umount {state} && systemctl restart muster-agent.path");
    alone.node.sh(&unmount).map(drop)
}
