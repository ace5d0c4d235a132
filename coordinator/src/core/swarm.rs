//! The swarm in the record: who is in it.

use muster_proto::model::{ItemState, ItemStatus, MachineName, SwarmMember};

use crate::{facts::Draft, plan::swarm};

/// A swarm-join that succeeded left the machine's place in the swarm.
pub(super) fn note_member(draft: &mut Draft<'_>, machine: &MachineName, status: &ItemStatus) {
    let Some(result) = status.result_json.as_ref().filter(|_| status.state == ItemState::Succeeded) else { return };
    let items = draft.live.machines.get(machine).and_then(|live| live.items.as_deref());
    let items = items.and_then(|items| items.resolved.as_deref().ok()).unwrap_or_default();
    let joined = items.iter().any(|item| item.name == status.name && item.hash == status.hash && swarm::is_join(item));
    let member = serde_json::from_str::<SwarmMember>(result).ok().filter(|_| joined);
    if let (Some(member), Some(row)) = (member, draft.machine_mut(machine)) {
        row.swarm = Some(member);
    }
}
