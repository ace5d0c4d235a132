//! What the packages do to a machine: upgrade, removal, purge; and the coordinator's image.

use anyhow::{Result, ensure};
use muster_tests::nodes::Nodes;

use crate::site::{Alone, item};

/// Of the coordinator's image.
const IMAGE_BYTES_MAX: u64 = 30 << 20;

pub(crate) fn upgrade_removal_and_purge(fleet: &Nodes) -> Result<()> {
    let alone = Alone::begin(fleet, "worker-1", "package", &[item("set", "deploy", ":", &[])])?;
    alone.wait_ready()?;
    let node = alone.node;
    let verified = node.sh("systemd-analyze verify --man=no muster-agent.service muster-agent.path 2>&1")?;
    ensure!(!verified.contains("muster"), "{verified}");

    // Upgrade (to the same version: what the scripts do is the same): settings and state stay, the agent is a new one.
    node.sh("echo '# mine' >>/etc/muster/agent.toml")?;
    let before = node.agent_pid()?;
    node.sh("apt-get -qq install --yes --reinstall /var/tmp/muster-agent.deb")?;
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

pub(crate) fn image_is_small_and_not_root(fleet: &Nodes) -> Result<()> {
    let (bytes, user) = fleet.coordinator_image()?;
    ensure!(bytes < IMAGE_BYTES_MAX, "{bytes} bytes");
    ensure!(!["", "0", "root"].contains(&user.split(':').next().unwrap_or_default()), "its user is {user:?}");
    Ok(())
}
