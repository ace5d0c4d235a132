//! The coordinator's core: inputs -> changes to be made durable, answers, and effects to be performed after. PURE: no
//! I/O, no clock. The engine runs it in production, the simulator in the tests.
//!
//! One step takes many inputs and makes one batch: apply them, decide until nothing new follows, assign. Nothing of a
//! step may be seen by anybody before its changes are durable.

mod agents;
mod answer;
mod apply;
pub(crate) mod credentials;
mod decide;
mod delete;
mod deploy;
mod enroll;
mod evidence;
mod io;
mod maintenance;
mod operators;
mod rerun;
mod secrets;
mod share;
mod swarm;
#[cfg(test)]
pub(crate) mod tests;
mod tokens;
mod transition;
pub mod update;
mod verdicts;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_proto::{
    model::{ClusterName, Epoch, Now},
    plant::planted,
};

pub use answer::{Refusal, Reply};
pub use credentials::Renewal;
pub use io::{Effect, Enroll, Input, Request, SwarmQuestion};
pub use maintenance::{LockRelease, Word};

use crate::{
    facts::{AuditObject, AuditRow, Draft, Facts, MachineRow, RowError},
    plan::{
        Limits, items,
        reboot::missed_at,
        removal,
        safety::SPREAD_MS,
        survey::Survey,
        swarm as plan_swarm,
        update::{self as plan_update, drain::SETTLE_MS},
    },
    proof::ProofKey,
    store::{Change, Row},
};

/// What one step came to.
#[derive(Debug, Default)]
pub struct Step {
    /// One for each input, in order.
    pub answers: Vec<Result<Reply, Refusal>>,
    /// To be made durable before anything of this step is seen.
    pub changes: Vec<Change>,
    /// Audit lines of this step: to be told to the log once they are durable, and before anything of this step is seen.
    pub audited: Vec<Arc<AuditRow>>,
    /// To be performed after.
    pub effects: Vec<Effect>,
    /// Was anything decided? A step that took in nothing but signs of life decides nothing and changes little.
    pub decided: bool,
    /// Decisions followed from one another without end, and were cut off: a bug of ours that operators must hear of.
    pub unsettled: bool,
}

/// One thing for the rim to do.
#[derive(Debug)]
pub enum Act {
    /// Make these durable. Nothing after it may happen before.
    Commit(Vec<Change>),
    /// Perform this.
    Perform(Effect),
}

impl Step {
    /// The answers, and what is to be done, in the order in which it must be. Engine and simulator go by it.
    #[must_use]
    pub fn into_acts(self) -> (Vec<Result<Reply, Refusal>>, Vec<Act>) {
        let commit = (!self.changes.is_empty()).then_some(Act::Commit(self.changes));
        let effects = self.effects.into_iter().map(Act::Perform);
        // Planted: an agent is told that its event is recorded before it is.
        if planted("ack-before-commit") {
            let is_ack = |act: &Act| matches!(act, Act::Perform(Effect::Ack { .. }));
            let (acks, others): (Vec<_>, Vec<_>) = effects.partition(is_ack);
            return (self.answers, acks.into_iter().chain(commit).chain(others).collect());
        }
        (self.answers, commit.into_iter().chain(effects).collect())
    }
}

/// The clusters in which a machine was shut out in the middle of its drain before this start, and so shortly that the
/// drain may yet begin: their time runs from the start, for the clock may have jumped since.
fn drains_let_go(facts: &Facts, now: Now) -> BTreeMap<ClusterName, u64> {
    let lately = facts.denied.values().filter(|row| now.wall_ms.saturating_sub(row.at_ms) < SETTLE_MS);
    lately.filter_map(|row| Some((row.in_drain_of.clone()?, now.mono_ms))).collect()
}

/// It is decided at least this often, whatever happens, in milliseconds.
const DECIDE_EVERY_MS: u64 = 10_000;

/// The core: the facts, and what may be set.
#[derive(Clone, Debug)]
pub struct Core {
    facts: Facts,
    limits: Limits,
    proof_key: ProofKey,
    /// The first step at or after this moment decides, whatever it takes in. Set anew only by a step that decides: what
    /// passes in a step that does not is decided in the next. Monotonic milliseconds.
    decide_by_mono_ms: u64,
}

