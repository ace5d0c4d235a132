//! Pods of `OnDelete` DaemonSets: which are of an older template, and whether one may leave its node now.

use muster_proto::model::{Blocked, MachineName, Reason};

use super::{is_member, waits};
use crate::{
    facts::kubernetes::{
        KubernetesNode,
        daemon_sets::{DaemonPod, DaemonSet, DaemonSets},
    },
    plan::{
        drain::kubernetes::{eviction, identity},
        handshake,
        safety::blocked,
        snapshot::{ClusterSnapshot, MachineView},
    },
};

/// Pods of an older template on this node, each with its DaemonSet.
pub(super) fn outdated<'d>(
    found: &'d DaemonSets,
    node: &'d str,
) -> impl Iterator<Item = (&'d DaemonSet, &'d DaemonPod)> {
    let of_node = found.sets.iter().flat_map(|set| set.pods.iter().map(move |pod| (set, pod)));
    of_node.filter(move |(set, pod)| pod.node == node && is_outdated(set, pod))
}

pub(super) fn is_outdated(set: &DaemonSet, pod: &DaemonPod) -> bool {
    !pod.pod.finished && set.newest.as_ref().is_some_and(|newest| pod.hash != *newest)
}

fn object_of<'d>(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    found: &'d DaemonSets,
) -> Result<Option<&'d KubernetesNode>, Blocked> {
    identity::of(snapshot, view, &found.nodes)
}

/// The name of the machine's node.
pub(super) fn node_of<'d>(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    found: &'d DaemonSets,
) -> Result<&'d str, Blocked> {
    Ok(object_of(snapshot, view, found)?.map_or("", |node| node.object.name.as_str()))
}

/// The machine that may have this node, where that is not certain, and why.
pub(super) fn unclear_owner<'a>(
    snapshot: &ClusterSnapshot<'a>,
    found: &DaemonSets,
    node: &str,
) -> Option<(&'a MachineName, Blocked)> {
    let node = found.nodes.iter().find(|known| known.object.name == node)?;
    let members = snapshot.machines.iter().filter(|view| is_member(snapshot, view));
    let mut candidates = members.filter(|view| identity::is_candidate(view.row, node));
    candidates.find_map(|view| Some((&view.row.name, object_of(snapshot, view, found).err()?)))
}

/// Why a pod of a DaemonSet can never be evicted as things are.
#[must_use]
pub fn never_leaves(found: &DaemonSets, pod: &DaemonPod) -> Option<String> {
    eviction::never_evicted(&found.budgets, &pod.pod)
}

/// Why no other pod would come after this one.
pub(super) fn lost(set: &DaemonSet, pod: &DaemonPod) -> Option<String> {
    let (node, taint) = (&pod.node, set.tainted.get(&pod.node)?);
    let name = eviction::name_of(&pod.pod.object);
    Some(format!(
        "node {node} has taint {taint}, which DaemonSet {} does not tolerate: no pod follows {name}",
        set.name
    ))
}

/// May this pod of the machine's node leave now, as far as the cluster shows?
///
/// # Errors
/// What is not as it has to be: node, taint, or another pod of its set.
pub(super) fn may_leave(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    found: &DaemonSets,
    (set, pod): (&DaemonSet, &DaemonPod),
) -> Result<(), Blocked> {
    let node = &pod.node;
    let requested = view.row.kubernetes_node.as_deref();
    // Its request, and the locks that answer it, are about that node.
    if handshake::spec(snapshot).is_some() && requested != Some(node) {
        let recorded = requested.unwrap_or("none that is known yet");
        let message = format!("Error: its maintenance is requested for Kubernetes node {recorded}, and not for {node}");
        return Err(blocked(Reason::KubernetesNodeUnclear, message, format!("its request is about {node}")));
    }
    if object_of(snapshot, view, found)?.is_none_or(|object| !object.ready) {
        return Err(waits(format!("node {node} is not Ready"), format!("it is (`kubectl describe node {node}`)")));
    }
    if let Some(why) = lost(set, pod) {
        return Err(waits(format!("Error: {why}"), "the taint is gone (`kubectl taint node`), or is tolerated"));
    }
    others_stand(set, pod)
}

/// Is every other pod of the set at work? Two nodes at a time must not lose their network. A pod that is broken already
/// takes nothing away: it may be what a new template mends, and other broken pods of older templates do not hold it.
fn others_stand(set: &DaemonSet, leaving: &DaemonPod) -> Result<(), Blocked> {
    let name = &set.name;
    let (mut there, mut away) = (0, None);
    for pod in set.pods.iter().filter(|pod| !pod.pod.finished) {
        there += 1;
        let terminates = pod.pod.deletion_s.is_some();
        let is_spared = !leaving.ready && !pod.ready && !terminates && is_outdated(set, pod);
        if pod.pod.object.uid != leaving.pod.object.uid && (terminates || !pod.ready) && !is_spared {
            away = away.or(Some((pod, if terminates { "terminates" } else { "is not Ready" })));
        }
    }
    if let Some((pod, is)) = away {
        let (object, node) = (&pod.pod.object, &pod.node);
        let message = format!("pod {} of DaemonSet {name} on {node} {is}", eviction::name_of(object));
        let (namespace, pod) = (&object.namespace, &object.name);
        let clears_when = format!(
            "it is Ready (`kubectl describe pod -n {namespace} {pod}`); or, if its node is gone for good, `kubectl \
             delete node {node}`"
        );
        return Err(waits(message, clears_when));
    }
    if there < set.desired {
        let message = format!("DaemonSet {name} has {there} pods on {} nodes", set.desired);
        return Err(waits(message, "each node has one (`kubectl get pods -o wide`)"));
    }
    if leaving.ready && set.available < set.desired {
        let message = format!("DaemonSet {name} counts {} of {} pods as available", set.available, set.desired);
        return Err(waits(message, "all are (`kubectl get daemonsets`, AVAILABLE)"));
    }
    Ok(())
}
