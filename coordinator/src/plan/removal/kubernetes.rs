//! The Kubernetes part of a departure, after the swarm's: the machine's Node object is found, deleted by its UID, and
//! gone; then Muster's requests about it are. Only a node that is proven to be this machine's is deleted, and a
//! finalizer of somebody else is named, never removed.

use muster_proto::model::{Blocked, MachineName, Phase, Reason, RemovalPolicy};

use super::RemovalStep;
use crate::{
    facts::{
        DepartingNode, DepartingObject, Departure, Facts, KubernetesObservation, MachineRow, RemovalRow,
        kubernetes::{KubernetesNode, KubernetesOp},
    },
    plan::{
        drain::kubernetes::{
            FRESH_MS, failed, fresh, identity, look,
            questions::{EVICT_WITHIN_MS, RETRY_MS, free_at},
            spec,
        },
        handshake,
        safety::{self, blocked},
        snapshot::{ClusterSnapshot, MachineView},
    },
};

/// Time to find the node, and again until it is gone, in milliseconds. After it a person is told, and a removal by
/// force leaves the node behind.
pub const NODE_GONE_MS: u64 = 600_000;
/// Time until Muster's requests about the node are gone, in milliseconds; then they are left behind. Rockoon lets a
/// request go within seconds, or never: it fails once its lock for the node is gone.
pub const REQUESTS_GONE_MS: u64 = 60_000;
/// Interval between two looks at a node that is being deleted, in milliseconds: Rockoon deletes its lock soon after.
const LOOK_EVERY_MS: u64 = 1_000;

/// The departure, once the machine is out of the swarm. None: it does not depart, is still in the swarm, or its cluster
/// has no Kubernetes.
#[must_use]
pub fn departure<'a>(snapshot: &ClusterSnapshot<'_>, row: &'a RemovalRow) -> Option<&'a Departure> {
    spec(snapshot)?;
    row.departure.as_ref().filter(|departure| departure.node == DepartingNode::Absent)
}

/// Deadline of its present part, Unix milliseconds. It restarts with the coordinator, which has to look first.
#[must_use]
pub fn deadline_ms(snapshot: &ClusterSnapshot<'_>, departure: &Departure) -> u64 {
    let within_ms = if departure.object == DepartingObject::Gone { REQUESTS_GONE_MS } else { NODE_GONE_MS };
    departure.object_since_ms.max(snapshot.facts.live.started_wall_ms).saturating_add(within_ms)
}

fn is_late(snapshot: &ClusterSnapshot<'_>, departure: &Departure) -> bool {
    snapshot.now.wall_ms >= deadline_ms(snapshot, departure)
}

/// May the machine have a node at all: did its deployment begin, or was one recorded?
fn may_have_node(row: &MachineRow) -> bool {
    let begun = row.ready_at.is_some() || row.max_phase >= Some(Phase::Deploy);
    row.host.is_some() && (begun || row.kubernetes_node.is_some() || row.owed_cordon.is_some())
}

/// What follows for a machine that is out of the swarm.
#[must_use]
pub fn step(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, row: &RemovalRow) -> Option<RemovalStep> {
    let Some(departure) = departure(snapshot, row) else { return Some(RemovalStep::Drop) };
    // Requests are paper: an object that is left behind harms nobody.
    let gives_up = row.policy == RemovalPolicy::Forced || departure.object == DepartingObject::Gone;
    if gives_up && is_late(snapshot, departure) {
        return Some(RemovalStep::Drop);
    }
    let nodes = || fresh(snapshot, look(view)?.nodes.as_ref());
    let next = match &departure.object {
        DepartingObject::Unknown if !may_have_node(view.row) => DepartingObject::Gone,
        DepartingObject::Unknown => match own(snapshot, view, row.policy, nodes()?).ok()? {
            Some(node) => DepartingObject::Node { name: node.object.name.clone(), uid: node.object.uid.clone() },
            None => DepartingObject::Gone,
        },
        DepartingObject::Node { uid, .. } => {
            if nodes()?.iter().any(|node| node.object.uid == *uid) {
                return None;
            }
            DepartingObject::Gone
        }
        DepartingObject::Gone => {
            return handshake::is_withdrawn(snapshot, view.row).is_ok().then_some(RemovalStep::Drop);
        }
    };
    Some(RemovalStep::Object(next))
}

