//! A machine with its own kernel, in qemu, for what containers cannot show: it really reboots, its boot id is the
//! kernel's, and a memory limit is enforced. `make test-machine`; a part of `make full`.

mod qemu;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use muster_proto::resource;
use muster_tests::fleet::{
    CLUSTER, Fleet,
    effects::Effect,
    manifest::{bash, cluster, other},
    programs::complain,
};

use crate::qemu::{EFFECTS, Machine};

/// Name of the machine.
const NAME: &str = "control-1";
/// Timeout of every wait. A boot takes a minute in software emulation, and all cores may be busy.
const TIME_LIMIT: Duration = Duration::from_secs(1500);
/// An operator's way to limit items: systemd applies it to every unit of that prefix. This one limits one item.
const LIMIT: &str = "dir=/etc/systemd/system/muster-item-hog-.service.d
mkdir -p $dir
printf '[Service]\\nMemoryMax=64M\\n' >$dir/memory.conf
systemctl daemon-reload";
/// The effects as one line: `item/attempt`, with a dot for an end.
const STORY: &str = "limit/1 limit/1. before/1 before/1. hog/1";

#[test]
fn a_machine_runs_out_of_memory_reboots_and_comes_back() -> Result<()> {
    let mut fleet = Fleet::start("machine", &[])?;
    fleet.set_time_limit(TIME_LIMIT);
    let once = ["retries: 0"];
    let items = [
        bash("limit", "prepare", EFFECTS, LIMIT, &[]),
        bash("before", "deploy", EFFECTS, ":", &[]),
        bash("hog", "deploy", EFFECTS, "tail /dev/zero", &once),
        other("reboot", "reboot", "deploy", &[("when", "always")], &[]),
    ];
    fleet.apply(&cluster(1, 0, &items, &[], &[]))?;
    let token = fleet.ctl(&["token", "create", "--cluster", CLUSTER, "--type", "control"])?.ok()?;
    let machine = Machine::start(&fleet, NAME, &token)?;
    lives(&fleet, &machine).with_context(|| machine.evidence())?;
    drop(machine);
    fleet.done()
}

fn lives(fleet: &Fleet, machine: &Machine) -> Result<()> {
    let failed = fleet.wait_machine(NAME, "out of memory", |machine| machine.status.failed)?;
    let said = failed.status.state_item_statuses.get("hog").map(|status| status.message.clone()).unwrap_or_default();
    ensure!(said.contains("out of memory"), "of the item over its limit it says: {said}");
    let host = |machine: resource::Machine| machine.status.host_info.context("it says what it is");
    let before = host(failed)?;
    fleet.ctl(&["skip", NAME, "hog"])?.ok()?;
    let ready = fleet.wait_machine(NAME, "Ready", |machine| machine.status.state == "Ready")?;
    let after = host(ready)?;
    ensure!(!before.boot_id.is_empty() && after.boot_id != before.boot_id, "boot ids: {before:?}, {after:?}");
    let boots = machine.boots();
    ensure!(boots == 2, "the kernel started {boots} times");
    let story = machine.effects()?.iter().map(told).collect::<Vec<_>>().join(" ");
    ensure!(story == STORY, "{story}");
    complain(&format!("Linux {}: {said}; boot id {}, then {}", after.kernel_version, before.boot_id, after.boot_id));
    Ok(())
}

fn told(effect: &Effect) -> String {
    format!("{}/{}{}", effect.item, effect.attempt, if effect.is_start { "" } else { "." })
}
