//! A fleet's load on a real coordinator: many agents in this one process, over real mTLS, with the production code of
//! enrolment, link and core. Their items only wait, and their ledgers are in memory, so that the coordinator is what is
//! measured:
//!
//!     make bench-fleet
//!     AGENTS=1000 CLUSTERS=20 ITEM_MS=200 make bench-fleet ARGS="idle storm"
//!
//! Always: enrolment and the deployment. The arguments select what follows, in the order given, repeats included:
//! `idle`, `reads`, `storm`; each once by default. Prints a table with the goals of a fleet of ten thousand beside it.
//! The environment sets `AGENTS`, `CLUSTERS`, `ITEMS`, `ITEM_MS`, `WIDTH` (workers at once, in all clusters together)
//! and `LIMIT_S` (the longest wait of a part). `HALF_OPEN` peers connect in a storm and say nothing, again as soon as
//! they are cut. With `PERF=DIR`, `perf` samples the coordinator in each part.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "a bench fails by panicking and prints its result")]

mod agents;
mod coordinator;
mod table;

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use muster_agent::identity::JoinToken;
use muster_proto::{
    address::Addresses,
    model::{MachineName, MachineType},
};
use muster_tests::fleet::{manifest, processes::pid_of};
use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    signal::{Signal, kill},
};
use tokio::{io::AsyncReadExt as _, net::TcpStream, task::JoinSet, time::Instant};

use agents::{Newcomer, Shared, Tally};
use coordinator::{Coordinator, cpu_seconds, resident_kib};
use table::Table;

/// What can be asked for.
const PARTS: [&str; 3] = ["idle", "reads", "storm"];
/// How long the idle fleet is observed: several heartbeats of every agent.
const IDLE: Duration = Duration::from_secs(30);
/// Interval of questions whether the deployment is over, and how fast the coordinator answers meanwhile.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// Times that each list is read; the median counts.
const READS: usize = 5;
/// Delay of a half-open peer that was refused by the kernel.
const COME_BACK_AFTER: Duration = Duration::from_millis(100);
/// Control machines of a cluster.
const CONTROLS: usize = 1;
/// Most workers of a cluster that are deployed at once.
const WIDTH_MAX: usize = 50;
/// Part of the fleet that must be back after a crash, in percent.
const BACK_PERCENT: usize = 99;

/// What is to be measured.
struct Settings {
    agents: usize,
    clusters: usize,
    items: usize,
    item_time: Duration,
    width: usize,
    limit: Duration,
    half_open: usize,
    parts: Vec<String>,
    perf: Option<PathBuf>,
}

impl Settings {
    fn read() -> Result<Self> {
        let number = |name: &str, default: usize| match std::env::var(name) {
            Ok(text) if !text.is_empty() => text.parse().with_context(|| format!("{name}={text} is no number")),
            _ => Ok(default),
        };
        // Cargo passes --bench to every bench.
        let mut parts: Vec<String> = std::env::args().skip(1).filter(|part| part != "--bench").collect();
        if let Some(unknown) = parts.iter().find(|part| !PARTS.contains(&part.as_str())) {
            bail!("{unknown}: the parts are {}", PARTS.join(", "));
        }
        if parts.is_empty() {
            parts = PARTS.map(str::to_owned).to_vec();
        }
        let (agents, clusters) = (number("AGENTS", 1_000)?, number("CLUSTERS", 1)?.max(1));
        if agents < clusters * (CONTROLS + 1) {
            bail!("AGENTS={agents} are too few for CLUSTERS={clusters}");
        }
        Ok(Self {
            agents,
            clusters,
            items: number("ITEMS", 3)?.max(1),
            item_time: Duration::from_millis(number("ITEM_MS", 1_000)? as u64),
            width: (number("WIDTH", WIDTH_MAX)? / clusters).clamp(1, WIDTH_MAX),
            limit: Duration::from_secs(number("LIMIT_S", 900)? as u64),
            half_open: number("HALF_OPEN", 0)?,
            parts,
            perf: std::env::var_os("PERF").filter(|dir| !dir.is_empty()).map(PathBuf::from),
        })
    }

    /// Machines of this cluster: the first ones take what does not divide.
    fn machines(&self, cluster: usize) -> usize {
        self.agents / self.clusters + usize::from(cluster < self.agents % self.clusters)
    }

    /// The shortest possible time: the control machines at once, and then the workers, `width` at once.
    fn ideal(&self) -> Duration {
        let rounds = 1 + (self.machines(0) - CONTROLS).div_ceil(self.width);
        self.item_time * u32::try_from(rounds * self.items).expect("few")
    }

