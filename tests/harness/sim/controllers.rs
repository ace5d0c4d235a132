//! Simulated application controllers, good and bad: they guard machines, see requests, move workloads away, and bring
//! them back.

use std::collections::BTreeMap;

use muster_coordinator::{
    core::{Input, LockCommand},
    documents,
    facts::{Facts, LockKey, LockRow},
};
use muster_proto::model::{LockState, MachineName};

use super::{Event, World, manifest};
use crate::{invariants::Violation, rng::Rng};

/// How a controller behaves while there are faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Releases every machine.
    Willing,
    /// Releases at most this many machines at once.
    Grants(usize),
    /// Never answers.
    Stalls,
    /// Revokes its consent occasionally.
    Flaps,
    /// Reports `failed` occasionally.
    Fails,
    /// Creates the lock of a machine only when it sees the request, and is occasionally away.
    Late,
    /// Falls silent after a while.
    Dies,
    /// Records releases in its locks. It revokes a consent given for an older release than the current one, and then
    /// works for the current one.
    ResetsOld,
}

/// A controller.
#[derive(Clone, Debug)]
pub(crate) struct Controller {
    /// Name in its certificate.
    pub(crate) name: String,
    /// Its behaviour while there are faults.
    pub(crate) manner: Manner,
    /// It has fallen silent.
    pub(crate) dead: bool,
    /// It is away until then.
    pub(crate) away_until: u64,
    /// Its open streams of requests: their numbers, and when they began.
    pub(crate) streams: BTreeMap<u64, u64>,
}

/// Controllers that guard machines, with the time since which each sees the requests. None: it does not.
pub(crate) type Guards = BTreeMap<String, Option<u64>>;

impl Controller {
    /// Random controllers of a world: none, one or two.
    pub(crate) fn some(rng: &mut Rng) -> Vec<Self> {
        let manners = [
            Manner::Grants(1),
            Manner::Willing,
            Manner::Stalls,
            Manner::Flaps,
            Manner::Fails,
            Manner::Late,
            Manner::Dies,
        ];
        let count = rng.between(0, 2);
        let made = (0..count).filter_map(|n| {
            let manner = match *rng.pick(&manners)? {
                // Separate random numbers, so that the rest of the seed stays the same.
                Manner::Willing if Rng::new(rng.clone().next()).permille(500) => Manner::ResetsOld,
                manner => manner,
            };
            Some(Self::named(&format!("controller-{n}"), manner))
        });
        made.collect()
    }

    /// Its limit of machines released at once, if more than one. None: it has no such limit.
    pub(crate) fn partial_limit(&self) -> Option<usize> {
        if let Manner::Grants(most @ 2..) = self.manner { Some(most) } else { None }
    }

    fn named(name: &str, manner: Manner) -> Self {
        Self { name: name.to_owned(), manner, dead: false, away_until: 0, streams: BTreeMap::new() }
    }
}

/// Longest poll interval of the requests. A late lock is made well within the settle time.
const LOOK_MS_MAX: u64 = 2_000;
/// Longest absence of a controller: it ends within the settle time, or long after.
const AWAY_MS_MAX: u64 = 40_000;

impl World {
    /// Controllers register and begin to poll.
    pub(crate) fn start_controllers(&mut self) -> Result<(), Violation> {
        for index in 0..self.controllers.len() {
            self.register(index)?;
            self.watch_requests(index)?;
            self.later(500, Event::Controller(index));
        }
        Ok(())
    }

    /// A controller registers for the machines that the record has.
    fn register(&mut self, index: usize) -> Result<(), Violation> {
        let (Some(controller), Some(facts)) = (self.controllers.get(index).cloned(), self.facts()) else {
            return Ok(());
        };
        let late = controller.manner == Manner::Late;
        let machines = facts.machines.keys().filter(|_| !late).cloned().collect();
        let word = LockCommand::Register { cluster: manifest::cluster_name(), machines, of_cluster: true };
        let taken = self.ask(Input::Maintenance { controller: controller.name, word })?;
        taken.map(drop).map_err(|error| self.watcher.violation("sim", error))
    }

