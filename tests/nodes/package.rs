//! What the packages do to a machine: upgrade, removal, purge; and the coordinator's image.

use anyhow::{Result, ensure};
use muster_tests::nodes::Nodes;

use crate::site::{Alone, item};

/// Of the coordinator's image.
const IMAGE_BYTES_MAX: u64 = 30 << 20;
/// What docs/OPERATIONS.md has an administrator do, on one machine.
const INSTALL_COORDINATOR: &str = "cd /root && export MUSTER_CONFIG=/root/operator.toml
apt-get -qq install --yes /var/tmp/muster-coordinator.deb /var/tmp/musterctl.deb
muster-coordinator init --address worker-2:7443 --out operator.toml
systemctl start muster-coordinator
musterctl token create --cluster alone --type control >/dev/null";
const COORDINATOR_USER: &str = "ps -o user= -p $(systemctl show --property MainPID --value muster-coordinator)";
/// Its record holds what was made, whichever process asks.
const TOKENS: &str = "MUSTER_CONFIG=/root/operator.toml musterctl get tokens -o json | grep -c '\"name\"'";

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

/// Outside of a container: a service with a user of its own, whose record outlives it and its package.
pub(crate) fn coordinator_as_a_service(fleet: &Nodes) -> Result<()> {
    let node = fleet.node("worker-2")?;
    for program in ["muster-coordinator", "musterctl"] {
        node.copy_in(&fleet.package(program)?, &format!("/var/tmp/{program}.deb"))?;
    }
    node.sh(INSTALL_COORDINATOR)?;
    let user = node.sh(COORDINATOR_USER)?;
    ensure!(user.trim().starts_with("muster-"), "it runs as {user}"); // ps cuts it
    ensure!(node.sh(TOKENS)? == "1\n", "the token is not there");
    node.sh("systemctl kill --signal KILL muster-coordinator")?;
    node.wait_until("it serves again", || Ok(node.sh(TOKENS)? == "1\n"))?;

    node.sh("apt-get -qq remove --yes muster-coordinator")?;
    let state = node.run(&["systemctl", "is-active", "muster-coordinator"])?.out;
    ensure!(state.trim() != "active", "it runs on after removal");
    node.sh("apt-get -qq install --yes /var/tmp/muster-coordinator.deb && systemctl start muster-coordinator")?;
    node.wait_until("it has its record again", || Ok(node.sh(TOKENS)? == "1\n"))?;
    node.sh("apt-get -qq purge --yes muster-coordinator musterctl && ! test -e /var/lib/muster/coordinator")?;
    Ok(())
}

pub(crate) fn image_is_small_and_not_root(fleet: &Nodes) -> Result<()> {
    let (bytes, user) = fleet.coordinator_image()?;
    ensure!(bytes < IMAGE_BYTES_MAX, "{bytes} bytes");
    ensure!(!["", "0", "root"].contains(&user.split(':').next().unwrap_or_default()), "its user is {user:?}");
    Ok(())
}
