//! `muster-demo`, which `musterctl demo` executes: a whole fleet on this machine, from nothing until every machine is
//! Ready.
//!
//! It does only what an operator could do by hand: it writes a manifest, then runs the public commands of
//! muster-coordinator, muster-agent and musterctl, and prints each as a line to paste. It checks the result with
//! `effects.log`, which the items themselves write.

mod crash;
mod drains;
mod effects;
mod fleet;
mod hosts;
mod kubernetes;
mod layout;
mod manifest;
mod mark;
mod moves;
mod shell;
mod stop;
mod summary;
mod toy;
mod update;

use std::{
    path::{Path, PathBuf},
    pin::pin,
    process::ExitCode,
    time::Duration,
};

use clap::{CommandFactory as _, Parser};
use musterctl::{
    commands::watch::{self, Screen},
    config::Config,
    errors::Failure,
    terminal,
};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::timeout,
};

use self::{fleet::DemoFleet, layout::Layout};

/// Name of the toy controller, as in its certificate.
const CONTROLLER: &str = "toy";
/// Name of the demo's cluster.
const CLUSTER: &str = "demo";
/// Prefix of comment lines.
const COMMENT: &str = "# ";
/// Bash items of each machine in `deploy`.
const DEPLOY_ITEMS: u32 = 2;
/// Most time a fleet may need beyond that of its items: connecting, downloading, a crash.
const TIME_LIMIT: Duration = Duration::from_secs(180);
/// Fewest control machines that keep a majority while one is away.
const CONTROLS_TO_MISS_ONE: u32 = 3;
/// Most machines of one type: the demo runs on one computer.
const MACHINES_MAX: i64 = 200;
/// Fewest workers of a Kubernetes: the pods of one move to another.
const WORKERS_FOR_PODS: u32 = 2;

/// See a fleet deploy itself, on this computer alone
///
/// Starts a coordinator and one agent per machine as separate processes, enrols the agents with join tokens over mTLS,
/// downloads an artifact to every machine, deploys control machines one by one and then the workers together, and
/// checks from what the items wrote that the order held and nothing ran twice. No root, no Docker, loopback only.
#[derive(Parser)]
#[command(
    name = "muster-demo",
    bin_name = "musterctl demo",
    version,
    args_conflicts_with_subcommands = true,
    group = clap::ArgGroup::new("updates").args(["update", "kubernetes"]).multiple(true),
    after_help = "\
Examples:
  musterctl demo
  musterctl demo --crash                     coordinator and an agent are killed on the way
  musterctl demo --control 3 --workers 60 --seconds-per-item 2 --artifact-mib 1
  musterctl demo --update --upgrade-width 2  and then updates it, workloads moved away machine by machine
  musterctl demo --kubernetes                updates it under Kubernetes: pods leave each machine within their budgets
  musterctl demo --keep --dir /tmp/fleet     leave it running, to look around
  musterctl demo --stop --dir /tmp/fleet     end it
  musterctl demo --inputs-for http://10.0.0.1:8000/ --dir /tmp/fleet  only write what it starts from

Every line it prints that does not begin with # is a command as it was run: paste it to do the same by hand.
In DIR: manifest.yaml, operator.toml (musterctl's config), effects.log, the logs and states of all processes."
)]
struct Args {
    /// Control machines
    #[arg(
        long,
        allow_negative_numbers = true,
        value_name = "N",
        default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=MACHINES_MAX)
    )]
    control: u32,
    /// Worker machines
    #[arg(
        long,
        allow_negative_numbers = true,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(0..=MACHINES_MAX)
    )]
    workers: u32,
    /// Where everything is put; may exist if it is empty [default: a new directory, removed after success]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Leave the fleet running once it is Ready
    #[arg(long)]
    keep: bool,
    /// Kill coordinator and one agent in the middle of an item, and restart them; with --kubernetes in the update too
    #[arg(long)]
    crash: bool,
    /// Then update the fleet: a toy controller moves workloads away from each machine and back
    #[arg(long)]
    update: bool,
    /// Then update the fleet under a toy Kubernetes: each node is cordoned, drained within budgets, and given back
    #[arg(long)]
    kubernetes: bool,
    /// Workers that may be without their workloads at once, in the update
    #[arg(
        long,
        allow_negative_numbers = true,
        value_name = "N",
        default_value_t = 4,
        requires = "updates",
        value_parser = width()
    )]
    upgrade_width: u32,
    /// How long each of a machine's two deploy items takes
    #[arg(long, allow_negative_numbers = true, value_name = "SECONDS", default_value_t = 0.5, value_parser = seconds)]
    seconds_per_item: f64,
    /// Size of the artifact every machine downloads
    #[arg(
        long,
        allow_negative_numbers = true,
        value_name = "MIB",
        default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(0..=65_536)
    )]
    artifact_mib: u32,
    /// End what a demo with --keep (or an interrupted one) left running in --dir
    #[arg(long, requires = "dir", conflicts_with_all = ["keep", "crash"])]
    stop: bool,
    /// Only write the demo's manifests and artifact into --dir, for machines that fetch the artifact from below URL
    #[arg(
        long,
        value_name = "URL",
        requires = "dir",
        conflicts_with_all = ["keep", "crash", "stop"],
        value_parser = base_url
    )]
    inputs_for: Option<String>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(clap::Subcommand)]
