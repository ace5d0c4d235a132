//! The Swarm drain in the record, its questions to agents, and their answers.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::model::{
    ClusterName, MachineId, MachineName, MachineType, Now, SwarmAvailability, SwarmFailure, SwarmFailureCode, SwarmId,
    SwarmOp, SwarmReply, SwarmTask,
};

use super::record::upgraded_stages;
use crate::{
    core::{
        Effect, Reply, SwarmQuestion,
        decide::{begin_stage, end_stage},
    },
    facts::{
        Asked, AuditObject, DepartingNode, DrainKind, DrainRow, Facts, KubernetesObservation, KubernetesTarget, MUSTER,
        MachineRow, NodeObservation, Peers, Seen, Stage, SwarmTarget, Transaction,
    },
    plan::{
        Limits,
        drain::{
            DrainStep, drained_stage, restored_stage,
            swarm::{SETTLE_MS, is_awaited, questions},
        },
        removal,
        snapshot::ClusterSnapshot,
        swarm::restore,
        update::targets,
    },
};

/// Maximum open questions for one agent: it answers 8 calls at once, and joining machines need some too. Every answer
/// brings the next question.
const OPEN_MAX: usize = 6;

/// Forgets what was seen before this step, and says nothing of what is there now.
fn forget(tx: &mut Transaction<'_>, machine: &MachineName, step: &DrainStep) {
    if *step == DrainStep::Begin(DrainKind::Swarm) {
        let look = &mut tx.live_mut(machine).swarm;
        (look.awaited_since_ms, look.fewest, look.fewer_at_ms) = (None, None, None);
        (look.begun_here, look.ordered, look.services) = (true, false, None);
        // Restore its current availability later: it may have changed since the last look.
        look.forget_node();
    }
    if *step == DrainStep::Begin(DrainKind::Kubernetes) {
        // What was seen before its turn may have changed.
        tx.live_mut(machine).kubernetes =
            KubernetesObservation { begun_here: true, ..KubernetesObservation::default() };
    }
    if matches!(step, DrainStep::Uncordon { of: DrainKind::Kubernetes, .. }) {
        // How the node was while the machine was disturbed says nothing of how it is now.
        tx.live_mut(machine).kubernetes.nodes = None;
    }
    if *step == DrainStep::KubernetesTarget(KubernetesTarget::Unknown) {
        // It was asked for by name alone.
        tx.live_mut(machine).kubernetes.nodes = None;
    }
    if *step == DrainStep::SwarmTarget(SwarmTarget::Unknown) {
        let look = &mut tx.live_mut(machine).swarm;
        look.forget_node();
        look.services = None;
    }
}

pub(super) fn record(tx: &mut Transaction<'_>, machine: &MachineName, step: DrainStep, now: Now) {
    forget(tx, machine, &step);
    let Some(row) = tx.machine_mut(machine) else { return };
    let Some(mine) = &mut row.update else { return };
    match step {
        DrainStep::Begin(kind) => {
            match kind {
                DrainKind::Kubernetes => {
                    mine.drains.kubernetes =
                        Some(DrainRow { since_ms: now.wall_ms, target: KubernetesTarget::Unknown });
                }
                DrainKind::Swarm => {
                    mine.drains.swarm = Some(DrainRow { since_ms: now.wall_ms, target: SwarmTarget::Unknown });
                }
            }
            *mine.drains.begun.entry(kind).or_default() += 1;
            end_stage(row, Stage::LocksInactive, true, now);
            for before in
                [Stage::KubernetesDrained, Stage::SwarmDrained].into_iter().filter(|stage| *stage < drained_stage(kind))
            {
                if row.stages.contains_key(&before) {
                    end_stage(row, before, true, now);
                }
            }
            begin_stage(row, drained_stage(kind), now);
        }
        DrainStep::KubernetesTarget(target) => {
            if let Some(drain) = &mut mine.drains.kubernetes {
                drain.target = target;
            }
        }
        DrainStep::SwarmTarget(target) => {
            if let Some(drain) = &mut mine.drains.swarm {
                drain.target = target;
            }
        }
        DrainStep::Uncordon { of, upgraded } => {
            if of == DrainKind::Kubernetes {
                mine.forced_pods.clear();
            }
            if upgraded {
                upgraded_stages(row, now);
            } else {
                end_stage(row, drained_stage(of), false, now);
            }
            begin_stage(row, restored_stage(of), now);
        }
        DrainStep::Uncordoned(kind) => {
            match kind {
                DrainKind::Kubernetes => mine.drains.kubernetes = None,
                DrainKind::Swarm => mine.drains.swarm = None,
            }
            end_stage(row, restored_stage(kind), true, now);
        }
    }
}