/// The node that is proven to be this machine's. By its place and its boot, as a drain proves it. Where its kubelet is
/// silent, and its boot may be an earlier one: by its UID in the record, or for a machine that is gone for good, by its
/// place alone. None: the cluster has none.
///
/// # Errors
/// Why it is not certain whose a node is.
fn own<'n>(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    policy: RemovalPolicy,
    nodes: &'n [KubernetesNode],
) -> Result<Option<&'n KubernetesNode>, Blocked> {
    let why = match identity::of(snapshot, view, nodes) {
        Ok(found) => return Ok(found),
        Err(why) => why,
    };
    let row = view.row;
    let forced = policy == RemovalPolicy::Forced;
    let others = || snapshot.machines.iter().filter(|other| other.row.name != row.name);
    let is_free = |node: &KubernetesNode| {
        identity::claimed(snapshot, row, node).is_none() && !others().any(|other| identity::has_place(other.row, node))
    };
    let could_be =
        |node: &&KubernetesNode| identity::is_recorded(row, node) || (forced && identity::has_place(row, node));
    let mut found = nodes.iter().filter(could_be);
    match (found.next(), found.next()) {
        (Some(node), None) if !node.ready && is_free(node) => Ok(Some(node)),
        // Somebody has deleted it already.
        (None, _) if why.reason == Reason::KubernetesNodeNotFound => Ok(None),
        _ => Err(why),
    }
}

/// The next questions, by the machine that each is about.
#[must_use]
pub fn questions<'a>(snapshot: &ClusterSnapshot<'a>) -> Vec<(&'a MachineName, KubernetesOp)> {
    // An outdated store would delete nodes that have long come back.
    if safety::store_is_current(snapshot).is_err() || snapshot.facts.meta.recovering {
        return Vec::new();
    }
    let next = |view: &MachineView<'a>| Some((&view.row.name, next(snapshot, view)?));
    snapshot.machines.iter().filter_map(next).collect()
}