    /// A controller that finds none of its locks registers again: the store was put back to before they were made.
    fn register_again(&mut self, index: usize, name: &str) -> Result<(), Violation> {
        let lost =
            self.facts().is_some_and(|facts| facts.locks.keys().all(|key| key.uid.is_some() || key.controller != name));
        if lost {
            self.count("a controller registered again");
            self.register(index)?;
        }
        Ok(())
    }

    /// One poll: reads the requests, sends a command, and may misbehave.
    pub(crate) fn look(&mut self, index: usize) -> Result<(), Violation> {
        let pause = self.rng.between(300, LOOK_MS_MAX);
        self.later(pause, Event::Controller(index));
        let Some(controller) = self.controllers.get(index).cloned() else { return Ok(()) };
        if self.chaos && controller.manner == Manner::Dies && self.rng.permille(60) {
            self.count("controller died");
            self.controllers[index].dead = true;
        }
        if self.chaos && controller.manner == Manner::Late && self.rng.permille(80) {
            self.count("controller went away");
            self.controllers[index].away_until = self.at + self.rng.between(1_000, AWAY_MS_MAX);
        }
        if self.controllers[index].dead || self.controllers[index].away_until > self.at {
            return self.end_streams(index, &controller.streams);
        }
        self.keep_watching(index, &controller.streams)?;
        self.register_again(index, &controller.name)?;
        if self.chaos && controller.manner == Manner::Flaps && self.rng.permille(150) {
            return self.take_back(&controller.name);
        }
        if self.facts().is_some_and(|facts| withholds(facts, &controller)) {
            self.count("a controller let some go and others wait");
        }
        if let Some(word) = self.facts().and_then(|facts| old_release(facts, &controller)) {
            self.count("a lock of an older release was reset");
            self.tell(Input::Maintenance { controller: controller.name, word });
            return Ok(());
        }
        let Some(words) = self.facts().map(|facts| wishes(facts, &controller)) else { return Ok(()) };
        let Some(word) = words.first().cloned() else { return Ok(()) };
        let Some(word) = self.bend(controller.manner, word) else { return Ok(()) };
        self.tell(Input::Maintenance { controller: controller.name, word });
        Ok(())
    }

    /// Keeps a stream open. Occasionally another replaces it: after it ended, or before.
    fn keep_watching(&mut self, index: usize, known: &BTreeMap<u64, u64>) -> Result<(), Violation> {
        let breaks = self.chaos && self.rng.permille(20);
        if breaks && self.rng.permille(500) {
            self.count("a controller's stream followed another");
            self.end_streams(index, known)?;
            return self.watch_requests(index);
        }
        if known.is_empty() || breaks {
            self.watch_requests(index)?;
        }
        if breaks { self.end_streams(index, known) } else { Ok(()) }
    }

    /// A controller opens a stream of requests, if a coordinator runs.
    fn watch_requests(&mut self, index: usize) -> Result<(), Violation> {
        self.last_session += 1;
        let (at, stream) = (self.at, self.last_session);
        let Some(controller) = self.controllers.get_mut(index).filter(|_| self.coordinator.is_some()) else {
            return Ok(());
        };
        controller.streams.insert(stream, at);
        let controller = controller.name.clone();
        let word = LockCommand::Watch { cluster: manifest::cluster_name(), stream };
        self.ask(Input::Maintenance { controller, word }).map(drop)
    }

    /// Ends these streams of a controller.
    fn end_streams(&mut self, index: usize, streams: &BTreeMap<u64, u64>) -> Result<(), Violation> {
        for stream in streams.keys().copied() {
            let Some(controller) = self.controllers.get_mut(index) else { return Ok(()) };
            controller.streams.remove(&stream);
            let controller = controller.name.clone();
            let word = LockCommand::Unwatch { cluster: manifest::cluster_name(), stream };
            drop(self.ask(Input::Maintenance { controller, word })?);
        }
        Ok(())
    }

    /// The coordinator is gone, and every stream with it.
    pub(crate) fn streams_of_controllers_end(&mut self) {
        self.controllers.iter_mut().for_each(|controller| controller.streams.clear());
    }