impl Core {
    /// The core over a stored record, and the changes that make its start durable: commit them before anything else.
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
        let mut draft = Draft::new(&mut facts);
        let meta = draft.meta_mut();
        if !planted("same-epoch") {
            meta.epoch = meta.epoch.next();
        }
        items::refresh(&mut draft);
        let changes = draft.into_changes();
        Ok((Self { facts, limits, proof_key, decide_by_mono_ms: now.mono_ms }, changes))
    }

    /// What is known.
    #[must_use]
    pub const fn facts(&self) -> &Facts {
        &self.facts
    }

    #[cfg(test)]
    pub(crate) fn set_facts(&mut self, facts: Facts) {
        self.facts = facts;
    }

    /// What may be set.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Takes inputs, decides, and says what follows.
    pub fn step(&mut self, inputs: Vec<Input>, now: Now) -> Step {
        // Planted: deadlines wait for somebody who says more than that he lives.
        let due = now.mono_ms >= self.decide_by_mono_ms && !planted("quiet-past-deadline");
        let quiet = !due && inputs.iter().all(|input| self.is_quiet(input, now));
        let mut settled = true;
        let rules = Rules { limits: &self.limits, proof_key: &self.proof_key };
        let mut draft = Draft::new(&mut self.facts);
        let mut effects = Vec::new();
        let answers = inputs.into_iter().map(|input| take(&mut draft, &mut effects, input, &rules, now)).collect();
        if !quiet {
            settled = decide::decide(&mut draft, &self.limits, now, &mut effects);
            debug_assert!(settled, "a decision undoes another");
            decide::assign_all(&mut draft, &rules, now, &mut effects);
            update::drain::ask(&mut draft, &self.limits, now, &mut effects);
            decide::note_waits(&mut draft, &self.limits, now);
        }
        // Evidence may come later in a batch than a greeting that was answered with a list.
        if draft.live.older_than_fleet().is_some() && !planted("trust-old-store") {
            effects.retain(|effect| !matches!(effect, Effect::Assign { .. }));
        }
        // Nor is whoever was shut out in the same step told anything more.
        effects.retain(|effect| match effect {
            Effect::Assign { id, .. } | Effect::Ack { id, .. } => !draft.denied.contains_key(id),
            Effect::AskSwarm(_) | Effect::Close { .. } => true,
        });
        let audited = draft.take_audited();
        let changes = draft.into_changes();
        if !quiet {
            let wake_at = self.wake_at(now).unwrap_or(u64::MAX);
            self.decide_by_mono_ms = wake_at.min(now.mono_ms.saturating_add(DECIDE_EVERY_MS));
        }
        Step { answers, changes, audited, effects, decided: !quiet, unsettled: !settled }
    }

    /// A sign of life of a machine that nobody has missed decides nothing. A thousand machines send a hundred of them a
    /// second.
    fn is_quiet(&self, input: &Input, now: Now) -> bool {
        let (Input::Heard { id } | Input::Progress { id, .. }) = input else { return false };
        self.facts
            .names
            .get(id)
            .and_then(|name| self.facts.live.machines.get(name))
            .and_then(|live| live.heard_mono_ms)
            .is_some_and(|heard| now.mono_ms.saturating_sub(heard) < self.limits.lost_after_ms)
    }

    /// When a step is due, though nobody says anything. Monotonic milliseconds.
    #[must_use]
    pub const fn decide_by_mono_ms(&self) -> u64 {
        self.decide_by_mono_ms
    }

    /// Monotonic milliseconds of the next moment at which time alone changes a decision. None: there is none.
    fn wake_at(&self, now: Now) -> Option<u64> {
        // The time for which all are awaited after a start is that of machines that do not reboot.
        let gathered_at = self.facts.live.started_mono_ms.saturating_add(self.limits.lost_after_ms);
        let missed = self.facts.machines.values().map(|row| missed_at(&self.facts, row, &self.limits));
        let updates = self.facts.rollouts.values().filter(|row| row.finished_at_ms.is_none() && row.update.is_some());
        let surveys = updates.filter_map(|row| Survey::of(&self.facts, &row.cluster, &self.limits, now));
        let asks = |row: &&Arc<MachineRow>| row.removal.is_some() || plan_swarm::restore::owed(row).is_some();
        let asking: BTreeSet<&ClusterName> =
            self.facts.machines.values().filter(asks).map(|row| &row.spec.cluster_name).collect();
        let asking = asking.into_iter().filter_map(|name| Survey::of(&self.facts, name, &self.limits, now));
        let removals = asking.flat_map(|survey| {
            removal::wakes_at_ms(&survey).into_iter().chain(plan_swarm::restore::wakes_at_ms(&survey))
        });
        let deadlines = surveys.filter_map(|survey| plan_update::wakes_at_ms(&survey)).chain(removals);
        let in_mono = |wall_ms: u64| now.mono_ms.saturating_add(wall_ms.saturating_sub(now.wall_ms));
        let deadlines = deadlines.map(in_mono);
        let slots = self.facts.machines.values().filter_map(|row| row.slot);
        let granted = slots.map(|slot| slot.granted_at_ms).filter(|at_ms| *at_ms <= now.wall_ms);
        let spread = granted.map(|at_ms| in_mono(at_ms.saturating_add(SPREAD_MS)));
        missed.chain([gathered_at]).chain(deadlines).chain(spread).filter(|at| *at > now.mono_ms).min()
    }
}

