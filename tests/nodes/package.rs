//! Effects of the packages on a machine: upgrade, removal, purge; and the coordinator's image.

use anyhow::{Context as _, Result, ensure};
use muster_tests::nodes::{Nodes, node::Node};

use crate::site::{Alone, item};

/// Maximum size of the coordinator's image.
const IMAGE_BYTES_MAX: u64 = 30 << 20;

/// The package, repackaged as an older version.
const OLDER: &str = "/var/tmp/older.deb";
const MAKE_OLDER: &str = "rm -rf /var/tmp/older && dpkg-deb -R /var/tmp/muster-agent.deb /var/tmp/older
sed -i 's/^Version:.*/Version: 0.0.1/' /var/tmp/older/DEBIAN/control
dpkg-deb --root-owner-group --build /var/tmp/older /var/tmp/older.deb >/dev/null";
/// The RPM package.
const RPM: &str = "/var/tmp/muster-agent.rpm";
const PRESET: &str = "/etc/systemd/system-preset/00-nothing.preset";
const VERSION: &str = "dpkg-query --show --showformat '${Version}' muster-agent";

pub(crate) fn upgrade_removal_and_purge(fleet: &Nodes, node: &Node) -> Result<()> {
    let alone = Alone::begin(fleet, node, "package", &[item("set", "deploy", ":", &[])])?;
    alone.wait_ready()?;
    let verified = node.sh("systemd-analyze verify --man=no muster-agent.service muster-agent.path 2>&1")?;
    ensure!(!verified.contains("muster"), "{verified}");

    // Upgrade from a package with an older version number: settings and state stay, the agent restarts.
    node.sh(&format!("{MAKE_OLDER} && apt-get -qq install --yes --allow-downgrades {OLDER}"))?;
    ensure!(node.sh(VERSION)? == "0.0.1", "the older package is not installed");
    node.sh("echo '# mine' >>/etc/muster/agent.toml")?;
    let before = node.agent_pid()?;
    node.sh("apt-get -qq install --yes /var/tmp/muster-agent.deb")?;
    ensure!(node.sh(VERSION)? != "0.0.1", "it was not upgraded");
    ensure!(node.agent_pid()? != before, "the old agent runs on after the upgrade");
    ensure!(node.sh("tail -n 1 /etc/muster/agent.toml")? == "# mine\n", "the settings were overwritten");
    fleet.wait_machine(&alone.name, "connected again", |machine| machine.status.blocked.is_none())?;

    node.sh("apt-get -qq remove --yes muster-agent")?;
    ensure!(node.run(&["systemctl", "is-active", "muster-agent"])?.out.trim() != "active", "it runs on after removal");
    node.sh("test -e /var/lib/muster/agent/identity.json && test -e /etc/muster/agent.toml")?;
    node.install(&fleet.package("muster-agent")?)?;
    node.agent_pid()?; // enrolled as before, so it runs at once

    node.sh("apt-get -qq purge --yes muster-agent")?;
    node.sh("! test -e /var/lib/muster && ! test -e /etc/muster")?;
    node.install(&fleet.package("muster-agent")?)
}

fn is_enabled(node: &Node) -> Result<bool> {
    Ok(node.run(&["systemctl", "is-enabled", "muster-agent.service"])?.out.trim() == "enabled")
}

/// The .rpm on a machine whose presets disable everything. Debian's rpm does not know what dpkg has installed, so
/// dependencies are ignored.
pub(crate) fn rpm_does_as_much(fleet: &Nodes, node: &Node) -> Result<()> {
    fleet.begin_anew(node)?;
    node.sh("apt-get -qq purge --yes muster-agent")?;
    node.copy_in(&fleet.rpm("muster-agent")?, RPM)?;
    node.sh(&format!("mkdir -p /etc/systemd/system-preset && echo 'disable *' >{PRESET}"))?;
    node.sh(&format!("rpm --install --nodeps {RPM}"))?;
    ensure!(!is_enabled(node)?, "the presets disable everything, and it is enabled before it has enrolled");
    let alone = Alone::enter(fleet, node, "rpm", &[item("set", "deploy", ":", &[])])?;
    alone.wait_ready()?;
    node.cut_power()?;
    node.restore_power()?;
    node.wait_until("the agent runs after the boot", || Ok(node.agent_pid().is_ok()))?;
    node.sh("rpm --verify --nodeps muster-agent").context("what was installed is not what the package says")?;

    // Upgrade to another package of the same name: settings and state stay, the agent restarts.
    node.sh("echo '# mine' >>/etc/muster/agent.toml")?;
    let before = node.agent_pid()?;
    node.sh(&format!("rpm --upgrade --nodeps --force {RPM}"))?;
    ensure!(node.agent_pid()? != before, "the old agent runs on after the upgrade");
    ensure!(node.sh("tail -n 1 /etc/muster/agent.toml")? == "# mine\n", "the settings were overwritten");
    fleet.wait_machine(&alone.name, "connected again", |machine| machine.status.blocked.is_none())?;
    ensure!(node.story()? == "set/1 set/1.", "not once: {}", node.story()?);

    ensure!(is_enabled(node)?, "the upgrade has disabled it");

    node.sh("rpm --erase --nodeps muster-agent")?;
    ensure!(!is_enabled(node)?, "it is enabled after removal");
    ensure!(node.run(&["systemctl", "is-active", "muster-agent"])?.out.trim() != "active", "it runs on after removal");
    node.sh("test -e /var/lib/muster/agent/identity.json && grep -qx '# mine' /etc/muster/agent.toml.rpmsave")?;
    // The next test on this node must find no identity of this one.
    fleet.ctl(&["revoke", &alone.name, "--yes"])?.ok()?;
    node.sh(&format!("rm -rf /var/lib/muster /etc/muster {PRESET}"))?;
    node.install(&fleet.package("muster-agent")?)
}

pub(crate) fn image_is_small_and_not_root(fleet: &Nodes) -> Result<()> {
    let (bytes, user) = fleet.coordinator_image()?;
    ensure!(bytes < IMAGE_BYTES_MAX, "{bytes} bytes");
    ensure!(!["", "0", "root"].contains(&user.split(':').next().unwrap_or_default()), "its user is {user:?}");
    Ok(())
}
