//! The application controllers' answers: may a request be made, are its locks inactive, are they active again? A lock
//! that is failed, or inactive since before the request, counts as active.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::{
    model::{Blocked, ClusterName, LockState, MANUAL, MIGRATION_MODE, MachineName, Reason},
    seeded_bug::seeded_bug,
};

use super::{handshake, safety::blocked, snapshot::ClusterSnapshot};
use crate::facts::{
    Facts, LockRow, MachineRow, RequestRow, SETTLE_MS, Stage,
    handshake::{RequestObject, Subject},
};

/// Time for which the stream of a vanished controller still looks alive, in milliseconds.
pub const UNNOTICED_MS: u64 = 25_000;
/// After this long, silence about a removal is consent, in milliseconds. It counts from when a controller could see
/// that a machine is removed for good. A removal is final, so a controller that vanished in that time has to be noticed
/// first.
const REMOVAL_SETTLE_MS: u64 = SETTLE_MS + UNNOTICED_MS;
/// Prefix of a machine's annotations for the application controllers, which travel with its request.
pub const CONTROLLERS_PREFIX: &str = "openstack.lcm.mirantis.com/";

/// The locks of one cluster, looked up once.
#[derive(Debug)]
pub struct Locks<'a> {
    /// By machine; None: locks of the cluster itself.
    by_node: BTreeMap<Option<&'a MachineName>, Vec<&'a LockRow>>,
    /// Controllers that have registered any lock.
    controllers: BTreeSet<&'a str>,
    /// Controllers whose locks are objects in the Kubernetes cluster.
    object_controllers: BTreeSet<&'a str>,
    /// Connected controllers: since when a stream of theirs has seen every request, monotonic milliseconds.
    watching: BTreeMap<&'a str, u64>,
}

impl<'a> Locks<'a> {
    /// Look up the locks of this cluster.
    #[must_use]
    pub fn of(facts: &'a Facts, cluster: &ClusterName) -> Self {
        let mut by_node: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let has_objects = handshake::section(facts, cluster).is_some();
        let machines = facts.machines.values().filter(|row| has_objects && row.spec.cluster_name == *cluster);
        let mut nodes: BTreeMap<&str, Vec<&MachineName>> = BTreeMap::new();
        for (node, machine) in machines.filter_map(|row| Some((row.kubernetes_node.as_deref()?, &row.name))) {
            nodes.entry(node).or_default().push(machine);
        }
        let counts = |lock: &&LockRow| lock.key.cluster == *cluster && (has_objects || lock.object.is_none());
        for lock in facts.locks.values().map(|lock| &**lock).filter(counts) {
            match lock.object.as_ref().map(|object| &object.subject) {
                None => by_node.entry(lock.key.node.as_ref()).or_default().push(lock),
                Some(Subject::Cluster) => by_node.entry(None).or_default().push(lock),
                // The node may be no machine's. Where the records name two, it guards both.
                Some(Subject::Node(node) | Subject::Deletion(node)) => {
                    for machine in nodes.get(node.as_str()).into_iter().flatten() {
                        by_node.entry(Some(*machine)).or_default().push(lock);
                    }
                }
            }
        }
        let of_source = |object: bool| {
            let locks = facts.locks.values().filter(|lock| lock.key.cluster == *cluster);
            let locks = locks.filter(|lock| lock.key.uid.is_some() == object);
            locks.map(|lock| lock.key.controller.as_str()).collect()
        };
        let streams = facts.live.watching.iter().filter(|((of, _), _)| of == cluster);
        // The oldest open stream counts: its reader may have missed what an ended stream saw.
        let since = |((_, name), streams): (&'a (ClusterName, String), &BTreeMap<u64, u64>)| {
            Some((name.as_str(), streams.values().min().copied()?))
        };
        let (controllers, object_controllers) = (of_source(false), of_source(true));
        Self { by_node, controllers, object_controllers, watching: streams.filter_map(since).collect() }
    }
}

/// Locks of one machine, or of the cluster itself (None).
pub fn of<'a>(snapshot: &'a ClusterSnapshot<'_>, node: Option<&'a MachineName>) -> impl Iterator<Item = &'a LockRow> {
    snapshot.locks.by_node.get(&node).into_iter().flatten().copied()
}