    /// A controller revokes its consent for a machine that it had released.
    fn take_back(&mut self, controller: &str) -> Result<(), Violation> {
        let inactive = self.facts().and_then(|facts| {
            let mine = native(facts, controller);
            mine.filter(|lock| lock.state == LockState::Inactive).map(|lock| lock.key.clone()).next()
        });
        let Some(LockKey { node: machine, .. }) = inactive else { return Ok(()) };
        self.count("lock taken back");
        let word = word(machine.as_ref(), LockState::Active, "");
        self.tell(Input::Maintenance { controller: controller.to_owned(), word });
        Ok(())
    }

    /// The command that a controller of this kind sends in place of the right one. None: it sends nothing.
    fn bend(&mut self, manner: Manner, word: LockCommand) -> Option<LockCommand> {
        let grants = matches!(word, LockCommand::Set { state: LockState::Inactive, .. });
        let brings_back = matches!(word, LockCommand::Set { state: LockState::Active, machine: Some(_), .. });
        let node = if let LockCommand::Set { machine, .. } = &word { machine.clone() } else { None };
        let other = |state| Some(self::word(node.as_ref(), state, ""));
        match manner {
            Manner::Fails if self.chaos && brings_back && self.rng.permille(400) => {
                self.count("controller failed to bring workloads back");
                other(LockState::Failed)
            }
            _ if !self.chaos || !grants => Some(word),
            Manner::Stalls => {
                self.count("controller stalled");
                None
            }
            Manner::Fails if self.rng.permille(400) => {
                self.count("controller failed");
                other(LockState::Failed)
            }
            Manner::Flaps if self.rng.permille(300) => {
                self.count("controller flapped");
                other(LockState::Active)
            }
            // It has yet to read which release is coming.
            Manner::ResetsOld if self.rng.permille(500) => {
                Some(self::word(node.as_ref(), LockState::Inactive, manifest::FIRST_RELEASE))
            }
            Manner::Willing
            | Manner::Grants(_)
            | Manner::Fails
            | Manner::Flaps
            | Manner::Late
            | Manner::Dies
            | Manner::ResetsOld => Some(word),
        }
    }

    /// Adds a controller that releases everything requested. It registers, and polls only when told to.
    pub(crate) fn add_willing_controller(&mut self, name: &str) -> Result<(), Violation> {
        self.controllers.push(Controller::named(name, Manner::Willing));
        self.start_controllers()
    }

    /// The commands that this controller, if well-behaved, would send now.
    pub(crate) fn wishes(&self, name: &str) -> Vec<LockCommand> {
        let controller = self.controllers.iter().find(|controller| controller.name == name);
        let wishes = self.facts().zip(controller).map(|(facts, controller)| wishes(facts, controller));
        wishes.unwrap_or_default()
    }

    /// Faults stop: from now on all controllers grant.
    pub(crate) fn controllers_behave(&mut self) {
        for controller in &mut self.controllers {
            (controller.dead, controller.away_until) = (false, 0);
        }
        self.object_controllers_behave();
    }

    /// Controllers that guard machines, including those that are away.
    pub(crate) fn guards(&self) -> Guards {
        let since = |controller: &Controller| controller.streams.values().min().copied();
        self.controllers.iter().map(|controller| (controller.name.clone(), since(controller))).collect()
    }
}

/// A controller's command for a machine, or (None) the cluster, and the release it worked for; empty: no release given.
pub(crate) fn word(node: Option<&MachineName>, state: LockState, release: &str) -> LockCommand {
    LockCommand::Set {
        cluster: manifest::cluster_name(),
        machine: node.cloned(),
        state,
        message: String::new(),
        percentage: 0,
        description: String::new(),
        release: release.to_owned(),
    }
}

/// The locks that this controller has registered: one in Kubernetes may have its name.
fn native<'a>(facts: &'a Facts, controller: &'a str) -> impl Iterator<Item = &'a LockRow> {
    let registered = facts.locks.values().map(|lock| &**lock).filter(|lock| lock.object.is_none());
    registered.filter(move |lock| lock.key.controller == controller)
}

/// Coming releases by machine; the cluster's own is under the empty name.
fn coming(facts: &Facts) -> BTreeMap<String, String> {
    let cluster = manifest::cluster_name();
    let requested = documents::requested(facts, &cluster);
    requested.map(|requested| (requested.machine_name().to_owned(), requested.release.to_owned())).collect()
}

