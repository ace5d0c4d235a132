//! One node: a container that acts as a machine, with systemd as process 1, and its own journal, boot id and disk.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};

use super::{
    docker::{docker, docker_with},
    shell::Shells,
};
use crate::fleet::{
    effects::{self, Effect},
    look_every,
    programs::Ran,
};

/// Path of the file where the items of the tests log what they do.
pub const EFFECTS_LOG: &str = "/var/tmp/effects.log";
/// Where a node keeps the package it was installed from. Not in /tmp: that is a tmpfs, and Docker cannot copy to it.
const PACKAGE: &str = "/var/tmp/muster-agent.deb";
/// Timeout of a node's boot. Six of them start their Docker Engines at once on two cores, which may have other work.
const BOOT_PATIENCE: Duration = Duration::from_secs(300);
/// Poll interval inside a node; each poll takes a process or two.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Options that make a container a machine: as `--privileged`, without what build machines need not provide. A power
/// cut clears `/run` and `/tmp`, and the disk survives. The inner engine has a real file system for its layers.
const MACHINE: &[&str] = &[
    "--cgroupns=private",
    "--cap-add=ALL",
    "--cap-drop=SYS_RESOURCE",
    "--security-opt=seccomp=unconfined",
    "--security-opt=apparmor=unconfined",
    "--security-opt=systempaths=unconfined",
    "--device-cgroup-rule=a *:* rwm",
    "--tmpfs=/run",
    "--tmpfs=/tmp",
    "--volume=/var/lib/docker",
    // So that `systemctl reboot` inside comes back. `docker kill` counts as a manual stop: the container stays off.
    "--restart=always",
];

/// See [`Node::mend`].
const MEND: &str = "while iptables -D INPUT ! -i lo -j DROP; do :; done 2>/dev/null
while iptables -D OUTPUT ! -o lo -j DROP; do :; done 2>/dev/null
systemctl stop 'muster-item-*'
rm -f /var/tmp/go
if mountpoint --quiet /var/lib/muster/agent; then
    systemctl stop muster-agent && umount /var/lib/muster/agent && systemctl restart muster-agent.path
fi
systemctl reset-failed";

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its hostname.
    pub name: String,
    container: String,
    shells: Arc<Shells>,
}

impl Node {
    /// Creates the container and powers it on.
    pub(super) fn create(fleet: &str, image: &str, name: &str) -> Result<Self> {
        let container = format!("{fleet}-{name}");
        let node = Self { name: name.to_owned(), shells: Arc::new(Shells::of(container.clone())), container };
        let label = format!("--label={fleet}");
        let own = ["run", "--detach", "--name", &node.container, "--hostname", name, "--network", fleet];
        let machine =
            [&own[..], &["--network-alias", name, &label], MACHINE, &[image, "/lib/systemd/systemd"]].concat();
        docker(&machine)?.ok()?;
        Ok(node)
    }

    /// Waits until the boot is complete.
    ///
    /// # Errors
    /// Fails on timeout, or if a unit failed.
    pub fn booted(&self) -> Result<()> {
        let mut last = String::new();
        look_every(LOOK_EVERY, &format!("{} has booted", self.name), BOOT_PATIENCE, || {
            let ran = self.run(&["systemctl", "is-system-running"])?;
            ran.out.trim().clone_into(&mut last);
            ensure!(last != "degraded", "something failed to start");
            Ok((last == "running").then_some(()))
        })
        .with_context(|| {
            let failed = self.run(&["systemctl", "--failed", "--no-pager"]).map(|ran| ran.out).unwrap_or_default();
            format!("systemd says {last}\n{failed}")
        })
    }

    /// Runs a program in it.
    ///
    /// # Errors
    /// Fails on a start error or a timeout.
    pub fn run(&self, words: &[&str]) -> Result<Ran> {
        docker(&[&["exec", &self.container], words].concat())
    }

    /// Runs a line of shell in it. Returns its stdout.
    ///
    /// # Errors
    /// Fails if the line does.
    pub fn sh(&self, line: &str) -> Result<String> {
        self.run(&["sh", "-c", line])?.ok()
    }

