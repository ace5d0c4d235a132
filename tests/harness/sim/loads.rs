//! Service tasks on the nodes of a simulated swarm: how they start, how they leave a drained node (some slowly), and
//! how a manager counts them.

use muster_proto::model::{SwarmAvailability, SwarmService};

use super::swarm::Swarm;
use crate::rng::Rng;

/// Permille of tasks that get stuck while there are faults.
const STUCK_PERMILLE: u64 = 40;
/// Longest time until the swarm notices a drain.
const NOTICED_AFTER_MS: u64 = 4_000;
/// Replicated services of a swarm.
const SERVICES: [&str; 3] = ["web", "db", "queue"];

/// Availability of a node, and its tasks.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) availability: SwarmAvailability,
    /// The operator's last setting.
    pub(crate) word: SwarmAvailability,
    /// An operator changed it while its machine's maintenance was requested: what it gets back is undefined.
    pub(crate) touched: bool,
    pub(super) tasks: Vec<Task>,
}

/// A task on a node. A service wants as many tasks as it has, plus those it lost.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) service: &'static str,
    pub(super) comes: u64,
    /// None: it stays.
    leaves: Option<u64>,
    /// If it is to leave, it counts as missing from here on: the swarm may be slow to notice.
    missing_from: u64,
    /// It replaces a task lost by another machine's node, and its service has not run all of its tasks since.
    pub(super) lost_by: Option<usize>,
}

/// A task that a service has lost, until it runs on another node.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    pub(super) service: &'static str,
    pub(super) since: u64,
    pub(super) back_at: u64,
    /// The machine whose node lost it. Its replacement there may move on, and does not count as lost by another.
    pub(super) by: usize,
    /// Did the coordinator drain its node?
    pub(super) drained_by_us: bool,
    /// The machine of that node.
    node: usize,
}

impl Load {
    /// Load of a node that has just joined.
    pub(crate) fn new(at: u64, rng: &mut Rng) -> Self {
        let tasks = (0..rng.between(0, 3)).map(|_| Task::new(at, rng)).collect();
        let availability = SwarmAvailability::Active;
        Self { availability, word: availability, touched: false, tasks }
    }

    /// Number of tasks running there.
    pub(crate) fn running(&self, at: u64) -> usize {
        self.tasks.iter().filter(|task| task.runs(at)).count()
    }

    /// Tasks lost in a drain are wanted elsewhere, and start late there. A drain undone before the swarm noticed it
    /// moves no task.
    fn set(
        &mut self,
        availability: SwarmAvailability,
        at: u64,
        (index, by_us): (usize, bool),
        (rng, chaos): (&mut Rng, bool),
    ) -> Vec<Lost> {
        let before = std::mem::replace(&mut self.availability, availability);
        if before == availability {
            return Vec::new();
        }
        match availability {
            SwarmAvailability::Drain => {
                let mut lost = Vec::new();
                let noticed = at + if rng.permille(500) { rng.between(0, NOTICED_AFTER_MS) } else { 0 };
                for task in self.tasks.iter_mut().filter(|task| task.leaves.is_none()) {
                    let stuck = chaos && rng.permille(STUCK_PERMILLE);
                    let leaves = match () {
                        () if task.comes > at => at,
                        () if stuck => u64::MAX,
                        () => noticed + rng.between(0, 12_000),
                    };
                    task.leaves = Some(leaves);
                    task.missing_from = noticed.min(leaves);
                    let back_at = leaves.saturating_add(rng.between(0, 15_000));
                    let (since, by) = (task.missing_from, task.lost_by.unwrap_or(index));
                    lost.push(Lost { service: task.service, since, back_at, by, drained_by_us: by_us, node: index });
                }
                self.tasks.retain(|task| task.comes <= at);
                lost
            }
            SwarmAvailability::Active => {
                self.keep_unnoticed(at);
                let coming = rng.between(0, 3);
                self.tasks.extend((0..coming).map(|_| Task::new(at + rng.between(0, 4_000), rng)));
                Vec::new()
            }
            SwarmAvailability::Pause => {
                self.keep_unnoticed(at);
                Vec::new()
            }
        }
    }

