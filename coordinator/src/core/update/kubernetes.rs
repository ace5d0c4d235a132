//! Questions to clusters' Kubernetes API servers, and their answers.

use core::net::IpAddr;
use std::{collections::BTreeSet, sync::Arc};

use muster_proto::{
    model::{ClusterName, KubernetesDrain, KubernetesSpec, MachineName, Now},
    seeded_bug::seeded_bug,
};

use crate::{
    core::{About, Effect, KubernetesQuestion, Reply},
    facts::{
        AuditObject, EvictedPod, Facts, KubernetesAsked, KubernetesObservation, MUSTER, MachineRow, OwedCordon, Seen,
        Transaction, Undrainable,
        kubernetes::{
            Deletion, Eviction, KubernetesAccess, KubernetesFailure, KubernetesNode, KubernetesOp, KubernetesReply,
            NodeLoad, PodRef,
        },
    },
    plan::{
        Limits,
        drain::kubernetes::{
            BIND_MS, access, control_plane, events,
            eviction::{self, KeptPod},
            forcing::DrainRules,
            identity, is_awaited, others_disturbed, owed, questions,
        },
        handshake, removal,
        snapshot::{ClusterSnapshot, MachineView},
        update::{renewal, targets},
    },
};

/// Clusters with a Kubernetes that may have questions for it: about an open update, or about former drains.
fn asking(facts: &Facts) -> BTreeSet<&ClusterName> {
    let open = facts.rollouts.values().filter(|row| row.finished_at_ms.is_none() && row.update.is_some());
    let open = open.map(|row| &row.cluster).filter(|cluster| has_kubernetes(facts, cluster));
    let departing = facts.machines.values().filter(|row| row.departs()).map(|row| &row.spec.cluster_name);
    let departing = departing.filter(|cluster| has_kubernetes(facts, cluster));
    open.chain(departing).chain(owing_or_unlisted(facts)).collect()
}

/// Clusters with a Kubernetes whose nodes may be cordoned for a drain that is over.
pub(in crate::core) fn owing_or_unlisted(facts: &Facts) -> impl Iterator<Item = &ClusterName> {
    let unlisted = facts.clusters.keys().filter(|cluster| !facts.live.cordons_known.contains(*cluster));
    owing(facts).chain(unlisted.filter(|cluster| has_kubernetes(facts, cluster)))
}

fn owing(facts: &Facts) -> impl Iterator<Item = &ClusterName> {
    let owing = facts.machines.values().filter(|row| row.owed_cordon.is_some());
    owing.map(|row| &row.spec.cluster_name).filter(|cluster| has_kubernetes(facts, cluster))
}

fn has_kubernetes(facts: &Facts, cluster: &ClusterName) -> bool {
    facts.spec_in_force(cluster).is_some_and(|spec| spec.kubernetes.is_some())
}