    /// As [`Self::sh`], for frequent polls: it costs a fraction. It fails when the node goes down meanwhile.
    ///
    /// # Errors
    /// Fails if the line does.
    pub fn look(&self, line: &str) -> Result<String> {
        self.shells.run(&["sh", "-c", line])?.ok()
    }

    /// Runs a program in it with this standard input.
    ///
    /// # Errors
    /// Fails on a start error or a timeout.
    pub fn run_with(&self, words: &[&str], input: &str) -> Result<Ran> {
        docker_with(&[&["exec", "--interactive", &self.container], words].concat(), input)
    }

    /// Copies a file into it.
    ///
    /// # Errors
    /// Fails if Docker does.
    pub fn copy_in(&self, from: &str, to: &str) -> Result<()> {
        docker(&["cp", from, &format!("{}:{to}", self.container)])?.ok()?;
        Ok(())
    }

    /// Installs the agent's package, as an administrator would.
    ///
    /// # Errors
    /// Fails if apt does.
    pub fn install(&self, package: &str) -> Result<()> {
        self.copy_in(package, PACKAGE)?;
        self.sh(&format!("apt-get -qq install --yes {PACKAGE}"))?;
        Ok(())
    }

    /// Enrols it under that name; the agent starts by itself.
    ///
    /// # Errors
    /// Fails on a start error or a timeout.
    pub fn enroll(&self, name: &str, token: &str) -> Result<Ran> {
        self.enroll_at(super::COORDINATOR, name, token)
    }

    /// As [`Self::enroll`], with the coordinator at one of these addresses.
    ///
    /// # Errors
    /// Fails on a start error or a timeout.
    pub fn enroll_at(&self, coordinators: &str, name: &str, token: &str) -> Result<Ran> {
        let command = ["muster-agent", "enroll", "--coordinator", coordinators, "--token-file", "-", "--name", name];
        self.run_with(&command, token)
    }

    /// Undoes the remains of an aborted test: power off, a cut network, a full disk under the agent's record, failed
    /// units, items that wait for a signal.
    pub(super) fn mend(&self) -> Result<()> {
        self.restart(true)?;
        let running = docker(&["inspect", "--format", "{{.State.Running}}", &self.container])?.ok()?;
        if running.trim() != "true" {
            self.restore_power()?;
        }
        self.sh(MEND).map(drop)
    }

    /// Stops the agent; deletes its identity, record and effects.
    ///
    /// # Errors
    /// Fails if the shell does.
    pub fn forget(&self) -> Result<()> {
        self.sh(&format!("systemctl stop muster-agent && rm -rf /var/lib/muster/agent/* {EFFECTS_LOG}"))?;
        Ok(())
    }

    /// Cuts its power: every process and all memory is lost. It may be down just then, in the middle of a reboot.
    ///
    /// # Errors
    /// Fails if Docker does.
    pub fn cut_power(&self) -> Result<()> {
        let killed = docker(&["kill", &self.container])?;
        let was_down = ["is not running", "is restarting"].iter().any(|words| killed.err.contains(words));
        if !was_down {
            killed.ok()?;
        }
        Ok(())
    }

    /// Keeps it down after its next shutdown.
    ///
    /// # Errors
    /// Fails if Docker does.
    pub fn stay_down(&self) -> Result<()> {
        self.restart(false)
    }

    fn restart(&self, always: bool) -> Result<()> {
        let policy = if always { "--restart=always" } else { "--restart=no" };
        docker(&["update", policy, &self.container])?.ok()?;
        Ok(())
    }

    /// Restores its power, and waits for the boot.
    ///
    /// # Errors
    /// Fails if Docker does, or the boot.
    pub fn restore_power(&self) -> Result<()> {
        self.restart(true)?;
        docker(&["start", &self.container])?.ok()?;
        self.booted()
    }