enum Command {
    #[command(hide = true)]
    ToyController(toy::Args),
    #[command(hide = true)]
    ToyKubernetes(kubernetes::Args),
    /// Write the manual page; packaging does this
    #[command(hide = true)]
    Man {
        /// Where to
        dir: PathBuf,
    },
}

/// Description of the fleet.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    control: u32,
    workers: u32,
    seconds_per_item: f64,
    artifact_mib: u32,
    /// Number of workers updated at once after the deployment.
    update_width: Option<u32>,
    /// Is that update under Kubernetes?
    kubernetes: bool,
}

impl Wanted {
    fn names(&self) -> Vec<String> {
        let control = (1..=self.control).map(|at| format!("control-{at}"));
        control.chain((1..=self.workers).map(|at| format!("worker-{at}"))).collect()
    }

    /// Are there too few control machines to lose one? The coordinator updates such a cluster only on request.
    const fn goes_down(&self) -> bool {
        self.control < CONTROLS_TO_MISS_ONE
    }

    /// Shortest possible time of the deploy phase.
    fn ideal(&self) -> Duration {
        let turns = self.control + self.workers.div_ceil(muster_proto::model::WORKERS_AT_ONCE_MAX);
        Duration::from_secs_f64(self.seconds_per_item) * DEPLOY_ITEMS * turns
    }
}

fn width() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(muster_proto::model::WORKERS_AT_ONCE_MAX))
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=3600.0).contains(&seconds) => Ok(seconds),
        Ok(_) | Err(_) => Err("expected a number of seconds between 0 and 3600, e.g. 0.5".to_owned()),
    }
}

/// Parse the base URL of the artifact; the result ends with `/`.
fn base_url(text: &str) -> Result<String, String> {
    let place = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")).unwrap_or_default();
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '?' | '#');
    if place.is_empty() || place.starts_with('/') || place.contains(odd) {
        return Err("expected a URL of http or https, e.g. http://10.0.0.1:8000/".to_owned());
    }
    Ok(if text.ends_with('/') { text.to_owned() } else { format!("{text}/") })
}

fn main() -> ExitCode {
    muster_proto::process::abort_on_panic();
    let mut args = Args::parse();
    musterctl::to_the_end(async {
        match args.command.take() {
            Some(Command::ToyController(args)) => toy::run(args).await,
            Some(Command::ToyKubernetes(args)) => kubernetes::run(args).await,
            Some(Command::Man { dir }) => man(&dir),
            None => run(args).await,
        }
    })
}

fn man(dir: &Path) -> Result<(), Failure> {
    let written = clap_mangen::generate_to(Args::command(), dir);
    written.map_err(|error| Failure::failed(format!("cannot write to {}", dir.display())).because(error))
}

async fn run(args: Args) -> Result<(), Failure> {
    if let (true, Some(dir)) = (args.stop, &args.dir) {
        return stop::run(dir).await;
    }
    let wanted = Wanted {
        control: args.control,
        workers: args.workers,
        seconds_per_item: args.seconds_per_item,
        artifact_mib: args.artifact_mib,
        update_width: (args.update || args.kubernetes).then_some(args.upgrade_width),
        kubernetes: args.kubernetes,
    };
    if wanted.kubernetes && wanted.workers < WORKERS_FOR_PODS {
        return Err(Failure::bad_input("--kubernetes needs two workers or more: the pods of one move to another"));
    }
    let layout = Layout::make(args.dir.as_deref(), wanted.kubernetes)?;
    if let Some(base_url) = &args.inputs_for {
        layout.mark.write(&layout.dir)?;
        return manifest::write_inputs(&layout, wanted, base_url);
    }
    let told = tell(&layout, wanted, args.crash).await;
    if told.is_ok() && args.keep {
        return say_it_stays(&layout, wanted.kubernetes);
    }
    // End all processes, even if stdout is closed.
    let said = terminal::print(&layout.stop().line());
    stop::end_all(&layout.dir, &layout.mark).await?;
    match &told {
        Ok(()) => said.and(layout.remove_if_ours())?,
        Err(_) => terminal::say(&format!("# Everything is ended; {} is kept to look into.", layout.dir.display())),
    }
    told
}

