//! One simulated machine: the agent's production core over a simulated disk, boot and processes.

use std::{collections::BTreeMap, sync::Arc};

use muster_agent::{
    attempt::record::{AttemptKey, Exit, Found, Request},
    core::{Config, Core, Effect, Input, LedgerState, Record, ToCoordinator},
    ledger::line,
};
use muster_proto::model::{
    Generation, HostFacts, ItemName, ItemState, LedgerId, MachineId, MachineName, MachineType, Now, Phase, RunnerKind,
    SwarmCall,
};

use super::{
    fate::{Fate, exit},
    swarm::{Entered, Place, Way},
};
use crate::rng::Rng;

/// An attempt's directory and process.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The request to exec-item.
    pub request: Request,
    /// When its process ends, simulated milliseconds; None: it has ended, or died with the machine.
    pub ends_at: Option<u64>,
    /// The recorded exit.
    pub exit: Option<Exit>,
    /// Is the agent's current process waiting for its end?
    pub followed: bool,
    /// Number of the boot in which it was started.
    pub boot: u64,
    /// Of a swarm-join: the coordinator's answer.
    pub way: Option<Way>,
    /// Of a swarm-join: its result.
    pub entered: Option<Entered>,
}

impl Attempt {
    /// Does it reboot the machine?
    #[must_use]
    pub fn is_reboot(&self) -> bool {
        self.request.runner == RunnerKind::Reboot.as_str()
    }
}

/// Outcome of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Success.
    Succeeded,
    /// Failure, or an unknown outcome.
    Otherwise,
    /// The machine went down.
    GoesDown,
}

/// An action of a machine that the world must handle.
#[derive(Debug)]
pub enum Deed {
    /// A message for the coordinator on the current session.
    Said(ToCoordinator),
    /// A process was started (or requested, on a claimed directory).
    Started {
        /// The attempt.
        key: AttemptKey,
        /// Phase of the item.
        phase: Phase,
        /// Was the directory claimed before?
        claimed: bool,
        /// Does it lack its required inputs?
        destitute: bool,
    },
    /// A call to the machine's swarm.
    AskedSwarm(SwarmCall),
    /// A request for the inputs of an attempt.
    Asked(ItemName, Generation),
}

/// A machine.
#[derive(Clone)]
pub struct Machine {
    /// Its name.
    pub name: MachineName,
    /// Its type in the cluster.
    pub machine_type: MachineType,
    /// Its identity.
    pub id: MachineId,
    /// Contents of its disk: survive everything but a reinstallation.
    pub disk: LedgerState,
    /// Attempt directories on its disk; processes die with a boot.
    pub attempts: BTreeMap<AttemptKey, Attempt>,
    /// The agent's process. None: crashed, or the machine is off.
    pub agent: Option<Core>,
    /// Is the machine powered?
    pub powered: bool,
    /// Number of its current boot.
    pub boot: u64,
    /// It reports that it wants to reboot.
    pub wants_reboot: bool,
    /// Its wall clock is ahead by this much.
    pub clock_skew_ms: u64,
    /// Its current session, from its own view.
    pub session: Option<u64>,
    /// Cut off from the network until then.
    pub cut_off_until: u64,
    /// Its Docker Engine is down until then, independent of its agent.
    pub engine_down_until: u64,
    /// Has it enrolled under this identity? Otherwise it has no certificate, and opens no stream.
    pub enrolled: bool,
    /// Its address; None: it has none at the moment.
    pub address: Option<String>,
    /// The attempt whose inputs the agent's current process has requested.
    pub asked: Option<(AttemptKey, Generation)>,
    /// The attempt whose inputs it holds while the core decides whether to start it.
    pub at_hand: Option<(AttemptKey, Option<Way>)>,
    /// Time of the next queued wake-up.
    pub waking_at: Option<u64>,
    /// The swarm membership on its engine's disk.
    pub engine: Option<Place>,
    /// When it was installed.
    pub installed_at: u64,
    /// Its disk is full, even if the agent is unaware.
    pub disk_full: bool,
    /// A copy of its ledger.
    pub old_ledger: Option<LedgerState>,
    /// The copy replaced the ledger, and attempts had begun since the copy was made.
    pub rolled_back: bool,
    /// It has connected with another ledger than its own; by the record, that one succeeded its own.
    pub swapped_ledger: bool,
    /// It made a number up when a recovering store asked for its numbers. What it was told before proves nothing now.
    pub withheld: bool,
}

