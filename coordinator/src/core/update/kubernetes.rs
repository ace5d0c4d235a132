//! Questions to clusters' Kubernetes API servers, and their answers.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use muster_proto::{
    model::{ClusterName, KubernetesDrain, MachineName, MachineType, Now},
    seeded_bug::seeded_bug,
};

use crate::{
    core::{Effect, KubernetesQuestion, Reply},
    facts::{
        AuditObject, EvictedPod, Facts, KubernetesAsked, KubernetesObservation, MUSTER, MachineRow, Seen, Transaction,
        Undrainable,
        kubernetes::{Eviction, KubernetesFailure, KubernetesNode, KubernetesOp, KubernetesReply, NodeLoad, PodRef},
    },
    plan::{
        Limits,
        drain::kubernetes::{BIND_MS, events, eviction, identity, is_awaited, others_disturbed, questions},
        secrets,
        snapshot::ClusterSnapshot,
        update::targets,
    },
};

/// Control machines whose addresses go with a question. All are connected to at once.
const FALLBACKS_MAX: usize = 9;

/// Clusters with a Kubernetes whose open update may have questions for it.
fn asking(facts: &Facts) -> BTreeSet<&ClusterName> {
    let open = facts.rollouts.values().filter(|row| row.finished_at_ms.is_none() && row.update.is_some());
    let has_kubernetes = |cluster: &&ClusterName| facts.spec(cluster).is_some_and(|spec| spec.kubernetes.is_some());
    open.map(|row| &row.cluster).filter(has_kubernetes).collect()
}

/// Asks the next questions: one for each machine at a time.
pub(in crate::core) fn ask(tx: &mut Transaction<'_>, limits: &Limits, now: Now, effects: &mut Vec<Effect>) {
    let facts: &Facts = tx;
    let (mut asked, mut awaited, mut told) = (Vec::new(), Vec::new(), Vec::new());
    for cluster in asking(facts) {
        let Some(snapshot) = ClusterSnapshot::of(facts, cluster, limits, now) else { continue };
        let Some(spec) = &snapshot.spec.kubernetes else { continue };
        awaited.extend(targets(&snapshot).map(|view| (view.row.name.clone(), is_awaited(&snapshot, view))));
        let kubeconfig = secrets::find(facts, cluster, &spec.kubeconfig).cloned();
        let of_nodes = targets(&snapshot).flat_map(|view| {
            let due = events::due(&snapshot, view).into_iter();
            due.map(|event| (view.row.name.clone(), event)).collect::<Vec<_>>()
        });
        told.extend(of_nodes.map(|(about, op)| (about, op, kubeconfig.clone())));
        let questions = questions::all(&snapshot).into_iter();
        asked.extend(
            questions.map(|(about, op)| (about.clone(), op, kubeconfig.clone().ok_or(spec.kubeconfig.clone()))),
        );
    }
    for (machine, waits) in awaited {
        let since_ms = tx.live.machines.get(&machine).and_then(|live| live.kubernetes.awaited_since_ms);
        if waits != since_ms.is_some() {
            tx.live_mut(&machine).kubernetes.awaited_since_ms = waits.then_some(now.wall_ms);
        }
    }
    for (about, op, kubeconfig) in told {
        let (KubernetesOp::Event { reason, message, .. }, Some(kubeconfig)) = (&op, kubeconfig) else { continue };
        let number = tx.next_question();
        let seen = Seen { what: message.clone(), at_mono_ms: now.mono_ms };
        tx.live_mut(&about).kubernetes.told.insert(reason, seen);
        let fallbacks = control_addresses(tx, &about);
        // Best effort: it occupies no place, and its answer is ignored.
        effects.push(Effect::AskKubernetes(KubernetesQuestion { number, about, kubeconfig, op, fallbacks }));
    }
    for (about, op, kubeconfig) in asked {
        let number = tx.next_question();
        let look = &mut tx.live_mut(&about).kubernetes;
        let kubeconfig = match kubeconfig {
            Ok(kubeconfig) => kubeconfig,
            Err(name) => {
                let what = KubernetesFailure::Other(format!("there is no secret {name}, which spec.kubernetes names"));
                look.failure = Some(Seen { what, at_mono_ms: now.mono_ms });
                continue;
            }
        };
        match &op {
            KubernetesOp::Cordon { .. } => look.unsettled_mono_ms = Some(now.mono_ms),
            KubernetesOp::Evict { .. } => {
                look.evicted_at_mono_ms = Some(now.mono_ms);
                look.evicted_number = number;
            }
            _ => {}
        }
        let op = if seeded_bug("evict-without-uid") { without_uids(op) } else { op };
        look.asked = Some(KubernetesAsked { number, op: op.clone(), at_mono_ms: now.mono_ms });
        let fallbacks = control_addresses(tx, &about);
        effects.push(Effect::AskKubernetes(KubernetesQuestion { number, about, kubeconfig, op, fallbacks }));
    }
}