    fn manifest(&self) -> String {
        let item = |n| manifest::other(&format!("step-{n}"), "bash", "deploy", &[("script", "true")], &[]);
        let items: Vec<String> = (1..=self.items).map(item).collect();
        let cluster = |n: usize| {
            let width = format!("maxWorkerDeployCount: {}", self.width);
            let counts = (CONTROLS, self.machines(n) - CONTROLS);
            manifest::named_cluster(&cluster_name(n), counts, &items, &items, &[&width])
        };
        (0..self.clusters).map(cluster).collect::<Vec<_>>().join("---\n")
    }
}

fn cluster_name(n: usize) -> String {
    format!("c{n}")
}

fn main() -> Result<()> {
    let settings = Settings::read()?;
    // A file for every connection. The coordinator inherits it.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let measured = runtime.block_on(measure(&settings));
    runtime.shutdown_background();
    println!("{}", measured?);
    Ok(())
}

async fn measure(settings: &Settings) -> Result<Table> {
    let dir = tempfile::Builder::new().prefix("muster-load-").tempdir()?;
    let keys = tempfile::Builder::new().prefix("muster-load-").tempdir_in("/dev/shm")?;
    let coordinator = Coordinator::start_in(dir.path())?;
    fs::write(dir.path().join("manifest.yaml"), settings.manifest())?;
    coordinator.ctl(&["apply", "-f", "manifest.yaml"])?.ok()?;
    let address = Addresses::parse(&coordinator.address()).map_err(|fault| anyhow::anyhow!("{fault}"))?;
    let shared = Arc::new(Shared::new(address, settings.item_time, keys.path().to_owned()));
    let newcomers = newcomers(settings, &coordinator)?;
    let empty_kib = resident_kib(coordinator.pid()?)?;
    let mut run = Run {
        settings,
        coordinator,
        shared: Arc::clone(&shared),
        agents: JoinSet::new(),
        table: Table::new(settings.agents, settings.clusters),
        empty_kib,
    };
    run.enrol(newcomers).await?;
    run.deploy().await?;
    for part in &settings.parts {
        match part.as_str() {
            "idle" => run.idle().await?,
            "reads" => run.reads()?,
            _ => run.storm().await?,
        }
    }
    run.agents.abort_all();
    Ok(run.table)
}

/// The machines, those of all clusters in turn, the control machines first.
fn newcomers(settings: &Settings, coordinator: &Coordinator) -> Result<Vec<Newcomer>> {
    let token = |cluster: usize, machine_type: MachineType, uses: usize| {
        let (cluster, uses) = (cluster_name(cluster), uses.to_string());
        let words = ["token", "create", "--cluster", &cluster, "--type", &machine_type.to_string(), "--uses", &uses];
        let text = coordinator.ctl(&words)?.ok()?;
        JoinToken::parse(&text).map(Arc::new).map_err(|fault| anyhow::anyhow!("{fault}"))
    };
    let mut places: Vec<(usize, String, Arc<JoinToken>)> = Vec::new();
    for cluster in 0..settings.clusters {
        let workers = settings.machines(cluster) - CONTROLS;
        let control = token(cluster, MachineType::Control, CONTROLS)?;
        let worker = token(cluster, MachineType::Worker, workers)?;
        let name = cluster_name(cluster);
        places.extend((0..CONTROLS).map(|n| (n, format!("{name}-control-{n}"), Arc::clone(&control))));
        places.extend((0..workers).map(|n| (CONTROLS + n, format!("{name}-worker-{n}"), Arc::clone(&worker))));
    }
    places.sort_by_key(|(turn, ..)| *turn);
    let newcomer = |(number, (_, name, token)): (usize, (usize, String, Arc<JoinToken>))| {
        let name = MachineName::new(name.as_str()).map_err(|fault| anyhow::anyhow!("{name}: {fault}"))?;
        Ok(Newcomer { name, number, token })
    };
    places.into_iter().enumerate().map(newcomer).collect()
}

/// A run under way.
struct Run<'a> {
    settings: &'a Settings,
    coordinator: Coordinator,
    shared: Arc<Shared>,
    agents: JoinSet<Result<()>>,
    table: Table,
    /// Memory of the coordinator before the first agent, in KiB.
    empty_kib: f64,
}

