//! After `recover`: what machines and operators have to say before a store that was put back decides anything.

use muster_proto::model::{Blocked, MachineType};

use super::safety::{blocked, some_names};
use crate::facts::{DrainTarget, Facts, MachineRow};

/// After `recover`: can what the machines have said be true together, and does an operator know of every machine
/// whether it is in the middle of an update?
pub fn settled(facts: &Facts) -> Result<(), Blocked> {
    one_control_at_work(facts)?;
    let doubtful = |row: &&MachineRow| row.in_doubt && !row.revoked;
    let mut doubtful = facts.machines.values().map(|row| &**row).filter(doubtful);
    match doubtful.next() {
        Some(row) => Err(in_doubt(row)),
        None => Ok(()),
    }
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
        "RecoveredInDoubt",
        format!(
            "{name} may be in the middle of an update: this store is a recovered copy from before its end. Nothing new \
             is done anywhere before that is settled{known}"
        ),
        format!(
            "you have looked at {name} and brought it back into service (`docker node ls` on a manager, workloads): \
             `musterctl maintenance leave {name}`, then `musterctl update` brings about what it lacks"
        ),
    )
}

/// Rule 1 after `recover`: not two control machines of one cluster say that they are at work. If they do, one has lost
/// its slot to an operator who revoked it, and the copy that was put back does not know: nothing new for anybody until
/// one of them is out again.
fn one_control_at_work(facts: &Facts) -> Result<(), Blocked> {
    let at_work = |cluster| -> Vec<&str> {
        let machines = facts.machines_of(cluster).filter(|row| row.spec.machine_type == MachineType::Control);
        machines.filter(|row| row.slot.is_some() && !row.revoked).map(|row| row.name.as_str()).collect()
    };
    let Some(both) = facts.clusters.keys().map(at_work).find(|names| names.len() > 1) else { return Ok(()) };
    let names = some_names(both);
    Err(blocked(
        "ControlsAtWork",
        format!("control machines {names} are at work at once: one was revoked since this copy of the store was made"),
        "`musterctl revoke` shuts that one out again",
    ))
}
