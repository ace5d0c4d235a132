//! The coordinator's core. It turns inputs into durable changes, answers and later effects. PURE: no I/O, no clock. The
//! engine runs it in production, the simulator in the tests.
//!
//! One step takes many inputs and makes one batch: apply them, decide until nothing new follows, assign. Everything of
//! a step stays invisible outside until its changes are durable.

mod addons;
mod agents;
mod answer;
mod apply;
pub(crate) mod credentials;
mod decide;
mod delete;
mod deploy;
mod enroll;
mod event_validation;
mod evidence;
mod io;
mod maintenance;
mod operators;
mod quota;
mod rerun;
mod secrets;
mod swarm;
#[cfg(test)]
pub(crate) mod tests;
mod tokens;
pub mod update;
mod verdicts;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_proto::{
    model::{ClusterName, Epoch, Now},
    seeded_bug::seeded_bug,
};

pub use answer::{Refusal, Reply};
pub use credentials::Renewal;
pub use io::{About, Effect, Enroll, Input, KubernetesQuestion, Request, SwarmQuestion};
pub use maintenance::{LockCommand, LockRelease};

use crate::{
    facts::{AuditObject, AuditRow, Facts, MachineRow, RowError, Transaction},
    plan::{
        Limits, addons as plan_addons,
        drain::{kubernetes::owed, swarm::SETTLE_MS},
        handshake, items,
        reboot::missed_at,
        removal,
        safety::SPREAD_MS,
        snapshot::ClusterSnapshot,
        swarm as plan_swarm, update as plan_update,
    },
    proof::ProofKey,
    store::{Change, Row},
};

/// Result of one step.
#[derive(Debug, Default)]
pub struct Step {
    /// One for each input, in order.
    pub answers: Vec<Result<Reply, Refusal>>,
    /// Changes to make durable before anything of this step is visible.
    pub changes: Vec<Change>,
    /// Audit lines of this step. They go to the log once they are durable, before anything else of this step is
    /// visible.
    pub audited: Vec<Arc<AuditRow>>,
    /// Effects to perform afterwards.
    pub effects: Vec<Effect>,
    /// Did the step decide? A step with signs of life only skips the decisions and changes little.
    pub decided: bool,
    /// Decisions did not converge and were cut off: a bug, which operators must see.
    pub unsettled: bool,
}

/// One action for the rim.
#[derive(Debug)]
pub enum Act {
    /// Make these changes durable before any later action.
    Commit(Vec<Change>),
    /// Perform this effect.
    Perform(Effect),
}

impl Step {
    /// The answers, and the actions in their required order. Engine and simulator follow it.
    #[must_use]
    pub fn into_acts(self) -> (Vec<Result<Reply, Refusal>>, Vec<Act>) {
        let commit = (!self.changes.is_empty()).then_some(Act::Commit(self.changes));
        let effects = self.effects.into_iter().map(Act::Perform);
        // Seeded bug: acknowledge an event before it is recorded.
        if seeded_bug("ack-before-commit") {
            let is_ack = |act: &Act| matches!(act, Act::Perform(Effect::Ack { .. }));
            let (acks, others): (Vec<_>, Vec<_>) = effects.partition(is_ack);
            return (self.answers, acks.into_iter().chain(commit).chain(others).collect());
        }
        (self.answers, commit.into_iter().chain(effects).collect())
    }
}

/// Clusters with a machine that was revoked during its drain, so shortly before this start that the drain may yet
/// begin. Their time runs from the start, because the clock may have jumped.
fn drains_let_go(facts: &Facts, now: Now) -> BTreeMap<ClusterName, u64> {
    let lately = facts.denied.values().filter(|row| now.wall_ms.saturating_sub(row.at_ms) < SETTLE_MS);
    lately.filter_map(|row| Some((row.in_drain_of.clone()?, now.mono_ms))).collect()
}

/// Maximum time between two decisions, in milliseconds.
const DECIDE_EVERY_MS: u64 = 10_000;