impl Run<'_> {
    /// Waits for the agents. Fails if one of them ends.
    async fn wait(&mut self, what: &str, wanted: impl FnMut(&Tally) -> bool) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        tokio::select! {
            seen = shared.board.wait(self.settings.limit, wanted) => {
                let tally = shared.board.read();
                let (enrolled, linked, ended) = (tally.enrolled.len(), tally.linked, tally.ended);
                if !seen {
                    let seconds = self.settings.limit.as_secs();
                    bail!("{what}: not in {seconds} s ({enrolled} enrolled, {linked} linked, {ended} items ended)");
                }
                Ok(())
            }
            ended = self.agents.join_next() => bail!("{what}: an agent ended: {ended:?}"),
        }
    }

    async fn enrol(&mut self, newcomers: Vec<Newcomer>) -> Result<()> {
        let cost = Cost::begin(self, "enrol")?;
        let count = newcomers.len();
        for newcomer in newcomers {
            self.agents.spawn(agents::live(newcomer, Arc::clone(&self.shared)));
        }
        self.wait("all enrolled", |tally| tally.enrolled.len() == count).await?;
        let tally = self.shared.board.read();
        self.wait("all linked", |tally| tally.linked == count).await?;
        let rate = |times: &[Instant]| match times {
            [first, .., last] => (times.len() - 1) as f64 / last.duration_since(*first).as_secs_f64(),
            _ => f64::NAN,
        };
        let times = &tally.enrolled;
        let tenth = (count / 10).max(2);
        let (first, last) = (rate(&times[..tenth]), rate(&times[count - tenth..]));
        let text = format!("{:.0}/s (first tenth {first:.0}/s, last tenth {last:.0}/s)", rate(times));
        self.table.add("enrolment", text, "at least 300/s, first to last");
        self.table.add("  tried again", tally.enrolments_failed.to_string(), "");
        cost.end(self)
    }

    /// The deployment has begun by itself when the last machine said Hello.
    async fn deploy(&mut self) -> Result<()> {
        let cost = Cost::begin(self, "deploy")?;
        let total = self.settings.agents * self.settings.items;
        let deadline = Instant::now() + self.settings.limit;
        let mut answers = Vec::new();
        while !self.shared.board.wait(ASK_EVERY, |tally| tally.ended == total).await {
            answers.push(self.coordinator.timed_ctl(&["get", "clusters", "-o", "json"])?.0);
            if Instant::now() > deadline {
                bail!("the deployment: {} of {total} items in time", self.shared.board.read().ended);
            }
        }
        while self.coordinator.ready()? < self.settings.agents as u64 {
            if Instant::now() > deadline {
                bail!("all items ended, and {} machines are Ready", self.coordinator.ready()?);
            }
            tokio::time::sleep(Duration::from_millis(100)).await; // musterctl has no event for all clusters together
        }
        let tally = self.shared.board.read();
        let (Some(first), Some(last)) = (tally.first_start, tally.last_end) else { bail!("nothing ran") };
        let (took, ideal) = (last.duration_since(first).as_secs_f64(), self.settings.ideal().as_secs_f64());
        let (items, item_ms) = (self.settings.items, self.settings.item_time.as_millis());
        self.table.add(
            &format!("deployment, {items} items of {item_ms} ms, {} at once a cluster", self.settings.width),
            format!("{took:.1} s, ideal {ideal:.1} s: {:.2}", took / ideal),
            "at most 1.1 of ideal",
        );
        let longest = answers.into_iter().max().map_or_else(|| "not asked".to_owned(), millis);
        self.table.add("  get clusters meanwhile, the longest", longest, "at most 50 ms");
        cost.end(self)
    }

    async fn idle(&mut self) -> Result<()> {
        let pid = self.coordinator.pid()?;
        let (sampling, before) = (self.sample("idle")?, cpu_seconds(pid)?);
        tokio::time::sleep(IDLE).await; // nothing is waited for: this is the time that is measured
        let percent = 100.0 * (cpu_seconds(pid)? - before) / IDLE.as_secs_f64();
        drop(sampling);
        self.table.add("idle, of a core", format!("{percent:.1} %"), "at most 10 %");
        let kib = resident_kib(pid)?;
        let each = (kib - self.empty_kib) / self.settings.agents as f64;
        let text = format!("{each:.0} KiB an agent ({:.0} MiB in all)", kib / 1024.0);
        self.table.add("memory", text, "at most 50 KiB an agent");
        Ok(())
    }

    fn reads(&mut self) -> Result<()> {
        let sampling = self.sample("reads")?;
        for (kind, goal) in [("machines", "at most 500 ms"), ("clusters", "at most 50 ms")] {
            let words = ["get", kind, "-o", "json"];
            let mut times = Vec::new();
            for _ in 0..READS {
                times.push(self.coordinator.timed_ctl(&words)?.0);
            }
            times.sort_unstable();
            self.table.add(&format!("musterctl {}", words.join(" ")), millis(times[READS / 2]), goal);
        }
        drop(sampling);
        Ok(())
    }

    /// The coordinator is killed and started again.
    async fn storm(&mut self) -> Result<()> {
        let agents = self.settings.agents;
        let wanted = (agents * BACK_PERCENT).div_ceil(100);
        let (before, killed) = (self.shared.board.read(), Instant::now());
        self.coordinator.kill()?;
        self.coordinator.start()?;
        let cost = Cost::begin(self, "storm")?;
        let mut strangers = JoinSet::new(); // dropped, and so ended, with this part
        (0..self.settings.half_open).for_each(|_| drop(strangers.spawn(say_nothing(self.coordinator.address()))));
        let answers = async {
            let mut longest = Duration::ZERO;
            loop {
                let back = |tally: &Tally| tally.epoch > before.epoch && tally.linked >= wanted;
                if self.shared.board.wait(ASK_EVERY, back).await || killed.elapsed() > self.settings.limit {
                    return Ok::<_, anyhow::Error>(longest);
                }
                // It may be refused in the crowd: that counts as long as it took.
                let began = Instant::now();
                self.coordinator.ctl(&["get", "clusters", "-o", "json"])?;
                longest = longest.max(began.elapsed());
            }
        };
        let longest = answers.await?;
        let (took, after) = (killed.elapsed().as_secs_f64(), self.shared.board.read());
        let back = if after.epoch > before.epoch { after.linked } else { 0 };
        self.table.add(
            "killed and started: 99 % back",
            format!("{took:.1} s ({back} of {agents}, {} sessions)", after.sessions - before.sessions),
            "at most 60 s",
        );
        self.table.add("  get clusters meanwhile, the longest", millis(longest), "under 1 s");
        cost.end(self)
    }

    /// Samples the coordinator with perf, if that is wanted, until the answer is dropped.
    fn sample(&self, part: &str) -> Result<Option<Sampling>> {
        let Some(dir) = &self.settings.perf else { return Ok(None) };
        fs::create_dir_all(dir)?;
        let pid = self.coordinator.pid()?.to_string();
        let mut perf = Command::new("perf");
        perf.args(["record", "-q", "-e", "cpu-clock", "-F", "199", "-g", "-p", &pid, "-o"]);
        perf.arg(dir.join(format!("{part}.perf"))).stdout(Stdio::null());
        Ok(Some(Sampling(perf.spawn().context("perf")?)))
    }
}

