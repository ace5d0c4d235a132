//! The controllers that answer in the cluster, good and bad. They see requests and locks there, and nothing else.

use std::collections::BTreeSet;

use muster_coordinator::facts::handshake::{LockObject, Subject};
use muster_proto::model::LockState;

use super::{Handshake, Lock};
use crate::{
    rng::Rng,
    sim::{Event, World},
};

/// Longest interval between two looks: a lock that is made late comes well within the settle time.
const LOOK_MS_MAX: u64 = 2_000;
/// Longest absence.
const AWAY_MS_MAX: u64 = 40_000;
/// Time that a slow controller takes to move the workloads of a machine.
const SLOW_MS: u64 = 20_000;
/// Longest time for which the locks of a controller that is being upgraded are gone: within the settle time.
const UPGRADE_MS_MAX: u64 = 6_000;
/// Permille of releases before which there is a second lock.
const DOUBLES_PERMILLE: u64 = 500;
/// Shortest and longest time for which a second lock about a node stands.
const DOUBLE_MS_MIN: u64 = 10_000;
const DOUBLE_MS_MAX: u64 = 120_000;

/// How a controller behaves while there are faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// Releases up to thirty machines at once, as Rockoon does for computes.
    Thirty,
    /// Releases one machine at a time.
    OneByOne,
    /// Refuses a machine of one role while one of the other role is released, with another message at each try.
    OneRole,
    /// Sees requests, and answers none.
    Stalls,
    /// Takes its consent back occasionally.
    Flaps,
    /// Falls silent after a while.
    Dies,
    /// Makes a lock when it sees the request, has none for some nodes, and is occasionally away.
    Late,
    /// Leaves its finalizer on requests that are being deleted, for a long time.
    Holds,
    /// Moves workloads slowly, and is upgraded meanwhile: its locks vanish, and are made anew.
    Upgrades,
    /// Has a second lock about a node occasionally, which stays active.
    Doubles,
}

/// By what it shows that it has seen a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marks {
    /// Nothing.
    None,
    /// A finalizer.
    Finalizer,
    /// A finalizer, and an annotation when it is through.
    Handled,
}

/// A controller.
#[derive(Clone, Debug)]
pub(super) struct Controller {
    /// `spec.controllerName` of its locks.
    pub(super) name: String,
    /// Does the manifest declare it?
    pub(super) declared: bool,
    manner: Manner,
    marks: Marks,
    /// Does it guard nodes by a label of its own?
    labels: bool,
    /// It fell silent.
    dead: bool,
    /// It is away until then.
    away_until: u64,
    /// Nodes that have its label, and that it does not know.
    blind: BTreeSet<String>,
    /// UIDs of requests that it is through with.
    handled: BTreeSet<String>,
}

impl Controller {
    /// Controllers of a world: none, one or two.
    pub(super) fn some(dice: &mut Rng) -> Vec<Self> {
        let manners = [
            Manner::Thirty,
            Manner::OneByOne,
            Manner::OneRole,
            Manner::Stalls,
            Manner::Flaps,
            Manner::Dies,
            Manner::Late,
            Manner::Holds,
            Manner::Upgrades,
            Manner::Doubles,
        ];
        let count = [0, 1, 1, 2, 2].get(usize::try_from(dice.between(0, 4)).unwrap_or(0)).copied().unwrap_or(0);
        let made = (0..count).filter_map(|n| {
            let manner = *dice.pick(&manners)?;
            let marks = *dice.pick(&[Marks::None, Marks::Finalizer, Marks::Handled])?;
            // Only what it shows on a request tells one with late locks from one that is gone.
            let marks = if manner == Manner::Late && marks == Marks::None { Marks::Handled } else { marks };
            let labels = dice.permille(300);
            let declared = manner == Manner::Late || labels || marks != Marks::None || dice.permille(500);
            Some(Self {
                // One of this name may answer Muster itself as well.
                name: format!("controller-{n}"),
                declared,
                manner,
                marks,
                labels,
                dead: false,
                away_until: 0,
                blind: BTreeSet::new(),
                handled: BTreeSet::new(),
            })
        });
        made.collect()
    }

    /// The finalizer that it puts on requests.
    pub(super) fn finalizer(&self) -> Option<String> {
        (self.marks != Marks::None).then(|| format!("example.com/{}", self.name))
    }

    /// The annotation that it puts on requests that it has handled.
    pub(super) fn handled_annotation(&self) -> Option<String> {
        (self.marks == Marks::Handled).then(|| format!("example.com/{}-handled", self.name))
    }

    /// The label of the nodes that it guards.
    pub(super) fn label(&self) -> Option<String> {
        self.labels.then(|| format!("example.com/{}=yes", self.name))
    }

