//! A fleet of nodes: machines as users have them (systemd, journal, apt, a Docker Engine each) as containers on a
//! network of their own. The coordinator runs as a container of the shipped image, the agent comes from the shipped
//! package. Nothing here is a mock. It needs a Docker Engine, mmdebstrap for the node's image, and `make packages`.
//!
//! Everything goes through Docker's command line and musterctl in a container beside the nodes. Therefore the engine
//! may run anywhere.

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

/// Address of the coordinator, for the nodes.
pub const COORDINATOR: &str = "coordinator:7443";
/// Address of the artifacts, for the nodes.
pub const ARTIFACTS: &str = "http://operator:8080/";
/// Timeout of every wait in the fleet. It allows for a busy computer; a wait ends as soon as its condition holds.
pub const TIME_LIMIT: Duration = Duration::from_secs(600);
/// How long a machine on its way to Ready may be failed: an operator's retry may be in transit.
const FAILED_MAX: Duration = Duration::from_secs(10);
/// Poll interval for the coordinator.
const ASK_EVERY: Duration = Duration::from_millis(300);
/// Timeout of the wait for another fleet of nodes on this computer: the longest run of all its tests.
const TURN_PATIENCE: Duration = Duration::from_secs(40 * 60);

/// A fleet of nodes (see the module). Drop removes everything of it, unless it was to be kept.
pub struct Nodes {
    /// Name of the fleet, and the label of all its Docker objects.
    name: String,
    packages: PathBuf,
    image: String,
    coordinator_image: String,
    nodes: BTreeMap<String, Node>,
    /// Shells in the operator's container.
    shells: Shells,
    keep: bool,
    /// Held while the fleet exists.
    _turn: Turn,
}

impl Nodes {
    /// Starts a coordinator, an operator, and `control-1`… and `worker-1`…, booted and with the agent's package
    /// installed but not enrolled. Removes the remains of an earlier fleet of that name.
    ///
    /// # Errors
    /// Fails if the start of a part does, and says what to do about it.
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

    /// Waits until Docker reports the coordinator as healthy.
    ///
    /// # Errors
    /// Fails on timeout.
    pub fn wait_healthy(&self) -> Result<()> {
        let name = format!("{}-coordinator", self.name);
        look_every(ASK_EVERY, "the coordinator is healthy", TIME_LIMIT, || {
            let health = docker(&["inspect", "--format", "{{.State.Health.Status}}", &name])?.ok()?;
            Ok((health.trim() == "healthy").then_some(()))
        })
    }

    /// Kills the coordinator's container (SIGKILL).
    ///
    /// # Errors
    /// Fails if Docker does.
    pub fn kill_coordinator(&self) -> Result<()> {
        docker(&["kill", &format!("{}-coordinator", self.name)])?.ok()?;
        Ok(())
    }

    /// Runs a shell script with this standard input in a container where the coordinator's state and keys are mounted.
    /// Returns its stdout.
    ///
    /// # Errors
    /// Fails if the script does.
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
    /// Fails if Docker does.
    pub fn coordinator_image(&self) -> Result<(u64, String)> {
        let said = docker(&["inspect", "--format", "{{.Size}} {{.Config.User}}", &self.coordinator_image])?.ok()?;
        let (bytes, user) = said.trim().split_once(' ').context("a size and a user")?;
        Ok((bytes.parse()?, user.to_owned()))
    }

    /// The coordinator's whole log.
    ///
    /// # Errors
    /// Fails if Docker does.
    pub fn coordinator_log(&self) -> Result<String> {
        let ran = docker(&["logs", &format!("{}-coordinator", self.name)])?.exits(0)?;
        Ok(ran.out + &ran.err)
    }

    /// Starts the coordinator again.
    ///
    /// # Errors
    /// Fails if Docker does.
    pub fn restart_coordinator(&self) -> Result<()> {
        docker(&["start", &format!("{}-coordinator", self.name)])?.ok()?;
        Ok(())
    }

    /// File name of a program's apt package.
    ///
    /// # Errors
    /// Fails if it is missing, and says how to build it.
    pub fn package(&self, program: &str) -> Result<String> {
        self.made(&format!("{program}_"), ".deb")
    }

    /// File name of a program's rpm package.
    ///
    /// # Errors
    /// Fails if it is missing, and says how to build it.
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
    /// Fails for an unknown node.
    pub fn node(&self, name: &str) -> Result<&Node> {
        self.nodes.get(name).with_context(|| format!("there is no node {name}"))
    }