/// Addresses of the control machines that may have an API server, in the cluster of this machine.
fn control_addresses(facts: &Facts, machine: &MachineName) -> Vec<IpAddr> {
    let Some(row) = facts.machines.get(machine) else { return Vec::new() };
    let control = |row: &&Arc<MachineRow>| {
        let deployed = row.ready_at.is_some() && !row.revoked && row.removal.is_none();
        row.spec.machine_type == MachineType::Control && deployed
    };
    let controls = facts.machines_of(&row.spec.cluster_name).filter(control);
    controls.filter_map(|row| row.internal_ip()?.parse().ok()).take(FALLBACKS_MAX).collect()
}

/// Seeded bug: evict whichever pod has the name.
fn without_uids(op: KubernetesOp) -> KubernetesOp {
    let KubernetesOp::Evict { mut pods } = op else { return op };
    pods.iter_mut().for_each(|pod| pod.uid.clear());
    KubernetesOp::Evict { pods }
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
    let result = result.and_then(|reply| is_same_cluster(tx, &row.spec.cluster_name, reply, now));
    let facts: &Facts = tx;
    let cluster = &row.spec.cluster_name;
    let snapshot = ClusterSnapshot::of(facts, cluster, limits, now);
    let policy = snapshot.as_ref().and_then(|snapshot| snapshot.spec.kubernetes.as_ref()).map(|spec| spec.drain);
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
    Reply::Ok
}

/// The first answer of a cluster pins its UID; another cluster behind the same address is not believed.
fn is_same_cluster(
    tx: &mut Transaction<'_>,
    cluster: &ClusterName,
    reply: KubernetesReply,
    now: Now,
) -> Result<KubernetesReply, KubernetesFailure> {
    let (KubernetesReply::Nodes { cluster_uid: found, .. }
    | KubernetesReply::Load { cluster_uid: found, .. }
    | KubernetesReply::ControlPlane { cluster_uid: found, .. }) = &reply
    else {
        return Ok(reply);
    };
    let known = tx.clusters.get(cluster).and_then(|row| row.kubernetes_uid.clone());
    match known {
        Some(known) if known == *found || seeded_bug("believe-another-cluster") => Ok(reply),
        Some(known) => Err(KubernetesFailure::AnotherCluster { known, found: found.clone() }),
        None => {
            let line = format!("cluster {cluster}: its Kubernetes is the one whose kube-system has UID {found}");
            if let Some(row) = tx.cluster_mut(cluster) {
                row.kubernetes_uid = Some(found.clone());
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
            loaded(look, load, at_mono_ms, (&policy, at_rest), now);
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
        KubernetesReply::ControlPlane { servers: what, .. } => look.control_plane = Some(Seen { what, at_mono_ms }),
        KubernetesReply::Done => {}
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
    (policy, at_rest): (&KubernetesDrain, bool),
    now: Now,
) {
    let left = eviction::leaving(&load).count();
    if look.fewest.is_some_and(|fewest| left < fewest) {
        look.fewer_at_ms = Some(now.wall_ms);
    }
    look.fewest = Some(look.fewest.map_or(left, |fewest| fewest.min(left)));
    let there: BTreeSet<&str> = load.pods.iter().map(|pod| pod.object.uid.as_str()).collect();
    look.refused.retain(|uid, _| there.contains(uid.as_str()));
    look.terminating.retain(|uid, _| there.contains(uid.as_str()));
    for pod in load.pods.iter().filter(|pod| pod.deletion_s.is_some()) {
        look.terminating.entry(pod.object.uid.clone()).or_insert(now.mono_ms);
    }
    note_returns(look, &load);
    note_terminating(look, &load);
    look.undrainable = eviction::undrainable(&load, policy).map(|why| {
        let known = look.undrainable.as_ref().filter(|_| at_rest);
        Undrainable { since_mono_ms: known.map_or(now.mono_ms, |known| known.since_mono_ms), why }
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
            let known = look.load.as_ref().and_then(|seen| seen.what.pods.iter().find(|known| known.object == *pod));
            let Some(known) = known else { return };
            let (controller, budgets) = (eviction::controller_of(known), known.budgets.clone());
            look.evicted.insert(pod.uid.clone(), EvictedPod { controller, budgets });
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
    if changes && !uncertain {
        look.unsettled_mono_ms = None;
    }
    // What was seen of the node has changed, or what is there now is uncertain.
    if changes || matches!(failure, KubernetesFailure::Conflict(_) | KubernetesFailure::NotFound(_)) {
        look.nodes = None;
    }
    look.failing_since_mono_ms.get_or_insert(now.mono_ms);
    look.failure = Some(Seen { what: failure, at_mono_ms: now.mono_ms });
}