/// Known controllers of this cluster: declared, seen with a lock in it, or connected. A connected controller that lacks
/// a lock makes one when it sees the request, for example after an older store was restored.
fn known<'a>(snapshot: &'a ClusterSnapshot<'_>) -> BTreeSet<&'a str> {
    let declared = snapshot.spec.workload_controllers.iter().map(String::as_str);
    let locks = &snapshot.locks;
    declared.chain(locks.controllers.iter().copied()).chain(locks.watching.keys().copied()).collect()
}

/// Known controllers that answer a request in the Kubernetes cluster: declared, seen with a lock there, or known by a
/// label of the machine's node.
fn known_there<'a>(snapshot: &'a ClusterSnapshot<'_>, row: Option<&MachineRow>) -> BTreeSet<&'a str> {
    let declared = handshake::declared(snapshot).map(|controller| controller.name.as_str());
    let held = snapshot.locks.object_controllers.iter().copied();
    let held = held.filter(|_| handshake::spec(snapshot).is_some());
    declared.chain(held).chain(row.and_then(|row| handshake::known_by_label(snapshot, row))).collect()
}

/// Does this cluster lack application controllers?
#[must_use]
pub fn nobody_moves(snapshot: &ClusterSnapshot<'_>) -> bool {
    known(snapshot).is_empty() && known_there(snapshot, None).is_empty()
}

/// A declared controller that lacks a lock in the whole cluster: it was never here.
fn missing<'a>(snapshot: &'a ClusterSnapshot<'_>) -> Option<&'a str> {
    snapshot
        .spec
        .workload_controllers
        .iter()
        .map(String::as_str)
        .find(|name| !snapshot.locks.controllers.contains(name))
}

fn kind(node: Option<&MachineName>) -> &'static str {
    if node.is_some() { "NodeWorkloadLock" } else { "ClusterWorkloadLock" }
}

/// May a request be made: are the locks active, so that an inactive one later is an answer to it?
///
/// # Errors
/// The inactive locks, or the controller that was never seen.
pub fn may_request(snapshot: &ClusterSnapshot<'_>, node: Option<&MachineName>) -> Result<(), Blocked> {
    if let Some(name) = missing(snapshot) {
        let update = snapshot.rollout.map_or("", |rollout| rollout.name.as_str());
        return Err(blocked(
            Reason::ControllerMissing,
            format!("application controller {name} (spec.workloadControllers) holds no lock in this cluster"),
            format!("{name} registers its locks, or after `musterctl abort {update}` a manifest without it is applied"),
        ));
    }
    came_back(snapshot, node)
}

/// Are the locks active again after the last maintenance, and is nobody's request in the Kubernetes cluster?
///
/// # Errors
/// The inactive locks, or the request there.
pub fn came_back(snapshot: &ClusterSnapshot<'_>, node: Option<&MachineName>) -> Result<(), Blocked> {
    handshake::may_request(snapshot, node)?;
    let stale: Vec<&LockRow> = of(snapshot, node).filter(|lock| lock.state == LockState::Inactive).collect();
    if stale.is_empty() || seeded_bug("request-over-inactive-lock") {
        return Ok(());
    }
    let names: Vec<&str> = stale.iter().map(|lock| lock.key.controller.as_str()).collect();
    let ways = [Some("it is active again".to_owned()), deleted(node, stale.iter().copied())];
    Err(blocked(
        Reason::LockNotYetActive,
        format!("the {} of {} is still inactive from the last maintenance", kind(node), names.join(", ")),
        ways.into_iter().flatten().collect::<Vec<_>>().join("; "),
    ))
}

/// Status of a lock that is still active, as operators know it, and whether its controller is absent:
/// `ceph: UpdatingController (not connected)`.
fn says(snapshot: &ClusterSnapshot<'_>, lock: &LockRow) -> String {
    let words = match (lock.message.as_str(), lock.description.as_str()) {
        ("", "") => lock.state.as_str().to_owned(),
        ("", description) => format!("{description} ({}%)", lock.percentage),
        (message, _) => message.to_owned(),
    };
    let there = if is_there(snapshot, lock) { "" } else { NOT_CONNECTED };
    format!("{}: {words}{there}", lock.key.controller)
}

/// Suffix for a lock with an absent controller.
const NOT_CONNECTED: &str = " (not connected)";

/// Does this controller have a stream, so that it sees requests?
fn is_connected(snapshot: &ClusterSnapshot<'_>, controller: &str) -> bool {
    snapshot.locks.watching.contains_key(controller)
}