    /// All nodes by name, control machines first.
    pub fn all(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// Runs an action on all nodes at once.
    ///
    /// # Errors
    /// Returns the first error.
    pub fn on_every_node(&self, act: impl Fn(&Self, &Node) -> Result<()> + Sync) -> Result<()> {
        thread::scope(|scope| {
            let acting: Vec<_> = self.nodes.values().map(|node| scope.spawn(|| act(self, node))).collect();
            acting.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
        })
    }

    /// Reinstalls a node: the same name, a fresh disk, the agent's package.
    ///
    /// # Errors
    /// Fails if Docker does, or the boot.
    pub fn reinstall(&self, name: &str) -> Result<()> {
        self.node(name)?.remove()?;
        let node = Node::create(&self.name, &self.image, name)?;
        node.booted()?;
        node.install(&self.package("muster-agent")?)
    }

    /// Keeps the fleet after this is dropped.
    pub fn keep(&mut self) {
        self.keep = true;
    }
}

/// Actions of the operator.
impl Nodes {
    /// Runs musterctl on the operator's machine.
    ///
    /// # Errors
    /// Fails on a start error or a timeout.
    pub fn ctl(&self, words: &[&str]) -> Result<Ran> {
        self.shells.run(&[&["musterctl"], words].concat())
    }

    /// Resets a node to one that was never enrolled and has run no items; the package stays. Revokes the old machine,
    /// so that no coordinator waits for it. Also undoes the remains of a failed test.
    ///
    /// # Errors
    /// Fails if musterctl or the shell does.
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
    /// Fails if it is rejected.
    pub fn apply(&self, manifest: &str) -> Result<()> {
        let apply = ["exec", "--interactive", &self.operator(), "musterctl", "apply", "-f", "-"];
        docker::docker_with(&apply, manifest)?.ok()?;
        Ok(())
    }

    /// Creates a join token.
    ///
    /// # Errors
    /// Fails if musterctl does.
    pub fn token(&self, cluster: &str, machine_type: &str, uses: usize) -> Result<String> {
        let uses = uses.to_string();
        self.ctl(&["token", "create", "--cluster", cluster, "--type", machine_type, "--uses", &uses])?.ok()
    }

    /// All machines, as `get machines -o json` prints them: without the output of their items.
    ///
    /// # Errors
    /// Fails if musterctl does.
    pub fn machines(&self) -> Result<BTreeMap<String, Machine>> {
        machines::of(self.ctl(machines::GET)?)
    }

    /// One machine, as `get machine NAME -o json` prints it: with output and results of its items.
    ///
    /// # Errors
    /// Fails if musterctl does, or for an unknown machine.
    pub fn machine(&self, name: &str) -> Result<Machine> {
        machines::of(self.ctl(&machines::one(name))?)?.remove(name).context("the machine")
    }

    /// Waits until a machine satisfies a condition. The coordinator may be down meanwhile.
    ///
    /// # Errors
    /// Fails on timeout.
    pub fn wait_machine(&self, name: &str, what: &str, wanted: impl Fn(&Machine) -> bool) -> Result<Machine> {
        machines::wait((ASK_EVERY, TIME_LIMIT), (name, what), || self.ctl(&machines::one(name)), wanted)
    }

    /// Waits until a machine is Ready.
    ///
    /// # Errors
    /// Fails on timeout, or if the machine failed.
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

    /// Diagnostics for a failed test.
    #[must_use]
    pub fn evidence(&self) -> String {
        let machines = self.ctl(&["get", "machines", "-o", "wide"]).map(|ran| ran.out + &ran.err).unwrap_or_default();
        let log = docker(&["logs", "--tail", "30", &format!("{}-coordinator", self.name)]);
        let log = log.map(|ran| ran.err).unwrap_or_default();
        let nodes: Vec<String> = self.all().map(Node::evidence).collect();
        format!("{machines}--- coordinator\n{log}{}", nodes.concat())
    }
}

/// The right to run fleets on this computer, held as long as it or a clone of it exists. One program at a time: two
/// would use the same names in Docker, and overload this computer.
#[derive(Clone)]
pub struct Turn {
    _locked: Arc<File>,
}

impl Turn {
    /// Waits until other programs have released it.
    ///
    /// # Errors
    /// Fails on timeout, or on an error of the lock file.
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