/// Asks the next questions: one for each machine at a time.
pub(in crate::core) fn ask(tx: &mut Transaction<'_>, limits: &Limits, now: Now, effects: &mut Vec<Effect>) {
    let facts: &Facts = tx;
    let (mut asked, mut awaited, mut told) = (Vec::new(), Vec::new(), Vec::new());
    for cluster in asking(facts) {
        let Some(snapshot) = ClusterSnapshot::of(facts, cluster, limits, now) else { continue };
        let Some(spec) = &snapshot.spec.kubernetes else { continue };
        awaited.extend(targets(&snapshot).map(|view| (view.row.name.clone(), is_awaited(&snapshot, view))));
        let access = way(&snapshot, spec);
        let of_nodes = targets(&snapshot).flat_map(|view| {
            let due = events::due(&snapshot, view).into_iter();
            due.map(|event| (view.row.name.clone(), event)).collect::<Vec<_>>()
        });
        told.extend(of_nodes.map(|(about, op)| (about, op, access.clone())));
        let questions = questions::all(&snapshot).into_iter().chain(owed::questions(&snapshot));
        let mut questions: Vec<_> = questions.chain(renewal::evictions(&snapshot)).collect();
        let leaves = removal::kubernetes::questions(&snapshot);
        // One at a time for each machine.
        questions.retain(|(about, _)| leaves.iter().all(|(leaving, _)| leaving != about));
        let questions = questions.into_iter().chain(leaves);
        asked.extend(questions.map(|(about, op)| (about.clone(), op, access.clone())));
    }
    for (machine, waits) in awaited {
        let since_ms = tx.live.machines.get(&machine).and_then(|live| live.kubernetes.awaited_since_ms);
        if waits != since_ms.is_some() {
            tx.live_mut(&machine).kubernetes.awaited_since_ms = waits.then_some(now.wall_ms);
        }
    }
    for (about, op, access) in told {
        let (KubernetesOp::Event { reason, message, .. }, Ok(access)) = (&op, access) else { continue };
        let (access, fallbacks) = access;
        let number = tx.next_question();
        let seen = Seen { what: message.clone(), at_mono_ms: now.mono_ms };
        tx.live_mut(&about).kubernetes.told.insert(reason, seen);
        // Best effort: it occupies no place, and its answer is ignored.
        let about = About::Machine(about);
        effects.push(Effect::AskKubernetes(KubernetesQuestion { number, about, access, op, fallbacks }));
    }
    for (about, op, access) in asked {
        let number = tx.next_question();
        let look = &mut tx.live_mut(&about).kubernetes;
        let cordons = matches!(op, KubernetesOp::Cordon { .. });
        let takes = matches!(op, KubernetesOp::Evict { .. } | KubernetesOp::Delete { .. });
        let deletes_node = matches!(op, KubernetesOp::DeleteNode { .. });
        let op = without_uids(op);
        let places = (&mut look.asked, &mut look.failure);
        if !put((number, About::Machine(about), op), access, places, now, effects) {
            look.failing_since_mono_ms.get_or_insert(now.mono_ms);
            continue;
        }
        if cordons {
            look.unsettled_mono_ms = Some(now.mono_ms);
        }
        if deletes_node {
            look.node_deleted_mono_ms = Some(now.mono_ms);
        }
        if takes {
            (look.evicted_at_mono_ms, look.evicted_number) = (Some(now.mono_ms), number);
        }
    }
}

/// How a cluster's API server is reached, and the servers to ask where it is not; or why it cannot be asked.
pub(super) type Way = Result<(KubernetesAccess, Arc<[IpAddr]>), KubernetesFailure>;

/// The way to this cluster's API server.
pub(super) fn way(snapshot: &ClusterSnapshot<'_>, spec: &KubernetesSpec) -> Way {
    let access = access::of(snapshot.facts, &snapshot.cluster.name, spec);
    access.map(|access| (access, control_plane::fallbacks(snapshot)))
}

/// Puts a question, and notes it as the one that is open. False: it cannot be asked, and the failure is noted.
pub(super) fn put(
    (number, about, op): (u64, About, KubernetesOp),
    way: Way,
    (asked, failure): (&mut Option<KubernetesAsked>, &mut Option<Seen<KubernetesFailure>>),
    now: Now,
    effects: &mut Vec<Effect>,
) -> bool {
    match way {
        Ok((access, fallbacks)) => {
            *asked = Some(KubernetesAsked { number, op: op.clone(), at_mono_ms: now.mono_ms });
            effects.push(Effect::AskKubernetes(KubernetesQuestion { number, about, access, op, fallbacks }));
            true
        }
        Err(what) => {
            *failure = Some(Seen { what, at_mono_ms: now.mono_ms });
            false
        }
    }
}

/// Clears the cordons of former drains that the nodes bear no more. Decisions follow: the next drain waits for it.
pub(in crate::core) fn clear_given_back(tx: &mut Transaction<'_>, limits: &Limits, now: Now) {
    let facts: &Facts = tx;
    let owing: BTreeSet<&ClusterName> = owing(facts).collect();
    let snapshots = owing.into_iter().filter_map(|cluster| ClusterSnapshot::of(facts, cluster, limits, now));
    let given_back = |snapshot: &ClusterSnapshot<'_>| {
        let views = snapshot.machines.iter().filter(|view| owed::is_given_back(snapshot, view));
        views.map(|view| view.row.name.clone()).collect::<Vec<_>>()
    };
    for machine in snapshots.flat_map(|snapshot| given_back(&snapshot)).collect::<Vec<_>>() {
        let Some(owed) = tx.machine_mut(&machine).and_then(|row| row.owed_cordon.take()) else { continue };
        let node = &owed.name;
        let line =
            format!("machine {machine}: its Kubernetes node {node} bears no cordon of an earlier drain any more");
        tx.audit(MUSTER, "kubernetes", AuditObject::Machine(&machine), &line, now.wall_ms);
    }
}

