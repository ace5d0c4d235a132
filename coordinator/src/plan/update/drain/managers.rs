//! Rule 1, the swarm's own word: a manager is disturbed only while the others are a majority without it, as one of them
//! says. That the agent of a control machine is connected says nothing of its Docker Engine.

use muster_proto::{
    model::{Blocked, MachineType, SwarmId, SwarmOp},
    plant::planted,
};

use super::{
    fresh, look,
    questions::{LOOK_EVERY_MS, Question, manager, question},
    unanswered,
};
use crate::{
    facts::{Peers, SwarmLook},
    plan::{
        safety::blocked,
        survey::{Position, Survey},
    },
};

/// Are the other managers counted before this machine is disturbed? It is one by the word of its swarm-join, and nobody
/// accepts that the control plane may be down. Who is removed has its own count.
pub(super) fn is_asked(survey: &Survey<'_>, position: &Position<'_>) -> bool {
    let row = position.row;
    let control = row.spec.machine_type == MachineType::Control && row.removal.is_none();
    let manager = row.swarm.as_ref().is_some_and(|member| member.manager);
    let disruptive = position.update().is_some_and(|mine| mine.disruptive);
    let accepted = survey.update().is_none_or(|update| update.accept_control_plane_downtime);
    // Planted: the word of the agents is enough.
    control && manager && disruptive && !accepted && !planted("ignore-swarm-quorum")
}

/// Is there a majority of managers without this one, or can none come any more before its turn has ended? A machine
/// that was replaced is deployed when the update is over, and what was begun has to come to its end before.
fn is_enough(survey: &Survey<'_>, position: &Position<'_>, peers: &Peers) -> bool {
    let disturbed = position.update().is_some_and(|mine| mine.disturbed());
    let comes_back = |id: &SwarmId| {
        let owner = |p: &&Position<'_>| p.row.swarm.as_ref().is_some_and(|member| member.node_id == *id);
        survey.machines.iter().find(owner).is_some_and(|p| p.ready_once() && !p.row.revoked)
    };
    peers.reachable() * 2 > peers.managers + 1 || (disturbed && !peers.away.iter().any(comes_back))
}

/// The next question. None: an answer is at hand, or nobody can be asked.
pub(super) fn next(survey: &Survey<'_>, position: &Position<'_>, look: &SwarmLook) -> Option<Question> {
    let of = manager(survey, position)?;
    let seen = look.peers.as_ref().filter(|_| look.manager == Some(of) && fresh(survey, look.peers.as_ref()).is_some());
    let old = |at_mono_ms: u64| survey.now.mono_ms.saturating_sub(at_mono_ms) >= LOOK_EVERY_MS;
    let due = seen.is_none_or(|seen| !is_enough(survey, position, &seen.what) && old(seen.at_mono_ms));
    due.then(|| question(of, SwarmOp::Nodes))
}

/// Rule 1, the swarm's own quorum: the others are a majority of all its managers, as one of them said a moment ago.
///
/// # Errors
/// How many there are, or that nobody answers.
pub(super) fn majority(survey: &Survey<'_>, position: &Position<'_>) -> Result<(), Blocked> {
    let nothing = SwarmLook::default();
    let look = look(position).unwrap_or(&nothing);
    // What was begun has to come to its end; and where nobody can say how many they are there is no majority to lose.
    let disturbed = position.update().is_some_and(|mine| mine.disturbed());
    if disturbed && unanswered(survey, position, look).reason == "SwarmNoManager" {
        return Ok(());
    }
    let being_counted = || {
        let why = unanswered(survey, position, look);
        let what = "the other managers of its swarm are being counted";
        if why.reason == "SwarmNoManager" { why } else { blocked("Quorum", what, "one of them has answered") }
    };
    let Some(peers) = look.peers.as_ref().map(|seen| &seen.what) else { return Err(being_counted()) };
    if !is_enough(survey, position, peers) {
        let (name, managers, reachable) = (&position.row.name, peers.managers, peers.reachable());
        let others = format!("{reachable} of the {managers} other managers of its swarm");
        let message = format!("Error: {others} are reachable: without {name} it has no majority");
        let clears_when = "enough of them are reachable (`docker node ls` on a manager; is their Docker Engine up?)";
        return Err(blocked("Quorum", message, clears_when));
    }
    fresh(survey, look.peers.as_ref()).map(|_| ()).ok_or_else(being_counted)
}