    /// Drops all its network traffic, except on loopback.
    ///
    /// # Errors
    /// Fails if iptables does.
    pub fn cut_network(&self) -> Result<()> {
        self.sh("iptables -I INPUT ! -i lo -j DROP && iptables -I OUTPUT ! -o lo -j DROP")?;
        Ok(())
    }

    /// Restores its network.
    ///
    /// # Errors
    /// Fails if iptables does.
    pub fn restore_network(&self) -> Result<()> {
        self.sh("iptables -D INPUT ! -i lo -j DROP && iptables -D OUTPUT ! -o lo -j DROP")?;
        Ok(())
    }

    /// Removes the container and its disk.
    pub(super) fn remove(&self) -> Result<()> {
        docker(&["rm", "--force", "--volumes", &self.container])?.ok()?;
        Ok(())
    }

    /// Its current boot id.
    ///
    /// # Errors
    /// Fails unless it runs.
    pub fn boot_id(&self) -> Result<String> {
        Ok(self.sh("cat /proc/sys/kernel/random/boot_id")?.trim().to_owned())
    }

    /// How often it went down and came back by itself.
    ///
    /// # Errors
    /// Fails if Docker does.
    pub fn reboots(&self) -> Result<u32> {
        Ok(docker(&["inspect", "--format", "{{.RestartCount}}", &self.container])?.ok()?.trim().parse()?)
    }

    /// What the items have logged on it so far.
    ///
    /// # Errors
    /// Fails on a line of another format.
    pub fn effects(&self) -> Result<Vec<Effect>> {
        effects::parse(&self.look(&format!("cat {EFFECTS_LOG} 2>/dev/null || true"))?)
    }

    /// Waits until an item has logged `start`.
    ///
    /// # Errors
    /// Fails on timeout.
    pub fn wait_started(&self, item: &str) -> Result<()> {
        look_every(LOOK_EVERY, &format!("{}: {item} runs", self.name), BOOT_PATIENCE, || {
            let effects = self.effects().unwrap_or_default(); // it may be on its way up
            Ok(effects.iter().any(|effect| effect.item == item && effect.is_start).then_some(()))
        })
    }

    /// Waits until a condition holds on it. A poll that fails counts as false.
    ///
    /// # Errors
    /// Fails on timeout, with the error of the last poll.
    pub fn wait_until(&self, what: &str, is_so: impl Fn() -> Result<bool>) -> Result<()> {
        let mut last = None;
        let seen = look_every(LOOK_EVERY, &format!("{}: {what}", self.name), BOOT_PATIENCE, || {
            let looked = is_so();
            let is_so = looked.as_ref().is_ok_and(|is_so| *is_so);
            last = looked.err();
            Ok(is_so.then_some(()))
        });
        seen.with_context(|| last.map(|error| format!("{error:#}")).unwrap_or_default())
    }

    /// What the items did, in order: `item/attempt` for a start and `item/attempt.` for an end.
    ///
    /// # Errors
    /// Fails on a line of another format.
    pub fn story(&self) -> Result<String> {
        let effects = self.effects()?;
        let told = effects.iter().map(|effect| {
            let end = if effect.is_start { "" } else { "." };
            format!("{}/{}{end}", effect.item, effect.attempt)
        });
        Ok(told.collect::<Vec<_>>().join(" "))
    }

    /// The agent's process id.
    ///
    /// # Errors
    /// Fails unless it runs.
    pub fn agent_pid(&self) -> Result<String> {
        let pid = self.sh("systemctl show --property MainPID --value muster-agent")?.trim().to_owned();
        if pid == "0" {
            bail!("{}: no agent runs", self.name);
        }
        Ok(pid)
    }

    /// Diagnostics for a failed test: the agent's log.
    #[must_use]
    pub fn evidence(&self) -> String {
        let log = self.run(&["journalctl", "--unit", "muster-agent", "--no-pager", "--lines", "30", "--output", "cat"]);
        let effects = self.story().unwrap_or_default();
        format!("--- {}: {effects}\n{}", self.name, log.map(|ran| ran.out).unwrap_or_default())
    }
}
