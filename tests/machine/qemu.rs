//! The machine: a read-only disk of tests/machine/image, and a second disk with instructions for the first boot.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result};
use muster_tests::fleet::{
    Fleet,
    effects::{self, Effect},
    programs::run,
};

/// Its second serial port, which is a file of this computer: the items log there.
pub(crate) const EFFECTS: &str = "/dev/ttyS1";
/// This computer's loopback, as seen from the machine (qemu's own network).
const HOST: &str = "10.0.2.2";
/// Most lines of the console shown for a failed test.
const LINES_MAX: usize = 60;
/// Runs once, as root, by provision.service. The coordinator's certificate is for 127.0.0.1, so a proxy listens there.
/// The machine also has its own coordinator, as in docs/how-to/install.md: a service with its own user, which receives
/// its key from systemd (impossible in a container). It is killed, removed and installed again, and keeps its record.
const PROVISION: &str = "set -eux
cd /mnt
apt-get install --yes ./muster-coordinator.deb ./musterctl.deb
export HOME=/root MUSTER_CONFIG=/root/operator.toml
muster-coordinator init --address 127.0.0.1:7443 --out $MUSTER_CONFIG
systemctl start muster-coordinator
musterctl secret create own --clusters edge-7 --from-file token
ps -o user:32= -p $(systemctl show --property MainPID --value muster-coordinator) | grep -x 'muster-coordinator *'
before=$(systemctl show --property MainPID --value muster-coordinator)
systemctl kill --signal KILL muster-coordinator
until [ $(systemctl show --property MainPID --value muster-coordinator) -gt $before ]; do sleep 1; done
apt-get remove --yes muster-coordinator
apt-get install --yes ./muster-coordinator.deb
systemctl start muster-coordinator
musterctl get secrets | grep '^own '
apt-get purge --yes muster-coordinator
test ! -e /var/lib/muster/coordinator -a ! -e /etc/muster/coordinator.key
cp door.socket door.service /etc/systemd/system/
systemctl daemon-reload
systemctl enable --now door.socket
apt-get install --yes ./muster-agent.deb
muster-agent enroll --coordinator @ADDRESS@ --token-file token --name @NAME@
";
const DOOR_SOCKET: &str = "[Socket]\nListenStream=@ADDRESS@\n[Install]\nWantedBy=sockets.target\n";
const DOOR_SERVICE: &str = "[Service]\nExecStart=/lib/systemd/systemd-socket-proxyd @HOST@:@PORT@\n";

/// The machine (see the module). Drop powers it off.
pub(crate) struct Machine {
    child: Child,
    dir: PathBuf,
}

impl Machine {
    /// Powers it on: it installs the agent's package and enrols.
    ///
    /// # Errors
    /// Names what is missing.
    pub(crate) fn start(fleet: &Fleet, name: &str, token: &str) -> Result<Self> {
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the tests lie in the project")?;
        let image = run(&mut Command::new(project.join("tests/machine/image/build")))?.ok()?;
        let image = Path::new(image.trim());
        let dir = fleet.dir().join("machine");
        let seed = dir.join("seed");
        fs::create_dir_all(&seed)?;
        let address = fleet.address();
        let port = address.rsplit_once(':').context("HOST:PORT")?.1;
        let of_this = |text: &str| {
            let text = text.replace("@ADDRESS@", &address).replace("@NAME@", name);
            text.replace("@HOST@", HOST).replace("@PORT@", port)
        };
        fs::write(seed.join("provision"), of_this(PROVISION))?;
        fs::write(seed.join("door.socket"), of_this(DOOR_SOCKET))?;
        fs::write(seed.join("door.service"), of_this(DOOR_SERVICE))?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(seed.join("token"))?;
        file.write_all(token.as_bytes())?;
        for program in ["muster-agent", "muster-coordinator", "musterctl"] {
            fs::copy(package(project, program)?, seed.join(format!("{program}.deb")))?;
        }
        let second = dir.join("seed.img");
        run(Command::new("mke2fs").args(["-q", "-t", "ext4", "-d"]).args([&seed, &second]).arg("64M"))?.ok()?;
        let child = boot(image, &second, &dir)?;
        Ok(Self { child, dir })
    }

    /// What its items have logged so far.
    ///
    /// # Errors
    /// Fails on a line of another format.
    pub(crate) fn effects(&self) -> Result<Vec<Effect>> {
        effects::read(&self.dir.join("effects.log"))
    }

    /// Number of kernel starts, from the kernel's own messages.
    pub(crate) fn boots(&self) -> usize {
        self.read("console.log").matches("] Linux version ").count()
    }

    /// Diagnostics for a failed test: the end of its console, and qemu's output.
    pub(crate) fn evidence(&self) -> String {
        let console = self.read("console.log");
        let lines: Vec<&str> = console.lines().collect();
        let end = lines[lines.len().saturating_sub(LINES_MAX)..].join("\n");
        format!("{}--- console\n{end}", self.read("qemu.log"))
    }

    fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.dir.join(name)).unwrap_or_default()).into_owned()
    }
}

/// Path of a program's package, built by `make packages`.
fn package(project: &Path, program: &str) -> Result<PathBuf> {
    let packages = project.join("target/packages");
    let missing = || format!("there is no package of {program} in {}: make packages", packages.display());
    let mut entries = fs::read_dir(&packages).with_context(missing)?.filter_map(Result::ok).map(|entry| entry.path());
    let is_it = |path: &PathBuf| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with(&format!("{program}_")) && name.ends_with(".deb"))
    };
    entries.find(is_it).with_context(missing)
}

/// Boots with software emulation: build machines have no other. Disk writes are lost when the process ends.
fn boot(image: &Path, second: &Path, dir: &Path) -> Result<Child> {
    let disk = |path: &Path, more: &str| format!("file={},if=virtio,format=raw{more}", path.display());
    let serial = |name: &str| format!("file:{}", dir.join(name).display());
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-accel", "tcg", "-m", "1024", "-smp", "2", "-display", "none", "-snapshot"]);
    qemu.arg("-kernel").arg(image.join("vmlinuz")).arg("-initrd").arg(image.join("initrd.img"));
    qemu.args(["-append", "root=/dev/vda rw console=ttyS0 panic=5 systemd.firstboot=no"]);
    qemu.args(["-drive", &disk(&image.join("disk.img"), ""), "-drive", &disk(second, ",readonly=on")]);
    qemu.args(["-serial", &serial("console.log"), "-serial", &serial("effects.log")]);
    qemu.args(["-netdev", "user,id=wire", "-device", "virtio-net-pci,netdev=wire"]);
    let log = fs::File::create(dir.join("qemu.log"))?;
    qemu.env("TMPDIR", dir); // what is written to the disk, about 1 GiB
    let child = qemu.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn();
    child.context("cannot start qemu-system-x86_64: apt-get install qemu-system-x86")
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it ended by itself
        let _ = self.child.wait();
    }
}