    /// Has a node of this name its label? One with late locks labels the nodes where it has something.
    pub(super) fn has_label_on(&self, node: &str) -> bool {
        self.labels && (self.guards(node) || self.blind.contains(node))
    }

    /// Has it something on the node of this name?
    fn guards(&self, node: &str) -> bool {
        self.manner != Manner::Late || node.bytes().map(u64::from).sum::<u64>() % 3 != 0
    }

    /// Is it at work?
    const fn is_there(&self, at: u64) -> bool {
        !self.dead && self.away_until <= at
    }

    /// Are its locks there before any request?
    fn is_early(&self) -> bool {
        self.manner != Manner::Late
    }
}

/// A node as a controller sees it.
#[derive(Clone, Debug)]
struct Seen {
    name: String,
    is_control: bool,
}

impl Handshake {
    /// What a controller sees and does at one look. `calm`: there are no faults. Returns what is counted.
    fn look(&mut self, n: usize, nodes: &[Seen], (at, calm): (u64, bool)) -> Option<&'static str> {
        let mut counted = if calm { None } else { self.misbehave(n, at) };
        let controller = self.controllers.get(n).cloned()?;
        if !controller.is_there(at) {
            return counted;
        }
        self.make_locks(&controller, nodes);
        self.mark_requests(n, &controller, calm);
        self.bring_back(&controller.name);
        if calm || controller.manner != Manner::Stalls {
            counted = counted.or(self.release(n, &controller, nodes, (at, calm)));
        } else {
            counted = counted.or(Some("a controller in Kubernetes stalled"));
        }
        self.note_handled(n, &controller);
        counted
    }

    fn misbehave(&mut self, n: usize, at: u64) -> Option<&'static str> {
        let controller = self.controllers.get_mut(n)?;
        let dice = &mut self.dice;
        let name = controller.name.clone();
        match controller.manner {
            Manner::Dies if dice.permille(30) => {
                controller.dead = true;
                Some("a controller in Kubernetes died")
            }
            Manner::Late if dice.permille(50) => {
                controller.away_until = at + dice.between(1_000, AWAY_MS_MAX);
                Some("a controller in Kubernetes went away")
            }
            Manner::Upgrades if dice.permille(60) => {
                controller.away_until = at + dice.between(500, UPGRADE_MS_MAX);
                self.locks.retain(|lock| lock.object.controller != name);
                Some("the locks of a controller vanished")
            }
            Manner::Flaps if dice.permille(120) => {
                let mut mine = self.locks.iter_mut().filter(|lock| lock.object.controller == name);
                let lock = mine.rfind(|lock| lock.object.state == LockState::Inactive)?;
                lock.set_active();
                Some("a lock in Kubernetes was taken back")
            }
            _ => None,
        }
    }

    /// A controller that is about to release this makes a second lock about it, which stays active for a while.
    fn double(&mut self, controller: &Controller, subject: &Subject, at: u64) -> bool {
        let about = |lock: &&Lock| lock.object.controller == controller.name && lock.object.subject == *subject;
        let mine: Vec<&Lock> = self.locks.iter().filter(about).collect();
        let [Lock { object: of, answers: None }] = mine.as_slice() else { return false };
        let of = of.clone();
        if !self.dice.permille(DOUBLES_PERMILLE) {
            return false;
        }
        let until = at + self.dice.between(DOUBLE_MS_MIN, DOUBLE_MS_MAX);
        let uid = self.uid();
        let object = LockObject { name: format!("double-{until}"), uid, ..of };
        self.locks.push(Lock { object, answers: None });
        true
    }

    /// Makes the locks that are there before any request. Second ones whose time is over go.
    fn make_locks(&mut self, controller: &Controller, nodes: &[Seen]) {
        self.make_lock(controller, Subject::Cluster);
        for node in nodes.iter().filter(|node| controller.is_early() && !controller.blind.contains(&node.name)) {
            self.make_lock(controller, Subject::Node(node.name.clone()));
        }
    }

    fn make_lock(&mut self, controller: &Controller, subject: Subject) {
        let is_it = |lock: &Lock| lock.object.controller == controller.name && lock.object.subject == subject;
        if self.locks.iter().any(is_it) {
            return;
        }
        let object = LockObject {
            // A name says nothing.
            name: format!("lock-{}", self.last),
            uid: self.uid(),
            subject,
            controller: controller.name.clone(),
            takes_deletion: false,
            state: LockState::Active,
            message: String::new(),
            percentage: 0,
            description: String::new(),
            release: String::new(),
        };
        self.locks.push(Lock { object, answers: None });
    }

    /// Puts its finalizer on new requests, and takes it from those that are being deleted, once its lock is active.
    fn mark_requests(&mut self, n: usize, controller: &Controller, calm: bool) {
        let Some(finalizer) = controller.finalizer() else { return };
        let holds = !calm && controller.manner == Manner::Holds && !self.dice.permille(60);
        for place in 0..self.requests.len() {
            let Some(request) = self.requests.get_mut(place).map(|request| &mut request.object) else { continue };
            let marked = request.finalizers.contains(&finalizer);
            if !request.deleting && !marked {
                request.finalizers.push(finalizer.clone());
            } else if request.deleting && marked && !holds {
                request.finalizers.retain(|known| *known != finalizer);
                let (subject, uid) = (request.subject.clone(), request.uid.clone());
                self.set_active(&controller.name, &subject);
                if let Some(controller) = self.controllers.get_mut(n) {
                    controller.handled.remove(&uid);
                }
            }
        }
        self.end_requests();
    }

    fn set_active(&mut self, controller: &str, subject: &Subject) {
        let mine = self.locks.iter_mut().filter(|lock| lock.object.controller == controller);
        mine.filter(|lock| lock.object.subject == *subject).for_each(Lock::set_active);
    }

    /// Sets its locks active whose requests are gone.
    fn bring_back(&mut self, controller: &str) {
        let open: BTreeSet<&String> = self.requests.iter().map(|request| &request.object.uid).collect();
        let mine = self.locks.iter_mut().filter(|lock| lock.object.controller == controller);
        for lock in mine.filter(|lock| lock.answers.as_ref().is_some_and(|uid| !open.contains(uid))) {
            lock.set_active();
        }
    }

    /// Releases what it may, the oldest request first: two controllers with different choices would wait for one
    /// another.
    fn release(
        &mut self,
        n: usize,
        controller: &Controller,
        nodes: &[Seen],
        (at, calm): (u64, bool),
    ) -> Option<&'static str> {
        let mut counted = None;
        let takes_ms = if controller.manner == Manner::Upgrades && !calm { SLOW_MS } else { 0 };
        let mut asked: Vec<(u64, Subject, String)> = self
            .requests
            .iter()
            .filter(|request| request.made_at + takes_ms <= at && !request.object.deleting)
            .filter(|request| !matches!(request.object.subject, Subject::Deletion(_)))
            .map(|request| (request.made_at, request.object.subject.clone(), request.object.uid.clone()))
            .collect();
        asked.sort_by_key(|(made_at, ..)| *made_at);
        let is_control = |name: &str| nodes.iter().any(|node| node.name == name && node.is_control);
        for (_, subject, uid) in asked {
            if let Some(node) = subject.node() {
                if controller.blind.contains(node) {
                    self.is_through(n, uid);
                    continue;
                }
                if !controller.is_early() && !controller.guards(node) {
                    self.is_through(n, uid);
                    continue;
                }
                self.make_lock(controller, subject.clone());
                let away = self.released(&controller.name, &subject);
                let refuses = match controller.manner {
                    Manner::OneByOne => !away.is_empty(),
                    Manner::OneRole => away.iter().any(|other| is_control(other) != is_control(node)),
                    _ => away.len() >= 30,
                };
                if refuses {
                    self.refuse(&controller.name, &subject);
                    return Some("a controller in Kubernetes refused for another node's sake");
                }
            }
            if !calm && controller.manner == Manner::Doubles && self.double(controller, &subject, at) {
                counted = Some("two locks were about one node");
            }
            self.set_inactive(&controller.name, &subject, &uid);
            self.is_through(n, uid);
        }
        counted
    }

    fn is_through(&mut self, n: usize, uid: String) {
        if let Some(controller) = self.controllers.get_mut(n) {
            controller.handled.insert(uid);
        }
    }

    /// Nodes that it has released, but for this one.
    fn released(&self, controller: &str, but: &Subject) -> BTreeSet<String> {
        let mine = self.locks.iter().filter(|lock| lock.object.controller == controller && lock.answers.is_some());
        let others = mine.filter(|lock| lock.object.subject != *but);
        others.filter_map(|lock| lock.object.subject.node().map(str::to_owned)).collect()
    }

    fn refuse(&mut self, controller: &str, subject: &Subject) {
        let mine = self.locks.iter_mut().filter(|lock| lock.object.controller == controller);
        for lock in mine.filter(|lock| lock.object.subject == *subject && lock.answers.is_none()) {
            lock.object.message = "another node is in maintenance".to_owned();
        }
    }

    /// Sets its locks about this inactive for this request. One that is so for an earlier one is set active first.
    fn set_inactive(&mut self, controller: &str, subject: &Subject, uid: &str) {
        let mine = self.locks.iter_mut().filter(|lock| lock.object.controller == controller);
        let of_it = |lock: &&mut Lock| lock.object.subject == *subject && !lock.object.name.starts_with("double-");
        for lock in mine.filter(of_it) {
            match lock.answers.as_deref() {
                Some(known) if known == uid => {}
                Some(_) => lock.set_active(),
                None => {
                    (lock.object.state, lock.answers) = (LockState::Inactive, Some(uid.to_owned()));
                    lock.object.message.clear();
                }
            }
        }
    }

    /// Puts its annotation on the requests that it is through with.
    fn note_handled(&mut self, n: usize, controller: &Controller) {
        let Some(annotation) = controller.handled_annotation() else { return };
        let Some(handled) = self.controllers.get(n).map(|controller| &controller.handled) else { return };
        let through = self.requests.iter_mut().filter(|request| handled.contains(&request.object.uid));
        for request in through.filter(|request| !request.object.annotations.contains(&annotation)) {
            request.object.annotations.push(annotation.clone());
        }
    }

    /// Does this controller consent to the maintenance for which this request stands, in truth?
    pub(super) fn consents(&self, controller: &Controller, subject: &Subject, uid: &str) -> bool {
        let mut about = self.locks.iter().filter(|lock| lock.object.subject == *subject);
        let mine: Vec<&Lock> = about.by_ref().filter(|lock| lock.object.controller == controller.name).collect();
        if mine.is_empty() {
            let nothing = subject.node().is_some_and(|node| !controller.guards(node));
            return nothing && controller.handled.contains(uid);
        }
        mine.iter().all(|lock| lock.answers.as_deref() == Some(uid))
    }

    /// The faults are over: everybody is there, and second locks go.
    fn behave(&mut self) {
        for controller in &mut self.controllers {
            (controller.dead, controller.away_until) = (false, 0);
        }
        self.end_doubles(u64::MAX);
    }

    /// Second locks whose time is over go.
    fn end_doubles(&mut self, at: u64) {
        let until = |name: &str| name.strip_prefix("double-").and_then(|until| until.parse::<u64>().ok());
        self.locks.retain(|lock| until(&lock.object.name).is_none_or(|until| until > at));
    }

    /// Nodes with the label of a controller that does not know them: it is taken away. False: there are none.
    pub(super) fn unlabel_the_unknown(&mut self) -> bool {
        let mut found = false;
        for controller in &mut self.controllers {
            found |= !controller.blind.is_empty();
            controller.blind.clear();
        }
        found
    }
}

