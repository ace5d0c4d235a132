//! The deployment: what to record and grant next. Level-triggered: a recorded step is not requested again, so a second
//! call with the same facts returns nothing.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::{
    model::{ClusterName, MachineName, MachineType, Phase},
    seeded_bug::seeded_bug,
};

use super::{
    assign,
    blocked::why_not_started,
    items::{self, complete_set, control_set},
    safety,
    snapshot::{ClusterSnapshot, MachineView, Progress},
    swarm,
    update::maintenance,
};
use crate::facts::{ControlSet, Member, Stage};

/// A step to record. The core applies it, and asks again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The deployment begins, or continues with machines that came later.
    OpenRollout {
        /// The cluster.
        cluster: ClusterName,
    },
    /// The control set changed between rollouts: machines that were Ready are reconfigured as in an update.
    OpenReconfigure {
        /// The cluster.
        cluster: ClusterName,
        /// The machines.
        machines: BTreeSet<MachineName>,
    },
    /// The machine joins a rollout.
    Join {
        /// The machine.
        machine: MachineName,
        /// The rollout.
        rollout: String,
    },
    /// The machine has completed its prepare items, and waits for its turn.
    Prepared {
        /// The machine.
        machine: MachineName,
    },
    /// The machine is Ready, and its slot is free.
    Ready {
        /// The machine.
        machine: MachineName,
    },
    /// The machine's first deployment failed, and a worker's slot is free again. Or, before its reconfigure items, the
    /// machine lacks something that only an update may supply.
    FreeSlot {
        /// The machine.
        machine: MachineName,
    },
    /// The last expected control machine is Ready: the set is complete.
    ControlSet {
        /// The cluster.
        cluster: ClusterName,
        /// Its members, in upgrade order.
        names: Vec<MachineName>,
        /// Their identities and addresses.
        members: BTreeMap<MachineName, Member>,
    },
    /// The list of the machine covers this phase from now on. The phases `deploy` and `reconfigure` come with a slot.
    Grant {
        /// The machine.
        machine: MachineName,
        /// The highest phase.
        phase: Phase,
        /// The control machines as its items see them.
        set: ControlSet,
    },
    /// Every machine of the rollout is Ready.
    CloseRollout {
        /// The rollout.
        rollout: String,
    },
}

/// The next steps to record or grant. Outcomes come before grants, so that a grant rests on current facts.
#[must_use]
pub fn next_steps(snapshot: &ClusterSnapshot<'_>) -> Vec<Step> {
    let outcomes = outcomes(snapshot);
    if !outcomes.is_empty() {
        return outcomes;
    }
    let Some(rollout) = snapshot.rollout else { return open(snapshot) };
    let joins = joins(snapshot, &rollout.name);
    if !joins.is_empty() {
        return joins;
    }
    let mut steps = grants(snapshot);
    if steps.is_empty() && may_close(snapshot) {
        steps.push(Step::CloseRollout { rollout: rollout.name.clone() });
    }
    steps
}

fn outcomes(snapshot: &ClusterSnapshot<'_>) -> Vec<Step> {
    let prepared = snapshot.machines.iter().filter(|view| is_prepared(view));
    let mut steps: Vec<Step> = prepared.map(|p| Step::Prepared { machine: p.row.name.clone() }).collect();
    for view in snapshot.machines.iter().filter(|view| view.row.slot.is_some()) {
        let planted_bug = (seeded_bug("free-slot-when-lost") && view.lost)
            || (seeded_bug("free-slot-when-held") && matches!(view.trouble(), Some(Progress::Held(_))));
        // The most expensive check comes last: of fifty machines at work, few have ended since.
        let step = outcome(view, planted_bug);
        steps.extend(step.filter(|_| planted_bug || assign::is_accepted(snapshot.facts, view)));
    }
    let set = complete_control_set(snapshot).or_else(|| recorded_set_as_it_is(snapshot));
    if let Some(views) = set {
        let cluster = snapshot.cluster;
        let names: Vec<MachineName> = views.iter().map(|view| view.row.name.clone()).collect();
        let members = views.iter().filter_map(|view| member(snapshot, view)).collect();
        if !cluster.are_controls(&names, &members) {
            steps.push(Step::ControlSet { cluster: cluster.name.clone(), names, members });
        }
    }
    steps
}

/// Outcome of a machine that holds a slot, provided that its agent has exactly the list that it should have.
fn outcome(view: &MachineView<'_>, planted_bug: bool) -> Option<Step> {
    let machine = view.row.name.clone();
    if view.all_done() {
        return Some(Step::Ready { machine });
    }
    let first_deploy_of_worker = view.row.spec.machine_type == MachineType::Worker && !view.ready_once();
    let needs_update = view.row.removal.is_none() && view.is_withheld() && maintenance::nothing_runs(view).is_ok();
    let needs_update = needs_update || is_leaving_idly(view);
    let frees = (first_deploy_of_worker && view.has_given_up()) || needs_update || planted_bug;
    frees.then_some(Step::FreeSlot { machine })
}

