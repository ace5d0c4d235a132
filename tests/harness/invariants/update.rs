//! Invariants of updates: no machine is disturbed that a controller guards, and every request is returned.

mod quorum;

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher},
    sync::Arc,
};

use muster_agent::{attempt::record::AttemptKey, core::GOODBYE_MS_MAX};
use muster_coordinator::facts::{DesiredState, Facts, LockKey, MachineRow, Stage, UpdateKind};
use muster_proto::model::{
    AssignedItem, LockState, MachineId, MachineName, MachineType, Now, Phase, RunnerKind, Scope, SwarmId,
};

use super::{Checked, Watcher, record::own, swarm::Listed};
use crate::sim::{controllers::Guards, machine::Machine, manifest};

/// Validity of a permit.
const PERMIT_MS: u64 = 30_000;
/// Maximum age of a permit's conditions when something starts under it. The permit is valid for [`PERMIT_MS`] from its
/// arrival, and a stream that does not deliver it is detected as broken in less.
const ALLOWED_MS: u64 = 2 * PERMIT_MS;
/// Time for a controller that creates its lock only on request, from when it can see the request.
const LATE_MS: u64 = 10_000;

/// Observations about updates.
#[derive(Clone, Default)]
pub(super) struct Seen {
    /// Number of coordinator steps so far.
    step: u64,
    /// Step and time at which the request of a machine (None: of the cluster) was made.
    requests: BTreeMap<Option<MachineName>, (u64, u64)>,
    /// Step since which a lock is inactive.
    inactive: BTreeMap<LockKey, u64>,
    /// Locks that released their machine and were not active since. Unlike `inactive`, this includes failed locks; no
    /// model has those.
    let_go: BTreeSet<LockKey>,
    /// Machines that counted as back at the last check. A lock that releases such a machine in the same millisecond
    /// comes after that.
    back: BTreeSet<(MachineName, u64)>,
    /// Number of the newest permit of each machine.
    permits: BTreeMap<MachineName, u64>,
    /// Permits of control machines that an earlier coordinator gave: which machines were connected then is unknown now.
    found: BTreeSet<(MachineName, u64)>,
    /// Machines that had a permit since their request was made, and the rollout of that permit.
    pub(super) permitted: BTreeMap<MachineName, Option<String>>,
    /// When each permit was given.
    given: BTreeMap<(MachineId, u64), u64>,
    /// When each permit was first accepted by its machine.
    received: BTreeMap<(MachineId, u64), u64>,
    /// The attempt that a machine started under each permit.
    used: BTreeMap<(MachineId, u64), AttemptKey>,
    /// Control machines that held a slot.
    controls: BTreeSet<MachineName>,
    /// Control machines that were Ready once, with their identities.
    voters: BTreeMap<MachineName, Option<MachineId>>,
    /// When a list of all managers except a machine's node last had this result, as listed for that machine.
    pub(super) majorities: BTreeMap<(MachineName, Listed), u64>,
    /// Managers among them that were down in the last list, and the time of that list.
    pub(super) away: BTreeMap<MachineName, (u64, BTreeSet<SwarmId>)>,
    /// Observations about hooks.
    pub(super) hooks: super::hooks::Seen,
    /// Observations about maintenance.
    pub(super) maintenance: super::maintenance::Seen,
    /// Observations about removals.
    pub(super) removals: super::removal::Seen,
}

impl Hash for Seen {
    /// Only the order of steps matters.
    fn hash<H: Hasher>(&self, to: &mut H) {
        for (node, (asked, at)) in &self.requests {
            (node, at).hash(to);
            self.inactive.iter().for_each(|(key, since)| (key.text(), since > asked).hash(to));
        }
        self.inactive.keys().for_each(|key| key.text().hash(to));
        (&self.permits, &self.found, &self.permitted, &self.received, &self.used).hash(to);
        (&self.controls, &self.voters, &self.majorities, &self.away, &self.maintenance, &self.removals, &self.hooks)
            .hash(to);
    }
}