/// As [`is_connected`], of a lock's holder. One that answers in the Kubernetes cluster gives no sign of life.
fn is_there(snapshot: &ClusterSnapshot<'_>, lock: &LockRow) -> bool {
    lock.object.is_some() || is_connected(snapshot, &lock.key.controller)
}

/// The known controllers of this cluster that are disconnected: requests do not reach them.
#[must_use]
pub fn disconnected<'a>(snapshot: &'a ClusterSnapshot<'_>) -> Vec<&'a str> {
    known(snapshot).into_iter().filter(|name| !is_connected(snapshot, name)).collect()
}

/// The failed locks, as a warning before a request: their controllers refuse to release.
#[must_use]
pub fn failed(snapshot: &ClusterSnapshot<'_>, node: Option<&MachineName>) -> Option<String> {
    let failed: Vec<String> =
        of(snapshot, node).filter(|lock| lock.state == LockState::Failed).map(|lock| says(snapshot, lock)).collect();
    (!failed.is_empty()).then(|| format!("its {} is failed - {}", kind(node), failed.join(", ")))
}

/// Does a controller refuse to release the machine?
#[must_use]
pub fn is_refused(snapshot: &ClusterSnapshot<'_>, node: &MachineName) -> bool {
    of(snapshot, Some(node)).any(|lock| lock.state == LockState::Failed)
}

/// Rule 4, its locks: is every expected lock inactive and newer than the request, and has every known controller had
/// its time to make one?
///
/// # Errors
/// The other locks, in the product's words, or the controller that has yet to answer.
pub fn granted(snapshot: &ClusterSnapshot<'_>, row: Option<&MachineRow>, request: &RequestRow) -> Result<(), Blocked> {
    if seeded_bug("ignore-locks") {
        return Ok(());
    }
    let there = handshake::stands(snapshot, row)?;
    inactive(snapshot, row, request)?;
    row.map_or(Ok(()), |row| handshake::lets_delete(snapshot, row))?;
    answered(snapshot, row.map(|row| &row.name), request)?;
    if let Some((object, _)) = there {
        answered_there(snapshot, row, object)?;
    }
    row.map_or(Ok(()), |row| removal_is_heard_of(snapshot, row, request))
}

/// Has this controller a lock in the Kubernetes cluster for the machine, or for the cluster itself?
fn has_there(snapshot: &ClusterSnapshot<'_>, row: Option<&MachineRow>, controller: &str) -> bool {
    let mut held = of(snapshot, row.map(|row| &row.name)).filter(|lock| lock.object.is_some());
    held.any(|lock| lock.key.controller == controller)
}

/// Is a missing lock in the Kubernetes cluster an answer, for every controller that answers there? Where each that is
/// known has answered, nobody else is waited for.
fn answered_there(
    snapshot: &ClusterSnapshot<'_>,
    row: Option<&MachineRow>,
    object: &RequestObject,
) -> Result<(), Blocked> {
    let known = known_there(snapshot, row);
    if known.is_empty() {
        handshake::is_seen_by_all(snapshot, object)?;
    }
    for controller in known {
        if !has_there(snapshot, row, controller) {
            handshake::is_without_lock(snapshot, controller, row, object)?;
        }
    }
    handshake::lost_for_good(snapshot, object)
}

/// Are the existing locks inactive, and newer than the request?
///
/// # Errors
/// The other locks, in the product's words.
pub fn inactive(snapshot: &ClusterSnapshot<'_>, row: Option<&MachineRow>, request: &RequestRow) -> Result<(), Blocked> {
    let node = row.map(|row| &row.name);
    let standing = match row {
        Some(row) => row.update.as_ref().and_then(|mine| mine.standing.as_ref()),
        None => snapshot.update().and_then(|update| update.standing.as_ref()),
    };
    let asked = |lock: &LockRow| match (&lock.object, standing) {
        (Some(_), Some(standing)) => standing.revision,
        _ => request.revision,
    };
    let answered = |lock: &LockRow| lock.state == LockState::Inactive && lock.revision > asked(lock);
    // Seeded bugs: let a lock in Kubernetes answer for one that its controller registered, or for another object.
    let by_another = |lock: &LockRow| {
        let bug = if lock.object.is_some() { "best-of-two-objects" } else { "native-lock-by-object" };
        let mut others = of(snapshot, node).filter(|other| other.key.controller == lock.key.controller);
        seeded_bug(bug) && others.any(|other| other.object.is_some() && answered(other))
    };
    let answers = |lock: &&LockRow| answered(lock) || by_another(lock);
    let open: Vec<&LockRow> = of(snapshot, node).filter(|lock| !answers(lock)).collect();
    if open.is_empty() {
        return Ok(());
    }
    let words = open.iter().map(|lock| match is_stale(lock) {
        true => format!("{}: inactive since before this request; it must be set active once", lock.key.controller),
        false => says(snapshot, lock),
    });
    let words: Vec<String> = words.collect();
    let message = format!("Error: following {}s are still active - {}", kind(node), words.join(","));
    let failed = open.iter().any(|lock| lock.state == LockState::Failed);
    let reason = if failed { Reason::LockFailed } else { Reason::LocksActive };
    Err(blocked(reason, message, clears_when(snapshot, row, &open)))
}