/// Effects still to be performed; a crash may cut the list off anywhere.
pub type Effects = std::collections::VecDeque<Effect>;

impl Machine {
    /// A machine just enrolled; its agent has yet to start.
    #[must_use]
    pub fn new(name: MachineName, machine_type: MachineType, id: MachineId, rng: &mut Rng) -> Self {
        let ledger = LedgerId(uuid_of(rng));
        Self {
            name,
            machine_type,
            id,
            disk: LedgerState::new(ledger, id),
            attempts: BTreeMap::new(),
            agent: None,
            powered: true,
            boot: 1,
            wants_reboot: false,
            clock_skew_ms: 0,
            session: None,
            cut_off_until: 0,
            engine_down_until: 0,
            enrolled: false,
            address: Some(format!("10.0.0.{}", rng.between(1, 254))),
            asked: None,
            at_hand: None,
            waking_at: None,
            engine: None,
            installed_at: 0,
            disk_full: false,
            old_ledger: None,
            rolled_back: false,
            swapped_ledger: false,
            withheld: false,
        }
    }

    /// The machine's clock.
    #[must_use]
    pub const fn now(&self, at: u64) -> Now {
        Now { wall_ms: 1_700_000_000_000 + at + self.clock_skew_ms, mono_ms: at }
    }

    /// Its boot id.
    #[must_use]
    pub fn boot_id(&self) -> String {
        format!("boot-{}-{}", self.name, self.boot)
    }

    /// The facts it reports about itself.
    #[must_use]
    pub fn facts(&self) -> HostFacts {
        HostFacts {
            hostname: self.name.to_string(),
            internal_ip: self.address.clone(),
            boot_id: self.boot_id(),
            reboot_required: self.wants_reboot,
            ..HostFacts::default()
        }
    }

    /// Starts the agent's process from the disk; an error if reading the disk fails.
    pub fn start_agent(&mut self, at: u64) -> Result<Effects, String> {
        // Memory is lost; records pass through their stored form.
        for record in stored(&[Record::Snapshot(Box::new(self.disk.clone()))])? {
            self.disk.apply(&record);
        }
        for attempt in self.attempts.values_mut() {
            attempt.followed = false;
        }
        let config = Config { machine: self.name.clone(), supports: |_| true };
        let mut core = Core::new(config, self.disk.clone());
        let attempts = self.attempts.keys().cloned().collect();
        let found = Input::TracesFound { attempts, mark: None };
        let mut effects = core.step(found, self.now(at));
        if core.is_behind() && !self.rolled_back {
            return Err(format!("{}: {:?} though its ledger was never put back", self.name, core.blocked()));
        }
        if !core.is_behind() {
            let kept = core.kept_attempts();
            self.attempts.retain(|key, _| kept.contains(key));
        }
        effects.extend(core.step(Input::Started { boot_id: self.boot_id() }, self.now(at)));
        self.agent = Some(core);
        self.session = None;
        Ok(effects.into())
    }

    /// Restores the copy of its ledger, if attempts have begun since it was made; otherwise makes a copy. Attempts
    /// stay, and running processes continue. True: it was restored.
    pub fn put_ledger_back(&mut self) -> bool {
        let copy = self.old_ledger.take().filter(|old| self.attempts.keys().any(|key| old.lacks(key)));
        let Some(old) = copy else {
            self.old_ledger = Some(self.disk.clone());
            return false;
        };
        self.disk = old;
        self.rolled_back = true;
        true
    }

    /// Gives the agent an input.
    pub fn input(&mut self, input: Input, at: u64) -> Effects {
        let now = self.now(at);
        self.agent.as_mut().map(|core| core.step(input, now).into()).unwrap_or_default()
    }

    /// The agent's process dies. Programs hosted by exec-item continue.
    pub fn crash_agent(&mut self) {
        self.agent = None;
        self.session = None;
        self.asked = None;
        self.at_hand = None;
    }