/// Is this a deployed control machine that is removed without a turn, and does nothing any more? It is removed once
/// every other is deployed, and a replaced one needs the slot for that.
fn is_leaving_idly(view: &MachineView<'_>) -> bool {
    let deployed = view.row.spec.machine_type == MachineType::Control && view.ready_once();
    let leaves = view.is_let_go() && view.update().is_none();
    deployed && leaves && view.is_withheld() && maintenance::nothing_runs(view).is_ok()
}

/// Has it completed its prepare items, with the stage still open? Its wait afterwards is outside that stage.
fn is_prepared(view: &MachineView<'_>) -> bool {
    let open = view.row.stages.get(&Stage::PrepareDone).is_some_and(|stage| stage.finished_at_ms.is_none());
    open && view.row.max_phase == Some(Phase::Prepare) && view.progress(Phase::Prepare) == Progress::Done
}

/// Remaining control machines of the recorded set, if one of the set was removed, or if a replacement took its place
/// and is Ready. Not during an update: its machines would have more to do than was frozen.
fn recorded_set_as_it_is<'s, 'a>(snapshot: &'s ClusterSnapshot<'a>) -> Option<Vec<&'s MachineView<'a>>> {
    let known = &snapshot.cluster.control_set;
    let stays = |view: &&MachineView<'_>| known.contains(&view.row.name);
    let there: Vec<&MachineView<'_>> = snapshot.of_type(MachineType::Control).filter(stays).collect();
    let removed = there.len() < known.len();
    let is_back = |p: &&MachineView<'_>| p.is_ready() && !p.row.revoked && p.row.removal.is_none();
    (!known.is_empty() && (removed || there.iter().all(is_back))).then_some(there)
}

/// The machine as a member of the set. Until a replacement takes its place, the machine before it is the member.
fn member(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<(MachineName, Member)> {
    let row = view.row;
    let is_there = view.ready_once() || view.is_ready();
    let now = if is_there { items::member(Some(snapshot.cluster), row) } else { None };
    Some((row.name.clone(), now.or_else(|| snapshot.cluster.control_members.get(&row.name).cloned())?))
}

/// The control machines, once every expected one is Ready.
fn complete_control_set<'s, 'a>(snapshot: &'s ClusterSnapshot<'a>) -> Option<Vec<&'s MachineView<'a>>> {
    // A machine that lacks an address for a moment is still one of them.
    let is_there = |view: &MachineView<'_>| {
        !view.row.revoked && (view.row.reported() || view.ready_once() || !snapshot.cluster.deploy_requested)
    };
    // One of the recorded set keeps its place, and its vote, until its successor is Ready or it is removed.
    let is_expected = |view: &&MachineView<'_>| is_there(view) || snapshot.cluster.control_set.contains(&view.row.name);
    let expected: Vec<&MachineView<'_>> = snapshot.of_type(MachineType::Control).filter(is_expected).collect();
    let wanted = match snapshot.spec.machines {
        Some(counts) if !snapshot.cluster.deploy_requested => counts.control as usize,
        Some(_) | None => 1,
    };
    // A machine under removal is in the set until it is gone.
    let leaving = snapshot.of_type(MachineType::Control).any(|view| view.row.removal.is_some());
    let complete =
        !leaving && expected.len() >= wanted && expected.iter().all(|view| view.is_ready() && !view.row.revoked);
    complete.then_some(expected)
}

/// A rollout begins when the expected machines are there, or when machines join a cluster that was deployed before.
/// After it ends, another one reconfigures machines that were Ready before the control set changed.
fn open(snapshot: &ClusterSnapshot<'_>) -> Vec<Step> {
    let cluster = snapshot.cluster.name.clone();
    if snapshot.machines.iter().any(has_work) {
        let may = why_not_started(snapshot).is_none() && safety::store_is_current(snapshot).is_ok();
        return if may { vec![Step::OpenRollout { cluster }] } else { Vec::new() };
    }
    // A lost machine would keep the rollout open; it gets its own when it is back.
    let is_there = |p: &&MachineView<'_>| !p.row.revoked && p.row.removal.is_none() && !p.lost;
    let changed = snapshot.machines.iter().filter(is_there).filter(|view| safety::needs_reconfigure(snapshot, view));
    let machines: BTreeSet<MachineName> = changed.map(|view| view.row.name.clone()).collect();
    if machines.is_empty() || safety::may_start_hooks(snapshot).is_err() || safety::successor(snapshot).is_err() {
        return Vec::new();
    }
    vec![Step::OpenReconfigure { cluster, machines }]
}

fn joins(snapshot: &ClusterSnapshot<'_>, rollout: &str) -> Vec<Step> {
    snapshot
        .machines
        .iter()
        .filter(|view| !snapshot.joined(view) && has_work(view))
        .map(|view| Step::Join { machine: view.row.name.clone(), rollout: rollout.to_owned() })
        .collect()
}

/// Does a deployment have anything left to do on this machine?
fn has_work(view: &MachineView<'_>) -> bool {
    view.row.reported() && view.row.removal.is_none() && !view.ready_once()
}