/// Such a controller first revokes its consents for another release than the one that is coming.
fn old_release(facts: &Facts, controller: &Controller) -> Option<LockCommand> {
    if controller.manner != Manner::ResetsOld {
        return None;
    }
    let coming = coming(facts);
    let mine = native(facts, &controller.name);
    mine.filter(|lock| lock.state == LockState::Inactive).find_map(|lock| {
        let node = lock.key.node.as_ref();
        let release = coming.get(node.map_or("", MachineName::as_str))?;
        (!release.is_empty() && *release != lock.release).then(|| word(node, LockState::Active, release))
    })
}

/// Does this controller withhold waiting machines because its limit of released machines is reached?
fn withholds(facts: &Facts, controller: &Controller) -> bool {
    let Some(most) = controller.partial_limit() else { return false };
    let mine = || native(facts, &controller.name);
    let nodes = || mine().filter_map(|lock| Some((lock.key.node.as_ref()?, lock.state)));
    let away = nodes().filter(|(_, state)| *state == LockState::Inactive).count();
    let waits = |node: &MachineName| {
        facts.machines.get(node).and_then(|row| row.update.as_ref()).is_some_and(|mine| mine.request.is_some())
    };
    let kept = nodes().any(|(node, state)| state != LockState::Inactive && waits(node));
    kept && away >= most
}

/// Commands of a well-behaved controller now, most urgent first.
fn wishes(facts: &Facts, controller: &Controller) -> Vec<LockCommand> {
    let cluster = manifest::cluster_name();
    let update = facts.open_rollout(&cluster).and_then(|rollout| rollout.update.as_ref());
    let requested = |node: Option<&MachineName>| match node {
        None => update.is_some_and(|update| update.request.is_some()),
        Some(node) => facts.machines.get(node).and_then(|row| row.update.as_ref()?.request).is_some(),
    };
    let key = |node: Option<&MachineName>| LockKey::registered(cluster.clone(), controller.name.clone(), node.cloned());
    let state = |node: Option<&MachineName>| facts.locks.get(&key(node)).map(|lock| lock.state);
    let releases = if controller.manner == Manner::ResetsOld { coming(facts) } else { BTreeMap::new() };
    let word = |node: Option<&MachineName>, state| {
        let new = releases.get(node.map_or("", MachineName::as_str)).filter(|release| !release.is_empty());
        let known = || facts.locks.get(&key(node)).map_or("", |lock| lock.release.as_str());
        word(node, state, new.map_or_else(known, String::as_str))
    };
    let nodes: Vec<Option<&MachineName>> = std::iter::once(None).chain(facts.machines.keys().map(Some)).collect();
    let back = nodes.iter().filter(|n| !requested(**n) && state(**n).is_some_and(|state| state != LockState::Active));
    let mut wishes: Vec<LockCommand> = back.map(|node| word(*node, LockState::Active)).collect();
    let missing =
        nodes.iter().filter_map(|node| *node).filter(|node| requested(Some(node)) && state(Some(node)).is_none());
    wishes.extend(missing.map(|node| LockCommand::Register {
        cluster: cluster.clone(),
        machines: vec![node.clone()],
        of_cluster: false,
    }));
    let away = nodes.iter().filter(|node| node.is_some() && state(**node) == Some(LockState::Inactive)).count();
    let most = if let Manner::Grants(most) = controller.manner { most } else { usize::MAX };
    let kept = nodes.iter().filter(|n| requested(**n) && state(**n).is_some_and(|s| s != LockState::Inactive));
    // The oldest request goes first: two controllers with different choices would wait for one another.
    let since_ms = |node: Option<&MachineName>| Some(facts.machines.get(node?)?.update.as_ref()?.request?.since_ms);
    let mut kept: Vec<&Option<&MachineName>> = kept.collect();
    kept.sort_by_key(|node| since_ms(**node));
    wishes.extend(
        kept.into_iter().filter(|node| node.is_none() || away < most).map(|node| word(*node, LockState::Inactive)),
    );
    wishes
}
