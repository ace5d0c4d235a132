//! After `recover`: what machines and operators have to say before a store that was put back decides anything.

use muster_proto::model::{Blocked, ItemStatus, MachineName, MachineType, Reason};

use super::{
    safety::{blocked, some_names},
    survey::{Position, Survey},
};
use crate::facts::{DrainTarget, Facts, MachineRow};

/// After `recover`: can what the machines have said be true together, and does an operator know of every machine
/// whether it is in the middle of an update?
#[must_use]
pub fn is_settled(facts: &Facts) -> bool {
    controls_at_work(facts).is_none() && doubted(facts).next().is_none()
}

/// An item that runs on the machine, as far as its agent has said while the store is recovered. Until then neither
/// permits nor inputs are given, so an item has not begun whose agent waits for one.
#[must_use]
pub fn running<'a>(position: &Position<'a>) -> Option<&'a ItemStatus> {
    let waits = position.waits_for_inputs() || position.live.is_some_and(|live| live.wants_permit);
    position.running().find(|_| !waits)
}

/// The same, in words for those who may read of one cluster.
///
/// # Errors
/// What has to be settled.
pub fn settled(survey: &Survey<'_>) -> Result<(), Blocked> {
    if let Some(both) = controls_at_work(survey.facts) {
        let who = ours(survey, both).map_or_else(
            || "two control machines of another cluster".to_owned(),
            |names| format!("control machines {names}"),
        );
        return Err(blocked(
            Reason::ControlsAtWork,
            format!("{who} are at work at once: one was revoked since this copy of the store was made"),
            "`musterctl revoke` shuts that one out again",
        ));
    }
    let mut doubted = doubted(survey.facts).peekable();
    if doubted.peek().is_none() {
        return Ok(());
    }
    let names = ours(survey, doubted).unwrap_or_else(|| "machines of other clusters".to_owned());
    Err(blocked(
        Reason::RecoveryOpen,
        format!(
            "this store is a recovered copy, and {names} may be in the middle of an update that it does not know: \
             nothing new is done anywhere before that is settled"
        ),
        "you have looked at each of them (RecoveredInDoubt in `musterctl get machines`; `musterctl describe machine M` \
         says for what) and told it (`musterctl maintenance leave M`)",
    ))
}

/// The first few names of those that belong to this cluster: not everybody may read those of others. None: none does.
fn ours<'a>(survey: &Survey<'_>, rows: impl IntoIterator<Item = &'a MachineRow>) -> Option<String> {
    let ours = rows.into_iter().filter(|row| row.spec.cluster_name == survey.cluster.name);
    let mut names = ours.map(|row| row.name.as_str()).peekable();
    names.peek()?;
    Some(some_names(names))
}

/// Of which machines nobody knows whether they are in the middle of an update.
fn doubted(facts: &Facts) -> impl Iterator<Item = &MachineRow> {
    facts.machines.values().map(|row| &**row).filter(|row| row.in_doubt && !row.revoked)
}

/// What an operator has to look at, on a machine of which a recovered store does not know enough.
#[must_use]
pub fn in_doubt(row: &MachineRow) -> Blocked {
    let name = &row.name;
    let known = match row.update.as_ref().and_then(|mine| mine.drain.as_ref()).map(|drain| &drain.target) {
        Some(DrainTarget::Node { id, was }) => format!("; its Swarm node {id} was {was} before it was drained"),
        Some(DrainTarget::Unknown | DrainTarget::Absent) | None => String::new(),
    };
    blocked(
        Reason::RecoveredInDoubt,
        format!(
            "{name} may be in the middle of an update: this store is a recovered copy from before its end. Nothing new \
             is done anywhere before that is settled{known}"
        ),
        format!(
            "the newest manifest is applied (`musterctl apply`: the copy may have an older one), and you have looked \
             at {name} and brought it back into service (`docker node ls` on a manager, workloads): `musterctl \
             maintenance leave {name}`. After all of them `musterctl update` brings about what they lack"
        ),
    )
}

/// The other way round: a machine's own record is older than what it has told.
#[must_use]
pub fn ledger_behind(machine: &MachineName, message: &str) -> Blocked {
    let clears_when = format!(
        "a new ledger begins: stop its agent, `muster-agent ledger reset --keep-identity`, start it; was the whole \
         disk restored, `musterctl replace {machine}` and `muster-agent enroll --force`, and every item runs again"
    );
    blocked(Reason::LedgerBehind, message, clears_when)
}

/// One that is away, and in doubt as well: it comes back first.
#[must_use]
pub fn away_in_doubt(row: &MachineRow, away: Blocked) -> Blocked {
    let Blocked { reason, message, clears_when } = away;
    let name = &row.name;
    let message = format!(
        "{message}; and it may be in the middle of an update that this recovered copy of the store does not know: \
         nothing new is done anywhere before that is settled"
    );
    let clears_when = format!(
        "{clears_when}; then `musterctl maintenance leave {name}` when you have looked at it, or `musterctl revoke \
         {name}` if it is gone for good"
    );
    Blocked { reason, message, clears_when }
}

/// Rule 1 after `recover`: control machines of one cluster that say that they are at work together. One has lost its
/// slot to an operator who revoked it, and the copy that was put back does not know: nothing new for anybody until one
/// of them is out again.
fn controls_at_work(facts: &Facts) -> Option<Vec<&MachineRow>> {
    let at_work = |cluster| -> Vec<&MachineRow> {
        let machines = facts.machines_of(cluster).map(|row| &**row);
        let controls = machines.filter(|row| row.spec.machine_type == MachineType::Control);
        controls.filter(|row| row.slot.is_some() && !row.revoked).collect()
    };
    facts.clusters.keys().map(at_work).find(|rows| rows.len() > 1)
}
