//! A toy application controller, a process with its own certificate. It guards three toy workloads on every machine,
//! moves them away when maintenance is requested, and brings them back when the request is gone. It logs its actions in
//! effects.log, one line each: `<unix ms> <machine> request-seen|workloads-moved|lock-inactive|…`.

use std::{
    collections::BTreeMap,
    fs::OpenOptions,
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use muster_proto::{
    model::{MANUAL, MIGRATION_MODE},
    tls,
    wire::{
        LockState, MaintenanceRequest, RegisterRequest, RequestEvent, SetLockRequest, WatchRequestsRequest,
        maintenance_client::MaintenanceClient, request_event::Type,
    },
};
use musterctl::{config::Config, errors::Failure, terminal};
use tokio::{
    sync::{Semaphore, mpsc},
    time::sleep,
};
use tonic::{Status, transport::Channel};

/// Toy workloads on every machine.
const WORKLOADS: u32 = 3;
/// Wait before a reconnection to the coordinator.
const AGAIN: Duration = Duration::from_millis(500);
/// Most queued messages to one machine's task: requested, gone, and so on.
const WORDS_MAX: usize = 16;

/// A toy application controller (the demo starts it)
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Its credentials
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Cluster whose machines it guards
    #[arg(long)]
    cluster: String,
    /// Machines it guards
    #[arg(long, value_delimiter = ',')]
    machines: Vec<String>,
    /// File it writes its lines to
    #[arg(long, value_name = "FILE")]
    effects: PathBuf,
    /// Machines it lets go at the same time
    #[arg(long, value_name = "N", default_value_t = 50)]
    at_once: u32,
    /// How long one workload takes to move, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 30)]
    move_ms: u64,
    /// A machine it never lets go
    #[arg(long, value_name = "MACHINE")]
    refuse: Option<String>,
}

/// Content of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Asked {
    /// The release of the update, if any; else empty.
    release: String,
    /// A person moves the workloads by hand.
    by_hand: bool,
}

/// The maintenance request of a machine, if it has one.
type Heard = Option<Asked>;

/// The state, and the connection on which it arrived.
type Word = (Heard, MaintenanceClient<Channel>);

/// State of one machine's task. It outlives connections, because it knows which workloads are away.
struct Guard {
    cluster: String,
    machine: String,
    effects: PathBuf,
    /// Time to move one workload.
    moves_in: Duration,
    refuses: bool,
    turns: Arc<Semaphore>,
    /// The release it last worked for, or for which its workloads are away now.
    release: String,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let config = Config::read(&args.config)?;
    let turns = Arc::new(Semaphore::new(args.at_once as usize));
    let mut tasks: BTreeMap<String, mpsc::Sender<Word>> = BTreeMap::new();
    // The empty name is the cluster itself.
    for machine in args.machines.iter().cloned().chain([String::new()]) {
        let (words, heard) = mpsc::channel(WORDS_MAX);
        let guard = Guard {
            cluster: args.cluster.clone(),
            refuses: args.refuse.as_ref() == Some(&machine),
            machine: machine.clone(),
            effects: args.effects.clone(),
            moves_in: Duration::from_millis(args.move_ms),
            turns: Arc::clone(&turns),
            release: String::new(),
        };
        tokio::spawn(guard.work(heard));
        tasks.insert(machine, words);
    }
    loop {
        // Reconnect after every error: the coordinator may be restarting.
        if let Err(error) = guard(&args, &config, &tasks).await {
            terminal::say(&format!("{error}; again"));
        }
        sleep(AGAIN).await;
    }
}

/// Guard the machines until the connection breaks.
async fn guard(args: &Args, config: &Config, tasks: &BTreeMap<String, mpsc::Sender<Word>>) -> Result<(), String> {
    let tls = tls::client_config(&config.ca, Some(&config.identity())).map_err(|error| error.to_string())?;
    let connection = tls::connect(&config.coordinator, tls).await.map_err(|error| error.to_string())?;
    let mut client = MaintenanceClient::new(connection.channel);
    let said = |status: Status| status.to_string();
    let (cluster, machines) = (args.cluster.clone(), args.machines.clone());
    client.register(RegisterRequest { cluster, machines, of_cluster: true }).await.map_err(said)?;
    let watched = client.watch_requests(WatchRequestsRequest { cluster: args.cluster.clone() }).await;
    let mut events = watched.map_err(said)?.into_inner();
    let mut requested: Vec<String> = Vec::new();
    while let Some(event) = events.message().await.map_err(said)? {
        for (machine, word) in news(&event, &mut requested, tasks.keys()) {
            if let Some(task) = tasks.get(&machine) {
                task.send((word, client.clone())).await.map_err(|_| "a task has ended".to_owned())?;
            }
        }
    }
    Err("the coordinator ended the watch".to_owned())
}

/// The machines that an event concerns, each with its present request.
fn news<'a>(
    event: &RequestEvent,
    requested: &mut Vec<String>,
    all: impl Iterator<Item = &'a String>,
) -> Vec<(String, Heard)> {
    let asked = |request: &MaintenanceRequest| Asked {
        release: request.release.clone(),
        by_hand: request.annotations.get(MIGRATION_MODE).is_some_and(|mode| mode == MANUAL),
    };
    match event.r#type() {
        Type::Put => {
            requested.extend(event.request.iter().map(|request| request.machine.clone()));
            event.request.iter().map(|request| (request.machine.clone(), Some(asked(request)))).collect()
        }
        Type::Deleted => event.request.iter().map(|request| (request.machine.clone(), None)).collect(),
        // Report requests that disappeared while the connection was down.
        Type::Synced => all.filter(|name| !requested.contains(name)).map(|name| (name.clone(), None)).collect(),
        Type::Unspecified => Vec::new(),
    }
}

