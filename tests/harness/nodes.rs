//! A fleet of nodes: machines as users have them (systemd, journal, apt, a Docker Engine each) as containers on a
//! network of their own, the coordinator as a container of the image that is shipped, the agent from the package that
//! is shipped. Nothing here is a stand-in. It needs a Docker Engine, mmdebstrap for the node's image, and
//! `make packages`.
//!
//! Everything is done through Docker's command line and musterctl in a container beside the nodes, so that it does not
//! matter where the engine runs.

pub mod docker;
pub mod node;
mod operator;
mod rollouts;
mod shell;

use std::{
    cell::Cell,
    collections::BTreeMap,
    env,
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use muster_proto::resource::Machine;

use self::{
    docker::{docker, remove_all},
    node::Node,
    shell::Shells,
};
use crate::fleet::{
    look_every, machines,
    programs::{self, Ran},
};

/// Where the nodes reach the coordinator.
pub const COORDINATOR: &str = "coordinator:7443";
/// Where the nodes reach the artifacts.
pub const ARTIFACTS: &str = "http://operator:8080/";
/// Longest wait for anything of the fleet. It is for a computer that has much else to do; what comes costs no more.
pub const PATIENCE: Duration = Duration::from_secs(600);
/// How long a machine that should become Ready may be failed: an operator's word that it be tried again may be on its
/// way.
const FAILED_MAX: Duration = Duration::from_secs(10);
/// Between two questions to the coordinator.
const ASK_EVERY: Duration = Duration::from_millis(300);
/// How long another fleet of nodes on this computer is waited for: as long as all its tests may take.
const TURN_PATIENCE: Duration = Duration::from_secs(40 * 60);

/// See the module. Dropped, everything of it is removed, unless it was to be kept.
pub struct Nodes {
    /// Of everything Docker has of it, and its label.
    name: String,
    packages: PathBuf,
    image: String,
    coordinator_image: String,
    nodes: BTreeMap<String, Node>,
    /// In the operator's container.
    shells: Shells,
    keep: bool,
    /// Held while it stands.
    _turn: Turn,
}

impl Nodes {
    /// A coordinator, an operator, and `control-1`… and `worker-1`…, booted and with the agent's package installed;
    /// nobody is enrolled. What is left of an earlier fleet of that name is removed.
    ///
    /// # Errors
    /// Whatever keeps it from running, and what to do about it.
    pub fn start(turn: &Turn, name: &str, control: usize, workers: usize) -> Result<Self> {
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the tests lie in the project")?;
        let packages = project.join("target/packages");
        let image = programs::run(&mut Command::new(project.join("tests/nodes/image/build")))?.ok()?.trim().to_owned();
        remove_all(name)?;
        let recipe = project.join("packaging/Containerfile").display().to_string();
        let context = packages.join("image").display().to_string();
        let label = format!("--label={name}");
        let build = ["build", "--quiet", &label, "--file", &recipe, &context];
        let coordinator_image = docker(&build)?.ok()?.trim().to_owned();
        let nodes = BTreeMap::new();
        let (name, shells) = (name.to_owned(), Shells::of(operator::container(name)));
        let mut fleet =
            Self { name, packages, image, coordinator_image, nodes, shells, keep: false, _turn: turn.clone() };
        fleet.network_and_volumes()?;
        let names = (1..=control).map(|n| format!("control-{n}")).chain((1..=workers).map(|n| format!("worker-{n}")));
        for name in names {
            fleet.nodes.insert(name.clone(), Node::create(&fleet.name, &fleet.image, &name)?);
        }
        fleet.start_coordinator()?;
        fleet.start_operator()?;
        fleet.on_every_node(|fleet, node| {
            node.booted()?;
            node.install(&fleet.package("muster-agent")?)
        })?;
        Ok(fleet)
    }

    fn network_and_volumes(&self) -> Result<()> {
        let label = format!("--label={}", self.name);
        docker(&["network", "create", &label, &self.name])?.ok()?;
        for volume in ["state", "keys"] {
            docker(&["volume", "create", &label, &format!("{}-{volume}", self.name)])?.ok()?;
        }
        Ok(())
    }

    fn start_coordinator(&self) -> Result<()> {
        let name = format!("{}-coordinator", self.name);
        let label = format!("--label={}", self.name);
        let state = format!("--volume={}-state:/var/lib/muster/coordinator", self.name);
        let keys = format!("--volume={}-keys:/etc/muster", self.name);
        let place = [&label, &state, &keys, self.coordinator_image.as_str()];
        let init = ["init", "--address", COORDINATOR, "--out", operator::CREDENTIALS];
        docker(&[&["run", "--rm", "--network=none"], &place[..], &init].concat())?.ok()?;
        let network = ["--network", &self.name, "--network-alias", "coordinator"];
        let detached = ["run", "--detach", "--name", &name, "--env", "MUSTER_LOG=trace"];
        docker(&[&detached[..], &network, &place].concat())?.ok()?;
        self.wait_healthy()
    }

    /// Waits until Docker says that the coordinator is healthy.
    ///
    /// # Errors
    /// It is not, in time.
    pub fn wait_healthy(&self) -> Result<()> {
        let name = format!("{}-coordinator", self.name);
        look_every(ASK_EVERY, "the coordinator is healthy", PATIENCE, || {
            let health = docker(&["inspect", "--format", "{{.State.Health.Status}}", &name])?.ok()?;
            Ok((health.trim() == "healthy").then_some(()))
        })
    }

    /// SIGKILL to the coordinator's container.
    ///
    /// # Errors
    /// Docker's.
    pub fn kill_coordinator(&self) -> Result<()> {
        docker(&["kill", &format!("{}-coordinator", self.name)])?.ok()?;
        Ok(())
    }

    /// Runs a shell script, with this on its standard input, where the coordinator's state and keys are in their
    /// places; what it writes.
    ///
    /// # Errors
    /// It failed.
    pub fn look_at_coordinator(&self, script: &str, input: &str) -> Result<String> {
        let label = format!("--label={}", self.name);
        let state = format!("--volume={}-state:/var/lib/muster/coordinator:ro", self.name);
        let keys = format!("--volume={}-keys:/etc/muster:ro", self.name);
        let run = ["run", "--rm", "--interactive", "--network=none", &label, &state, &keys];
        docker::docker_with(&[&run[..], &[&self.image, "sh", "-c", script]].concat(), input)?.ok()
    }

    /// Size of the coordinator's image in bytes, and the user it runs as.
    ///
    /// # Errors
    /// Docker's.
    pub fn coordinator_image(&self) -> Result<(u64, String)> {
        let said = docker(&["inspect", "--format", "{{.Size}} {{.Config.User}}", &self.coordinator_image])?.ok()?;
        let (bytes, user) = said.trim().split_once(' ').context("a size and a user")?;
        Ok((bytes.parse()?, user.to_owned()))
    }

    /// All that it has logged.
    ///
    /// # Errors
    /// Docker's.
    pub fn coordinator_log(&self) -> Result<String> {
        let ran = docker(&["logs", &format!("{}-coordinator", self.name)])?.exits(0)?;
        Ok(ran.out + &ran.err)
    }

    /// Starts it again.
    ///
    /// # Errors
    /// Docker's.
    pub fn restart_coordinator(&self) -> Result<()> {
        docker(&["start", &format!("{}-coordinator", self.name)])?.ok()?;
        Ok(())
    }

    /// The package of that program, for apt.
    ///
    /// # Errors
    /// It was not made: says how to.
    pub fn package(&self, program: &str) -> Result<String> {
        self.made(&format!("{program}_"), ".deb")
    }

    /// The package of that program, for rpm.
    ///
    /// # Errors
    /// It was not made: says how to.
    pub fn rpm(&self, program: &str) -> Result<String> {
        self.made(&format!("{program}-"), ".rpm")
    }

    fn made(&self, begins: &str, ends: &str) -> Result<String> {
        let missing = || format!("there is no {begins}*{ends} in {}: make packages", self.packages.display());
        let entries = fs::read_dir(&self.packages).with_context(missing)?;
        let mut names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let name = names.find(|name| name.starts_with(begins) && name.ends_with(ends));
        Ok(self.packages.join(name.with_context(missing)?).display().to_string())
    }

    /// A node by its name.
    ///
    /// # Errors
    /// There is none.
    pub fn node(&self, name: &str) -> Result<&Node> {
        self.nodes.get(name).with_context(|| format!("there is no node {name}"))
    }

    /// Every node, by name: control machines first.
    pub fn all(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// Does something on all nodes at once.
    ///
    /// # Errors
    /// The first of theirs.
    pub fn on_every_node(&self, act: impl Fn(&Self, &Node) -> Result<()> + Sync) -> Result<()> {
        thread::scope(|scope| {
            let acting: Vec<_> = self.nodes.values().map(|node| scope.spawn(|| act(self, node))).collect();
            acting.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
        })
    }

    /// The node is reinstalled: the same name, a fresh disk, the agent's package.
    ///
    /// # Errors
    /// Docker's, or it does not boot.
    pub fn reinstall(&self, name: &str) -> Result<()> {
        self.node(name)?.remove()?;
        let node = Node::create(&self.name, &self.image, name)?;
        node.booted()?;
        node.install(&self.package("muster-agent")?)
    }

    /// The fleet stays when this is dropped.
    pub fn keep(&mut self) {
        self.keep = true;
    }
}

/// The operator.
impl Nodes {
    /// Runs musterctl on the operator's machine.
    ///
    /// # Errors
    /// It did not start, or did not end.
    pub fn ctl(&self, words: &[&str]) -> Result<Ran> {
        self.shells.run(&[&["musterctl"], words].concat())
    }

    /// Makes a node a machine that never enrolled and where no item ran; the package stays. What it was is revoked, so
    /// that no coordinator waits to hear of it. What a test that failed may have done to it is undone.
    ///
    /// # Errors
    /// musterctl's or the shell's.
    pub fn begin_anew(&self, node: &Node) -> Result<()> {
        node.mend()?;
        let status = node.run(&["muster-agent", "status", "-o", "json"])?;
        if status.code == Some(0) {
            let status: serde_json::Value = serde_json::from_str(&status.out)?;
            let machine = status["machine"].as_str().context("a status names its machine")?;
            self.ctl(&["revoke", machine, "--yes"])?.ok()?;
        }
        node.forget()
    }

    /// Applies a manifest.
    ///
    /// # Errors
    /// It was refused.
    pub fn apply(&self, manifest: &str) -> Result<()> {
        let apply = ["exec", "--interactive", &self.operator(), "musterctl", "apply", "-f", "-"];
        docker::docker_with(&apply, manifest)?.ok()?;
        Ok(())
    }

    /// A join token.
    ///
    /// # Errors
    /// musterctl failed.
    pub fn token(&self, cluster: &str, machine_type: &str, uses: usize) -> Result<String> {
        let uses = uses.to_string();
        self.ctl(&["token", "create", "--cluster", cluster, "--type", machine_type, "--uses", &uses])?.ok()
    }

    /// Every machine, as `get machines -o json` has it: without what its items have said.
    ///
    /// # Errors
    /// musterctl failed.
    pub fn machines(&self) -> Result<BTreeMap<String, Machine>> {
        machines::of(self.ctl(machines::GET)?)
    }

    /// One machine, as `get machine NAME -o json` has it: with output and results of its items.
    ///
    /// # Errors
    /// musterctl failed, or there is no such machine.
    pub fn machine(&self, name: &str) -> Result<Machine> {
        machines::of(self.ctl(&machines::one(name))?)?.remove(name).context("the machine")
    }

    /// Waits until a machine is as wanted. The coordinator may be away meanwhile.
    ///
    /// # Errors
    /// It is not, in time.
    pub fn wait_machine(&self, name: &str, what: &str, wanted: impl Fn(&Machine) -> bool) -> Result<Machine> {
        machines::wait((ASK_EVERY, PATIENCE), (name, what), || self.ctl(&machines::one(name)), wanted)
    }

    /// Waits until a machine is Ready.
    ///
    /// # Errors
    /// It is not, in time, or failed.
    pub fn wait_ready(&self, name: &str) -> Result<()> {
        let failed_since = Cell::new(None::<Instant>);
        let machine = self.wait_machine(name, "Ready", |machine| {
            let failed = machine.status.failed || machine.status.indeterminate;
            failed_since.set(failed.then(|| failed_since.get().unwrap_or_else(Instant::now)));
            machine.status.state == "Ready" || failed_since.get().is_some_and(|since| since.elapsed() > FAILED_MAX)
        })?;
        ensure!(machine.status.state == "Ready", "{name} failed: {:?}", machine.status.blocked);
        Ok(())
    }

    /// What is worth reading when a test failed.
    #[must_use]
    pub fn evidence(&self) -> String {
        let machines = self.ctl(&["get", "machines", "-o", "wide"]).map(|ran| ran.out + &ran.err).unwrap_or_default();
        let log = docker(&["logs", "--tail", "30", &format!("{}-coordinator", self.name)]);
        let log = log.map(|ran| ran.err).unwrap_or_default();
        let nodes: Vec<String> = self.all().map(Node::evidence).collect();
        format!("{machines}--- coordinator\n{log}{}", nodes.concat())
    }
}

/// Leave to have fleets on this computer, as long as it or a clone of it is there. One program at a time: two would
/// have the same names in Docker, and not enough of this computer.
#[derive(Clone)]
pub struct Turn {
    _locked: Arc<File>,
}

impl Turn {
    /// Waits until no other program has it.
    ///
    /// # Errors
    /// It never came to its end, or the lock file cannot be had.
    pub fn take() -> Result<Self> {
        let path = env::temp_dir().join("muster-nodes.lock");
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        let mut said = false;
        look_every(ASK_EVERY, "the end of another fleet of nodes on this computer", TURN_PATIENCE, || {
            match file.try_lock() {
                Ok(()) => return Ok(Some(())),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error).context("cannot lock"),
            }
            if !said {
                programs::complain("another fleet of nodes stands on this computer: waiting for its end");
                said = true;
            }
            Ok(None)
        })?;
        Ok(Self { _locked: Arc::new(file) })
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if !self.keep
            && let Err(error) = remove_all(&self.name)
        {
            programs::complain(&format!("something of {} may be left in Docker: {error:#}", self.name));
        }
    }
}