    /// The swarm has not told these tasks to leave yet, and now never will.
    fn keep_unnoticed(&mut self, at: u64) {
        for task in self.tasks.iter_mut().filter(|task| task.leaves.is_some() && task.missing_from > at) {
            (task.leaves, task.missing_from) = (None, 0);
        }
    }

    /// Stuck tasks leave now.
    pub(super) fn loosen(&mut self, at: u64) {
        for task in &mut self.tasks {
            task.leaves = task.leaves.map(|leaves| leaves.min(at + 2_000));
            task.missing_from = task.missing_from.min(at);
        }
    }
}

impl Task {
    fn new(comes: u64, rng: &mut Rng) -> Self {
        let service = rng.pick(&SERVICES).copied().unwrap_or("web");
        Self { service, comes, leaves: None, missing_from: 0, lost_by: None }
    }

    /// Does it count as one that stays?
    fn stays(&self, at: u64) -> bool {
        self.leaves.is_none() || at < self.missing_from
    }

    pub(super) fn runs(&self, at: u64) -> bool {
        self.comes <= at && self.leaves.is_none_or(|leaves| leaves > at)
    }
}

impl Swarm {
    /// Sets the availability of a node.
    pub(super) fn set(
        &mut self,
        node: usize,
        availability: SwarmAvailability,
        (at, by_us): (u64, bool),
        dice: (&mut Rng, bool),
    ) {
        let Some(node) = self.nodes.get_mut(node) else { return };
        let index = node.index;
        let lost = node.load.set(availability, at, (index, by_us), dice);
        if availability != SwarmAvailability::Drain {
            self.lost.retain(|lost| lost.node != index || lost.since <= at);
        }
        self.lost.extend(lost);
    }

    /// Lost tasks start on other nodes that accept them, if there are any.
    pub(super) fn restart_tasks(&mut self, at: u64, rng: &mut Rng) {
        let mut takers: Vec<&mut Load> = self.nodes.iter_mut().map(|node| &mut node.load).collect();
        takers.retain(|load| load.availability == SwarmAvailability::Active);
        self.lost.retain(|lost| {
            let picked = usize::try_from(rng.between(0, 20)).unwrap_or(0) % takers.len().max(1);
            let Some(taker) = takers.get_mut(picked).filter(|_| lost.back_at <= at) else { return true };
            let lost_by = Some(lost.by);
            taker.tasks.push(Task { service: lost.service, comes: at, leaves: None, missing_from: 0, lost_by });
            false
        });
        let is_whole = |service: &str| self.lost.iter().all(|lost| lost.service != service);
        let tasks = self.nodes.iter_mut().flat_map(|node| &mut node.load.tasks);
        tasks.filter(|task| is_whole(task.service)).for_each(|task| task.lost_by = None);
    }

    /// A node's replicated services, as a manager counts them.
    pub(super) fn services(&self, load: &Load, at: u64) -> Vec<SwarmService> {
        let here = SERVICES.iter().filter(|name| load.tasks.iter().any(|task| task.service == **name && task.runs(at)));
        let counted = here.map(|name| {
            let staying = self.nodes.iter().flat_map(|node| &node.load.tasks);
            let staying = staying.filter(|task| task.service == *name && task.stays(at));
            let (running, coming): (Vec<&Task>, Vec<&Task>) = staying.partition(|task| task.comes <= at);
            let lost = self.lost.iter().filter(|lost| lost.service == *name && lost.since <= at).count();
            let counted = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
            let wanted = counted(running.len() + coming.len() + lost);
            SwarmService { name: (*name).to_owned(), wanted, running: counted(running.len()) }
        });
        counted.collect()
    }
}