/// The core: the facts and their limits.
#[derive(Clone, Debug)]
pub struct Core {
    facts: Facts,
    limits: Limits,
    proof_key: ProofKey,
    /// The first step at or after this time decides, whatever its inputs. Only a step that decides sets it, so a
    /// deadline that passes in a quiet step is handled in the next one. Monotonic milliseconds.
    decide_by_mono_ms: u64,
}

impl Core {
    /// Loads the core from a stored record. Also returns the changes that make its start durable: commit them first.
    ///
    /// # Errors
    /// [`RowError`] if a row does not parse.
    pub fn start(
        rows: Vec<Row>,
        limits: Limits,
        proof_key: ProofKey,
        now: Now,
    ) -> Result<(Self, Vec<Change>), RowError> {
        let mut facts = Facts::load(rows)?;
        facts.live.started_mono_ms = now.mono_ms;
        facts.live.started_wall_ms = now.wall_ms;
        facts.live.awaited = facts
            .machines
            .values()
            .filter(|machine| machine.id.is_some() && !machine.revoked)
            .map(|machine| machine.name.clone())
            .collect();
        facts.live.drains_let_go_mono_ms = drains_let_go(&facts, now);
        let mut tx = Transaction::new(&mut facts);
        let meta = tx.meta_mut();
        if !seeded_bug("same-epoch") {
            meta.epoch = meta.epoch.next();
        }
        items::refresh(&mut tx);
        let changes = tx.into_changes();
        Ok((Self { facts, limits, proof_key, decide_by_mono_ms: now.mono_ms }, changes))
    }

    /// The facts.
    #[must_use]
    pub const fn facts(&self) -> &Facts {
        &self.facts
    }

    #[cfg(test)]
    pub(crate) fn set_facts(&mut self, facts: Facts) {
        self.facts = facts;
    }

    /// The limits.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Takes inputs, decides, and returns the result.
    pub fn step(&mut self, inputs: Vec<Input>, now: Now) -> Step {
        // Seeded bug: deadlines wait for an input other than a sign of life.
        let due = now.mono_ms >= self.decide_by_mono_ms && !seeded_bug("quiet-past-deadline");
        let quiet = !due && inputs.iter().all(|input| self.is_quiet(input, now));
        let mut settled = true;
        let rules = Rules { limits: &self.limits, proof_key: &self.proof_key };
        let mut tx = Transaction::new(&mut self.facts);
        let mut effects = Vec::new();
        let answers = inputs.into_iter().map(|input| take(&mut tx, &mut effects, input, &rules, now)).collect();
        if !quiet {
            settled = decide::decide(&mut tx, &self.limits, now, &mut effects);
            debug_assert!(settled, "a decision undoes another");
            decide::assign_all(&mut tx, &rules, now, &mut effects);
            update::drain::ask(&mut tx, &self.limits, now, &mut effects);
            update::kubernetes::ask(&mut tx, &self.limits, now, &mut effects);
            update::handshake::ask(&mut tx, &self.limits, now, &mut effects);
            update::renewal::ask(&mut tx, &self.limits, now, &mut effects);
            addons::ask(&mut tx, &self.limits, now, &mut effects);
            decide::note_waits(&mut tx, &self.limits, now);
        }
        // Evidence may come later in a batch than a Hello that was answered with a list.
        if tx.live.older_than_fleet().is_some() && !seeded_bug("trust-old-store") {
            effects.retain(|effect| !matches!(effect, Effect::Assign { .. }));
        }
        // Drop effects for a machine that was revoked in the same step.
        effects.retain(|effect| match effect {
            Effect::Assign { id, .. } | Effect::Ack { id, .. } => !tx.denied.contains_key(id),
            Effect::AskSwarm(_) | Effect::AskKubernetes(_) | Effect::Close { .. } => true,
        });
        let audited = tx.take_audited();
        let changes = tx.into_changes();
        if !quiet {
            let wake_at = self.wake_at(now).unwrap_or(u64::MAX);
            self.decide_by_mono_ms = wake_at.min(now.mono_ms.saturating_add(DECIDE_EVERY_MS));
        }
        Step { answers, changes, audited, effects, decided: !quiet, unsettled: !settled }
    }