/// Is a missing lock here an answer, for every known controller? An absent controller has yet to answer: it may make
/// its lock as soon as it sees the request.
fn answered(snapshot: &ClusterSnapshot<'_>, node: Option<&MachineName>, request: &RequestRow) -> Result<(), Blocked> {
    let silent: Vec<&str> = known(snapshot)
        .into_iter()
        .filter(|name| of(snapshot, node).all(|lock| lock.object.is_some() || lock.key.controller != *name))
        .collect();
    let watching = &snapshot.locks.watching;
    let away: Vec<&str> = silent.iter().copied().filter(|name| !is_connected(snapshot, name)).collect();
    // Seeded bug: ignore dead or absent controllers.
    if !away.is_empty() && !seeded_bug("ignore-silent-controller") {
        let is = if away.len() == 1 { "is" } else { "are" };
        return Err(blocked(
            Reason::ControllerSilent,
            format!("{} {is} not connected, and may yet make a {} here", away.join(", "), kind(node)),
            connects_or_is_gone(snapshot, &away, None),
        ));
    }
    let newest = silent.iter().filter_map(|name| watching.get(name)).map(|since| wall_ms(snapshot, *since)).max();
    let settled_at = newest.unwrap_or(0).max(request.since_ms).saturating_add(SETTLE_MS);
    if silent.is_empty() || snapshot.now.wall_ms >= settled_at || seeded_bug("no-settle-time") {
        return Ok(());
    }
    Err(blocked(
        Reason::LocksSettling,
        format!("{} may yet make a {} here", silent.join(", "), kind(node)),
        format!("it could see the request for {} s", SETTLE_MS / 1000),
    ))
}

/// A machine that has a request already is to be removed for good. Its controllers answer only after they hear of that;
/// earlier answers do not count. They can withdraw their consent for as long as they could make a lock.
fn removal_is_heard_of(snapshot: &ClusterSnapshot<'_>, row: &MachineRow, request: &RequestRow) -> Result<(), Blocked> {
    let removal = row.removal.as_ref().filter(|removal| !removal.aborting && removal.revision > request.revision);
    // Seeded bug: take the consent to the maintenance as consent to the removal.
    let Some(since_ms) = removal.map(|removal| removal.since_ms).filter(|_| !seeded_bug("depart-unheard")) else {
        return Ok(());
    };
    let (there, away): (Vec<&str>, Vec<&str>) =
        known(snapshot).into_iter().partition(|controller| is_connected(snapshot, controller));
    if !away.is_empty() {
        let message = format!("{} does not know that it is removed for good{NOT_CONNECTED}", away.join(", "));
        let connects = connects_or_is_released(snapshot, &away, None);
        let clears_when = format!("{connects}, or `musterctl remove {} --policy unsafe` does without", row.name);
        return Err(blocked(Reason::ControllerSilent, message, clears_when));
    }
    let came_ms =
        there.iter().filter_map(|name| snapshot.locks.watching.get(name)).map(|came| wall_ms(snapshot, *came));
    let heard_ms = came_ms.max().unwrap_or(0).max(since_ms);
    if there.is_empty() || snapshot.now.wall_ms >= heard_ms.saturating_add(REMOVAL_SETTLE_MS) {
        return Ok(());
    }
    Err(blocked(
        Reason::LocksSettling,
        format!("{} may yet take its lock back: it hears that the machine is removed for good", there.join(", ")),
        format!("it could see that for {} s", REMOVAL_SETTLE_MS / 1000),
    ))
}