fn say_it_stays(layout: &Layout, kubernetes: bool) -> Result<(), Failure> {
    let [config, musterctl] = [&layout.config(), &layout.musterctl].map(|path| shell::quote_path(path));
    terminal::print("# The fleet stays. Look around:")?;
    terminal::print(&format!("MUSTER_CONFIG={config} musterctl get machines"))?;
    terminal::print("# or, where musterctl is not on the PATH:")?;
    terminal::print(&format!("MUSTER_CONFIG={config} {musterctl} get machines"))?;
    if kubernetes {
        terminal::print("# and in its Kubernetes:")?;
        let admin = shell::quote_path(&layout.admin_kubeconfig());
        terminal::print(&format!("kubectl --kubeconfig {admin} get pods --all-namespaces -o wide"))?;
    }
    terminal::print("# start one of its programs by hand, known to --stop as the others are, after:")?;
    terminal::print(&format!("export {}", layout.mark.assignment()))?;
    terminal::print("# and end it:")?;
    terminal::print(&layout.stop().line())
}

/// Run the demo to its end, or until a signal.
async fn tell(layout: &Layout, wanted: Wanted, crash: bool) -> Result<(), Failure> {
    let mut signals = Vec::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        signals.push(signal(kind).map_err(|source| Failure::failed("cannot listen to signals").because(source))?);
    }
    let interrupted = futures_util::future::select_all(signals.iter_mut().map(|signal| Box::pin(signal.recv())));
    tokio::select! {
        told = story(layout, wanted, crash) => told,
        _ = interrupted => Err(Failure::failed("interrupted")),
    }
}

async fn story(layout: &Layout, wanted: Wanted, crash: bool) -> Result<(), Failure> {
    let began = std::time::Instant::now();
    terminal::print(&format!(
        "# {} control and {} worker machines, each a process of its own, in {}",
        wanted.control,
        wanted.workers,
        layout.dir.display()
    ))?;
    terminal::print("# its processes are known by this, when they are to be ended:")?;
    terminal::print(&format!("export {}", layout.mark.assignment()))?;
    let mut fleet = DemoFleet::start(layout, wanted).await?;
    let config = Config::read(&layout.config())?;
    let follow = Follow { workers: wanted.workers > 0, crash, time_limit: TIME_LIMIT + wanted.ideal() };
    watch(&mut fleet, config.clone(), follow).await?;
    fleet::run(&layout.get_machines()).await?;
    summary::show(layout, wanted, began.elapsed()).await?;
    match wanted.update_width {
        Some(width) => update::story(&mut fleet, config, wanted, width, crash).await,
        None => Ok(()),
    }
}

/// How to watch the fleet.
#[derive(Clone, Copy, Debug)]
struct Follow {
    /// Are there workers?
    workers: bool,
    /// Is the coordinator killed on the way, with an agent?
    crash: bool,
    time_limit: Duration,
}

/// Show `watch` until the fleet is Ready, with the crash on the way. The lines about the crash wait while a terminal
/// shows bars.
async fn watch(fleet: &mut DemoFleet<'_>, config: Config, wanted: Follow) -> Result<(), Failure> {
    terminal::print(&fleet.layout().watch().line())?;
    let slow = too_slow(fleet.layout());
    let mut screen = Screen::marked(COMMENT);
    let plain = screen.is_plain();
    let mut later = Vec::new();
    let mut crashed = !wanted.crash;
    let ended = {
        let say = |line: String| {
            if plain {
                terminal::print(&line)
            } else {
                later.push(line);
                Ok(())
            }
        };
        let mut follow = pin!(timeout(wanted.time_limit, watch::follow(config, CLUSTER, &mut screen)));
        let mut crashing = pin!(crash::crash(fleet, wanted.workers, say));
        loop {
            tokio::select! {
                ended = &mut follow => break ended,
                done = &mut crashing, if !crashed => { done?; crashed = true; }
            }
        }
    };
    screen.clear();
    ended.unwrap_or(Err(slow))?;
    if !crashed {
        return Err(Failure::failed("no item was long enough to be caught in the middle")
            .next("Longer items: musterctl demo --crash --seconds-per-item 1"));
    }
    terminal::print_all(&later)
}

fn too_slow(layout: &Layout) -> Failure {
    Failure::failed("the fleet is not Ready in time").next(format!(
        "Who waits for what: {} plan {CLUSTER} says it while the demo runs; its logs are in {}",
        layout.musterctl.display(),
        layout.dir.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_fetch_by_http() {
        for (text, url) in [
            ("http://10.0.0.1:8000/", "http://10.0.0.1:8000/"),
            ("https://files.example/muster", "https://files.example/muster/"),
        ] {
            assert_eq!(base_url(text).as_deref(), Ok(url));
        }
        for bad in ["foo", "", "ftp://h/", "10.0.0.1:8000", "http://", "http:///x", "http://h/a b", "http://h/?a=b"] {
            assert!(base_url(bad).is_err_and(|expected| expected.contains("http://10.0.0.1:8000/")), "{bad}");
        }
    }
}