    /// A sign of life of a machine that counts as alive skips the decisions. A thousand machines send a hundred of them
    /// a second.
    fn is_quiet(&self, input: &Input, now: Now) -> bool {
        let (Input::Heard { id } | Input::Progress { id, .. }) = input else { return false };
        self.facts
            .names
            .get(id)
            .and_then(|name| self.facts.live.machines.get(name))
            .and_then(|live| live.heard_mono_ms)
            .is_some_and(|heard| now.mono_ms.saturating_sub(heard) < self.limits.lost_after_ms)
    }

    /// Time of the next step, even without inputs. Monotonic milliseconds.
    #[must_use]
    pub const fn decide_by_mono_ms(&self) -> u64 {
        self.decide_by_mono_ms
    }

    /// Next time at which time alone changes a decision, in monotonic milliseconds.
    fn wake_at(&self, now: Now) -> Option<u64> {
        // After a start, this is how long the core waits for all machines, except rebooting ones.
        let gathered_at = self.facts.live.started_mono_ms.saturating_add(self.limits.lost_after_ms);
        let missed = self.facts.machines.values().map(|row| missed_at(&self.facts, row, &self.limits));
        let updates = self.facts.rollouts.values().filter(|row| row.finished_at_ms.is_none() && row.update.is_some());
        let snapshots = updates.filter_map(|row| ClusterSnapshot::of(&self.facts, &row.cluster, &self.limits, now));
        let asks = |row: &&Arc<MachineRow>| row.removal.is_some() || plan_swarm::restore::owed(row).is_some();
        let asking = self.facts.machines.values().filter(asks).map(|row| &row.spec.cluster_name);
        let asking = asking.chain(update::kubernetes::owing_or_unlisted(&self.facts));
        let asking = asking.chain(addons::having(&self.facts));
        let asking: BTreeSet<&ClusterName> = asking.chain(update::handshake::asking(&self.facts)).collect();
        let asking = asking.into_iter().filter_map(|name| ClusterSnapshot::of(&self.facts, name, &self.limits, now));
        let removals = asking.flat_map(|snapshot| {
            let restored = plan_swarm::restore::wakes_at_ms(&snapshot).into_iter().chain(owed::wakes_at_ms(&snapshot));
            let restored = restored.chain(handshake::wakes_at_ms(&snapshot)).chain(plan_addons::wakes_at_ms(&snapshot));
            removal::wakes_at_ms(&snapshot).into_iter().chain(restored)
        });
        let deadlines = snapshots.filter_map(|snapshot| plan_update::wakes_at_ms(&snapshot)).chain(removals);
        let in_mono = |wall_ms: u64| now.mono_ms.saturating_add(wall_ms.saturating_sub(now.wall_ms));
        let deadlines = deadlines.map(in_mono);
        let slots = self.facts.machines.values().filter_map(|row| row.slot);
        let granted = slots.map(|slot| slot.granted_at_ms).filter(|at_ms| *at_ms <= now.wall_ms);
        let spread = granted.map(|at_ms| in_mono(at_ms.saturating_add(SPREAD_MS)));
        missed.chain([gathered_at]).chain(deadlines).chain(spread).filter(|at| *at > now.mono_ms).min()
    }
}

/// Parameters for handling inputs.
struct Rules<'a> {
    limits: &'a Limits,
    proof_key: &'a ProofKey,
}