/// Records the cordons that no row knows, from a list of all nodes. An operator says when they are given back. Nodes of
/// no machine are left to their operators: one that is deployed later makes another list.
fn note_unknown(
    tx: &mut Transaction<'_>,
    cluster: &ClusterName,
    (nodes, at_mono_ms): (&[KubernetesNode], u64),
    limits: &Limits,
    now: Now,
) {
    let facts: &Facts = tx;
    if facts.live.cordons_known.contains(cluster) {
        return;
    }
    let snapshot = ClusterSnapshot::of(facts, cluster, limits, now);
    let Some(snapshot) = snapshot.filter(|snapshot| owed::may_lack_cordons(snapshot, at_mono_ms)) else { return };
    let unknown = nodes.iter().filter(|node| owed::is_unknown(&snapshot, node));
    let of_machines: Vec<(&KubernetesNode, MachineName)> =
        unknown.filter_map(|node| Some((node, owed::machine_of(&snapshot, node)?.clone()))).collect();
    let mut all_recorded = true;
    for (node, machine) in of_machines {
        let (name, uid) = (node.object.name.clone(), node.object.uid.clone());
        // It gives back one node after another.
        let Some(row) = tx.machine_mut(&machine).filter(|row| row.owed_cordon.is_none()) else {
            all_recorded = false;
            continue;
        };
        row.owed_cordon = Some(OwedCordon { name: name.clone(), uid, needs_review: true });
        let line = format!(
            "machine {machine}: its Kubernetes node {name} was cordoned by Muster, and this store does not know why"
        );
        tx.audit(MUSTER, "kubernetes", AuditObject::Machine(&machine), &line, now.wall_ms);
    }
    if all_recorded {
        tx.knows_cordons(cluster);
    }
}

/// Seeded bugs: evict whichever pod has the name, or delete whichever node.
fn without_uids(op: KubernetesOp) -> KubernetesOp {
    match op {
        KubernetesOp::Evict { mut pods } if seeded_bug("evict-without-uid") => {
            pods.iter_mut().for_each(|pod| pod.uid.clear());
            KubernetesOp::Evict { pods }
        }
        KubernetesOp::DeleteNode { name, .. } if seeded_bug("delete-node-without-uid") => {
            KubernetesOp::DeleteNode { name, uid: String::new() }
        }
        op => op,
    }
}

/// Handles the result of a question, and ignores an obsolete one.
pub(in crate::core) fn answered(
    tx: &mut Transaction<'_>,
    (about, number): (&MachineName, u64),
    result: Result<KubernetesReply, KubernetesFailure>,
    limits: &Limits,
    now: Now,
) -> Reply {
    let Some(row) = tx.machines.get(about).cloned() else { return Reply::Ok };
    let Some(asked) = tx.live_mut(about).kubernetes.asked.take_if(|asked| asked.number == number) else {
        return Reply::Ok;
    };
    let cluster = &row.spec.cluster_name;
    let pins = row.update.is_some() || row.departs();
    let result = result.and_then(|reply| is_same_cluster(tx, (cluster, pins), reply, now));
    if let (KubernetesOp::Nodes, Ok(KubernetesReply::Nodes { nodes, .. })) = (&asked.op, &result) {
        note_unknown(tx, cluster, (nodes, asked.at_mono_ms), limits, now);
    }
    let facts: &Facts = tx;
    let snapshot = ClusterSnapshot::of(facts, cluster, limits, now);
    let spec = snapshot.as_ref().and_then(|snapshot| snapshot.spec.kubernetes.as_ref());
    let policy = spec.map(|spec| spec.drain);
    let notes_node = matches!(asked.op, KubernetesOp::Nodes | KubernetesOp::Node { .. })
        && spec.is_some_and(|spec| spec.maintenance.is_some());
    let at_rest = snapshot.as_ref().is_some_and(|snapshot| {
        let view = snapshot.machines.iter().find(|view| view.row.name == *about);
        view.is_some_and(|view| !others_disturbed(snapshot, view))
    });
    let look = &mut tx.live_mut(about).kubernetes;
    match result {
        Ok(reply) => {
            (look.failure, look.failing_since_mono_ms) = (None, None);
            replied(look, &row, asked, reply, (policy.unwrap_or_default(), at_rest), now);
        }
        Err(failure) => failed(look, &asked, failure, now),
    }
    if notes_node {
        note_node(tx, about, limits, now);
    }
    Reply::Ok
}

