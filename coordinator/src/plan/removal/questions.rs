//! The next question to the swarm about a departing machine, and its addressee. The order: which node its own engine
//! is, and how the managers see that node. Then a manager is demoted, the engine leaves, and a manager removes the
//! node.

use muster_proto::{
    model::{Blocked, Reason, RemovalPolicy, SwarmId, SwarmNode, SwarmNodeState, SwarmOp},
    seeded_bug::seeded_bug,
};

use crate::{
    facts::{DepartingNode, NodeObservation, Peers},
    plan::{
        drain::swarm::{
            self, FRESH_MS, SETTLE_MS, look, node_ownership,
            questions::{LOOK_EVERY_MS, Question, RETRY_MS, known, manager, may_ask, own_engine, question},
        },
        safety::{self, blocked},
        snapshot::{ClusterSnapshot, MachineView},
    },
};

/// The departing node.
#[must_use]
pub fn leaving<'a>(view: &MachineView<'a>) -> Option<&'a DepartingNode> {
    view.row.removal.as_ref()?.departure.as_ref().map(|departure| &departure.node)
}

fn is_forced(view: &MachineView<'_>) -> bool {
    view.row.removal.as_ref().is_some_and(|row| row.policy == RemovalPolicy::Forced)
}

/// The next question about a departing machine. None: an answer is pending, or there is no machine to ask.
#[must_use]
pub fn next(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<Question> {
    // An outdated store would change nodes that the fleet has long finished with.
    if safety::store_is_current(snapshot).is_err() || snapshot.facts.meta.recovering {
        return None;
    }
    let look = look(view).filter(|look| look.asked.is_none())?;
    let id = match leaving(view)? {
        DepartingNode::Absent => return None,
        DepartingNode::Unknown => return own_engine(snapshot, view, look),
        DepartingNode::Node(id) => id,
    };
    let manager = manager(snapshot, view)?;
    let Some(found) = known(snapshot, view, look) else { return Some(question(manager, SwarmOp::Nodes)) };
    let found = found.as_ref()?;
    let change = |agent, op| Some(Question { agent, op, timeout_ms: SETTLE_MS });
    // The node in an earlier answer of its agent may be another machine's.
    if node_ownership::foreign(snapshot, view, id, Some(found)).is_some()
        || majority_is_kept(snapshot, look, found).is_err()
    {
        return None;
    }
    if found.manager.is_some() {
        return change(manager, SwarmOp::Demote { node: id.clone() });
    }
    let forced = is_forced(view);
    // This is independent of the managers' view: a reachable engine must learn that it has left the swarm.
    if let Some(leaves) = leave(snapshot, view, look, id).filter(|_| !forced) {
        return Some(leaves);
    }
    if forced || found.state == SwarmNodeState::Down {
        let hostname = found.hostname.clone();
        return change(manager, SwarmOp::Remove { node: id.clone(), hostname, force: forced });
    }
    let seen = look.node.as_ref().map_or(0, |seen| seen.at_mono_ms);
    (snapshot.now.mono_ms.saturating_sub(seen) >= LOOK_EVERY_MS).then(|| question(manager, SwarmOp::Nodes))
}

/// The request to its own engine to leave, unless it has left.
fn leave(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    look: &NodeObservation,
    id: &SwarmId,
) -> Option<Question> {
    let Some(info) = swarm::fresh(snapshot, look.info.as_ref()) else { return own_engine(snapshot, view, look) };
    let own = view.row.id.filter(|own| view.connected() && may_ask(snapshot, look, *own))?;
    let still = info.node.as_ref() == Some(id);
    still.then(|| Question { agent: own, op: SwarmOp::Leave { node: id.clone() }, timeout_ms: SETTLE_MS })
}

/// Do its managers report that the node is gone?
#[must_use]
pub fn is_forgotten(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    // Seeded bug: drop its row before the managers have removed the node.
    let gone = |look| known(snapshot, view, look).is_some_and(Option::is_none) || seeded_bug("drop-before-forgotten");
    look(view).is_some_and(gone)
}

/// Rule 1, the swarm's own quorum: the remaining managers have a majority among themselves, before and after a manager
/// is demoted.
fn majority_is_kept(snapshot: &ClusterSnapshot<'_>, look: &NodeObservation, found: &SwarmNode) -> Result<(), Blocked> {
    let Some(peers) = swarm::fresh(snapshot, look.peers.as_ref()) else {
        return Err(blocked(Reason::LeavingSwarm, "the managers of its swarm are being counted", "one has answered"));
    };
    is_majority(peers, found)
}

fn is_majority(peers: &Peers, found: &SwarmNode) -> Result<(), Blocked> {
    let (managers, reachable) = (peers.managers, peers.reachable());
    if (managers > 0 && reachable * 2 > managers) || seeded_bug("demote-without-quorum") {
        return Ok(());
    }
    let what = if found.manager.is_some() { "without it" } else { "that are left" };
    let message = format!("Error: {reachable} of {managers} managers of the swarm {what} are reachable: no majority");
    Err(blocked(Reason::Quorum, message, "a majority of them is reachable (`docker node ls` on a manager)"))
}

/// Why its departure is unfinished.
#[must_use]
pub fn waits(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Blocked {
    let about = |what: String| blocked(Reason::LeavingSwarm, what, "the swarm has answered");
    let nothing = NodeObservation::default();
    let look = look(view).unwrap_or(&nothing);
    let failure = view.row.id.and_then(|id| look.failures.get(&id)).map(|failure| &failure.what);
    if let Some(DepartingNode::Unknown) = leaving(view) {
        let said = look.info.as_ref().and_then(|seen| seen.what.node.as_ref());
        if let Some(why) = said.and_then(|id| node_ownership::foreign(snapshot, view, id, None)) {
            return why;
        }
        let info = look.info.as_ref().map(|seen| &seen.what).filter(|info| info.node.is_none());
        return about(match (failure, info) {
            (Some(failure), _) => format!("Error: its Docker Engine cannot be asked for its Swarm node: {failure}"),
            (None, Some(info)) => {
                format!("Error: its Docker Engine is on its way into a swarm, or cannot enter it: {}", info.error)
            }
            (None, None) => "its Docker Engine is being asked for its Swarm node".to_owned(),
        });
    }
    let why = || swarm::unanswered(snapshot, view, look);
    // A manager's earlier answer is obsolete once no manager can be asked.
    if let Some(why) =
        known(snapshot, view, look).is_none().then(why).filter(|why| why.reason == Reason::SwarmNoManager)
    {
        return why;
    }
    let Some(seen) = &look.node else { return about("its Swarm node is being looked at".to_owned()) };
    let Some(found) = &seen.what else { return about("its Swarm node is forgotten".to_owned()) };
    if let Some(why) = node_ownership::foreign(snapshot, view, &found.id, Some(found)) {
        return why;
    }
    // The last count is used: during a recount it stays the reason, so that reasons do not alternate.
    if let Some(Err(quorum)) = look.peers.as_ref().map(|seen| is_majority(&seen.what, found)) {
        return quorum;
    }
    let name = &found.hostname;
    about(match failure {
        _ if found.manager.is_some() => format!("waiting for swarm node {name} to be demoted first"),
        Some(failure) if !is_forced(view) => format!("Error: swarm node {name} does not leave: {failure}"),
        _ if found.state == SwarmNodeState::Down || is_forced(view) => {
            format!("waiting for swarm node {name} to be removed")
        }
        _ => format!("waiting for swarm node {name} to leave and to be down (it is {})", found.state),
    })
}

/// When time alone brings the next question, monotonic milliseconds.
#[must_use]
pub fn wakes_at(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<u64> {
    let look = look(view).filter(|look| look.asked.is_none() && leaving(view).is_some())?;
    let later = |at_mono_ms: u64, by_ms: u64| at_mono_ms.saturating_add(by_ms);
    let failures = look.failures.values().map(|failure| later(failure.at_mono_ms, RETRY_MS));
    let info = look.info.iter().map(|seen| later(seen.at_mono_ms, FRESH_MS));
    let node = look.node.iter().flat_map(|seen| [LOOK_EVERY_MS, FRESH_MS].map(|by_ms| later(seen.at_mono_ms, by_ms)));
    failures.chain(info).chain(node).filter(|at| *at > snapshot.now.mono_ms).min()
}