fn take(
    tx: &mut Transaction<'_>,
    effects: &mut Vec<Effect>,
    input: Input,
    rules: &Rules<'_>,
    now: Now,
) -> Result<Reply, Refusal> {
    let limits = rules.limits;
    // The servers reject denied callers. This ends requests that were in flight when that was decided.
    if input.agent().is_some_and(|id| tx.denied.contains_key(&id)) {
        let message = "an operator revoked this identity".to_owned();
        return Err(Refusal::Protocol { code: "Revoked", message });
    }
    match input {
        Input::Hello { id, session, hello } => agents::hello(tx, effects, (id, session), *hello, rules, now),
        Input::Gone { id, session } => agents::gone(tx, id, session),
        Input::Heard { id } => agents::heard(tx, id, now).map(|_| Reply::Ok),
        Input::Status { id, session, seq, status } => {
            agents::status(tx, effects, (id, session), (seq, *status), rules.proof_key, now)
        }
        Input::HostChanged { id, session, facts } => agents::host_changed(tx, (id, session), *facts, now),
        Input::Answer { id, session, generation, refused } => {
            agents::answer(tx, (id, session), generation, refused, now)
        }
        Input::PermitWanted { id, permit } => agents::permit_wanted(tx, id, permit, now),
        Input::Maintenance { controller, word } => maintenance::take(tx, controller, word, now),
        Input::Progress { id, progress } => agents::progress(tx, id, progress, now),
        Input::AgentBlocked { id, session, blocked } => agents::agent_blocked(tx, (id, session), blocked, now),
        Input::Fetch { id, item, generation } => secrets::fetch(tx, id, &item, generation, rules, now),
        Input::NodeLeftBehind { id, entry } => {
            let machine = agents::heard(tx, id, now)?;
            swarm::note_left_behind(tx, &machine, entry, now);
            Ok(Reply::Ok)
        }
        Input::SwarmAnswered { about, number, result } => Ok(update::drain::answered(tx, &about, number, result, now)),
        Input::KubernetesAnswered { about: About::Machine(machine), number, result } => {
            Ok(update::kubernetes::answered(tx, (&machine, number), result, limits, now))
        }
        Input::KubernetesAnswered { about: About::Cluster(cluster), number, result } => {
            update::handshake::answered(tx, (&cluster, number), result, now);
            Ok(Reply::Ok)
        }
        Input::KubernetesAnswered { about: About::DaemonSets(cluster), number, result } => {
            update::renewal::answered(tx, (&cluster, number), result, limits, now);
            Ok(Reply::Ok)
        }
        Input::KubernetesAnswered { about: About::Addons(cluster), number, result } => {
            addons::answered(tx, (&cluster, number), result, limits, now);
            Ok(Reply::Ok)
        }
        Input::Enroll(enroll) => enroll::enroll(tx, effects, &enroll, now),
        Input::Operator { actor, request } => operators::take(tx, effects, &actor, request, limits, now),
        Input::Tick => Ok(Reply::Ok),
    }
}

/// Changes that `muster-coordinator recover` writes into the store of a stopped coordinator. From the next start on,
/// the agents' ledgers supply what this store lacks. Its epoch is above every epoch that the fleet has shown, and above
/// `seen`, which an operator supplies. Also returns the epoch of that start.
///
/// # Errors
/// [`RowError`] if a row does not parse.
pub fn recover(rows: Vec<Row>, seen: Epoch, actor: &str, now: Now) -> Result<(Epoch, Vec<Change>), RowError> {
    let mut facts = Facts::load(rows)?;
    let mut tx = Transaction::new(&mut facts);
    let next = begin_recovery(&mut tx, seen, actor, now);
    Ok((next, tx.into_changes()))
}

/// The same, within an open transaction.
pub(crate) fn begin_recovery(tx: &mut Transaction<'_>, seen: Epoch, actor: &str, now: Now) -> Epoch {
    let meta = tx.meta_mut();
    meta.epoch = meta.epoch.max(meta.fleet_epoch).max(seen);
    meta.recovering = true;
    let next = meta.epoch.next();
    meta.recovered_epoch = next;
    update::invalidate(tx, now);
    let message = format!("the next start has epoch {next} and takes over what the agents know better");
    tx.audit(actor, "recover", AuditObject::Store, &message, now.wall_ms);
    next
}