    /// The machine loses power: every process dies, and exec-item has left no outcome.
    pub fn power_off(&mut self) {
        self.crash_agent();
        self.powered = false;
        for attempt in self.attempts.values_mut() {
            attempt.ends_at = None;
        }
    }

    /// The machine boots.
    pub fn power_on(&mut self) {
        self.powered = true;
        self.boot += 1;
        self.wants_reboot = false;
    }

    /// May the store doubt its true ledger? An operator then replaces the machine.
    #[must_use]
    pub const fn may_be_doubted(&self) -> bool {
        self.swapped_ledger || self.withheld
    }

    /// Is an attempt in progress that ends by itself? A recorded attempt that never started may wait for its inputs
    /// forever. The end of an attempt stays unrecorded if its agent is gone, or waits with an old ledger.
    #[must_use]
    pub fn is_at_work(&self) -> bool {
        self.agent.as_ref().is_some_and(|agent| !agent.is_behind())
            && self.disk.running().is_some_and(|slot| self.attempts.contains_key(&slot.key()))
    }

    /// State of an attempt, read from its directory.
    #[must_use]
    pub fn found(&self, key: &AttemptKey) -> Found {
        match self.attempts.get(key) {
            None => Found::NotStarted,
            Some(Attempt { exit: Some(exit), .. }) => Found::Exited(exit.clone()),
            Some(Attempt { ends_at: Some(_), .. }) => Found::Running,
            Some(_) => Found::Lost,
        }
    }

    /// Performs one effect. Returns the action for the world, and the input that answers the effect. An error if its
    /// records cannot be read, or do not follow on earlier ones.
    pub fn perform(
        &mut self,
        effect: Effect,
        at: u64,
        rng: &mut Rng,
        fate: &Fate,
    ) -> Result<(Option<Deed>, Option<Input>), String> {
        Ok(match effect {
            Effect::Record(records) => {
                for record in stored(&records)? {
                    self.disk.apply_read(&record).map_err(|misfit| format!("{misfit}: {record:?}"))?;
                }
                (None, None)
            }
            Effect::Send(what) => (Some(Deed::Said(what)), None),
            Effect::Inspect(key) => {
                let found = self.found(&key);
                (None, Some(Input::Inspected { key, found }))
            }
            Effect::Fetch { key, generation } => {
                let item = key.item.clone();
                self.asked = Some((key, generation));
                (Some(Deed::Asked(item, generation)), None)
            }
            Effect::Start(request) => self.start(*request, at, rng, fate),
            Effect::Follow(key) => (None, self.follow(&key)),
            // The host of these machines keeps the directory only.
            Effect::Release(_) => (None, None),
            Effect::Remove(key) => {
                self.attempts.remove(&key);
                (None, None)
            }
            Effect::CallSwarm(call) => (Some(Deed::AskedSwarm(call)), None),
            // The simulated cluster answers for the agents.
            Effect::AskControlPlane(_) => (None, None),
        })
    }

    fn start(&mut self, request: Request, at: u64, rng: &mut Rng, fate: &Fate) -> (Option<Deed>, Option<Input>) {
        let key = request.key.clone();
        if self.disk_full {
            return (None, Some(Input::NoRoom { key, message: "the disk is full".to_owned() }));
        }
        let claimed = self.attempts.contains_key(&key);
        let at_hand = self.at_hand.take().filter(|(of, _)| *of == key);
        let joins = request.runner == RunnerKind::SwarmJoin.as_str();
        let destitute = (joins || !request.secret_params.is_empty()) && at_hand.is_none();
        let way = at_hand.and_then(|(_, way)| way);
        let deed = Deed::Started { key: key.clone(), phase: request.phase, claimed, destitute };
        if !claimed {
            let ends_at = Some(at + rng.between(fate.shortest_ms, fate.longest_ms));
            let boot = self.boot;
            let attempt = Attempt { request, ends_at, exit: None, followed: true, boot, way, entered: None };
            self.attempts.insert(key.clone(), attempt);
        }
        let answer = if claimed { self.follow(&key) } else { None };
        (Some(deed), answer)
    }

