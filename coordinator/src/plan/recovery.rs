//! After `recover`: what machines and operators must report before a restored store decides anything.

use muster_proto::model::{Blocked, ItemStatus, MachineName, MachineType, Reason};

use super::{
    safety::{blocked, some_names},
    snapshot::{ClusterSnapshot, MachineView},
};
use crate::facts::{Facts, KubernetesTarget, MachineRow, SwarmTarget};

/// After `recover`: are the machines' reports consistent, and has an operator reviewed every machine that may be in the
/// middle of an update?
#[must_use]
pub fn is_settled(facts: &Facts) -> bool {
    controls_at_work(facts).is_none() && doubted(facts).next().is_none()
}

/// An item that runs on the machine, according to its agent during recovery. Permits and inputs are withheld until
/// recovery ends, so an item has not begun if its agent waits for one.
#[must_use]
pub fn running<'a>(view: &MachineView<'a>) -> Option<&'a ItemStatus> {
    let waits = view.waits_for_inputs() || view.live.is_some_and(|live| live.wants_permit);
    view.running().find(|_| !waits)
}

/// Check [`is_settled`], with reasons in words for readers of one cluster.
///
/// # Errors
/// What has to be settled.
pub fn settled(snapshot: &ClusterSnapshot<'_>) -> Result<(), Blocked> {
    if let Some(both) = controls_at_work(snapshot.facts) {
        let who = ours(snapshot, both).map_or_else(
            || "two control machines of another cluster".to_owned(),
            |names| format!("control machines {names}"),
        );
        return Err(blocked(
            Reason::ControlsAtWork,
            format!("{who} are at work at once: one was revoked since this copy of the store was made"),
            "`musterctl revoke` shuts that one out again",
        ));
    }
    let mut doubted = doubted(snapshot.facts).peekable();
    if doubted.peek().is_none() {
        return Ok(());
    }
    let names = ours(snapshot, doubted).unwrap_or_else(|| "machines of other clusters".to_owned());
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

/// The first few names that belong to this cluster: a reader may lack access to those of others. None: all are of other
/// clusters.
fn ours<'a>(snapshot: &ClusterSnapshot<'_>, rows: impl IntoIterator<Item = &'a MachineRow>) -> Option<String> {
    let ours = rows.into_iter().filter(|row| row.spec.cluster_name == snapshot.cluster.name);
    let mut names = ours.map(|row| row.name.as_str()).peekable();
    names.peek()?;
    Some(some_names(names))
}

/// Machines that may be in the middle of an update, and need review.
fn doubted(facts: &Facts) -> impl Iterator<Item = &MachineRow> {
    facts.machines.values().map(|row| &**row).filter(|row| row.needs_review && !row.revoked)
}

/// What an operator has to review on a machine that a recovered store knows too little about.
#[must_use]
pub fn needs_review(row: &MachineRow) -> Blocked {
    let name = &row.name;
    let drains = row.update.as_ref().map(|mine| &mine.drains);
    let swarm = match drains.and_then(|drains| drains.swarm.as_ref()).map(|drain| &drain.target) {
        Some(SwarmTarget::Node { id, was }) => format!("; its Swarm node {id} was {was} before it was drained"),
        Some(SwarmTarget::Unknown | SwarmTarget::Absent) | None => String::new(),
    };
    let kubernetes = match drains.and_then(|drains| drains.kubernetes.as_ref()).map(|drain| &drain.target) {
        Some(KubernetesTarget::Node { name, was_unschedulable: false, .. }) => {
            format!("; its Kubernetes node {name} was cordoned for a drain, and is given back when that is settled")
        }
        Some(KubernetesTarget::Node { .. } | KubernetesTarget::Unknown | KubernetesTarget::Absent) | None => {
            String::new()
        }
    };
    let known = swarm + &kubernetes;
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

/// The opposite case: a machine's own record is older than its earlier reports.
#[must_use]
pub fn ledger_behind(machine: &MachineName, message: &str) -> Blocked {
    let clears_when = format!(
        "a new ledger begins: stop its agent, `muster-agent ledger reset --keep-identity`, start it; was the whole \
         disk restored, `musterctl replace {machine}` and `muster-agent enroll --force`, and every item runs again"
    );
    blocked(Reason::LedgerBehind, message, clears_when)
}

/// A machine that is away and also needs review: it has to return first.
#[must_use]
pub fn away_needs_review(row: &MachineRow, away: Blocked) -> Blocked {
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

/// Rule 1 after `recover`: control machines of one cluster that report work at the same time. An operator has revoked
/// one of them, which freed its slot, and the restored copy lacks that. New work waits until one of them is out again.
fn controls_at_work(facts: &Facts) -> Option<Vec<&MachineRow>> {
    let at_work = |cluster| -> Vec<&MachineRow> {
        let machines = facts.machines_of(cluster).map(|row| &**row);
        let controls = machines.filter(|row| row.spec.machine_type == MachineType::Control);
        controls.filter(|row| row.slot.is_some() && !row.revoked).collect()
    };
    facts.clusters.keys().map(at_work).find(|rows| rows.len() > 1)
}