impl Guard {
    /// Follow the requests of one machine.
    async fn work(mut self, mut heard: mpsc::Receiver<Word>) {
        let (mut seen, mut away) = (false, false);
        let turns = Arc::clone(&self.turns);
        let mut turn = None;
        while let Some((word, client)) = heard.recv().await {
            let requested = word.is_some();
            let keeps = self.keeps(word.as_ref());
            if let Some(asked) = word.filter(|asked| !asked.release.is_empty()) {
                self.release = asked.release;
            }
            if requested && !seen {
                self.say("request-seen");
            }
            seen = requested;
            let done = match (requested, away) {
                (true, false) => {
                    if let Some(why) = keeps {
                        self.set(client, LockState::Active, 0, why, "").await
                    } else {
                        turn = match self.is_cluster() {
                            true => None,
                            false => turns.acquire().await.ok(),
                        };
                        let moved = self.move_away(&client).await;
                        away = moved.is_ok();
                        if away { self.let_go(client).await } else { moved }
                    }
                }
                (false, true) => {
                    self.say("request-gone");
                    away = false;
                    self.bring_back(client).await
                }
                // An earlier process may have moved them, or the last message was lost with its connection.
                (false, false) => self.set(client, LockState::Active, 0, "", "").await,
                (true, true) => self.let_go(client).await,
            };
            if let Err(status) = done {
                terminal::say(&format!("{}: {status}", self.machine));
            }
            if !away {
                turn = None;
            }
        }
        drop(turn);
    }

    /// Why its workloads stay. None: they move away.
    fn keeps(&self, asked: Option<&Asked>) -> Option<&'static str> {
        match asked {
            _ if self.refuses => Some("ToyWorkloadsStay: this controller was told to refuse"),
            Some(asked) if asked.by_hand => Some("ToyWorkloadsStay: somebody moves them by hand"),
            _ => None,
        }
    }

    const fn is_cluster(&self) -> bool {
        self.machine.is_empty()
    }

    async fn move_away(&self, client: &MaintenanceClient<Channel>) -> Result<(), Status> {
        for workload in 1..=WORKLOADS {
            if !self.is_cluster() {
                let doing = format!("moving workload {workload} of {WORKLOADS}");
                self.set(client.clone(), LockState::Active, (workload - 1) * 100 / WORKLOADS, "", &doing).await?;
                sleep(self.moves_in).await;
            }
        }
        self.say("workloads-moved");
        self.say("lock-inactive");
        Ok(())
    }

    async fn let_go(&self, client: MaintenanceClient<Channel>) -> Result<(), Status> {
        self.set(client, LockState::Inactive, 100, "", "").await
    }

    async fn bring_back(&self, client: MaintenanceClient<Channel>) -> Result<(), Status> {
        if !self.is_cluster() {
            sleep(self.moves_in * WORKLOADS).await;
        }
        self.say("lock-active");
        self.set(client, LockState::Active, 0, "", "").await
    }

    async fn set(
        &self,
        mut client: MaintenanceClient<Channel>,
        state: LockState,
        percentage: u32,
        message: &str,
        description: &str,
    ) -> Result<(), Status> {
        let request = SetLockRequest {
            cluster: self.cluster.clone(),
            machine: self.machine.clone(),
            state: state.into(),
            message: message.to_owned(),
            percentage,
            description: description.to_owned(),
            release: self.release.clone(),
        };
        client.set_lock(request).await.map(|_| ())
    }

    fn say(&self, what: &str) {
        if !self.is_cluster()
            && let Err(error) = append(&self.effects, &format!("{} {what}", self.machine))
        {
            terminal::say(&format!("cannot write {}: {error}", self.effects.display()));
        }
    }
}

/// One write in append mode: lines of several processes stay whole.
fn append(path: &Path, line: &str) -> std::io::Result<()> {
    let now_ms = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    file.write_all(format!("{now_ms} {line}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_hears_who_is_requested_for_which_release() {
        let event = |kind: Type, machine: &str, mode: &str| {
            let annotations = [(MIGRATION_MODE.to_owned(), mode.to_owned())].into();
            let (machine, release) = (machine.to_owned(), "2.0".to_owned());
            let request = MaintenanceRequest { machine, release, annotations, ..Default::default() };
            RequestEvent {
                r#type: kind.into(),
                request: Some(request).filter(|it| !it.machine.is_empty()),
                locks: Vec::new(),
            }
        };
        let asked = |by_hand| Some(Asked { release: "2.0".to_owned(), by_hand });
        let (all, mut requested) = (["a".to_owned(), "b".to_owned()], Vec::new());
        let mut heard = |event| news(&event, &mut requested, all.iter());
        assert_eq!(heard(event(Type::Put, "a", MANUAL)), [("a".to_owned(), asked(true))]);
        assert_eq!(heard(event(Type::Put, "a", "skip")), [("a".to_owned(), asked(false))]);
        assert_eq!(heard(event(Type::Synced, "", "")), [("b".to_owned(), None)], "what it did not see go away is gone");
        assert_eq!(heard(event(Type::Deleted, "a", "skip")), [("a".to_owned(), None)]);
    }
}
