//! Deletes a cluster that was applied by mistake, or that all machines have left. Every agent that could work for it
//! must be gone; machines that enrolled without reporting go with it. The audit of operators' actions stays.

use std::sync::Arc;

use muster_proto::model::{ClusterName, MachineType, Now};

use super::{Effect, Refusal, Reply, enroll, operators};
use crate::{
    facts::{AuditObject, MachineRow, Transaction},
    plan::{handshake, safety::some_names},
};

pub(super) fn cluster(
    tx: &mut Transaction<'_>,
    effects: &mut Vec<Effect>,
    actor: &str,
    name: &ClusterName,
    now: Now,
) -> Result<Reply, Refusal> {
    operators::known_cluster(tx, name)?;
    let is_live = |machine: &&Arc<MachineRow>| machine.may_live() && !tx.never_reported(machine);
    let mut live: Vec<_> = tx.machines_of(name).filter(is_live).collect();
    let is_control = |machine: &MachineRow| machine.spec.machine_type == MachineType::Control;
    // The last control machine cannot be removed: workers first.
    live.sort_by_key(|machine| is_control(machine));
    if let (Some(first), Some(last)) = (live.first(), live.last()) {
        let revoke = format!("once switched off: `musterctl revoke {} --machine-is-off`", last.name);
        let remove = format!("`musterctl remove {}`", first.name);
        let way = match live.len() {
            1 if is_control(first) => revoke,
            1 => format!("{remove} (`--policy forced` if it is dead), or {revoke}"),
            _ => format!("{remove} and so on (`--policy forced` for one that is dead); the last, or all, {revoke}"),
        };
        let names = some_names(live.iter().map(|machine| machine.name.as_str()));
        let message = format!("cluster {name} has machines: {names}; {way}; then delete it again");
        return Err(Refusal::State { reason: "MachinesLeft", message });
    }
    may_forget_requests(tx, name)?;
    let machines: Vec<Arc<MachineRow>> = tx.machines_of(name).cloned().collect();
    for machine in &machines {
        // Even an unreported machine has a certificate.
        if let Some(id) = machine.id.filter(|_| !machine.revoked) {
            enroll::deny(tx, effects, &machine.name, id, "its cluster was deleted", now);
        }
        tx.drop_machine(&machine.name);
    }
    let (tokens, secrets) = tx.drop_cluster(name);
    let gone: Vec<String> = [(machines.len(), "machine"), (tokens, "join token"), (secrets, "secret")]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}{}", if count == 1 { "" } else { "s" }))
        .collect();
    let with = if gone.is_empty() { String::new() } else { format!(" with {} of its own", gone.join(", ")) };
    let line = format!("cluster {name} deleted{with}; `get audit` keeps what was done to it");
    operators::audited(tx, actor, "delete", AuditObject::Cluster(name), vec![line], now)
}

/// Nobody would remove what Muster left in the Kubernetes cluster: its controllers would wait for ever.
fn may_forget_requests(tx: &Transaction<'_>, name: &ClusterName) -> Result<(), Refusal> {
    let Some(left) = handshake::left_there(tx, name) else { return Ok(()) };
    let message = format!(
        "in the Kubernetes cluster of {name} there may still be {left} of Muster's; that is taken back once its API \
         server answers; if it is gone for good, apply a manifest without spec.kubernetes; then delete it again"
    );
    Err(Refusal::State { reason: "RequestsLeft", message })
}