impl Watcher {
    /// Rules 1 (quorum), 4 and 9, after a step.
    pub fn updates_are_right(&mut self, facts: &Facts, guards: &Guards, now: Now) -> Checked {
        self.seen.step += 1;
        let step = self.seen.step;
        let native = facts.locks.values().filter(|lock| lock.object.is_none());
        let inactive = native.filter(|lock| lock.state == LockState::Inactive);
        let inactive: BTreeSet<&LockKey> = inactive.map(|lock| &lock.key).collect();
        self.seen.inactive.retain(|key, _| inactive.contains(key));
        let failed = |key: &LockKey| facts.locks.get(key).is_some_and(|lock| lock.state == LockState::Failed);
        self.seen.let_go.retain(failed);
        self.seen.let_go.extend(inactive.iter().map(|key| (*key).clone()));
        self.workloads_are_back(facts, now)?;
        self.hooks_come_first_and_last(facts)?;
        self.given_back(facts)?;
        self.requested(facts, now)?;
        for key in inactive {
            self.seen.inactive.entry(key.clone()).or_insert(step);
        }
        self.out_of_service(facts, guards, now)?;
        for row in self.begins_to_depart(facts) {
            self.permit_is_right(facts, row, guards, now)?;
            self.removal_was_heard_of(facts, row, now)?;
        }
        // Permits in a restored copy expired long ago.
        for row in facts.machines.values().filter(|row| !row.needs_review) {
            let permit = row.update.as_ref().and_then(|update| update.permit.as_ref()).map(|permit| permit.number);
            let Some(number) = permit.filter(|number| self.seen.permits.get(&row.name) != Some(number)) else {
                continue;
            };
            self.permit_is_right(facts, row, guards, now)?;
            if !self.seen.found.contains(&(row.name.clone(), number)) {
                self.controls_are_there(facts, row)?;
            }
            self.seen.permits.insert(row.name.clone(), number);
            self.seen.given.extend(row.id.map(|id| ((id, number), now.mono_ms)));
            self.seen.permitted.insert(row.name.clone(), row.rollout.clone());
        }
        self.secrets_stay(facts)?;
        self.late_stages_are_told(facts, now)?;
        self.quorum_is_kept(facts)?;
        self.majority_is_for_the_disturbed(facts)
    }

    /// Rule 9, its end: a machine whose request ended with success has its workloads back.
    fn workloads_are_back(&mut self, facts: &Facts, now: Now) -> Checked {
        let over = |row: &&Arc<MachineRow>| {
            let stage = row.stages.get(&Stage::RequestRemoved);
            stage.is_some_and(|stage| stage.succeeded && stage.finished_at_ms == Some(now.wall_ms))
        };
        let back: BTreeSet<_> =
            facts.machines.values().filter(over).map(|row| (row.name.clone(), now.wall_ms)).collect();
        for (name, _) in back.difference(&self.seen.back) {
            if let Some(key) = self.seen.let_go.iter().find(|key| key.node.as_ref() == Some(name)) {
                return Err(self.violation("9", format!("{name} counts as back, and {key:?} is not active")));
            }
        }
        self.seen.back = back;
        Ok(())
    }

    /// A machine that was Ready and is in no update keeps the secret versions it became Ready with.
    fn secrets_stay(&self, facts: &Facts) -> Checked {
        for row in facts.machines.values().filter(|row| row.ready_at.is_some() && row.update.is_none()) {
            let items = facts.live.machines.get(&row.name).and_then(|live| live.items.as_ref());
            let mut used =
                items.into_iter().flat_map(|items| items.resolved.iter().flatten()).flat_map(AssignedItem::secrets);
            if let Some(floating) = used.find(|name| !row.ready_secrets.contains_key(name)) {
                return Err(self.violation("secret", format!("{}: secret {floating} changes by itself", row.name)));
            }
        }
        Ok(())
    }