/// What ends the wait for absent controllers before a machine is disturbed. `sets`: the state to which they must also
/// set their locks.
fn connects_or_is_gone(snapshot: &ClusterSnapshot<'_>, away: &[&str], sets: Option<LockState>) -> String {
    let declared = away.iter().any(|name| snapshot.spec.workload_controllers.iter().any(|declared| declared == name));
    let text = connects_or_is_released(snapshot, away, sets);
    match snapshot.rollout.filter(|rollout| declared && rollout.update.is_some()) {
        Some(update) => {
            format!("{text}, `musterctl abort {}`, and a manifest without it in spec.workloadControllers", update.name)
        }
        None => text,
    }
}

/// What ends the wait for locks of absent controllers.
fn connects_or_is_released(snapshot: &ClusterSnapshot<'_>, away: &[&str], sets: Option<LockState>) -> String {
    let cluster = &snapshot.cluster.name;
    let releases: Vec<String> =
        away.iter().map(|name| format!("`musterctl locks release {name} --cluster {cluster}`")).collect();
    let one = away.len() == 1;
    let sets =
        sets.map(|state| if one { format!(" and sets its lock {state}") } else { format!(" and set theirs {state}") });
    let (connect, those) = if one { ("it connects", "if it is") } else { ("they connect", "for those that are") };
    format!("{connect}{}; or, {those} gone for good, {}", sets.unwrap_or_default(), releases.join(" and "))
}

/// Convert a time of this process, monotonic milliseconds, to current Unix milliseconds.
const fn wall_ms(snapshot: &ClusterSnapshot<'_>, mono_ms: u64) -> u64 {
    snapshot.now.wall_ms.saturating_sub(snapshot.now.mono_ms.saturating_sub(mono_ms))
}

/// When these requests and removals, and what a controller found when it came, count as seen for long enough, Unix
/// milliseconds.
pub fn settles_at_ms(
    snapshot: &ClusterSnapshot<'_>,
    requested_ms: impl Iterator<Item = u64>,
    removed_ms: impl Iterator<Item = u64>,
) -> impl Iterator<Item = u64> {
    let came: BTreeSet<u64> = snapshot.locks.watching.values().map(|since| wall_ms(snapshot, *since)).collect();
    let requests = came.iter().copied().chain(requested_ms).map(|at| at.saturating_add(SETTLE_MS));
    let removals = came.iter().copied().chain(removed_ms).map(|at| at.saturating_add(REMOVAL_SETTLE_MS));
    requests.chain(removals).collect::<BTreeSet<u64>>().into_iter()
}

/// Holders of these locks: those that are there, and those that are not.
fn by_presence<'a>(snapshot: &ClusterSnapshot<'_>, locks: &[&'a LockRow]) -> (Vec<&'a str>, Vec<&'a str>) {
    let (there, away): (Vec<&LockRow>, Vec<&LockRow>) =
        locks.iter().copied().partition(|lock| is_there(snapshot, lock));
    let names = |locks: Vec<&'a LockRow>| locks.into_iter().map(|lock| lock.key.controller.as_str()).collect();
    (names(there), names(away))
}

fn clears_when(snapshot: &ClusterSnapshot<'_>, row: Option<&MachineRow>, open: &[&LockRow]) -> String {
    let (stale, open): (Vec<&LockRow>, Vec<&LockRow>) = open.iter().copied().partition(|lock| is_stale(lock));
    let (there, away) = by_presence(snapshot, &open);
    let manual = row.filter(|row| row.annotations.get(MIGRATION_MODE).is_some_and(|mode| mode == MANUAL));
    let there = match (manual, there.is_empty()) {
        (_, true) => None,
        (Some(row), false) => Some(format!(
            "its instances are moved by hand, then `musterctl annotate machine {} {MIGRATION_MODE}=skip`",
            row.name
        )),
        (None, false) => Some(format!("{} sets its lock inactive", there.join(" and "))),
    };
    let once = stale.iter().map(|lock| format!("{} sets its lock active once, then inactive", lock.key.controller));
    let inactive = Some(LockState::Inactive);
    let away = (!away.is_empty()).then(|| connects_or_is_gone(snapshot, &away, inactive));
    // Who has seen the request is not gone, but may not know that its lock has to move.
    let unseen = open.iter().filter(|lock| !handshake::has_seen(snapshot, &lock.key.controller, row));
    let left = deleted(row.map(|row| &row.name), unseen.chain(&stale).copied());
    once.chain([there, away, left].into_iter().flatten()).collect::<Vec<_>>().join("; ")
}

/// Is this open lock in the Kubernetes cluster inactive, but from before the request?
fn is_stale(lock: &LockRow) -> bool {
    lock.object.is_some() && lock.state == LockState::Inactive
}

