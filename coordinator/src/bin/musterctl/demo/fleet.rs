//! The demo's processes: a coordinator, a file server, an agent per machine.

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    time::Duration,
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use muster_coordinator::view::printable_lines;
use muster_proto::{convert::keep_end, model::MachineType, wire::VersionRequest};
use tokio::{
    process::Child,
    time::{Instant, sleep},
};

use super::{Wanted, layout::Layout, manifest, shell::Line};
use crate::{client::Coordinator, config::Config, failure::Failure, terminal};

/// Longest start of a process, until it answers.
const START_MAX: Duration = Duration::from_secs(30);
/// Between two looks whether it does.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Machines that enrol at the same time.
const ENROLL_AT_ONCE: usize = 8;
/// Of a process's log, shown when it dies.
const LOG_TAIL_BYTES: usize = 2048;

/// All of them, running.
pub(super) struct DemoFleet<'a> {
    layout: &'a Layout,
    address: String,
    coordinator: Child,
    agents: BTreeMap<String, Child>,
}

impl<'a> DemoFleet<'a> {
    /// Starts everything, in the order an operator would.
    pub(super) async fn start(layout: &'a Layout, wanted: Wanted) -> Result<Self, Failure> {
        let address = free_address()?;
        run(&layout.init(&address)).await?;
        let coordinator = background(&layout.run_coordinator(&address))?;
        let mut fleet = Self { layout, address, coordinator, agents: BTreeMap::new() };
        fleet.coordinator_answers().await?;
        fleet.publish(wanted).await?;
        for (machine_type, count) in [(MachineType::Control, wanted.control), (MachineType::Worker, wanted.workers)] {
            if count > 0 {
                run(&layout.create_token(machine_type.as_str(), count)).await?;
            }
        }
        let address = fleet.address.as_str();
        let joined = stream::iter(wanted.names()).map(|name| async move {
            run(&layout.enroll(&name, address)).await?;
            let agent = background(&layout.run_agent(&name))?;
            Ok::<_, Failure>((name, agent))
        });
        fleet.agents = joined.buffer_unordered(ENROLL_AT_ONCE).try_collect().await?;
        Ok(fleet)
    }

    /// Serves the artifact and applies the manifest that names it.
    async fn publish(&mut self, wanted: Wanted) -> Result<(), Failure> {
        let sha256 = manifest::write_artifact(self.layout, wanted.artifact_mib)?;
        let mut server = background(&self.layout.serve_artifacts())?;
        let url = self.served_url(&mut server).await?;
        let path = self.layout.manifest();
        fs::write(&path, manifest::text(self.layout, wanted, &url, &sha256))
            .map_err(|source| Failure::failed(format!("cannot write {}", path.display())).because(source))?;
        terminal::print(&format!(
            "# wrote {} and an artifact of {} MiB, served at {url}",
            path.display(),
            wanted.artifact_mib
        ))?;
        run(&self.layout.apply()).await
    }

    async fn served_url(&self, server: &mut Child) -> Result<String, Failure> {
        let deadline = Instant::now() + START_MAX;
        loop {
            if let Ok(url) = fs::read_to_string(self.layout.url_file()) {
                return Ok(url);
            }
            self.still_alive("artifacts", server, deadline)?;
            sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until the coordinator answers a call.
    pub(super) async fn coordinator_answers(&mut self) -> Result<(), Failure> {
        let config = Config::read(&self.layout.config())?;
        let deadline = Instant::now() + START_MAX;
        loop {
            if let Ok(coordinator) = Coordinator::connect(&config).await
                && coordinator.call(coordinator.fleet().version(VersionRequest {})).await.is_ok()
            {
                return Ok(());
            }
            let layout = self.layout;
            still_alive(layout, "coordinator", &mut self.coordinator, deadline)?;
            sleep(LOOK_EVERY).await;
        }
    }

    fn still_alive(&self, name: &str, process: &mut Child, deadline: Instant) -> Result<(), Failure> {
        still_alive(self.layout, name, process, deadline)
    }

    /// Process ids of the coordinator and of one machine's agent.
    pub(super) fn pids(&self, machine: &str) -> Option<(u32, u32)> {
        Some((self.coordinator.id()?, self.agents.get(machine)?.id()?))
    }

    /// SIGKILL to the coordinator and to one machine's agent, and both are gone.
    pub(super) async fn kill(&mut self, machine: &str) -> Result<(), Failure> {
        let cannot = |source| Failure::failed("cannot kill").because(source);
        self.coordinator.start_kill().map_err(cannot)?;
        if let Some(agent) = self.agents.get_mut(machine) {
            agent.kill().await.map_err(cannot)?;
        }
        self.coordinator.wait().await.map_err(cannot)?;
        Ok(())
    }

    /// The commands that start them again.
    pub(super) fn restart_lines(&self, machine: &str) -> [Line; 2] {
        [self.layout.run_coordinator(&self.address), self.layout.run_agent(machine)]
    }

    /// Starts them again.
    pub(super) fn restart(&mut self, machine: &str) -> Result<(), Failure> {
        let [coordinator, agent] = self.restart_lines(machine);
        self.coordinator = coordinator.start()?;
        self.agents.insert(machine.to_owned(), agent.start()?);
        Ok(())
    }

    pub(super) const fn layout(&self) -> &Layout {
        self.layout
    }
}

/// An address on loopback where nobody listens now.
fn free_address() -> Result<String, Failure> {
    let bound =
        TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).and_then(|listener| listener.local_addr());
    bound
        .map(|address| address.to_string())
        .map_err(|source| Failure::failed("cannot find a free port on loopback").because(source))
}

/// Prints a command, runs it to its end, and shows what it said as comments.
async fn run(line: &Line) -> Result<(), Failure> {
    terminal::print(&line.line())?;
    let output = line.output().await?;
    String::from_utf8_lossy(&output).lines().try_for_each(|said| terminal::print(&format!("# {said}")))
}

fn background(line: &Line) -> Result<Child, Failure> {
    terminal::print(&line.line())?;
    line.start()
}

fn still_alive(layout: &Layout, name: &str, process: &mut Child, deadline: Instant) -> Result<(), Failure> {
    let log = layout.log(name);
    let died = process.try_wait().map_err(|source| Failure::failed(format!("lost sight of {name}")).because(source))?;
    let what = match died {
        Some(status) => format!("{name} ended by itself ({status})"),
        None if Instant::now() > deadline => format!("{name} does not answer after {} s", START_MAX.as_secs()),
        None => return Ok(()),
    };
    let text = fs::read_to_string(&log).unwrap_or_default();
    let tail = printable_lines(keep_end(&text, LOG_TAIL_BYTES));
    Err(Failure::failed(what).next(format!("From {}:\n{tail}", log.display())))
}
