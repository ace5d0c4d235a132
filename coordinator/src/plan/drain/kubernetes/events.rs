//! Events on the node of a machine, so that `kubectl describe node` tells the story of its drain.

use muster_proto::model::{Blocked, Reason};

use super::{aim, drained, is_fresh, is_ours, look, recorded, row};
use crate::{
    facts::{KubernetesTarget, kubernetes::KubernetesOp},
    plan::{
        drain::Goal,
        snapshot::{ClusterSnapshot, MachineView},
    },
};

/// Time between two Events of one reason on a node, in milliseconds: a drain that waits tells so once in a while.
pub(super) const AGAIN_MS: u64 = 5 * 60_000;
/// Cordoned by Muster.
const CORDONED: &str = "MusterCordoned";
/// What keeps the drain.
const WAITING: &str = "MusterDrainWaits";
/// No pod is left that had to leave.
const DRAINED: &str = "MusterDrained";

/// The Events to record on the machine's node now.
#[must_use]
pub fn due(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Vec<KubernetesOp> {
    let Some(KubernetesTarget::Node { uid, .. }) = row(view) else { return Vec::new() };
    let seen = recorded(view, uid).filter(|seen| is_fresh(snapshot, seen));
    let Some(node) = seen.and_then(|seen| seen.what).filter(|node| is_ours(node)) else { return Vec::new() };
    let rollout = snapshot.rollout.map_or("", |rollout| rollout.name.as_str());
    let disturbed = view.update().is_some_and(|mine| mine.disturbed());
    let cordoned = (CORDONED, format!("cordoned for rollout {rollout} of machine {}", view.row.name), false);
    let state = match drained(snapshot, view).or_else(|blocked| if disturbed { Ok(()) } else { Err(blocked) }) {
        Ok(()) => Some((DRAINED, format!("drained for rollout {rollout}"), false)),
        Err(Blocked { reason: Reason::KubernetesUnavailable | Reason::Quorum, .. }) => None,
        // A drain that an operator halted, or that other machines keep, waits for nothing on the node.
        Err(_) if aim(snapshot, view) != Some(Goal::Drained) => None,
        Err(Blocked { message, .. }) => Some((WAITING, message.trim_start_matches("Error: ").to_owned(), true)),
    };
    let cordoned = Some(cordoned).filter(|(reason, ..)| !is_told(snapshot, view, reason, ""));
    let state = state.filter(|(reason, message, _)| !is_told(snapshot, view, reason, message));
    let untold = cordoned.into_iter().chain(state);
    let event =
        |(reason, message, warning)| KubernetesOp::Event { node: node.object.clone(), reason, message, warning };
    untold.map(event).collect()
}

/// Was an Event of this reason recorded in this drain, a moment ago if its message is another?
fn is_told(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, reason: &str, message: &str) -> bool {
    let told = look(view).and_then(|look| look.told.get(reason));
    told.is_some_and(|told| {
        let lately = snapshot.now.mono_ms.saturating_sub(told.at_mono_ms) < AGAIN_MS;
        lately || message.is_empty() || told.what == message
    })
}