/// Records the name of the machine's node, once that is certain, and who guards it: requests and locks are about it. No
/// other machine of the cluster has it any more.
fn note_node(tx: &mut Transaction<'_>, machine: &MachineName, limits: &Limits, now: Now) {
    let facts: &Facts = tx;
    let Some(row) = facts.machines.get(machine) else { return };
    let Some(snapshot) = ClusterSnapshot::of(facts, &row.spec.cluster_name, limits, now) else { return };
    let view = snapshot.machines.iter().find(|view| view.row.name == *machine);
    let nodes = view.and_then(|view| view.live?.kubernetes.nodes.as_ref());
    let (Some(view), Some(nodes)) = (view, nodes) else { return };
    let Some(node) = changed_node(&snapshot, view, &nodes.what) else { return };
    note(tx, machine, node);
}

/// Name and guarding labels of the machine's node, where these nodes show it for certain and the record differs.
pub(super) fn changed_node(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    nodes: &[KubernetesNode],
) -> Option<(String, Vec<String>)> {
    let node = identity::of(snapshot, view, nodes).ok()??;
    let (name, labels) = (node.object.name.clone(), handshake::guarding_labels(snapshot, node));
    let has_it = |row: &MachineRow| row.kubernetes_node.as_ref() == Some(&name);
    let has_another = |other: &MachineView<'_>| other.row.name != view.row.name && has_it(other.row);
    let is_noted = has_it(view.row) && view.row.guarding_labels == labels;
    (!is_noted || snapshot.machines.iter().any(has_another)).then_some((name, labels))
}

/// Records it, and that the node is no other machine's.
pub(super) fn note(tx: &mut Transaction<'_>, machine: &MachineName, (name, labels): (String, Vec<String>)) {
    let Some(cluster) = tx.machines.get(machine).map(|row| row.spec.cluster_name.clone()) else { return };
    let has_it = |other: &&Arc<MachineRow>| other.name != *machine && other.kubernetes_node.as_ref() == Some(&name);
    let others: Vec<MachineName> = tx.machines_of(&cluster).filter(has_it).map(|other| other.name.clone()).collect();
    for other in others {
        if let Some(other) = tx.machine_mut(&other) {
            (other.kubernetes_node, other.guarding_labels) = (None, Vec::new());
        }
    }
    if let Some(row) = tx.machine_mut(machine) {
        (row.kubernetes_node, row.guarding_labels) = (Some(name), labels);
    }
}

/// The first answer in an update pins the cluster's UID; another cluster behind the same address is not believed.
pub(in crate::core) fn is_same_cluster(
    tx: &mut Transaction<'_>,
    (cluster, pins): (&ClusterName, bool),
    reply: KubernetesReply,
    now: Now,
) -> Result<KubernetesReply, KubernetesFailure> {
    let Some(found) = reply.cluster_uid().map(str::to_owned) else { return Ok(reply) };
    let known = tx.clusters.get(cluster).and_then(|row| row.kubernetes_uid.clone());
    match known {
        Some(known) if known == found || seeded_bug("believe-another-cluster") => Ok(reply),
        Some(known) => Err(KubernetesFailure::another_cluster(&known, &found)),
        None if !pins => Ok(reply),
        None => {
            let line = format!("cluster {cluster}: its Kubernetes is the one whose kube-system has UID {found}");
            if let Some(row) = tx.cluster_mut(cluster) {
                row.kubernetes_uid = Some(found);
            }
            tx.audit(MUSTER, "kubernetes", AuditObject::Cluster(cluster), &line, now.wall_ms);
            Ok(reply)
        }
    }
}

fn replied(
    look: &mut KubernetesObservation,
    row: &MachineRow,
    asked: KubernetesAsked,
    reply: KubernetesReply,
    (policy, at_rest): (KubernetesDrain, bool),
    now: Now,
) {
    let at_mono_ms = asked.at_mono_ms;
    match reply {
        KubernetesReply::Nodes { nodes, .. } => {
            let what = nodes.into_iter().filter(|node| identity::is_candidate(row, node)).collect();
            look.nodes = Some(Seen { what, at_mono_ms });
            note_cordons(look, now);
        }
        KubernetesReply::Load { load, .. } => {
            look.load_number = asked.number;
            let forced = row.update.as_ref().map_or(&[][..], |mine| &mine.forced_pods);
            loaded(look, load, at_mono_ms, (&DrainRules { policy: &policy, forced }, at_rest), now);
        }
        KubernetesReply::Patched(node) => {
            // No earlier change can follow this one: it is guarded by an older version of the node.
            (look.unsettled_mono_ms, look.begun_here) = (None, true);
            has_changed(look, node, at_mono_ms);
            note_cordons(look, now);
        }
        KubernetesReply::Evicted(answers) => {
            look.evicted_at_mono_ms = Some(now.mono_ms);
            answers.into_iter().for_each(|(pod, answer)| evicted(look, &pod, answer, now));
        }
        KubernetesReply::Deleted(answer) => {
            (look.evicted_at_mono_ms, look.deleted_mono_ms) = (Some(now.mono_ms), Some(now.mono_ms));
            if let KubernetesOp::Delete { pod } = &asked.op {
                deleted(look, pod, answer, now);
            }
        }
        KubernetesReply::ControlPlane { servers: what, .. } => look.control_plane = Some(Seen { what, at_mono_ms }),
        // The next look shows whether it is gone.
        KubernetesReply::Done if matches!(asked.op, KubernetesOp::DeleteNode { .. }) => look.nodes = None,
        KubernetesReply::Handshake { .. }
        | KubernetesReply::Changed { .. }
        | KubernetesReply::DaemonSets { .. }
        | KubernetesReply::Addons { .. }
        | KubernetesReply::Applied(_)
        | KubernetesReply::Done => {}
    }
}