    /// A stage that takes longer than the manifest allows is recorded, unless the update is halted.
    fn late_stages_are_told(&self, facts: &Facts, now: Now) -> Checked {
        let current = facts.live.older_than_fleet().is_none() && !facts.meta.recovering;
        // A machine that is removed without a turn, or departs, is at no stage of the update any more.
        let let_go = |row: &MachineRow| {
            row.removal.as_ref().is_some_and(|row| !row.aborting && (!row.by_turn || row.departure.is_some()))
        };
        for row in facts.machines.values().filter(|row| current && !let_go(row)) {
            let rollout = row.rollout.as_ref().and_then(|name| facts.rollouts.get(name));
            let update =
                rollout.and_then(|rollout| rollout.update.as_ref()).filter(|update| update.desired == DesiredState::Go);
            let (Some(update), Some(mine)) = (update, &row.update) else { continue };
            let Some(deadlines) = facts.spec_of(row).map(|spec| spec.update_deadlines) else { continue };
            let stages = [
                (Stage::PrepareDone, deadlines.prepare.after_ms),
                (Stage::DeployDone, deadlines.items.after_ms),
                (Stage::ReconfigureDone, deadlines.items.after_ms),
                (Stage::RebootDone, deadlines.reboot.after_ms),
            ];
            // The last stage in progress counts.
            let under_way = stages.iter().rev().find_map(|(stage, after_ms)| {
                let counts = row.slot.is_some() || *stage == Stage::PrepareDone;
                let known = row.stages.get(stage).filter(|known| counts && known.finished_at_ms.is_none())?;
                Some((stage, known.started_at_ms.max(update.resumed_at_ms) + after_ms))
            });
            let Some((stage, late_at_ms)) = under_way else { continue };
            if now.wall_ms >= late_at_ms && mine.stuck.is_none() && mine.deferral.is_none() {
                return Err(self.violation("stuck", format!("{} is late at {stage:?}, and says nothing", row.name)));
            }
        }
        Ok(())
    }

    /// Rule 4: a request is made only while every lock is active.
    fn requested(&mut self, facts: &Facts, now: Now) -> Checked {
        for node in requests(facts) {
            if self.seen.requests.contains_key(&node) {
                continue;
            }
            let stale = self.seen.inactive.keys().find(|key| key.node == node);
            if let Some(stale) = stale {
                let detail = format!("maintenance of {node:?} was requested while {stale:?} was inactive from before");
                return Err(self.violation("4", detail));
            }
            if let Some(node) = &node {
                self.seen.permitted.remove(node);
            }
            self.seen.requests.insert(node, (self.seen.step, now.mono_ms));
        }
        Ok(())
    }

    /// Rule 9: a request ends before any disturbance, or when everything is done.
    fn given_back(&mut self, facts: &Facts) -> Checked {
        let present = requests(facts);
        let gone: Vec<_> = self.seen.requests.keys().filter(|node| !present.contains(*node)).cloned().collect();
        for node in gone {
            self.seen.requests.remove(&node);
            let Some(row) = node.as_ref().and_then(|node| facts.machines.get(node)) else { continue };
            // Another rollout, with items of its own, may have begun in the step that ended this one.
            let rollout = row.rollout.as_ref().filter(|_| !self.had_permit(row));
            let rollout = rollout.and_then(|name| facts.rollouts.get(name)?.update.as_ref());
            let reconfigured_next = rollout.is_some_and(|update| update.kind == UpdateKind::Reconfigure);
            if self.seen.permitted.contains_key(&row.name)
                && !reconfigured_next
                && !row.revoked
                && row.ready_at.is_some()
                && !all_succeeded(facts, row)
            {
                let detail = format!("{} was given back half done", row.name);
                return Err(self.violation("9", detail));
            }
        }
        Ok(())
    }