/// Clusters with questions for their swarms: about a drain, the managers, or the state that a machine's node gets back.
/// Most steps have none.
pub(in crate::core) fn asking(facts: &Facts) -> BTreeSet<&ClusterName> {
    let drains = |row: &MachineRow| row.update.as_ref().is_some_and(|update| update.drains.swarm.is_some());
    let is_counted = |row: &MachineRow| row.slot.is_some() && row.swarm.as_ref().is_some_and(|member| member.manager);
    let asks = |row: &MachineRow| drains(row) || is_counted(row) || restore::owed(row).is_some() || row.departs();
    facts.machines.values().filter(|row| asks(row)).map(|row| &row.spec.cluster_name).collect()
}

/// Asks the next questions: one for each machine at a time, within the limit of each agent.
pub(in crate::core) fn ask(tx: &mut Transaction<'_>, limits: &Limits, now: Now, effects: &mut Vec<Effect>) {
    let facts: &Facts = tx;
    let (mut awaited, mut questions, mut restored) = (Vec::new(), Vec::new(), Vec::new());
    let snapshots = asking(facts).into_iter().filter_map(|cluster| ClusterSnapshot::of(facts, cluster, limits, now));
    for snapshot in &snapshots.collect::<Vec<_>>() {
        for view in targets(snapshot) {
            awaited.push((view.row.name.clone(), is_awaited(snapshot, view)));
        }
        let leaving = snapshot.machines.iter();
        let leaving = leaving.filter_map(|p| Some((&p.row.name, removal::questions::next(snapshot, p)?)));
        let done = snapshot.machines.iter().filter(|view| restore::is_done(snapshot, view));
        restored.extend(done.map(|view| view.row.name.clone()));
        let owing = snapshot.machines.iter();
        let owing = owing.filter_map(|view| Some((&view.row.name, restore::next(snapshot, view)?)));
        let all = questions::all(snapshot).into_iter().chain(leaving).chain(owing);
        questions.extend(all.map(|(name, question)| (name.clone(), question)));
    }
    restored.into_iter().for_each(|machine| is_restored(tx, &machine, now));
    stop_waiting(tx, &awaited);
    for (name, waits) in awaited {
        let since_ms = &mut tx.live_mut(&name).swarm.awaited_since_ms;
        *since_ms = waits.then(|| since_ms.unwrap_or(now.wall_ms));
    }
    let mut open: BTreeMap<MachineId, usize> = BTreeMap::new();
    for asked in tx.live.machines.values().filter_map(|live| live.swarm.asked.as_ref()) {
        *open.entry(asked.agent).or_default() += 1;
    }
    for (about, question) in questions {
        let open = open.entry(question.agent).or_default();
        if *open >= OPEN_MAX {
            continue;
        }
        *open += 1;
        let number = tx.next_question();
        let questions::Question { agent, op, timeout_ms } = question;
        let look = &mut tx.live_mut(&about).swarm;
        if let SwarmOp::SetAvailability { availability, .. } = op {
            look.unsettled.retain(|_, seen| seen.at_mono_ms.saturating_add(SETTLE_MS) > now.mono_ms);
            look.unsettled.insert(number, Seen { what: availability, at_mono_ms: now.mono_ms });
            look.moved_mono_ms = Some(now.mono_ms);
            if availability == SwarmAvailability::Drain {
                look.ordered = true;
                look.tasks = None;
                look.losing.clear();
            }
        }
        look.asked = Some(Asked { number, agent, op: op.clone(), at_mono_ms: now.mono_ms });
        effects.push(Effect::AskSwarm(SwarmQuestion { number, about, agent, op, timeout_ms }));
    }
}

/// The machine's node has its former node's state back.
fn is_restored(tx: &mut Transaction<'_>, machine: &MachineName, now: Now) {
    let Some(former) = tx.machine_mut(machine).and_then(|row| row.former_node.take()) else { return };
    let line = format!("machine {machine}: its Swarm node has what its former one, {}, had", former.id);
    tx.audit(MUSTER, "swarm", AuditObject::Machine(machine), &line, now.wall_ms);
}

/// Resets the wait for the swarm of machines outside updates, so that the next wait gets its full time.
fn stop_waiting(tx: &mut Transaction<'_>, awaited: &[(MachineName, bool)]) {
    let waits = |name: &MachineName| awaited.iter().any(|(waiting, _)| waiting == name);
    let since = tx.live.machines.iter().filter(|(name, live)| live.swarm.awaited_since_ms.is_some() && !waits(name));
    let since: Vec<MachineName> = since.map(|(name, _)| name.clone()).collect();
    for name in since {
        tx.live_mut(&name).swarm.awaited_since_ms = None;
    }
}

