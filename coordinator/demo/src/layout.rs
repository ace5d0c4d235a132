//! Files of the demo, and the commands that use them.

use std::{
    env, fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use musterctl::{errors::Failure, terminal};

use super::{
    CLUSTER, CONTROLLER, Wanted, kubernetes,
    mark::Mark,
    shell::{Line, quote_path},
};

/// Timeout for writing the manifests, and forevery MiB of the artifact.
const WRITE_MAX: Duration = Duration::from_secs(30);
const WRITE_MAX_PER_MIB: Duration = Duration::from_millis(100);
/// Timeout for the toy Kubernetes to start its pods; below that of a command.
const KUBERNETES_MAX: Duration = Duration::from_secs(50);

/// Name of the artifact's file.
pub(super) const ARTIFACT: &str = "artifact.bin";

/// The directory of one demo, and the programs it runs.
pub(super) struct Layout {
    /// Absolute path.
    pub(super) dir: PathBuf,
    /// We created it under a generated name, so we may remove it.
    ours: bool,
    /// Does each agent run on a host of its own, as far as hostname and boot id tell?
    own_hosts: bool,
    /// Mark of the demo, in the environment of its processes.
    pub(super) mark: Mark,
    /// This program.
    demo: PathBuf,
    pub(super) musterctl: PathBuf,
    coordinator: PathBuf,
    agent: PathBuf,
}

impl Layout {
    /// Find the programs and create the directory.
    pub(super) fn make(dir: Option<&Path>, own_hosts: bool) -> Result<Self, Failure> {
        let demo = env::current_exe()
            .and_then(fs::canonicalize)
            .map_err(|source| Failure::failed("cannot find this program's own file").because(source))?;
        let [musterctl, coordinator, agent] = sisters(&demo)?;
        let (dir, ours) = match dir {
            Some(dir) => (empty_dir(dir)?, false),
            None => (new_dir()?, true),
        };
        Ok(Self { dir, ours, own_hosts, mark: Mark::given_or_new(), demo, musterctl, coordinator, agent })
    }

    pub(super) fn config(&self) -> PathBuf {
        self.dir.join("operator.toml")
    }

    pub(super) fn manifest(&self) -> PathBuf {
        self.dir.join("manifest.yaml")
    }

    pub(super) fn effects(&self) -> PathBuf {
        self.dir.join("effects.log")
    }

    /// The manifest of the update.
    pub(super) fn second_manifest(&self) -> PathBuf {
        self.dir.join("manifest-2.yaml")
    }

    /// Credentials of the toy controller.
    fn controller_config(&self) -> PathBuf {
        self.dir.join("controller.toml")
    }

    /// The script that gives an agent a host of its own.
    pub(super) fn as_host(&self) -> PathBuf {
        self.dir.join("as-host")
    }

    /// Boot ids of these hosts, a file each.
    pub(super) fn boot_ids(&self) -> PathBuf {
        self.dir.join("boot-ids")
    }

    /// Credentials for Muster in the toy Kubernetes.
    fn kubeconfig(&self) -> PathBuf {
        self.dir.join(kubernetes::KUBECONFIG)
    }

    /// Credentials for people there.
    pub(super) fn admin_kubeconfig(&self) -> PathBuf {
        self.dir.join(kubernetes::ADMIN_KUBECONFIG)
    }

    /// What happened in the toy Kubernetes.
    pub(super) fn kubernetes_report(&self) -> PathBuf {
        self.dir.join(kubernetes::REPORT)
    }

    fn artifacts(&self) -> PathBuf {
        self.dir.join("artifacts")
    }

    pub(super) fn artifact(&self) -> PathBuf {
        self.artifacts().join(ARTIFACT)
    }

    pub(super) fn url_file(&self) -> PathBuf {
        self.dir.join("artifacts.url")
    }

    fn tokens(&self) -> PathBuf {
        self.dir.join("tokens")
    }

    fn token(&self, machine_type: &str) -> PathBuf {
        self.tokens().join(format!("{machine_type}.token"))
    }

    fn state(&self, machine: &str) -> PathBuf {
        self.dir.join("machines").join(machine)
    }

    pub(super) fn log(&self, process: &str) -> PathBuf {
        self.dir.join("logs").join(format!("{process}.log"))
    }

    /// Create the subdirectories; processes create their own.
    pub(super) fn make_dirs(&self) -> Result<(), Failure> {
        [self.artifacts(), self.tokens(), self.dir.join("machines"), self.dir.join("logs")]
            .iter()
            .try_for_each(|dir| make_dir(dir))
    }

    pub(super) fn write_inputs(&self, wanted: Wanted, base_url: &str) -> Line {
        let line = self.line(&self.musterctl).arg("demo").pair("--inputs-for", base_url).path("--dir", &self.dir);
        let line = line.pair("--control", &wanted.control.to_string()).pair("--workers", &wanted.workers.to_string());
        let line = line.pair("--seconds-per-item", &wanted.seconds_per_item.to_string());
        let line = line.pair("--artifact-mib", &wanted.artifact_mib.to_string());
        let line = line.within(WRITE_MAX + WRITE_MAX_PER_MIB * wanted.artifact_mib);
        let update = if wanted.kubernetes { "--kubernetes" } else { "--update" };
        match wanted.update_width {
            Some(width) => line.arg(update).pair("--upgrade-width", &width.to_string()),
            None => line,
        }
    }

    pub(super) fn init(&self, address: &str) -> Line {
        let line = self.line(&self.coordinator).arg("init").path("--state-dir", &self.dir.join("coordinator"));
        let line = line.path("--key-file", &self.dir.join("coordinator.key")).pair("--address", address);
        line.path("--out", &self.config()).arg("--demo")
    }

    pub(super) fn run_coordinator(&self, address: &str) -> Line {
        let line = self.line(&self.coordinator).arg("run").path("--state-dir", &self.dir.join("coordinator"));
        line.path("--key-file", &self.dir.join("coordinator.key"))
            .pair("--listen", address)
            .into_background(&self.log("coordinator"))
    }

    pub(super) fn wait_for_coordinator(&self) -> Line {
        self.ctl().arg("version").pair("--wait", "30")
    }

    pub(super) fn serve_artifacts(&self, address: &str) -> Line {
        let line = self.line(&self.musterctl).arg("artifacts").arg("serve").path("--dir", &self.artifacts());
        let line = line.pair("--listen", address).path("--url-file", &self.url_file());
        line.into_background(&self.log("artifacts"))
    }

    pub(super) fn apply(&self) -> Line {
        self.ctl().arg("apply").path("-f", &self.manifest())
    }

    pub(super) fn apply_second(&self) -> Line {
        self.ctl().arg("apply").path("-f", &self.second_manifest())
    }

    pub(super) fn controller_credentials(&self) -> Line {
        let line = self.line(&self.coordinator).arg("credentials").path("--state-dir", &self.dir.join("coordinator"));
        let line = line.path("--key-file", &self.dir.join("coordinator.key")).pair("--role", "controller");
        line.pair("--name", CONTROLLER).path("--out", &self.controller_config())
    }

    pub(super) fn run_controller(&self, machines: &[String]) -> Line {
        let line = self.line(&self.demo).arg("toy-controller").path("--config", &self.controller_config());
        let line = line.pair("--cluster", CLUSTER).pair("--machines", &machines.join(","));
        line.path("--effects", &self.effects()).into_background(&self.log("controller"))
    }

    pub(super) fn run_kubernetes(&self, machines: &[String]) -> Line {
        let line = self.line(&self.demo).arg("toy-kubernetes").path("--dir", &self.dir);
        line.pair("--machines", &machines.join(",")).into_background(&self.log("kubernetes"))
    }

    /// The toy Kubernetes writes the kubeconfig once its pods are Ready.
    pub(super) fn wait_for_kubernetes(&self) -> Line {
        let line = Line::new(Path::new("timeout")).arg(&KUBERNETES_MAX.as_secs().to_string());
        line.arg("sh").arg("-c").arg(r#"until test -e "$0"; do sleep 0.1; done"#).arg_path(&self.kubeconfig())
    }

    pub(super) fn create_kubeconfig_secret(&self) -> Line {
        let line = self.ctl().arg("secret").arg("create").arg("kubeconfig").pair("--cluster", CLUSTER);
        line.path("--from-file", &self.kubeconfig())
    }

    pub(super) fn plan(&self, wanted: Wanted) -> Line {
        accepting(self.ctl().arg("plan").arg(CLUSTER), wanted)
    }

    pub(super) fn update(&self, wanted: Wanted) -> Line {
        accepting(self.ctl().arg("update").arg(CLUSTER).arg("--yes").arg("--detach"), wanted)
    }

    pub(super) fn create_token(&self, machine_type: &str, uses: u32) -> Line {
        let line = self.ctl().arg("token").arg("create").pair("--cluster", CLUSTER).pair("--type", machine_type);
        line.pair("--uses", &uses.to_string()).path("--out", &self.token(machine_type))
    }

    pub(super) fn enroll(&self, machine: &str, address: &str) -> Line {
        let machine_type = if machine.starts_with("control-") { "control" } else { "worker" };
        let line = self.line(&self.agent).arg("enroll").pair("--coordinator", address);
        line.path("--token-file", &self.token(machine_type))
            .pair("--name", machine)
            .path("--state-dir", &self.state(machine))
    }

    pub(super) fn run_agent(&self, machine: &str) -> Line {
        let line = if self.own_hosts { self.on_host(machine).arg_path(&self.agent) } else { self.line(&self.agent) };
        line.arg("run").path("--state-dir", &self.state(machine)).into_background(&self.log(machine))
    }

    fn on_host(&self, machine: &str) -> Line {
        self.line(Path::new("sh")).arg_path(&self.as_host()).arg(machine)
    }

    /// A command that does nothing on a machine's host: it fails where the user may not make hosts.
    pub(super) fn check_host(&self, machine: &str) -> Line {
        self.on_host(machine).arg("true")
    }

    pub(super) fn watch(&self) -> Line {
        self.ctl().arg("watch").arg(CLUSTER)
    }

    pub(super) fn get_machines(&self) -> Line {
        self.ctl().arg("get").arg("machines").pair("--cluster", CLUSTER)
    }

    /// The command that kills the coordinator and one machine's agent: both have their state directory on the command
    /// line.
    pub(super) fn kill(&self, machine: &str) -> Line {
        let dir = regex(&self.dir.display().to_string());
        let pattern = format!("--state-dir {dir}/(coordinator --key-file .*|machines/{machine}$)");
        Line::new(Path::new("pkill")).arg("-KILL").pair("-f", "--").arg(&pattern)
    }

    pub(super) fn stop(&self) -> Line {
        self.line(&self.musterctl).arg("demo").arg("--stop").path("--dir", &self.dir)
    }

    fn line(&self, program: &Path) -> Line {
        Line::new(program).marked(&self.mark)
    }

    fn ctl(&self) -> Line {
        self.line(&self.musterctl).path("--config", &self.config())
    }

    /// After success, remove a generated directory.
    pub(super) fn remove_if_ours(&self) -> Result<(), Failure> {
        if !self.ours {
            return Ok(());
        }
        let _ = fs::remove_dir_all(&self.dir); // what stays is in the temporary directory
        terminal::print(&Line::new(Path::new("rm")).arg("-r").arg_path(&self.dir).line())
    }
}

/// Paths of musterctl, muster-coordinator and muster-agent, which the demo runs.
fn sisters(demo: &Path) -> Result<[PathBuf; 3], Failure> {
    let sisters = ["musterctl", "muster-coordinator", "muster-agent"].map(|name| demo.with_file_name(name));
    let missing: Vec<String> =
        sisters.iter().filter(|program| !program.is_file()).map(|program| program.display().to_string()).collect();
    if missing.is_empty() {
        return Ok(sisters);
    }
    Err(Failure::failed(format!("there is no {}", missing.join(" and no "))).next(
        "The demo runs musterctl, muster-coordinator and muster-agent, which have to be beside it.\nInstall the \
         packages of these names; in the source of Muster: make build",
    ))
}

/// Accept control plane downtime for an update that needs it.
fn accepting(line: Line, wanted: Wanted) -> Line {
    if wanted.goes_down() { line.arg("--accept-control-plane-downtime") } else { line }
}

/// A regular expression that matches exactly this text.
fn regex(text: &str) -> String {
    text.chars().flat_map(|c| r".[]{}()*+?^$|\".contains(c).then_some('\\').into_iter().chain([c])).collect()
}

fn new_dir() -> Result<PathBuf, Failure> {
    let made = tempfile::Builder::new().prefix("muster-demo-").tempdir().and_then(|dir| fs::canonicalize(dir.keep()));
    let dir = made.map_err(|source| {
        Failure::failed(format!("cannot make a directory in {}", env::temp_dir().display()))
            .because(source)
            .next("Name one: musterctl demo --dir DIR")
    })?;
    checked(dir)
}

/// The given directory, created or found empty.
fn empty_dir(dir: &Path) -> Result<PathBuf, Failure> {
    let shown = dir.display();
    match fs::read_dir(dir).map(|entries| entries.count()) {
        Ok(0) => {}
        Ok(_) => {
            return Err(Failure::bad_input(format!("{shown} is not empty")).next(next_to_not_empty(dir)));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => make_dir(dir)?,
        Err(source) => return Err(Failure::bad_input(format!("cannot use {shown}")).because(source)),
    }
    let absolute = fs::canonicalize(dir);
    checked(absolute.map_err(|source| Failure::bad_input(format!("cannot use {shown}")).because(source))?)
}

fn next_to_not_empty(dir: &Path) -> String {
    let quoted = quote_path(dir);
    match Mark::read(dir) {
        Ok(Some(_)) => format!(
            "An earlier demo left it. End it, if it runs: musterctl demo --stop --dir {quoted}. Then: rm -r {quoted}"
        ),
        Ok(None) | Err(_) => "The demo wants a new or empty directory.".to_owned(),
    }
}

/// Reject control characters: paths go into a manifest and onto command lines.
fn checked(dir: PathBuf) -> Result<PathBuf, Failure> {
    match dir.to_str() {
        Some(text) if !text.chars().any(char::is_control) => Ok(dir),
        _ => Err(Failure::bad_input(format!("{} is not a name that can stand in a manifest", dir.display()))
            .next("Use a directory whose name is plain UTF-8 text.")),
    }
}

fn make_dir(dir: &Path) -> Result<(), Failure> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|source| Failure::bad_input(format!("cannot make the directory {}", dir.display())).because(source))
}

#[cfg(test)]
impl Layout {
    /// A purely textual layout: paths and command lines only.
    pub(super) fn nowhere(dir: &str) -> Self {
        let program = |name: &str| Path::new("/bin").join(name);
        Self {
            dir: dir.into(),
            ours: false,
            own_hosts: false,
            mark: Mark::given_or_new(),
            demo: program("muster-demo"),
            musterctl: program("musterctl"),
            coordinator: program("muster-coordinator"),
            agent: program("muster-agent"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_new_or_empty() {
        let root = tempfile::tempdir().expect("a directory");
        let new = root.path().join("a/b");
        assert_eq!(empty_dir(&new).ok(), fs::canonicalize(&new).ok());
        assert!(empty_dir(&new).is_ok(), "empty");
        fs::write(new.join("x"), "").expect("written");
        assert!(empty_dir(&new).is_err(), "not empty");
        assert!(empty_dir(&new.join("x")).is_err(), "a file");
        assert!(empty_dir(&root.path().join("a\nb")).is_err(), "a line end in the name");
    }

    #[test]
    fn what_the_demo_runs_is_beside_it() {
        let root = tempfile::tempdir().expect("a directory");
        let demo = root.path().join("muster-demo");
        for (program, says) in [
            ("musterctl", "musterctl and no /"),
            ("muster-coordinator", "muster-coordinator and no /"),
            ("muster-agent", "muster-agent\", causes"),
        ] {
            let failure = format!("{:?}", sisters(&demo).expect_err(program));
            assert!(failure.contains(says) && failure.contains("Install the packages"), "{failure}");
            fs::write(root.path().join(program), "").expect("written");
        }
        assert!(sisters(&demo).is_ok());
    }

    #[test]
    fn downtime_is_accepted_where_there_is_some() {
        let layout = Layout::nowhere("/tmp/d");
        for (control, accepted) in [(1, true), (2, true), (3, false)] {
            let update_width = Some(1);
            let wanted =
                Wanted { control, workers: 0, seconds_per_item: 0.0, artifact_mib: 0, update_width, kubernetes: false };
            for line in [layout.plan(wanted), layout.update(wanted)] {
                let line = line.line();
                assert_eq!(line.contains(" --accept-control-plane-downtime"), accepted, "{control}: {line}");
            }
        }
    }

    #[test]
    fn every_long_running_process_names_the_directory() {
        let layout = Layout::nowhere("/tmp/d");
        for line in [layout.run_coordinator("h:1"), layout.serve_artifacts("h:2"), layout.run_agent("worker-1")] {
            let line = line.line();
            let words: Vec<&str> = line.split(' ').take_while(|word| *word != "</dev/null").collect();
            assert!(words.iter().any(|word| word.starts_with("/tmp/d/")), "{line}");
        }
    }
}