/// A peer that connects and says nothing, and comes back when it is cut.
async fn say_nothing(address: String) {
    loop {
        match TcpStream::connect(&address).await {
            // Its end is all that it waits for, however it comes.
            Ok(mut stream) => drop(stream.read_u8().await),
            Err(_) => tokio::time::sleep(COME_BACK_AFTER).await,
        }
    }
}

/// A running `perf record`.
struct Sampling(Child);

impl Drop for Sampling {
    fn drop(&mut self) {
        // It writes its file and ends. Without one there is less to read, and the figures stand.
        if pid_of(&self.0).is_ok_and(|pid| kill(pid, Signal::SIGINT).is_ok()) {
            drop(self.0.wait());
        }
    }
}

/// Processor time of a part.
struct Cost {
    _sampling: Option<Sampling>,
    began: Instant,
    coordinator: f64,
    load: f64,
}

impl Cost {
    fn begin(run: &Run<'_>, part: &str) -> Result<Self> {
        let (coordinator, load) = (cpu_seconds(run.coordinator.pid()?)?, cpu_seconds(std::process::id())?);
        Ok(Self { _sampling: run.sample(part)?, began: Instant::now(), coordinator, load })
    }

    fn end(self, run: &mut Run<'_>) -> Result<()> {
        let coordinator = cpu_seconds(run.coordinator.pid()?)? - self.coordinator;
        let load = cpu_seconds(std::process::id())? - self.load;
        let text = format!("{coordinator:.1} s + load {load:.1} s, in {:.1} s", self.began.elapsed().as_secs_f64());
        run.table.add("  processor time", text, "");
        Ok(())
    }
}

fn millis(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}