/// Handles the result of a question, and ignores an obsolete one.
pub(in crate::core) fn answered(
    tx: &mut Transaction<'_>,
    about: &MachineName,
    number: u64,
    result: Result<SwarmReply, SwarmFailure>,
    now: Now,
) -> Reply {
    let Some(row) = tx.machines.get(about) else { return Reply::Ok };
    let id = node_of(row);
    let look = &mut tx.live_mut(about).swarm;
    let Some(asked) = look.asked.take_if(|asked| asked.number == number) else { return Reply::Ok };
    match result {
        Ok(reply) => {
            look.failures.remove(&asked.agent);
            let has_labels = matches!(asked.op, SwarmOp::AddLabels { .. });
            replied(look, asked, reply, id, now);
            if let Some(former) = tx.machine_mut(about).and_then(|row| row.former_node.as_mut()).filter(|_| has_labels)
            {
                former.labels.clear();
            }
        }
        Err(failure) => failed(look, asked, failure, now),
    }
    Reply::Ok
}

/// The node that a machine's questions are about; None: it is not recorded yet.
fn node_of(row: &MachineRow) -> Option<SwarmId> {
    if let Some(departure) = row.removal.as_ref().and_then(|removal| removal.departure.as_ref()) {
        return match &departure.node {
            DepartingNode::Node(id) => Some(id.clone()),
            DepartingNode::Unknown | DepartingNode::Absent => None,
        };
    }
    if row.spec.machine_type == MachineType::Control {
        return row.swarm.as_ref().map(|member| member.node_id.clone());
    }
    if restore::owed(row).is_some() {
        return row.swarm.as_ref().map(|member| member.node_id.clone());
    }
    match &row.update.as_ref()?.drains.swarm.as_ref()?.target {
        SwarmTarget::Node { id, .. } => Some(id.clone()),
        SwarmTarget::Unknown | SwarmTarget::Absent => None,
    }
}

fn replied(look: &mut NodeObservation, asked: Asked, reply: SwarmReply, id: Option<SwarmId>, now: Now) {
    let at_mono_ms = asked.at_mono_ms;
    match reply {
        SwarmReply::Info(info) => look.info = Some(Seen { what: info, at_mono_ms }),
        SwarmReply::Nodes(nodes) => {
            let id = id.or_else(|| look.info.as_ref().and_then(|info| info.what.node.clone()));
            if look.manager != Some(asked.agent) {
                look.forget_node();
            }
            let peers = nodes.iter().filter(|node| Some(&node.id) != id.as_ref());
            let peers = peers.filter_map(|node| Some((&node.id, node.manager.as_ref()?.reachable)));
            let away = peers.clone().filter(|(_, reachable)| !reachable).map(|(id, _)| id.clone()).collect();
            look.peers = Some(Seen { what: Peers { managers: peers.count(), away }, at_mono_ms });
            let found = nodes.into_iter().find(|node| Some(&node.id) == id.as_ref());
            look.manager = Some(asked.agent);
            // If it was asked before its node was known, the answer is ignored.
            look.node = id.map(|_| Seen { what: found, at_mono_ms });
        }
        SwarmReply::Tasks(tasks) if look.manager == Some(asked.agent) => {
            let left = u32::try_from(tasks.len()).unwrap_or(u32::MAX);
            if look.fewest.is_some_and(|fewest| left < fewest) {
                look.fewer_at_ms = Some(now.wall_ms);
            }
            look.fewest = Some(look.fewest.map_or(left, |fewest| fewest.min(left)));
            let tasks = by_service(&tasks);
            if look.tasks.as_ref().is_none_or(|seen| seen.what != tasks) {
                look.moved_mono_ms = Some(now.mono_ms);
            }
            look.losing.extend(tasks.keys().cloned());
            look.tasks = Some(Seen { what: tasks, at_mono_ms });
        }
        SwarmReply::Services(services) if look.manager == Some(asked.agent) => {
            let named = services.into_iter().map(|service| (service.name.clone(), service)).collect();
            look.services = Some(Seen { what: named, at_mono_ms });
        }
        // The managers report the node's new state when they are asked again.
        SwarmReply::Done => {
            look.unsettled.remove(&asked.number);
            look.node = None;
            if matches!(asked.op, SwarmOp::Leave { .. }) {
                look.info = None;
            }
            look.moved_mono_ms = Some(now.mono_ms);
        }
        SwarmReply::Tasks(_) | SwarmReply::Services(_) | SwarmReply::Labels(_) | SwarmReply::Tokens(_) => {}
    }
}

fn by_service(tasks: &[SwarmTask]) -> BTreeMap<String, u32> {
    let mut services = BTreeMap::new();
    for task in tasks {
        *services.entry(task.service.clone()).or_default() += 1;
    }
    services
}

fn failed(look: &mut NodeObservation, asked: Asked, failure: SwarmFailure, now: Now) {
    // After a timeout or an engine failure, the change may still be carried out.
    let uncertain =
        matches!(failure.code, SwarmFailureCode::Timeout | SwarmFailureCode::Engine | SwarmFailureCode::NoQuorum);
    if !uncertain {
        look.unsettled.remove(&asked.number);
    }
    if look.manager == Some(asked.agent) {
        look.forget_node();
    }
    look.failures.insert(asked.agent, Seen { what: failure, at_mono_ms: now.mono_ms });
}
