//! Cordons that outlive their drain: the identity of a machine ended in the middle of it, or the store was restored
//! from before it. The node is given back once its machine is in service.

use muster_proto::{
    model::{Blocked, MachineName, Reason},
    seeded_bug::seeded_bug,
};

use super::{SETTLE_MS, autoscaler, failed, fresh, identity, is_ours, look, questions, settles_at, spec};
use crate::{
    facts::{
        KubernetesObservation, OwedCordon,
        kubernetes::{KubernetesFailure, KubernetesNode, KubernetesOp},
    },
    plan::{
        safety::{self, blocked},
        snapshot::{ClusterSnapshot, MachineView},
    },
};

/// Interval between two questions, in milliseconds.
const ASK_EVERY_MS: u64 = 60_000;

/// The cordon that the machine's node bears without a drain. None: nothing is owed, or the machine is not in service.
/// A drain begins only after the node was given back.
fn due<'a>(view: &MachineView<'a>) -> Option<&'a OwedCordon> {
    let row = view.row;
    let in_drain = row.update.as_ref().is_some_and(|mine| mine.drains.kubernetes.is_some());
    let free = !in_drain && !row.departs() && row.slot.is_none();
    let serves = view.ready_once() && !row.revoked && !row.needs_review;
    row.owed_cordon.as_ref().filter(|_| free && serves)
}

/// May this store lack cordons of the past? All nodes are listed after each start, when no change that an earlier
/// coordinator ordered can be carried out any more, and after a new machine was deployed: its node may be a former
/// machine's.
#[must_use]
pub fn may_lack_cordons(snapshot: &ClusterSnapshot<'_>, at_mono_ms: u64) -> bool {
    let live = &snapshot.facts.live;
    let settled = at_mono_ms >= live.started_mono_ms.saturating_add(SETTLE_MS);
    let known = live.cordons_known.contains(&snapshot.cluster.name);
    // Seeded bug: every cordon is in the record.
    may_ask(snapshot) && settled && !known && !seeded_bug("ignore-unknown-cordons")
}

fn may_ask(snapshot: &ClusterSnapshot<'_>) -> bool {
    safety::store_is_current(snapshot).is_ok() && !snapshot.facts.meta.recovering
}

/// The machine that asks for the list of all nodes, if that is due: the first one without a part in an update.
fn lists<'a>(snapshot: &ClusterSnapshot<'a>) -> Option<&'a MachineName> {
    let free = |view: &&MachineView<'_>| view.update().is_none() && view.live.is_some() && !view.row.departs();
    let first = || snapshot.machines.iter().find(free).map(|view| &view.row.name);
    may_lack_cordons(snapshot, snapshot.now.mono_ms).then(first)?
}

/// The next questions, by the machine that each is about.
#[must_use]
pub fn questions<'a>(snapshot: &ClusterSnapshot<'a>) -> Vec<(&'a MachineName, KubernetesOp)> {
    if spec(snapshot).is_none() || !may_ask(snapshot) {
        return Vec::new();
    }
    let lists = lists(snapshot);
    let next = |view: &MachineView<'a>| {
        let name = &view.row.name;
        Some((name, next(snapshot, view, lists == Some(name))?))
    };
    snapshot.machines.iter().filter_map(next).collect()
}

fn next(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, lists: bool) -> Option<KubernetesOp> {
    let owed = due(view);
    if owed.is_none() && !lists {
        return None;
    }
    let look = questions::free(snapshot, view)?;
    if let Some(node) = owed.and_then(|owed| to_give_back(snapshot, view, owed)) {
        let (schedulable, scale_down) = (!node.keep_cordoned, autoscaler::given_back(node));
        return Some(KubernetesOp::Uncordon { node: node.object.clone(), schedulable, scale_down });
    }
    if snapshot.now.mono_ms < asks_at(look) {
        return None;
    }
    owed.filter(|_| !lists)
        .map_or(Some(KubernetesOp::Nodes), |owed| Some(KubernetesOp::Node { name: owed.name.clone() }))
}

/// When the next question is due, in monotonic milliseconds.
fn asks_at(look: &KubernetesObservation) -> u64 {
    // After a conflict there is another version of the node.
    let failure = look.failure.as_ref().filter(|failure| !matches!(failure.what, KubernetesFailure::Conflict(_)));
    let failed = failure.map(|failure| failure.at_mono_ms);
    let asked = look.nodes.iter().map(|seen| seen.at_mono_ms).chain(failed).max();
    asked.map_or(0, |at| at.saturating_add(ASK_EVERY_MS))
}

/// The owed node, if a look a moment ago shows that it can be given back.
fn to_give_back<'a>(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'a>,
    owed: &OwedCordon,
) -> Option<&'a KubernetesNode> {
    let nodes = fresh(snapshot, look(view)?.nodes.as_ref())?;
    let node = nodes.iter().find(|node| node.object.uid == owed.uid && is_ours(node))?;
    (!owed.needs_review && is_back(snapshot, view, nodes, node).is_ok()).then_some(node)
}