/// The way out of locks in the Kubernetes cluster whose controller may have been uninstalled.
fn deleted<'a>(node: Option<&MachineName>, locks: impl Iterator<Item = &'a LockRow>) -> Option<String> {
    let kind = kind(node).to_lowercase();
    let delete: Vec<String> =
        locks.filter_map(|lock| Some(format!("`kubectl delete {kind} {}`", lock.object.as_ref()?.name))).collect();
    (!delete.is_empty()).then(|| format!("or, if it was uninstalled, {}", delete.join(", ")))
}

/// When a controller that could have answered last stopped watching the cluster's requests, Unix milliseconds; 0 if
/// none did.
#[must_use]
pub fn controllers_left_ms(snapshot: &ClusterSnapshot<'_>) -> u64 {
    snapshot.facts.live.controllers_left_ms.get(&snapshot.cluster.name).copied().unwrap_or(0)
}

/// Last change of the node's locks, Unix milliseconds; 0 without locks.
#[must_use]
pub fn last_progress_ms(snapshot: &ClusterSnapshot<'_>, node: Option<&MachineName>) -> u64 {
    of(snapshot, node).map(|lock| lock.updated_ms).max().unwrap_or(0)
}

/// Is this lock of a machine still away, although the machine's request is gone? A failed one is, unless it never
/// released the machine.
#[must_use]
pub fn is_away(row: &MachineRow, lock: &LockRow) -> bool {
    match lock.state {
        LockState::Active => false,
        LockState::Inactive => true,
        // Seeded bug: count the lock of a controller that failed to bring its workloads back as active.
        LockState::Failed if seeded_bug("failed-lock-is-back") => false,
        LockState::Failed => {
            let let_go = row.stages.get(&Stage::LocksInactive).is_some_and(|stage| stage.succeeded);
            let gone = row.stages.get(&Stage::RequestRemoved).map(|stage| stage.started_at_ms);
            let_go || gone.is_some_and(|since_ms| lock.updated_ms >= since_ms)
        }
    }
}

/// After the request is gone: are the locks active again?
///
/// # Errors
/// The locks that are still away.
pub fn returned(snapshot: &ClusterSnapshot<'_>, row: &MachineRow) -> Result<(), Blocked> {
    handshake::is_gone(snapshot, row)?;
    let away: Vec<&LockRow> = of(snapshot, Some(&row.name)).filter(|lock| is_away(row, lock)).collect();
    let (failed, coming): (Vec<&LockRow>, Vec<&LockRow>) =
        away.iter().copied().partition(|lock| lock.state == LockState::Failed);
    let clears_when = || {
        let (there, gone) = by_presence(snapshot, &away);
        let there = (!there.is_empty()).then(|| format!("{} sets its lock active", there.join(" and ")));
        let gone = (!gone.is_empty()).then(|| connects_or_is_released(snapshot, &gone, Some(LockState::Active)));
        let left = deleted(Some(&row.name), away.iter().copied());
        [there, gone, left].into_iter().flatten().collect::<Vec<_>>().join("; ")
    };
    if !failed.is_empty() {
        let words: Vec<String> = failed.iter().map(|lock| says(snapshot, lock)).collect();
        let message = format!("Error: the request is gone, and workloads are not back - {}", words.join(","));
        return Err(blocked(Reason::LockFailed, message, clears_when()));
    }
    if coming.is_empty() {
        return Ok(());
    }
    if let Some(foreign) = handshake::foreign_request(snapshot, row) {
        return Err(foreign);
    }
    let named = |lock: &&LockRow| match lock.key.controller.as_str() {
        there if is_there(snapshot, lock) => there.to_owned(),
        away => format!("{away}{NOT_CONNECTED}"),
    };
    let names: Vec<String> = coming.iter().map(named).collect();
    let message = format!("the request is gone; workloads are not back yet - {}", names.join(", "));
    Err(blocked(Reason::LocksReturning, message, clears_when()))
}

/// Locks that are still away after the machine was given back and their deadline passed. The wait for them is over.
#[must_use]
pub fn left_away(snapshot: &ClusterSnapshot<'_>, row: &MachineRow) -> Option<Blocked> {
    let stage = row.stages.get(&Stage::RequestRemoved)?;
    let late = row.update.is_none() && stage.finished_at_ms.is_some() && !stage.succeeded;
    returned(snapshot, row).err().filter(|_| late)
}