fn grants(snapshot: &ClusterSnapshot<'_>) -> Vec<Step> {
    if safety::may_start_anything(snapshot).is_err() {
        return Vec::new();
    }
    let mut steps = prepare_grants(snapshot);
    steps.extend(slot_grant(snapshot));
    steps
}

/// Number of workers with prepare items under way.
#[must_use]
pub fn prepares_used(snapshot: &ClusterSnapshot<'_>) -> usize {
    snapshot
        .of_type(MachineType::Worker)
        .filter(|p| {
            p.row.max_phase == Some(Phase::Prepare) && p.in_flight() && p.progress(Phase::Prepare) == Progress::Open
        })
        .count()
}

fn prepare_grants(snapshot: &ClusterSnapshot<'_>) -> Vec<Step> {
    let most = snapshot.spec.max_worker_prepare_count as usize;
    let mut free = most.saturating_sub(prepares_used(snapshot));
    let mut steps = Vec::new();
    let stays = |p: &&MachineView<'_>| snapshot.joined(p) && p.row.removal.is_none();
    let due = |p: &&MachineView<'_>| stays(p) && p.row.max_phase.is_none() && p.available();
    for view in snapshot.machines.iter().filter(due) {
        if view.row.spec.machine_type == MachineType::Worker && view.progress(Phase::Prepare) == Progress::Open {
            if free == 0 {
                continue;
            }
            free -= 1;
        }
        steps.push(grant(snapshot, view, Phase::Prepare));
    }
    steps
}

/// Phase for which this machine would be granted a slot, if it is ready to take one.
#[must_use]
pub fn wants_slot(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<Phase> {
    let goes = view.row.revoked || view.row.removal.is_some();
    if !snapshot.joined(view) || view.row.slot.is_some() || goes {
        return None;
    }
    if safety::reconfigured_at_once(snapshot, view) {
        return Some(Phase::Reconfigure);
    }
    let prepared = match view.row.max_phase {
        None => false,
        Some(Phase::Prepare) => view.progress(Phase::Prepare) == Progress::Done,
        // Its slot was freed after a failure. Changes of the manifest since then run under the next slot.
        Some(Phase::Deploy | Phase::Reconfigure) => true,
    };
    (prepared && !view.ready_once() && view.trouble().is_none()).then_some(Phase::Deploy)
}

/// The next slot. At most one per round, because it is missing in this snapshot.
fn slot_grant(snapshot: &ClusterSnapshot<'_>) -> Option<Step> {
    let has_worker_slot = safety::has_worker_slot(snapshot);
    snapshot.machines.iter().find_map(|view| {
        let phase = wants_slot(snapshot, view)?;
        let has_turn = match view.row.spec.machine_type {
            MachineType::Control => !earlier_on_its_way(snapshot, view),
            MachineType::Worker => has_worker_slot,
            MachineType::Unassigned => false,
        };
        let goes = has_turn && view.available() && safety::may_take_slot(snapshot, view).is_ok();
        goes.then(|| grant(snapshot, view, phase))
    })
}

/// Is an earlier control machine still preparing? Then the order is kept; a machine that cannot proceed is passed over.
#[must_use]
pub fn earlier_on_its_way(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> bool {
    snapshot.of_type(MachineType::Control).take_while(|other| other.row.name != view.row.name).any(|other| {
        let before_its_turn = other.row.slot.is_none() && !other.ready_once();
        snapshot.joined(other)
            && before_its_turn
            && other.row.removal.is_none()
            && other.available()
            && other.trouble().is_none()
            // Otherwise both would wait: that machine lets the maker of the swarm go first.
            && swarm::waits_for_maker(snapshot.facts, other.row).is_none()
    })
}

fn grant(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>, phase: Phase) -> Step {
    let cluster = &snapshot.cluster.name;
    let own = &view.row.name;
    let ready = |row: &crate::facts::MachineRow| row.ready_at.is_some() || row.name == *own;
    let set = match phase {
        Phase::Prepare => control_set(snapshot.facts, cluster, |_| true),
        Phase::Deploy if view.row.spec.machine_type == MachineType::Control => {
            control_set(snapshot.facts, cluster, ready)
        }
        Phase::Deploy => control_set(snapshot.facts, cluster, |row| row.ready_at.is_some()),
        Phase::Reconfigure => complete_set(snapshot.facts, snapshot.cluster),
    };
    Step::Grant { machine: own.clone(), phase, set }
}

fn may_close(snapshot: &ClusterSnapshot<'_>) -> bool {
    let everyone = why_not_started(snapshot).is_none();
    everyone
        && snapshot
            .machines
            .iter()
            .filter(|view| snapshot.joined(view) && !view.row.revoked)
            // A machine under removal is awaited only while it may be at work.
            .filter(|view| view.row.removal.is_none() || view.row.slot.is_some())
            // A deployment does not supply what a formerly Ready machine lacks.
            .all(|view| {
                let through = view.is_ready() || (view.ready_once() && view.row.slot.is_none());
                through && !safety::reconfigured_at_once(snapshot, view)
            })
}
