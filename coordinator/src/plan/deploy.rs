//! The deployment: what to record and grant next. Level-triggered: a recorded step is not requested again, so a second
//! call with the same facts returns nothing.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::{
    model::{ClusterName, MachineName, MachineType, Phase},
    plant::planted,
};

use super::{
    assign,
    blocked::why_not_started,
    items::{self, complete_set, control_set},
    safety,
    survey::{Position, Progress, Survey},
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
pub fn next_steps(survey: &Survey<'_>) -> Vec<Step> {
    let outcomes = outcomes(survey);
    if !outcomes.is_empty() {
        return outcomes;
    }
    let Some(rollout) = survey.rollout else { return open(survey) };
    let joins = joins(survey, &rollout.name);
    if !joins.is_empty() {
        return joins;
    }
    let mut steps = grants(survey);
    if steps.is_empty() && may_close(survey) {
        steps.push(Step::CloseRollout { rollout: rollout.name.clone() });
    }
    steps
}

fn outcomes(survey: &Survey<'_>) -> Vec<Step> {
    let prepared = survey.machines.iter().filter(|position| is_prepared(position));
    let mut steps: Vec<Step> = prepared.map(|p| Step::Prepared { machine: p.row.name.clone() }).collect();
    for position in survey.machines.iter().filter(|position| position.row.slot.is_some()) {
        let planted_bug = (planted("free-slot-when-lost") && position.lost)
            || (planted("free-slot-when-held") && matches!(position.trouble(), Some(Progress::Held(_))));
        // The most expensive check comes last: of fifty machines at work, few have ended since.
        let step = outcome(position, planted_bug);
        steps.extend(step.filter(|_| planted_bug || assign::is_accepted(survey.facts, position)));
    }
    let set = complete_control_set(survey).or_else(|| recorded_set_as_it_is(survey));
    if let Some(positions) = set {
        let cluster = survey.cluster;
        let names: Vec<MachineName> = positions.iter().map(|position| position.row.name.clone()).collect();
        let members = positions.iter().filter_map(|position| member(survey, position)).collect();
        if !cluster.are_controls(&names, &members) {
            steps.push(Step::ControlSet { cluster: cluster.name.clone(), names, members });
        }
    }
    steps
}

/// Outcome of a machine that holds a slot, provided that its agent has exactly the list that it should have.
fn outcome(position: &Position<'_>, planted_bug: bool) -> Option<Step> {
    let machine = position.row.name.clone();
    if position.all_done() {
        return Some(Step::Ready { machine });
    }
    let first_deploy_of_worker = position.row.spec.machine_type == MachineType::Worker && !position.ready_once();
    let needs_update = position.row.removal.is_none() && position.is_withheld();
    let needs_update = needs_update && maintenance::nothing_runs(position).is_ok();
    let frees = (first_deploy_of_worker && position.has_given_up()) || needs_update || planted_bug;
    frees.then_some(Step::FreeSlot { machine })
}

/// Has it completed its prepare items, with the stage still open? Its wait afterwards is outside that stage.
fn is_prepared(position: &Position<'_>) -> bool {
    let open = position.row.stages.get(&Stage::PrepareDone).is_some_and(|stage| stage.finished_at_ms.is_none());
    open && position.row.reach == Some(Phase::Prepare) && position.progress(Phase::Prepare) == Progress::Done
}

/// Remaining control machines of the recorded set, if one of the set was removed, or if a replacement took its place
/// and is Ready. Not during an update: its machines would have more to do than was frozen.
fn recorded_set_as_it_is<'s, 'a>(survey: &'s Survey<'a>) -> Option<Vec<&'s Position<'a>>> {
    let known = &survey.cluster.control_set;
    let stays = |position: &&Position<'_>| known.contains(&position.row.name);
    let there: Vec<&Position<'_>> = survey.of_type(MachineType::Control).filter(stays).collect();
    let removed = there.len() < known.len();
    let is_back = |p: &&Position<'_>| p.is_ready() && !p.row.revoked && p.row.removal.is_none();
    (!known.is_empty() && (removed || there.iter().all(is_back))).then_some(there)
}

/// The machine as a member of the set. Until a replacement takes its place, the machine before it is the member.
fn member(survey: &Survey<'_>, position: &Position<'_>) -> Option<(MachineName, Member)> {
    let row = position.row;
    let is_there = position.ready_once() || position.is_ready();
    let now = if is_there { items::member(Some(survey.cluster), row) } else { None };
    Some((row.name.clone(), now.or_else(|| survey.cluster.control_members.get(&row.name).cloned())?))
}

/// The control machines, once every expected one is Ready.
fn complete_control_set<'s, 'a>(survey: &'s Survey<'a>) -> Option<Vec<&'s Position<'a>>> {
    let expected: Vec<&Position<'_>> = survey
        .of_type(MachineType::Control)
        .filter(|position| !position.row.revoked)
        // A machine that lacks an address for a moment is still one of them.
        .filter(|position| position.row.reported() || position.ready_once() || !survey.cluster.deploy_requested)
        .collect();
    let wanted = match survey.spec.machines {
        Some(counts) if !survey.cluster.deploy_requested => counts.control as usize,
        Some(_) | None => 1,
    };
    // A machine under removal is in the set until it is gone.
    let leaving = survey.of_type(MachineType::Control).any(|position| position.row.removal.is_some());
    let complete = !leaving && expected.len() >= wanted && expected.iter().all(|position| position.is_ready());
    complete.then_some(expected)
}

/// A rollout begins when the expected machines are there, or when machines join a cluster that was deployed before.
/// After it ends, another one reconfigures machines that were Ready before the control set changed.
fn open(survey: &Survey<'_>) -> Vec<Step> {
    let cluster = survey.cluster.name.clone();
    if survey.machines.iter().any(has_work) {
        let may = why_not_started(survey).is_none() && safety::store_is_current(survey).is_ok();
        return if may { vec![Step::OpenRollout { cluster }] } else { Vec::new() };
    }
    // A lost machine would keep the rollout open; it gets its own when it is back.
    let is_there = |p: &&Position<'_>| !p.row.revoked && p.row.removal.is_none() && !p.lost;
    let changed =
        survey.machines.iter().filter(is_there).filter(|position| safety::needs_reconfigure(survey, position));
    let machines: BTreeSet<MachineName> = changed.map(|position| position.row.name.clone()).collect();
    if machines.is_empty() || safety::may_start_hooks(survey).is_err() || safety::successor(survey).is_err() {
        return Vec::new();
    }
    vec![Step::OpenReconfigure { cluster, machines }]
}

fn joins(survey: &Survey<'_>, rollout: &str) -> Vec<Step> {
    survey
        .machines
        .iter()
        .filter(|position| !survey.joined(position) && has_work(position))
        .map(|position| Step::Join { machine: position.row.name.clone(), rollout: rollout.to_owned() })
        .collect()
}

/// Does a deployment have anything left to do on this machine?
fn has_work(position: &Position<'_>) -> bool {
    position.row.reported() && position.row.removal.is_none() && !position.ready_once()
}

fn grants(survey: &Survey<'_>) -> Vec<Step> {
    if safety::may_start_anything(survey).is_err() {
        return Vec::new();
    }
    let mut steps = prepare_grants(survey);
    steps.extend(slot_grant(survey));
    steps
}

/// Number of workers with prepare items under way.
#[must_use]
pub fn prepares_used(survey: &Survey<'_>) -> usize {
    survey
        .of_type(MachineType::Worker)
        .filter(|p| {
            p.row.reach == Some(Phase::Prepare) && p.in_flight() && p.progress(Phase::Prepare) == Progress::Open
        })
        .count()
}

fn prepare_grants(survey: &Survey<'_>) -> Vec<Step> {
    let most = survey.spec.max_worker_prepare_count as usize;
    let mut free = most.saturating_sub(prepares_used(survey));
    let mut steps = Vec::new();
    let stays = |p: &&Position<'_>| survey.joined(p) && p.row.removal.is_none();
    let due = |p: &&Position<'_>| stays(p) && p.row.reach.is_none() && p.available();
    for position in survey.machines.iter().filter(due) {
        if position.row.spec.machine_type == MachineType::Worker && position.progress(Phase::Prepare) == Progress::Open
        {
            if free == 0 {
                continue;
            }
            free -= 1;
        }
        steps.push(grant(survey, position, Phase::Prepare));
    }
    steps
}

/// Phase for which this machine would be granted a slot, if it is ready to take one.
#[must_use]
pub fn wants_slot(survey: &Survey<'_>, position: &Position<'_>) -> Option<Phase> {
    let goes = position.row.revoked || position.row.removal.is_some();
    if !survey.joined(position) || position.row.slot.is_some() || goes {
        return None;
    }
    if safety::reconfigured_at_once(survey, position) {
        return Some(Phase::Reconfigure);
    }
    let prepared = match position.row.reach {
        None => false,
        Some(Phase::Prepare) => position.progress(Phase::Prepare) == Progress::Done,
        // Its slot was freed after a failure. Changes of the manifest since then run under the next slot.
        Some(Phase::Deploy | Phase::Reconfigure) => true,
    };
    (prepared && !position.ready_once() && position.trouble().is_none()).then_some(Phase::Deploy)
}

/// The next slot. At most one per round, because it is missing in this snapshot.
fn slot_grant(survey: &Survey<'_>) -> Option<Step> {
    let has_worker_slot = safety::has_worker_slot(survey);
    survey.machines.iter().find_map(|position| {
        let phase = wants_slot(survey, position)?;
        let has_turn = match position.row.spec.machine_type {
            MachineType::Control => !earlier_on_its_way(survey, position),
            MachineType::Worker => has_worker_slot,
            MachineType::Unassigned => false,
        };
        let goes = has_turn && position.available() && safety::may_take_slot(survey, position).is_ok();
        goes.then(|| grant(survey, position, phase))
    })
}

/// Is an earlier control machine still preparing? Then the order is kept; a machine that cannot proceed is passed over.
#[must_use]
pub fn earlier_on_its_way(survey: &Survey<'_>, position: &Position<'_>) -> bool {
    survey.of_type(MachineType::Control).take_while(|other| other.row.name != position.row.name).any(|other| {
        let before_its_turn = other.row.slot.is_none() && !other.ready_once();
        survey.joined(other)
            && before_its_turn
            && other.row.removal.is_none()
            && other.available()
            && other.trouble().is_none()
            // Otherwise both would wait: that machine lets the maker of the swarm go first.
            && swarm::waits_for_maker(survey.facts, other.row).is_none()
    })
}

fn grant(survey: &Survey<'_>, position: &Position<'_>, phase: Phase) -> Step {
    let cluster = &survey.cluster.name;
    let own = &position.row.name;
    let ready = |row: &crate::facts::MachineRow| row.ready_at.is_some() || row.name == *own;
    let set = match phase {
        Phase::Prepare => control_set(survey.facts, cluster, |_| true),
        Phase::Deploy if position.row.spec.machine_type == MachineType::Control => {
            control_set(survey.facts, cluster, ready)
        }
        Phase::Deploy => control_set(survey.facts, cluster, |row| row.ready_at.is_some()),
        Phase::Reconfigure => complete_set(survey.facts, survey.cluster),
    };
    Step::Grant { machine: own.clone(), phase, set }
}

fn may_close(survey: &Survey<'_>) -> bool {
    let everyone = why_not_started(survey).is_none();
    everyone
        && survey
            .machines
            .iter()
            .filter(|position| survey.joined(position) && !position.row.revoked)
            // A machine under removal is awaited only while it may be at work.
            .filter(|position| position.row.removal.is_none() || position.row.slot.is_some())
            // A deployment does not supply what a formerly Ready machine lacks.
            .all(|position| {
                let through = position.is_ready() || (position.ready_once() && position.row.slot.is_none());
                through && !safety::reconfigured_at_once(survey, position)
            })
}