    /// Rule 4: the request exists, and every lock of the machine became inactive after it. The first permit also waits
    /// for the cluster's locks.
    pub(super) fn permit_is_right(&self, facts: &Facts, row: &MachineRow, guards: &Guards, now: Now) -> Checked {
        let wrong = |what: String| Err(self.violation("4", format!("{} may be disturbed, {what}", row.name)));
        let Some((asked, asked_at)) = self.seen.requests.get(&Some(row.name.clone())) else {
            return wrong("and no request was made".to_owned());
        };
        let cluster = self.seen.requests.get(&None).map(|(step, _)| *step);
        let Some(cluster_asked) = cluster else { return wrong("and none for the cluster".to_owned()) };
        // Those in Kubernetes are held to what is true there.
        for lock in facts.locks.values().filter(|lock| lock.object.is_none()) {
            let asked = match &lock.key.node {
                Some(node) if *node == row.name => *asked,
                None if !self.seen.permitted.contains_key(&row.name) => cluster_asked,
                Some(_) | None => continue,
            };
            let since = self.seen.inactive.get(&lock.key);
            if since.is_none_or(|since| *since <= asked) {
                return wrong(format!("and {:?} is {:?} since step {since:?}, asked in {asked}", lock.key, lock.state));
            }
        }
        let held = |guard: &String| {
            let mut locks = facts.locks.keys();
            locks.any(|key| key.uid.is_none() && key.controller == *guard && key.node.as_ref() == Some(&row.name))
        };
        let had_time = |since: &Option<u64>| since.is_some_and(|since| now.mono_ms >= asked_at.max(&since) + LATE_MS);
        if let Some((silent, since)) = guards.iter().find(|(guard, since)| !held(guard) && !had_time(since)) {
            return wrong(format!("and {silent} had no time to make its lock: it has been there since {since:?}"));
        }
        self.managers_were_counted(facts, row, now)
    }

    /// Rule 4: a control machine that was Ready takes its turn without a request only while no worker has been Ready:
    /// then there are no workloads to disturb.
    fn asked_or_alone(&self, facts: &Facts, row: &MachineRow) -> Checked {
        let mut workers = facts.machines.values().filter(|row| row.spec.machine_type == MachineType::Worker);
        match workers.find(|worker| worker.ready_at.is_some() && row.update.is_none()) {
            Some(worker) => {
                let detail = format!("{} has its turn unasked, and {} was Ready", row.name, worker.name);
                Err(self.violation("4", detail))
            }
            None => Ok(()),
        }
    }

    /// A restarted coordinator has kept everything committed; everything else is gone.
    pub(super) fn forget_updates(&mut self, facts: &Facts) {
        let present = requests(facts);
        self.seen.requests.retain(|node, _| present.contains(node));
        self.seen.maintenance.forget(facts);
        self.forget_removals(facts);
        let permit = |row: &Arc<MachineRow>| Some((row.name.clone(), row.update.as_ref()?.permit.as_ref()?.number));
        self.seen.found = facts.machines.values().filter_map(permit).collect();
        let holding = facts.machines.values().filter(|row| row.slot.is_some());
        self.seen.controls = holding.map(|row| row.name.clone()).collect();
    }

    /// Records when a machine accepted its permit.
    pub fn received(&mut self, machine: &Machine, at: u64) {
        let assignment = machine.disk.assignment.as_ref();
        let permit = assignment.and_then(|assignment| assignment.items.iter().find_map(|item| item.permit));
        if let Some(permit) = permit {
            self.seen.received.entry((machine.id, permit.number)).or_insert(at);
        }
    }