fn next(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<KubernetesOp> {
    let departure = departure(snapshot, view.row.removal.as_ref()?)?;
    let now = snapshot.now.mono_ms;
    let nothing = KubernetesObservation::default();
    let look = look(view).unwrap_or(&nothing);
    if free_at(look) > now {
        return None;
    }
    let seen = look.nodes.as_ref().filter(|seen| now.saturating_sub(seen.at_mono_ms) < FRESH_MS);
    let age = seen.map_or(FRESH_MS, |seen| now.saturating_sub(seen.at_mono_ms));
    match &departure.object {
        DepartingObject::Gone => None,
        DepartingObject::Unknown => (age >= LOOK_EVERY_MS).then_some(KubernetesOp::Nodes),
        DepartingObject::Node { name, uid } => {
            let node = seen.and_then(|seen| seen.what.iter().find(|node| node.object.uid == *uid));
            let rests = look.node_deleted_mono_ms.is_some_and(|at| now < at.saturating_add(RETRY_MS));
            match node {
                Some(node) if !node.deleting && !rests && age < EVICT_WITHIN_MS => {
                    Some(KubernetesOp::DeleteNode { name: name.clone(), uid: uid.clone() })
                }
                _ => (age >= LOOK_EVERY_MS).then(|| KubernetesOp::Node { name: name.clone() }),
            }
        }
    }
}

/// Why its departure is unfinished.
#[must_use]
pub fn waits(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, row: &RemovalRow) -> Blocked {
    let about = |what: &str| blocked(Reason::LeavingKubernetes, what, "the API server has answered");
    let Some(departure) = departure(snapshot, row) else {
        return blocked(Reason::Deciding, "its next step is about to be taken", "the coordinator's next decision");
    };
    let nothing = KubernetesObservation::default();
    let look = look(view).unwrap_or(&nothing);
    let seen = look.nodes.as_ref().map(|seen| seen.what.as_slice());
    let failure = look.failure.as_ref().map(|failure| failed(&failure.what));
    let why = match &departure.object {
        DepartingObject::Unknown => failure
            .or_else(|| own(snapshot, view, row.policy, seen?).err())
            .unwrap_or_else(|| about("its Kubernetes node is being looked for")),
        DepartingObject::Node { name, uid } => {
            let node = seen.and_then(|nodes| nodes.iter().find(|node| node.object.uid == *uid));
            let held = node.filter(|node| node.deleting && !node.finalizers.is_empty()).map(held);
            failure.or(held).unwrap_or_else(|| about(&format!("Kubernetes node {name} is being deleted")))
        }
        DepartingObject::Gone => {
            let withdrawn = handshake::is_withdrawn(snapshot, view.row).err();
            withdrawn.unwrap_or_else(|| about("the requests about its Kubernetes node are being removed"))
        }
    };
    let Blocked { reason, mut message, mut clears_when } = why;
    let name = &view.row.name;
    let minutes = NODE_GONE_MS / 60_000;
    if is_late(snapshot, departure) {
        message.push_str(&format!(" (for over {minutes} min: a person is needed)"));
    }
    clears_when.push_str(&match (row.policy, &departure.object) {
        (_, DepartingObject::Gone) => format!("; after {} s they are left behind", REQUESTS_GONE_MS / 1_000),
        (RemovalPolicy::Forced, _) => format!("; after {minutes} min its node is left behind"),
        (RemovalPolicy::Graceful | RemovalPolicy::Unsafe, _) => {
            format!("; or `musterctl remove {name} --policy forced`: after {minutes} min its node is left behind")
        }
    });
    Blocked { reason, message, clears_when }
}

/// A node that is being deleted, with who holds it.
fn held(node: &KubernetesNode) -> Blocked {
    let (name, finalizers) = (&node.object.name, node.finalizers.join(", "));
    blocked(
        Reason::LeavingKubernetes,
        format!("Error: Kubernetes node {name} is being deleted, and is held by {finalizers}"),
        format!(
            "the controller behind that finalizer has let it go; or, if it is gone for good, `kubectl patch node \
             {name} --type=merge -p '{{\"metadata\":{{\"finalizers\":null}}}}'`"
        ),
    )
}

/// What a removal that gives up leaves in the cluster, for its operator. None: nothing.
#[must_use]
pub fn left_behind(facts: &Facts, row: &MachineRow) -> Option<String> {
    facts.spec(&row.spec.cluster_name)?.kubernetes.as_ref()?;
    let node = match row.departing_object()? {
        DepartingObject::Node { name, .. } => Some(name.as_str()),
        DepartingObject::Unknown => {
            let host = row.host.as_ref().map(|host| host.hostname.as_str());
            row.kubernetes_node.as_deref().or(host).filter(|_| may_have_node(row))
        }
        DepartingObject::Gone => return handshake::left_behind(facts, row),
    };
    node.map(|node| format!("its Kubernetes node is left behind: `kubectl delete node {node}`, if it is there"))
}

/// When time alone brings the next question or another reason, in monotonic milliseconds.
#[must_use]
pub fn wakes_at(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<u64> {
    departure(snapshot, view.row.removal.as_ref()?)?;
    let look = look(view)?;
    let later = |at: u64, by_ms: u64| at.saturating_add(by_ms);
    let seen = look.nodes.iter();
    let seen = seen.flat_map(|seen| [LOOK_EVERY_MS, FRESH_MS].map(|by_ms| later(seen.at_mono_ms, by_ms)));
    let deleted = look.node_deleted_mono_ms.map(|at| later(at, RETRY_MS));
    seen.chain(deleted).chain([free_at(look)]).filter(|at| *at > snapshot.now.mono_ms).min()
}
