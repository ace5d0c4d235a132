//! The swarm in the record: who makes it, and who is in it.

use muster_proto::{
    convert::as_line,
    model::{ItemState, ItemStatus, MachineName, Now, SwarmAvailability, SwarmLabels, SwarmMember, are_labels_few},
    plant::planted,
};

use super::Refusal;
use crate::{
    facts::{AuditObject, Draft, DrainTarget, MUSTER, SwarmLook},
    plan::{
        Limits,
        swarm::{self, Entry, joining::NodeEntry},
        update::drain::own,
    },
};

/// Bytes of a node's labels that the audit record names.
const LABELS_AUDITED_BYTES_MAX: usize = 1_024;

/// How a machine that is about to run its swarm-join gets in. That it makes the swarm is recorded, and so durable
/// before it hears of it: two swarms cannot be joined into one.
pub(super) fn enter(
    draft: &mut Draft<'_>,
    machine: &MachineName,
    limits: &Limits,
    now: Now,
) -> Result<Option<Entry>, Refusal> {
    let Some(row) = draft.machines.get(machine).cloned() else { return Ok(None) };
    let entry = swarm::entry(draft, &row, limits, now)
        .map_err(|wait| Refusal::State { reason: wait.reason(), message: wait.to_string() })?;
    let cluster = &row.spec.cluster_name;
    let told = draft.clusters.get(cluster).and_then(|cluster| cluster.swarm_init);
    // Planted: who makes the swarm is forgotten with the coordinator.
    if entry == Entry::Init
        && told != row.id
        && !planted("init-unrecorded")
        && let Some(cluster) = draft.cluster_mut(cluster)
    {
        cluster.swarm_init = row.id;
    }
    Ok(Some(entry))
}

/// The entry that a machine has left behind is about to be removed, and what it has with it. Its next node gets that,
/// if the entry is known to have been this machine's: any other could be one that it only shares the hostname with.
pub(super) fn note_left_behind(draft: &mut Draft<'_>, machine: &MachineName, entry: NodeEntry, now: Now) {
    let Some(row) = draft.machine_mut(machine) else { return };
    let NodeEntry { node, hostname, availability, labels } = entry;
    let had = in_audit(&labels);
    let line = match row.former_node.as_mut().filter(|former| former.id == node) {
        Some(former) => {
            // A manager that lists one entry again and again, each time with other labels, fills no disk.
            let all: SwarmLabels = former.labels.iter().chain(&labels).map(|(k, v)| (k.clone(), v.clone())).collect();
            if are_labels_few(&all) {
                former.labels = all;
            }
            // A node that has just joined may have tasks, and no drain is ordered but by the rules for them.
            let drained = availability == SwarmAvailability::Drain;
            match former.availability.or((!drained).then_some(availability)) {
                Some(availability) => {
                    former.availability = Some(availability);
                    format!("removed from the swarm; its next node gets its availability {availability}{had}")
                }
                None => format!(
                    "removed from the swarm; its availability drain goes with it (`docker node update --availability \
                     drain` sets it again); its next node gets the rest{had}"
                ),
            }
        }
        None => format!(
            "removed from the swarm; it is not known to have been this machine's, so its availability {availability}\
             {had} go with it"
        ),
    };
    let line = format!("machine {machine}: swarm node {node} ({hostname}), which was left behind there, is {line}");
    draft.audit(MUSTER, "swarm", AuditObject::Machine(machine), &line, now.wall_ms);
}

/// A node's labels as an audit line names them: as many as have room there.
fn in_audit(labels: &SwarmLabels) -> String {
    let mut named = Vec::new();
    let mut room = LABELS_AUDITED_BYTES_MAX;
    for (name, value) in labels {
        let label = as_line(&format!("{name}={value}"));
        let Some(left) = room.checked_sub(label.len()) else { break };
        room = left;
        named.push(label);
    }
    match labels.len() - named.len() {
        0 if named.is_empty() => String::new(),
        0 => format!(", its labels {}", named.join(", ")),
        more if named.is_empty() => format!(", its {more} labels"),
        more => format!(", its labels {} and {more} more", named.join(", ")),
    }
}

/// A swarm-join that succeeded left the machine's place in the swarm.
pub(super) fn note_member(draft: &mut Draft<'_>, machine: &MachineName, status: &ItemStatus) {
    let Some(result) = status.result_json.as_ref().filter(|_| status.state == ItemState::Succeeded) else { return };
    let items = draft.live.machines.get(machine).and_then(|live| live.items.as_deref());
    let items = items.and_then(|items| items.resolved.as_deref().ok()).unwrap_or_default();
    let joined = items.iter().any(|item| item.name == status.name && item.hash == status.hash && item.joins_swarm());
    let member = serde_json::from_str::<SwarmMember>(result).ok().filter(|_| joined);
    // One that claims another's node has none that anything could be done to.
    let row = draft.machines.get(machine).cloned();
    let own = |member: &SwarmMember| row.is_some_and(|row| own::owner(draft, &row, &member.node_id).is_none());
    let member = member.filter(own);
    if let (Some(member), Some(row)) = (member, draft.machine_mut(machine)) {
        let node = member.node_id.clone();
        row.swarm = Some(member);
        row.former_node.take_if(|former| former.labels.is_empty() && former.availability.is_none());
        // What was in no swarm when its update came to it, or was another node, may be given tasks now.
        let drain = row.update.as_mut().and_then(|mine| mine.drain.as_mut());
        let is_new = |target: &DrainTarget| match target {
            DrainTarget::Unknown => false,
            DrainTarget::Absent => true,
            DrainTarget::Node { id, .. } => *id != node,
        };
        if let Some(drain) = drain.filter(|drain| is_new(&drain.target)) {
            drain.target = DrainTarget::Unknown;
            draft.live_mut(machine).swarm = SwarmLook { begun_here: true, ..SwarmLook::default() };
        }
    }
}
