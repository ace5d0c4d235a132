//! The swarm in the record: which machine creates it, and which machines are members.

use muster_proto::{
    convert::as_line,
    model::{ItemState, ItemStatus, MachineName, Now, SwarmAvailability, SwarmLabels, SwarmMember, are_labels_few},
    seeded_bug::seeded_bug,
};

use super::Refusal;
use crate::{
    facts::{AuditObject, MUSTER, NodeObservation, SwarmTarget, Transaction},
    plan::{
        Limits,
        drain::swarm::node_ownership,
        swarm::{self, Entry, joining::NodeEntry},
    },
};

/// Maximum bytes of a node's labels in the audit record.
const LABELS_AUDITED_BYTES_MAX: usize = 1_024;

/// How a machine that is about to run its swarm-join gets in. The order to create the swarm is durable before the
/// machine receives it: two swarms cannot be joined into one.
pub(super) fn enter(
    tx: &mut Transaction<'_>,
    machine: &MachineName,
    limits: &Limits,
    now: Now,
) -> Result<Option<Entry>, Refusal> {
    let Some(row) = tx.machines.get(machine).cloned() else { return Ok(None) };
    let entry = swarm::entry(tx, &row, limits, now)
        .map_err(|wait| Refusal::State { reason: wait.reason(), message: wait.to_string() })?;
    let cluster = &row.spec.cluster_name;
    let told = tx.clusters.get(cluster).and_then(|cluster| cluster.swarm_init);
    // Seeded bug: a restart of the coordinator forgets which machine creates the swarm.
    if entry == Entry::Init
        && told != row.id
        && !seeded_bug("init-unrecorded")
        && let Some(cluster) = tx.cluster_mut(cluster)
    {
        cluster.swarm_init = row.id;
    }
    Ok(Some(entry))
}

/// Records the node entry that the machine left behind, before the entry is removed. The machine's next node gets its
/// availability and labels if the entry is known to be this machine's. Any other entry could merely share the hostname.
pub(super) fn note_left_behind(tx: &mut Transaction<'_>, machine: &MachineName, entry: NodeEntry, now: Now) {
    let Some(row) = tx.machine_mut(machine) else { return };
    let NodeEntry { node, hostname, availability, labels } = entry;
    let had = in_audit(&labels);
    let line = match row.former_node.as_mut().filter(|former| former.id == node) {
        Some(former) => {
            // A manager may list one entry repeatedly, each time with other labels: limit what is stored.
            let all: SwarmLabels = former.labels.iter().chain(&labels).map(|(k, v)| (k.clone(), v.clone())).collect();
            if are_labels_few(&all) {
                former.labels = all;
            }
            // A node that has just joined may have tasks, and a drain needs the rules for drains.
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
    tx.audit(MUSTER, "swarm", AuditObject::Machine(machine), &line, now.wall_ms);
}

/// A node's labels for an audit line, as many as fit.
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

/// A successful swarm-join reports the machine's place in the swarm.
pub(super) fn note_member(tx: &mut Transaction<'_>, machine: &MachineName, status: &ItemStatus) {
    let Some(result) = status.result_json.as_ref().filter(|_| status.state == ItemState::Succeeded) else { return };
    let items = tx.live.machines.get(machine).and_then(|live| live.items.as_deref());
    let items = items.and_then(|items| items.resolved.as_deref().ok()).unwrap_or_default();
    let joined = items.iter().any(|item| item.name == status.name && item.hash == status.hash && item.joins_swarm());
    let member = serde_json::from_str::<SwarmMember>(result).ok().filter(|_| joined);
    // A machine that claims another machine's node gets none, which protects that node.
    let row = tx.machines.get(machine).cloned();
    let own = |member: &SwarmMember| row.is_some_and(|row| node_ownership::owner(tx, &row, &member.node_id).is_none());
    let member = member.filter(own);
    if let (Some(member), Some(row)) = (member, tx.machine_mut(machine)) {
        let node = member.node_id.clone();
        row.swarm = Some(member);
        row.former_node.take_if(|former| former.labels.is_empty() && former.availability.is_none());
        // A machine whose drain found no swarm or another node may get tasks now.
        let drain = row.update.as_mut().and_then(|mine| mine.drains.swarm.as_mut());
        let is_new = |target: &SwarmTarget| match target {
            SwarmTarget::Unknown => false,
            SwarmTarget::Absent => true,
            SwarmTarget::Node { id, .. } => *id != node,
        };
        if let Some(drain) = drain.filter(|drain| is_new(&drain.target)) {
            drain.target = SwarmTarget::Unknown;
            tx.live_mut(machine).swarm = NodeObservation { begun_here: true, ..NodeObservation::default() };
        }
    }
}