impl Lock {
    fn set_active(&mut self) {
        (self.object.state, self.answers) = (LockState::Active, None);
    }
}

impl World {
    /// The controllers in the cluster begin to look.
    pub(in crate::sim) fn start_object_controllers(&mut self) {
        self.advance_kubernetes();
        let Some((handshake, cluster)) = self.handshake() else { return };
        let names: Vec<String> = cluster.nodes.iter().map(|node| node.name.clone()).collect();
        for controller in handshake.controllers.iter_mut().filter(|controller| controller.labels) {
            let blind = names.iter().filter(|_| handshake.dice.permille(60));
            controller.blind = blind.cloned().collect();
        }
        for n in 0..handshake.controllers.len() {
            self.later(200, Event::ObjectController(n));
        }
    }

    /// One of them looks.
    pub(in crate::sim) fn object_controller_looks(&mut self, n: usize) {
        self.advance_kubernetes();
        let (calm, at) = (!self.chaos, self.at);
        let controls: Vec<bool> = self
            .machines
            .iter()
            .map(|machine| machine.machine_type == muster_proto::model::MachineType::Control)
            .collect();
        let Some((handshake, cluster)) = self.handshake() else { return };
        let seen = |node: &super::super::cluster::Node| Seen {
            name: node.name.clone(),
            is_control: controls.get(node.index).copied().unwrap_or_default(),
        };
        let nodes: Vec<Seen> = cluster.nodes.iter().map(seen).collect();
        handshake.note_consents(at);
        handshake.end_doubles(at);
        let counted = handshake.look(n, &nodes, (at, calm));
        handshake.note_consents(at);
        let pause = handshake.dice.between(300, LOOK_MS_MAX);
        if let Some(counted) = counted {
            self.count(counted);
        }
        self.later(pause, Event::ObjectController(n));
    }

    /// Everybody who fell silent is back.
    pub(in crate::sim) fn object_controllers_behave(&mut self) {
        if let Some((handshake, _)) = self.handshake() {
            handshake.behave();
        }
    }
}