/// What inputs are taken by.
struct Rules<'a> {
    limits: &'a Limits,
    proof_key: &'a ProofKey,
}

fn take(
    draft: &mut Draft<'_>,
    effects: &mut Vec<Effect>,
    input: Input,
    rules: &Rules<'_>,
    now: Now,
) -> Result<Reply, Refusal> {
    let limits = rules.limits;
    // The servers let nobody through who is denied; what was on its way when that was decided ends here.
    if input.agent().is_some_and(|id| draft.denied.contains_key(&id)) {
        let message = "an operator revoked this identity".to_owned();
        return Err(Refusal::Protocol { code: "Revoked", message });
    }
    match input {
        Input::Hello { id, session, hello } => agents::hello(draft, effects, (id, session), *hello, rules, now),
        Input::Gone { id, session } => agents::gone(draft, id, session),
        Input::Heard { id } => agents::heard(draft, id, now).map(|_| Reply::Ok),
        Input::Status { id, session, seq, status } => {
            agents::status(draft, effects, (id, session), (seq, *status), rules.proof_key, now)
        }
        Input::HostChanged { id, session, facts } => agents::host_changed(draft, (id, session), *facts, now),
        Input::Answer { id, session, generation, refused } => {
            agents::answer(draft, (id, session), generation, refused, now)
        }
        Input::PermitWanted { id, permit } => agents::permit_wanted(draft, id, permit, now),
        Input::Maintenance { controller, word } => maintenance::take(draft, controller, word, now),
        Input::Progress { id, progress } => agents::progress(draft, id, progress, now),
        Input::AgentBlocked { id, session, blocked } => agents::agent_blocked(draft, (id, session), blocked, now),
        Input::Fetch { id, item, generation } => secrets::fetch(draft, id, &item, generation, rules, now),
        Input::NodeLeftBehind { id, entry } => {
            let machine = agents::heard(draft, id, now)?;
            swarm::note_left_behind(draft, &machine, entry, now);
            Ok(Reply::Ok)
        }
        Input::SwarmAnswered { about, number, result } => {
            Ok(update::drain::answered(draft, &about, number, result, now))
        }
        Input::Enroll(enroll) => enroll::enroll(draft, effects, &enroll, now),
        Input::Operator { actor, request } => operators::take(draft, effects, &actor, request, limits, now),
        Input::Tick => Ok(Reply::Ok),
    }
}

/// What `muster-coordinator recover` writes into the store of a coordinator that does not run: from the next start on
/// the agents' ledgers fill in what this store lacks, under an epoch above every one the fleet has shown, and above
/// `seen`, which an operator knows of. Returns the epoch of that start too.
///
/// # Errors
/// [`RowError`] if a row does not parse.
pub fn recover(rows: Vec<Row>, seen: Epoch, actor: &str, now: Now) -> Result<(Epoch, Vec<Change>), RowError> {
    let mut facts = Facts::load(rows)?;
    let mut draft = Draft::new(&mut facts);
    let next = begin_recovery(&mut draft, seen, actor, now);
    Ok((next, draft.into_changes()))
}

/// The same, as a change that is under way.
pub(crate) fn begin_recovery(draft: &mut Draft<'_>, seen: Epoch, actor: &str, now: Now) -> Epoch {
    let meta = draft.meta_mut();
    meta.epoch = meta.epoch.max(meta.fleet_epoch).max(seen);
    meta.recovering = true;
    let next = meta.epoch.next();
    meta.recovered_epoch = next;
    update::distrust(draft, now);
    let message = format!("the next start has epoch {next} and takes over what the agents know better");
    draft.audit(actor, "recover", AuditObject::Store, &message, now.wall_ms);
    next
}
