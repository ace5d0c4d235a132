//! Processes of the demo: a coordinator, a file server, an agent per machine.

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use muster_proto::{convert::keep_end, model::MachineType, printable::printable_lines};
use musterctl::{errors::Failure, terminal};
use tokio::{
    net::TcpSocket,
    process::Child,
    time::{Instant, sleep},
};

use super::{Wanted, drains::Report, kubernetes, layout::Layout, shell::Line};

/// Timeout for a process to start and answer.
const START_MAX: Duration = Duration::from_secs(30);
/// Polling interval while it starts.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Most machines that enrol at the same time.
const ENROLL_AT_ONCE: usize = 8;
/// Length of the log tail that is shown when a process dies.
const LOG_TAIL_BYTES: usize = 2048;

/// All running processes.
pub(super) struct DemoFleet<'a> {
    layout: &'a Layout,
    address: String,
    /// Reserve the two ports, also while they are unused.
    _ports: [TcpSocket; 2],
    coordinator: Child,
    agents: BTreeMap<String, Child>,
    /// Controller for the update.
    controller: Option<Child>,
    /// Kubernetes under the update.
    kubernetes: Option<Child>,
}

impl<'a> DemoFleet<'a> {
    /// Start everything, in an operator's order.
    pub(super) async fn start(layout: &'a Layout, wanted: Wanted) -> Result<Self, Failure> {
        let [(address, port), (files_address, files_port)] = free_addresses()?;
        run(&layout.write_inputs(wanted, &format!("http://{files_address}/"))).await?;
        if wanted.kubernetes {
            terminal::print(
                "# Each agent gets a hostname and a boot id of its own, in namespaces. Can this user make them?",
            )?;
            run(&layout.check_host("control-1")).await?;
        }
        run(&layout.init(&address)).await?;
        let coordinator = background(&layout.run_coordinator(&address))?;
        let (agents, _ports) = (BTreeMap::new(), [port, files_port]);
        let mut fleet = Self { layout, address, _ports, coordinator, agents, controller: None, kubernetes: None };
        terminal::print(&layout.wait_for_coordinator().line())?;
        fleet.coordinator_answers().await?;
        run(&layout.apply()).await?;
        fleet.serve_artifacts(&files_address).await?;
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

    /// Wait until the coordinator answers or exits.
    pub(super) async fn coordinator_answers(&mut self) -> Result<(), Failure> {
        let wait = self.layout.wait_for_coordinator();
        let what = tokio::select! {
            waited = wait.output() => match waited {
                Ok(_) => return Ok(()),
                Err(failure) => failure.line(),
            },
            ended = self.coordinator.wait() => match ended {
                Ok(status) => format!("the coordinator ended by itself ({status})"),
                Err(error) => format!("lost sight of the coordinator: {error}"),
            },
        };
        Err(with_log(self.layout, "coordinator", what))
    }

    /// Start the file server; it writes its URL once it serves.
    async fn serve_artifacts(&self, address: &str) -> Result<(), Failure> {
        let mut server = background(&self.layout.serve_artifacts(address))?;
        let deadline = Instant::now() + START_MAX;
        while !self.layout.url_file().exists() {
            let what = match server.try_wait() {
                Ok(None) if Instant::now() < deadline => {
                    sleep(LOOK_EVERY).await;
                    continue;
                }
                Ok(None) => format!("the file server does not serve after {} s", START_MAX.as_secs()),
                Ok(Some(status)) => format!("the file server ended by itself ({status})"),
                Err(error) => format!("lost sight of the file server: {error}"),
            };
            return Err(with_log(self.layout, "artifacts", what));
        }
        Ok(())
    }

    /// Send SIGKILL to the coordinator and to one machine's agent, and wait for their end.
    pub(super) async fn kill(&mut self, machine: &str) -> Result<(), Failure> {
        let cannot = |source| Failure::failed("cannot kill").because(source);
        self.coordinator.start_kill().map_err(cannot)?;
        if let Some(agent) = self.agents.get_mut(machine) {
            agent.kill().await.map_err(cannot)?;
        }
        self.coordinator.wait().await.map_err(cannot)?;
        Ok(())
    }

    /// The commands that restart them.
    pub(super) fn restart_lines(&self, machine: &str) -> [Line; 2] {
        [self.layout.run_coordinator(&self.address), self.layout.run_agent(machine)]
    }

    /// Restart them.
    pub(super) fn restart(&mut self, machine: &str) -> Result<(), Failure> {
        let [coordinator, agent] = self.restart_lines(machine);
        self.coordinator = coordinator.start()?;
        self.agents.insert(machine.to_owned(), agent.start()?);
        Ok(())
    }

    pub(super) const fn layout(&self) -> &'a Layout {
        self.layout
    }

    /// Make the toy controller part of the fleet.
    pub(super) fn keep(&mut self, controller: Child) {
        self.controller = Some(controller);
    }

    /// Start the toy Kubernetes on these machines, and wait until its pods are Ready.
    pub(super) async fn start_kubernetes(&mut self, machines: &[String]) -> Result<(), Failure> {
        self.kubernetes = Some(background(&self.layout.run_kubernetes(machines))?);
        let ready = run(&self.layout.wait_for_kubernetes()).await;
        ready.map_err(|failure| with_log(self.layout, "kubernetes", failure.line()))
    }

    /// What happened in the toy Kubernetes, if it runs.
    pub(super) async fn kubernetes_report(&self) -> Result<Option<Report>, Failure> {
        match &self.kubernetes {
            Some(process) => kubernetes::report(process, &self.layout.kubernetes_report()).await.map(Some),
            None => Ok(None),
        }
    }
}

/// Two free addresses on loopback. They are chosen first, because manifest and credentials contain them.
fn free_addresses() -> Result<[(String, TcpSocket); 2], Failure> {
    // Bound only: a process that is told the port may listen there, and the kernel assigns it to no other.
    let reserve = || -> std::io::Result<(String, TcpSocket)> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        Ok((socket.local_addr()?.to_string(), socket))
    };
    let cannot = |source| Failure::failed("cannot find a free port on loopback").because(source);
    Ok([reserve().map_err(cannot)?, reserve().map_err(cannot)?])
}

/// Print a command, run it to its end, and print its output as comments.
pub(super) async fn run(line: &Line) -> Result<(), Failure> {
    terminal::print(&line.line())?;
    let output = line.output().await?;
    String::from_utf8_lossy(&output).lines().try_for_each(|said| terminal::print(&format!("# {said}")))
}

pub(super) fn background(line: &Line) -> Result<Child, Failure> {
    terminal::print(&line.line())?;
    line.start()
}

/// A failure with the end of a process's log.
fn with_log(layout: &Layout, process: &str, what: String) -> Failure {
    let log = layout.log(process);
    let text = fs::read_to_string(&log).unwrap_or_default();
    let tail = printable_lines(keep_end(&text, LOG_TAIL_BYTES));
    Failure::failed(what).next(format!("From {}:\n{tail}", log.display()))
}