    /// The answer to the last request, if this is one.
    pub fn fetched(
        &mut self,
        item: &ItemName,
        generation: Generation,
        outcome: Result<Option<Way>, String>,
    ) -> Option<Input> {
        let (key, generation) = self.asked.take_if(|(key, asked)| key.item == *item && *asked == generation)?;
        let outcome = outcome.map(|way| self.at_hand = Some((key.clone(), way)));
        Some(Input::Fetched { key, generation, outcome })
    }

    fn follow(&mut self, key: &AttemptKey) -> Option<Input> {
        match self.found(key) {
            Found::Running => {
                if let Some(attempt) = self.attempts.get_mut(key) {
                    attempt.followed = true;
                }
                None
            }
            found => Some(Input::Ended { key: key.clone(), found }),
        }
    }

    /// Ends the processes that are due. Returns those that ended, and the resulting inputs for the agent.
    pub fn end_processes(&mut self, at: u64, rng: &mut Rng, fate: &Fate) -> (Vec<(AttemptKey, End)>, Vec<Input>) {
        let mut ended = Vec::new();
        let mut inputs = Vec::new();
        let now = self.now(at);
        for (key, attempt) in &mut self.attempts {
            if attempt.ends_at.is_none_or(|ends_at| ends_at > at) {
                continue;
            }
            attempt.ends_at = None;
            // exec-item itself may be killed: then no record says how the program ended.
            let lost = rng.permille(fate.lost_permille);
            if !lost {
                attempt.exit = Some(exit(rng, fate, now, attempt.entered.take()));
            }
            let mut end = match &attempt.exit {
                Some(exit) if exit.state == ItemState::Succeeded => End::Succeeded,
                Some(_) | None => End::Otherwise,
            };
            // A reboot leaves an exit only if logind refuses it.
            let only_if_required = attempt.request.params.get("when").is_some_and(|when| when == "required");
            let goes = attempt.is_reboot() && (self.wants_reboot || !only_if_required);
            if goes && end == End::Succeeded {
                attempt.exit = None;
                end = End::GoesDown;
            }
            ended.push((key.clone(), end));
            if attempt.followed {
                attempt.followed = false;
                let found = attempt.exit.clone().map_or(Found::Lost, Found::Exited);
                inputs.push(Input::Ended { key: key.clone(), found });
            }
        }
        (ended, inputs)
    }

    /// The next time at which something happens here by itself.
    #[must_use]
    pub fn wake_at(&self) -> Option<u64> {
        let processes = self.attempts.values().filter_map(|attempt| attempt.ends_at);
        let agent = self.agent.as_ref().and_then(Core::wake_at);
        processes.chain(agent).min()
    }

    /// The same, unless an earlier wake-up is queued. The caller must queue it.
    pub fn wake_unless_queued(&mut self, at: u64) -> Option<u64> {
        let wake = self.wake_at()?.max(at);
        let queued = self.waking_at.is_some_and(|queued| queued <= wake);
        (!queued).then(|| *self.waking_at.insert(wake))
    }

    /// Reinstalls the machine: a fresh disk under the same name.
    pub fn reinstall(&mut self, id: MachineId, at: u64, rng: &mut Rng) {
        let boot = self.boot + 1;
        *self = Self { boot, installed_at: at, ..Self::new(self.name.clone(), self.machine_type, id, rng) };
    }
}

/// Records as read back from the disk: the ledger's codec is under test too.
fn stored(batch: &[Record]) -> Result<Vec<Record>, String> {
    let log = line::parse(&line::encode(line::Chain::default(), batch).0)
        .map_err(|bad| format!("{}: {batch:?}", bad.problem))?;
    if log.torn { Err(format!("not read as whole: {batch:?}")) } else { Ok(log.batches.concat()) }
}

/// A random identity.
pub fn uuid_of(rng: &mut Rng) -> uuid::Uuid {
    uuid::Uuid::from_u128(rng.bytes16())
}

/// Clones a shared status.
#[must_use]
pub fn status_of(status: &Arc<muster_proto::model::ItemStatus>) -> muster_proto::model::ItemStatus {
    (**status).clone()
}