/// Notes since when the nodes have been unschedulable.
fn note_cordons(look: &mut KubernetesObservation, now: Now) {
    for node in look.nodes.iter().flat_map(|seen| &seen.what) {
        if node.unschedulable {
            look.unschedulable.entry(node.object.uid.clone()).or_insert(now.mono_ms);
        } else {
            look.unschedulable.remove(&node.object.uid);
        }
    }
}

fn has_changed(look: &mut KubernetesObservation, node: KubernetesNode, at_mono_ms: u64) {
    let mut nodes = look.nodes.take().map(|seen| seen.what).unwrap_or_default();
    nodes.retain(|known| known.object.uid != node.object.uid);
    nodes.push(node);
    look.nodes = Some(Seen { what: nodes, at_mono_ms });
}

/// A new list of the pods on the node.
fn loaded(
    look: &mut KubernetesObservation,
    load: NodeLoad,
    at_mono_ms: u64,
    (rules, at_rest): (&DrainRules<'_>, bool),
    now: Now,
) {
    let left = eviction::leaving(&load).count();
    if look.fewest.is_some_and(|fewest| left < fewest) {
        look.fewer_at_ms = Some(now.wall_ms);
    }
    look.fewest = Some(look.fewest.map_or(left, |fewest| fewest.min(left)));
    let there: BTreeSet<&str> = load.pods.iter().map(|pod| pod.object.uid.as_str()).collect();
    look.refused.retain(|uid, _| there.contains(uid.as_str()));
    look.undeleted.retain(|uid, _| there.contains(uid.as_str()));
    look.terminating.retain(|uid, _| there.contains(uid.as_str()));
    for pod in load.pods.iter().filter(|pod| pod.deletion_s.is_some()) {
        look.terminating.entry(pod.object.uid.clone()).or_insert(now.mono_ms);
    }
    note_returns(look, &load);
    note_terminating(look, &load);
    look.undrainable = eviction::undrainable(&load, rules).map(|KeptPod { pod, why }| {
        let known = look.undrainable.as_ref().filter(|_| at_rest);
        Undrainable { since_mono_ms: known.map_or(now.mono_ms, |known| known.since_mono_ms), pod, why }
    });
    look.load = Some(Seen { what: load, at_mono_ms });
    look.listed_mono_ms = now.mono_ms;
}

/// Notes pods that terminate: they are leaving, whether this process evicted them or another, or in an earlier drain.
fn note_terminating(look: &mut KubernetesObservation, load: &NodeLoad) {
    for pod in eviction::leaving(load).filter(|pod| pod.deletion_s.is_some()) {
        let known = || EvictedPod { controller: eviction::controller_of(pod), budgets: pod.budgets.clone() };
        look.evicted.entry(pod.object.uid.clone()).or_insert_with(known);
    }
}

/// Notes pods that came to the cordoned node after a pod of their controller was evicted from it. Those of the first
/// list after the cordon may have been bound before it.
fn note_returns(look: &mut KubernetesObservation, load: &NodeLoad) {
    let bound_until = look.unschedulable.values().max().map(|cordoned| cordoned.saturating_add(BIND_MS));
    let all_known = bound_until.zip(look.load.as_ref()).is_some_and(|(until, earlier)| earlier.at_mono_ms >= until);
    for pod in eviction::leaving(load) {
        let (uid, Some(controller)) = (&pod.object.uid, eviction::controller_of(pod)) else { continue };
        let evicted = look.evicted.values().any(|evicted| evicted.controller.as_ref() == Some(&controller));
        if !evicted || !all_known {
            look.known.insert(uid.clone());
        } else if !look.known.contains(uid) {
            look.returned.entry(controller).or_default().insert(uid.clone());
        }
    }
}

/// The answer to one eviction.
fn evicted(look: &mut KubernetesObservation, pod: &PodRef, answer: Result<Eviction, KubernetesFailure>, now: Now) {
    let seen = |what| Seen { what, at_mono_ms: now.mono_ms };
    match answer {
        Ok(Eviction::Accepted | Eviction::Gone) => {
            look.refused.remove(&pod.uid);
            is_leaving(look, pod);
        }
        // The server asks for 10 s.
        Ok(refusal @ Eviction::Unobserved(_)) => {
            let at_mono_ms = now.mono_ms.saturating_add(eviction::RETRY_MS);
            look.refused.insert(pod.uid.clone(), Seen { what: refusal, at_mono_ms });
        }
        Ok(refusal) => {
            look.refused.insert(pod.uid.clone(), seen(refusal));
        }
        Err(failure) => {
            // It is tried again after 5 s, or when the server says.
            let later_ms = match &failure {
                KubernetesFailure::Busy { after, .. } => u64::try_from(after.as_millis()).unwrap_or(0),
                _ => 0,
            };
            let at_mono_ms = now.mono_ms.saturating_add(later_ms.saturating_sub(eviction::RETRY_MS));
            let what = Eviction::Refused(failure.to_string());
            look.refused.insert(pod.uid.clone(), Seen { what, at_mono_ms });
            if stops_all(&failure) {
                look.failure = Some(Seen { what: failure, at_mono_ms: now.mono_ms });
            }
        }
    }
}

/// The pod is leaving, or is gone.
fn is_leaving(look: &mut KubernetesObservation, pod: &PodRef) {
    let known = look.load.as_ref().and_then(|seen| seen.what.pods.iter().find(|known| known.object == *pod));
    let Some(known) = known else { return };
    let (controller, budgets) = (eviction::controller_of(known), known.budgets.clone());
    look.evicted.insert(pod.uid.clone(), EvictedPod { controller, budgets });
}

/// The answer to the deletion of a pod.
fn deleted(look: &mut KubernetesObservation, pod: &PodRef, answer: Deletion, now: Now) {
    match answer {
        Deletion::Accepted | Deletion::Gone => {
            look.undeleted.remove(&pod.uid);
            is_leaving(look, pod);
        }
        // The next list shows that it is gone.
        Deletion::Replaced => {
            look.undeleted.remove(&pod.uid);
        }
        refusal @ (Deletion::Forbidden(_) | Deletion::Refused(_)) => {
            look.undeleted.insert(pod.uid.clone(), Seen { what: refusal, at_mono_ms: now.mono_ms });
        }
    }
}

/// Does this failure of one eviction concern every other request as well?
const fn stops_all(failure: &KubernetesFailure) -> bool {
    matches!(
        failure,
        KubernetesFailure::Unauthorized(_)
            | KubernetesFailure::Forbidden(_)
            | KubernetesFailure::Unreachable(_)
            | KubernetesFailure::Busy { .. }
    )
}

fn failed(look: &mut KubernetesObservation, asked: &KubernetesAsked, failure: KubernetesFailure, now: Now) {
    // Anything else proves that the change was not made.
    let uncertain = matches!(failure, KubernetesFailure::Unreachable(_) | KubernetesFailure::Other(_));
    let changes = matches!(asked.op, KubernetesOp::Cordon { .. } | KubernetesOp::Uncordon { .. });
    let deletes = matches!(asked.op, KubernetesOp::DeleteNode { .. });
    if changes && !uncertain {
        look.unsettled_mono_ms = None;
    } else if matches!(asked.op, KubernetesOp::Cordon { .. }) {
        // It may have been sent long after it was decided: a kubeconfig is read from a machine first.
        look.unsettled_mono_ms = Some(now.mono_ms);
    }
    // What was seen of the node has changed, or what is there now is uncertain.
    if changes || deletes || matches!(failure, KubernetesFailure::Conflict(_) | KubernetesFailure::NotFound(_)) {
        look.nodes = None;
    }
    look.failing_since_mono_ms.get_or_insert(now.mono_ms);
    look.failure = Some(Seen { what: failure, at_mono_ms: now.mono_ms });
}