    /// Rule 4 on the machine: a disruptive item starts under its own permit, soon after the permit arrived, and while
    /// its maintenance is requested. A control machine that has its turn without a request needs no permit.
    pub fn disturbed(&mut self, machine: &Machine, key: &AttemptKey, at: u64, facts: Option<&Facts>) -> Checked {
        let item = machine.disk.assigned(&key.item);
        let Some(item) = item.filter(|item| item.phase > Phase::Prepare) else { return Ok(()) };
        let row = facts.and_then(|facts| facts.by_id(machine.id));
        let Some(permit) = item.permit else {
            let disruptive = row.zip(facts).is_some_and(|(row, facts)| is_disruptive(facts, row, &key.item));
            let updated = row.is_some_and(|row| row.update.is_some());
            let control = machine.machine_type == MachineType::Control;
            let unasked = control && row.is_some_and(|row| row.slot.is_some());
            // A restored store lacks the turns since it was copied, and a denied machine has no turn on record.
            let known = !self.restored && !self.denied.contains(&machine.id);
            return match disruptive && (updated || (known && !unasked)) {
                true => Err(self.violation("4", format!("{}: {key} started without a permit", machine.name))),
                false => Ok(()),
            };
        };
        let age = self.seen.received.get(&(machine.id, permit.number)).map(|received| at - received);
        // A reboot begins under its permit, and then waits for the coordinator to hear of it.
        let goodbye_ms = if item.runner == RunnerKind::Reboot.as_str() { GOODBYE_MS_MAX } else { 0 };
        if age.is_none_or(|age| age >= PERMIT_MS + goodbye_ms) {
            return Err(
                self.violation("4", format!("{}: {key} started {age:?} ms after its permit came", machine.name))
            );
        }
        let given = self.seen.given.get(&(machine.id, permit.number));
        if let Some(age) = given.map(|given| at - given).filter(|age| *age >= ALLOWED_MS + goodbye_ms) {
            let detail = format!("{}: {key} started {age} ms after its permit was given", machine.name);
            return Err(self.violation("4", detail));
        }
        let used_by = self.seen.used.entry((machine.id, permit.number)).or_insert_with(|| key.clone());
        if used_by != key {
            let detail = format!("{}: {key} started under the permit of {used_by}", machine.name);
            return Err(self.violation("4", detail));
        }
        // A restored copy may lack the request.
        let known = row.filter(|row| !row.needs_review);
        if known.is_some_and(|row| row.update.as_ref().is_some_and(|update| update.request.is_none())) {
            return Err(
                self.violation("4", format!("{}: {key} started, and no maintenance is requested", machine.name))
            );
        }
        Ok(())
    }

    /// A machine reboots in an update only if its scope allows it.
    pub fn may_reboot(&self, machine: &Machine, facts: Option<&Facts>) -> Checked {
        // A restored copy may have another update than the one that it reboots in.
        let row =
            facts.and_then(|facts| facts.by_id(machine.id)).filter(|row| row.update.is_some() && !row.needs_review);
        let rollout = row.and_then(|row| facts?.rollouts.get(row.rollout.as_ref()?));
        match rollout.and_then(|rollout| rollout.update.as_ref()) {
            Some(update) if update.scope == Scope::Drain => {
                Err(self.violation("scope", format!("{} reboots in an update of scope drain", machine.name)))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Rule 9 at the end: all requests are gone.
    pub fn nothing_is_held(&self, facts: &Facts) -> Checked {
        match requests(facts).into_iter().next() {
            Some(node) => Err(self.violation("9", format!("maintenance of {node:?} is requested for good"))),
            None => Ok(()),
        }
    }

    /// Has this machine had a permit since its request was made?
    pub(super) fn had_permit(&self, row: &MachineRow) -> bool {
        self.seen.permitted.get(&row.name) == Some(&row.rollout)
    }
}

/// All requests: of machines, and (None) of the cluster.
fn requests(facts: &Facts) -> BTreeSet<Option<MachineName>> {
    let rollout = facts.open_rollout(&manifest::cluster_name());
    let cluster = rollout.and_then(|rollout| rollout.update.as_ref()?.request).map(|_| None);
    let machines = facts.machines.values().filter(|row| row.update.as_ref().is_some_and(|part| part.request.is_some()));
    machines.map(|row| Some(row.name.clone())).chain(cluster).collect()
}

fn all_succeeded(facts: &Facts, row: &MachineRow) -> bool {
    let Some(items) = facts.live.machines.get(&row.name).and_then(|live| live.items.as_ref()) else { return true };
    items.resolved.as_ref().is_ok_and(|items| {
        own(items, row).all(|item| {
            let verdict = row.verdicts.get(&item.name).filter(|verdict| verdict.hash == item.hash);
            let status = row.statuses.get(&item.name).filter(|status| status.hash == item.hash);
            verdict.is_some_and(|verdict| verdict.left_out.is_some()) || status.is_some_and(|status| row.counts(status))
        })
    })
}

fn is_disruptive(facts: &Facts, row: &MachineRow, item: &muster_proto::model::ItemName) -> bool {
    let spec = facts.spec_of(row);
    let template = spec.and_then(|spec| spec.items(row.spec.machine_type).iter().find(|own| own.name == *item));
    row.ready_at.is_some() && template.is_some_and(|template| template.disruptive != Some(false))
}
