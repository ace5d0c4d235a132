//! The etcd members of control machines, each asked for its own health by its machine's agent.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use muster_proto::model::Reason;

use super::*;

/// Answers for all members, by a path for each machine: `/MACHINE/health`.
struct Members {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    unhealthy: BTreeSet<String>,
    asked: Vec<String>,
}

impl Members {
    fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (address, state) = (listener.local_addr()?, Arc::new(Mutex::new(State::default())));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that goes away is asked about no more.
                answer(stream, &shared).ok();
            }
        });
        Ok(Self { address, state })
    }

    fn set(&self, machine: &str, healthy: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match healthy {
            true => state.unhealthy.remove(machine),
            false => state.unhealthy.insert(machine.to_owned()),
        };
    }

    fn asked(&self) -> Vec<String> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).asked.clone()
    }

    /// Lines of `kubernetes` in the manifest.
    fn settings(&self) -> [String; 2] {
        ["  etcd:".to_owned(), format!("    health: \"http://{}/${{machine.name}}/health\"", self.address)]
    }
}

fn answer(mut stream: TcpStream, state: &Mutex<State>) -> Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().context("a request")??;
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let machine = request.split('/').nth(1).context("a machine")?.to_owned();
    let healthy = {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let healthy = !state.unhealthy.contains(&machine);
        state.asked.push(machine);
        healthy
    };
    let (status, body) = match healthy {
        true => ("200 OK", r#"{"health":"true","reason":""}"#),
        false => ("503 Service Unavailable", r#"{"health":"false","reason":"RAFT NO LEADER"}"#),
    };
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())?;
    Ok(())
}

/// Starts of an item's second release on control machines.
fn controls_disturbed(fleet: &Fleet, before: usize) -> Result<Vec<String>> {
    let starts = fleet.effects()?.into_iter().skip(before).map(|effect| effect.machine);
    Ok(starts.filter(|machine| machine.starts_with("control")).collect())
}

#[test]
fn unhealthy_etcd_holds_the_other_control_machines() -> Result<()> {
    let (fleet, kubernetes) = deployed("etcd")?;
    let members = Members::start()?;
    members.set("control-2", false);
    let [etcd, health] = members.settings();
    let manifest = manifest(&fleet, 2, &[&etcd, &health]);
    fleet.apply(&manifest)?;
    let problem = "its etcd says that it is not healthy: RAFT NO LEADER";
    fleet.ctl(&["kubernetes", "check", "e2e"])?.exits(4)?.says(&["control-2 (", problem])?;
    let before = fleet.effects()?.len();
    let mut update = fleet.start_ctl(&["--config", "operator.toml", "update", "e2e", "--yes"], "update")?;
    let waits = |machine: &Machine| {
        let blocked = machine.status.blocked.as_ref().map(|since| &since.blocked);
        let says = |message: &str| message.contains("control-2: ") && message.contains(problem);
        blocked.is_some_and(|blocked| blocked.reason == Reason::Quorum && says(&blocked.message))
    };
    fleet.wait_machine("control-1", "the wait for control-2's etcd", waits)?;
    ensure!(controls_disturbed(&fleet, before)?.is_empty(), "a control machine was disturbed");
    let asked = members.asked();
    ensure!(asked.iter().any(|machine| machine == "control-3"), "{asked:?}");
    ensure!(!asked.iter().any(|machine| machine.starts_with("worker")), "{asked:?}");
    members.set("control-2", true);
    // The next one waits for the first one's member.
    members.set("control-1", false);
    fleet.wait_machine("control-2", "the wait for control-1's etcd", |machine| {
        let blocked = machine.status.blocked.as_ref().map(|since| &since.blocked);
        let says = |message: &str| message.contains("control-1: its etcd");
        blocked.is_some_and(|blocked| blocked.reason == Reason::Quorum && says(&blocked.message))
    })?;
    ensure!(controls_disturbed(&fleet, before)?.iter().all(|machine| machine == "control-1"));
    members.set("control-1", true);
    ensure!(update.wait()?.success(), "{}", fleet.log("update"));
    fleet.wait_ready(6)?;
    fleet.ctl(&["kubernetes", "check", "e2e"])?.exits(0)?.says(&["the etcd members of all 3"])?;
    is_given_back(&kubernetes)?;
    budgets_held(&kubernetes)?;
    fleet.done()
}
