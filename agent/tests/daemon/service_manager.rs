//! Notifications of the agent to the service manager, on a real notify socket.

use std::{collections::VecDeque, time::Duration};

use muster_proto::model::ItemState;
use nix::sys::signal;
use tokio::{net::UnixDatagram, process::Child, time::timeout};

use crate::{
    coordinator::{Coordinator, DEADLINE, Traits, script},
    machine::Machine,
};

/// The receiving end of `NOTIFY_SOCKET`.
struct ServiceManager {
    socket: UnixDatagram,
    heard: VecDeque<String>,
}

impl ServiceManager {
    /// Starts the agent as a service of `Type=notify`, with a watchdog if `watchdog_ms` is given.
    fn start(machine: &Machine, watchdog_ms: Option<u64>) -> (Self, Child) {
        let path = machine.path("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        let micros = watchdog_ms.map(|ms| (ms * 1_000).to_string());
        let mut environment = vec![("NOTIFY_SOCKET", path.to_str().expect("text"))];
        environment.extend(micros.as_deref().map(|micros| ("WATCHDOG_USEC", micros)));
        (Self { socket, heard: VecDeque::new() }, machine.run_with(&environment))
    }

    /// The next line with this prefix; skips other lines.
    async fn next(&mut self, begins: &str) -> String {
        let mut passed = Vec::new();
        let found = timeout(DEADLINE, async {
            loop {
                let line = self.line().await;
                if line.starts_with(begins) {
                    return line;
                }
                passed.push(line);
            }
        });
        found.await.unwrap_or_else(|_| panic!("no {begins:?} after {passed:?}"))
    }

    async fn line(&mut self) -> String {
        let mut message = [0; 4096];
        while self.heard.is_empty() {
            let bytes = self.socket.recv(&mut message).await.expect("a message");
            self.heard.extend(String::from_utf8_lossy(&message[..bytes]).lines().map(str::to_owned));
        }
        self.heard.pop_front().expect("a line")
    }
}

#[tokio::test]
async fn a_service_manager_hears_when_it_is_ready_and_what_it_is_at() {
    let mut coordinator = Coordinator::start(Traits::default()).await;
    let machine = Machine::enrolled(&coordinator).await;
    let (mut manager, mut agent) = ServiceManager::start(&machine, None);
    assert_eq!(manager.line().await, "READY=1", "before anything else, whether there is a coordinator or not");
    assert!(manager.next("STATUS=Pending (not connected since 2").await.ends_with("Z)"));
    let session = coordinator.welcomed(1).await;
    manager.next("STATUS=Pending (connected since 2").await;
    session.assign(1, 1, vec![script("a", "exit 3")]).await;
    manager.next("STATUS=Deploy: item a (connected since").await;
    manager.next("STATUS=Deploy: Failed: item a: exit status 3 (attempt 1) (connected").await;
    drop(session);
    drop(coordinator);
    manager.next("STATUS=Deploy: Failed: item a: exit status 3 (attempt 1) (not connected").await;
    let pid = nix::unistd::Pid::from_raw(agent.id().expect("a process").cast_signed());
    signal::kill(pid, signal::Signal::SIGTERM).expect("signalled");
    manager.next("STOPPING=1").await;
    assert_eq!(timeout(DEADLINE, agent.wait()).await.expect("in time").expect("an end").code(), Some(0));
}

/// The engine reads the outcome of an attempt; on a pipe that has no writer it blocks for ever.
#[tokio::test]
async fn a_wedged_engine_does_not_feed_the_watchdog() {
    const WATCHDOG_MS: u64 = 600;
    let mut coordinator = Coordinator::start(Traits::default()).await;
    let machine = Machine::enrolled(&coordinator).await;
    let (mut manager, _agent) = ServiceManager::start(&machine, Some(WATCHDOG_MS));
    // Read continuously: with a full socket, the agent would block in the kernel.
    let connected = manager.next("STATUS=Pending (connected since 2");
    let (mut session, _) = tokio::join!(coordinator.welcomed(1), connected);
    for _ in 0..5 {
        manager.next("WATCHDOG=1").await;
    }
    let outcome = machine.state().join("attempts/a.1.1/exit");
    let kill_the_host = format!("mkfifo {} && kill -9 $PPID", outcome.display());
    session.assign(1, 1, vec![script("a", &kill_the_host)]).await;
    assert_eq!(session.event().await, (1, ItemState::Running, 1));
    let time_limit = Duration::from_millis(3 * WATCHDOG_MS);
    let starved = async { while timeout(time_limit, manager.next("WATCHDOG=1")).await.is_ok() {} };
    timeout(DEADLINE, starved).await.expect("the feeding stops");
}