/// May the node take pods? It has to be this machine's, with a kubelet that is Ready in its current boot.
fn is_back(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    nodes: &[KubernetesNode],
    node: &KubernetesNode,
) -> Result<(), Blocked> {
    // An operator uncordoned it: only the annotation is left. Seeded bug: give it back at once.
    if !node.unschedulable || seeded_bug("owed-before-ready") {
        return Ok(());
    }
    let name = &node.object.name;
    if !identity::has_place(view.row, node) {
        return Err(not_restored(
            format!("Error: Kubernetes node {name} is cordoned since a drain of its former machine"),
            format!("`kubectl delete node {name}`, or `kubectl uncordon {name}` if another machine bears it"),
        ));
    }
    let own = identity::of(snapshot, view, nodes).map_err(|why| not_restored(why.message, why.clears_when))?;
    if own.is_some_and(|own| own.object.uid == node.object.uid) && node.ready {
        return Ok(());
    }
    Err(not_restored(
        format!("Error: Kubernetes node {name} is cordoned since an earlier drain, and is not Ready"),
        format!("its kubelet is Ready (`kubectl describe node {name}`)"),
    ))
}

fn not_restored(message: String, clears_when: String) -> Blocked {
    blocked(Reason::KubernetesNodeNotRestored, message, clears_when)
}

/// Has the node nothing of Muster's any more: it was given back, it is gone, or was made anew?
#[must_use]
pub fn is_given_back(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    let (Some(owed), Some(look)) = (due(view), look(view)) else { return false };
    let ours = |node: &KubernetesNode| node.object.uid == owed.uid && is_ours(node);
    let settled = |at_mono_ms: u64| settles_at(snapshot, look).is_none_or(|until| at_mono_ms >= until);
    let seen = look.nodes.as_ref().filter(|seen| settled(seen.at_mono_ms));
    may_ask(snapshot) && seen.is_some_and(|seen| !seen.what.iter().any(ours))
}

/// Does the node bear Muster's annotation without a row that knows it? A revoked machine gives nothing back.
#[must_use]
pub fn is_unknown(snapshot: &ClusterSnapshot<'_>, node: &KubernetesNode) -> bool {
    let mut rows = snapshot.machines.iter().map(|view| view.row).filter(|row| !row.revoked);
    is_ours(node) && !rows.any(|row| identity::is_recorded(row, node))
}

/// The machine whose node this is: the one in the node's boot, or else the only one of its name or address.
#[must_use]
pub fn machine_of<'a>(snapshot: &ClusterSnapshot<'a>, node: &KubernetesNode) -> Option<&'a MachineName> {
    let rows = || snapshot.machines.iter().map(|view| view.row).filter(|row| !row.revoked);
    let mut places = rows().filter(|row| identity::has_place(row, node));
    let booted = rows().find(|row| identity::has_place(row, node) && identity::has_boot(row, node));
    let only = places.next().filter(|_| places.next().is_none());
    booted.or(only).map(|row| &row.name)
}

/// The next time, Unix milliseconds, at which time alone brings a question.
#[must_use]
pub fn wakes_at_ms(snapshot: &ClusterSnapshot<'_>) -> Option<u64> {
    let lists = lists(snapshot);
    let of_machine = |view: &MachineView<'_>| {
        let look = look(view).filter(|_| due(view).is_some() || lists == Some(&view.row.name))?;
        [questions::free_at(look), asks_at(look)].into_iter().filter(|at| *at > snapshot.now.mono_ms).min()
    };
    let listed_at = snapshot.facts.live.started_mono_ms.saturating_add(SETTLE_MS);
    let listed_at = Some(listed_at).filter(|at| *at > snapshot.now.mono_ms);
    let moments = snapshot.machines.iter().filter_map(of_machine).chain(listed_at);
    moments.min().map(|mono_ms| snapshot.now.wall_ms + (mono_ms - snapshot.now.mono_ms))
}

/// What keeps the machine's node from being given back. None: nothing is owed.
#[must_use]
pub fn waits(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<Blocked> {
    spec(snapshot)?;
    let (owed, look) = (due(view), look(view)?);
    let failure = look.failure.as_ref().filter(|failure| !failure.what.may_pass());
    if let Some(failure) = failure.filter(|_| owed.is_some() || lists(snapshot) == Some(&view.row.name)) {
        return Some(failed(&failure.what));
    }
    let OwedCordon { name, uid, needs_review } = owed?;
    if *needs_review {
        let machine = &view.row.name;
        return Some(not_restored(
            format!(
                "Error: Kubernetes node {name} was cordoned by Muster (annotation muster/drained-for), and this store \
                 does not know why; `musterctl maintenance leave {machine}` gives it back"
            ),
            format!("you have looked at it (`kubectl describe node {name}`) and said so"),
        ));
    }
    let nodes = look.nodes.as_ref().map(|seen| seen.what.as_slice()).unwrap_or_default();
    let node = nodes.iter().find(|node| node.object.uid == *uid);
    Some(node.and_then(|node| is_back(snapshot, view, nodes, node).err()).unwrap_or_else(|| {
        not_restored(
            format!("Kubernetes node {name} is cordoned since an earlier drain, and is given back"),
            "the API server has confirmed it".to_owned(),
        )
    }))
}
