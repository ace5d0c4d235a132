//! Ownership of Swarm nodes. A machine's own agent reports which node its engine is, and an agent may lie: a node is
//! changed only for a machine that can own it.

use muster_proto::model::{Blocked, MachineType, Reason, SwarmId, SwarmNode};

use crate::{
    facts::{Facts, MachineRow},
    plan::{
        safety::blocked,
        snapshot::{ClusterSnapshot, MachineView},
    },
};

/// The other machine that owns this node according to its swarm-join. A revoked machine owns none.
pub fn owner<'a>(facts: &'a Facts, but: &MachineRow, id: &SwarmId) -> Option<&'a MachineRow> {
    let others = facts.machines.values().filter(|row| row.name != but.name && !row.revoked);
    others.map(AsRef::as_ref).find(|row| row.swarm.as_ref().is_some_and(|member| member.node_id == *id))
}

/// Why this node cannot be the machine's: another machine owns it, or it is a manager and the machine is a worker.
/// `found`: the node as its managers show it, if they did.
pub(in crate::plan) fn foreign(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    id: &SwarmId,
    found: Option<&SwarmNode>,
) -> Option<Blocked> {
    let row = view.row;
    let not_own = |what: String, clears_when: String| {
        let message = format!("Error: its agent says that its Docker Engine is swarm node {id}, and that is {what}");
        Some(blocked(Reason::NodeNotItsOwn, message, clears_when))
    };
    if let Some(other) = owner(snapshot.facts, row, id) {
        let clears_when = "one of the two is revoked (`musterctl revoke`): the one that is gone, or that lies";
        return not_own(format!("machine {}'s", other.name), clears_when.to_owned());
    }
    let manages = found.is_some_and(|found| found.manager.is_some());
    if manages && row.spec.machine_type != MachineType::Control {
        let clears_when =
            format!("it is a worker there too (`docker node demote`); or, if it lies, `musterctl revoke {}`", row.name);
        return not_own("a manager, where this machine is a worker".to_owned(), clears_when);
    }
    None
}
