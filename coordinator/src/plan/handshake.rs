//! The maintenance handshake as custom resources: which requests are made and removed in the Kubernetes cluster,
//! whether one stands there, and whether it is gone. Level-triggered: what is recorded is compared with the last list.

use std::collections::BTreeMap;

use muster_proto::model::{Blocked, MachineName, MaintenanceObjects, ObjectController, Reason};

use super::{
    drain::kubernetes::{self, FRESH_MS, SETTLE_MS},
    locks::CONTROLLERS_PREFIX,
    requests::{Requested, requested},
    safety::{self, blocked},
    snapshot::ClusterSnapshot,
};
use crate::facts::{
    self, Facts, HandshakeObservation, MachineRow, Seen, StandingRequest,
    handshake::{NewRequest, NodeAnnotations, OldRequest, RequestObject, Subject},
    kubernetes::{KubernetesFailure, KubernetesNode, KubernetesOp},
};

/// Interval between two lists while a request exists, in milliseconds.
const LOOK_EVERY_MS: u64 = 2_000;
/// The same while an update is open, in milliseconds: a request is made only after a look a moment ago.
const OPEN_EVERY_MS: u64 = FRESH_MS / 2;
/// The same while nothing is under way, in milliseconds.
const REST_EVERY_MS: u64 = 60_000;
/// Age of a list up to which requests are made and removed by it, in milliseconds.
const CHANGE_WITHIN_MS: u64 = 2_000;
/// Shortest interval between two lists around a change, in milliseconds: a change that has no effect is tried again no
/// sooner.
const AFTER_CHANGE_MS: u64 = CHANGE_WITHIN_MS / 2;
/// Most requests that are made and removed at once.
const CHANGES_MAX: usize = 50;
/// The controller whose finalizer and annotation are known: Rockoon (`../kube/crds.md`).
const ROCKOON: &str = "openstack";
const ROCKOON_FINALIZER: &str = "lcm.mirantis.com/rockoon.nodemaintenancerequest-finalizer";
/// The labels that make a node one of OpenStack's.
const ROCKOON_NODES: [&str; 3] =
    ["openstack-control-plane=enabled", "openstack-compute-node=enabled", "openstack-gateway=enabled"];
/// The annotation that kopf puts on an object once its handler is through.
const KOPF_HANDLED: &str = "kopf.zalando.org/last-handled-configuration";

/// The cluster's settings. None: it has no such handshake.
#[must_use]
pub fn spec<'a>(snapshot: &ClusterSnapshot<'a>) -> Option<&'a MaintenanceObjects> {
    kubernetes::spec(snapshot)?.maintenance.as_ref()
}

fn look<'a>(snapshot: &ClusterSnapshot<'a>) -> Option<&'a HandshakeObservation> {
    snapshot.facts.live.handshakes.get(&snapshot.cluster.name)
}

/// The declared controllers, with what is known of each.
pub fn declared<'a>(snapshot: &ClusterSnapshot<'a>) -> impl Iterator<Item = &'a ObjectController> {
    spec(snapshot).into_iter().flat_map(|spec| &spec.controllers)
}

/// The finalizer and the annotation by which this controller shows that it has seen a request and handled it.
#[must_use]
pub fn marks<'a>(snapshot: &ClusterSnapshot<'a>, controller: &str) -> (Option<&'a str>, Option<&'a str>) {
    let declared = declared(snapshot).find(|declared| declared.name == controller);
    let marks = declared.map(|of| (of.finalizer.as_deref(), of.handled_annotation.as_deref()));
    match marks {
        Some((Some(finalizer), handled)) => (Some(finalizer), handled),
        _ if controller == ROCKOON => (Some(ROCKOON_FINALIZER), Some(KOPF_HANDLED)),
        _ => (None, None),
    }
}

/// The labels of the nodes that this controller guards.
fn guards<'a>(snapshot: &ClusterSnapshot<'a>, controller: &str) -> Vec<&'a str> {
    let declared = declared(snapshot).find(|declared| declared.name == controller);
    match declared.map(|of| of.node_labels.as_slice()) {
        Some(labels) if !labels.is_empty() => labels.iter().map(String::as_str).collect(),
        _ if controller == ROCKOON => ROCKOON_NODES.to_vec(),
        _ => Vec::new(),
    }
}

/// The labels by which controllers guard this node.
#[must_use]
pub fn guarding_labels(snapshot: &ClusterSnapshot<'_>, node: &KubernetesNode) -> Vec<String> {
    let of_controllers = declared(snapshot).flat_map(|of| of.node_labels.iter().map(String::as_str));
    let known: Vec<&str> = of_controllers.chain(ROCKOON_NODES).collect();
    node.labels.iter().filter(|label| known.contains(&label.as_str())).cloned().collect()
}

/// The label of the machine's node by which this controller guards it.
#[must_use]
pub fn guard<'a>(snapshot: &ClusterSnapshot<'_>, controller: &str, row: &'a MachineRow) -> Option<&'a str> {
    let guards = guards(snapshot, controller);
    row.guarding_labels.iter().map(String::as_str).find(|label| guards.contains(label))
}

/// What a request is about in the cluster. None: the machine has no Kubernetes node.
fn subject(row: Option<&MachineRow>) -> Option<Subject> {
    row.map_or(Some(Subject::Cluster), |row| row.kubernetes_node.clone().map(Subject::Node))
}

/// The requests that are to exist in the cluster.
fn wanted(snapshot: &ClusterSnapshot<'_>) -> Vec<NewRequest> {
    let cluster = &snapshot.cluster.name;
    let object = |Requested { machine, scope, .. }: Requested<'_>| {
        let subject = subject(machine)?;
        let name = name_of(snapshot, &subject);
        Some(NewRequest { subject, name, scope, requested_by: cluster.to_string() })
    };
    requested(snapshot.facts, cluster).filter_map(object).collect()
}

/// Name of our request about this.
fn name_of(snapshot: &ClusterSnapshot<'_>, subject: &Subject) -> String {
    match subject {
        Subject::Cluster => snapshot.cluster.name.to_string(),
        Subject::Node(node) => node.clone(),
    }
}

/// Is a request about this impossible beside that one: it is about the same, or has the name that ours would have?
fn takes_place(snapshot: &ClusterSnapshot<'_>, request: &RequestObject, subject: &Subject) -> bool {
    let of_node = |subject: &Subject| matches!(subject, Subject::Node(_));
    let has_name = of_node(subject) && of_node(&request.subject) && request.name == name_of(snapshot, subject);
    request.subject == *subject || has_name
}

fn is_ours(snapshot: &ClusterSnapshot<'_>, request: &RequestObject) -> bool {
    request.requested_by.as_deref() == Some(snapshot.cluster.name.as_str())
}

/// Requests to make: nobody's request is in their place, and their nodes are annotated.
fn to_make(snapshot: &ClusterSnapshot<'_>, requests: &[RequestObject]) -> Vec<NewRequest> {
    let is_free = |new: &NewRequest| !requests.iter().any(|known| takes_place(snapshot, known, &new.subject));
    let waits = to_annotate(snapshot);
    let is_annotated =
        |new: &NewRequest| waits.iter().all(|(_, wanted)| Subject::Node(wanted.node.clone()) != new.subject);
    wanted(snapshot).into_iter().filter(is_free).filter(is_annotated).take(CHANGES_MAX).collect()
}

/// Machines whose nodes are given other annotations, or have to give back ours. A controller reads them when it sees
/// the request.
#[must_use]
pub fn to_annotate<'a>(snapshot: &ClusterSnapshot<'a>) -> Vec<(&'a MachineName, NodeAnnotations)> {
    let rows = snapshot.machines.iter().map(|view| view.row);
    let due = rows.filter_map(|row| {
        let (mine, node) = (row.update.as_ref()?, row.kubernetes_node.as_ref()?);
        let for_controllers = row.annotations.iter().filter(|(name, _)| name.starts_with(CONTROLLERS_PREFIX));
        let values: BTreeMap<String, String> = match mine.request {
            Some(_) => for_controllers.map(|(name, value)| (name.clone(), value.clone())).collect(),
            None => BTreeMap::new(),
        };
        let is_done = match &mine.node_annotations {
            Some(put) => put.confirmed && put.values == values,
            None => values.is_empty(),
        };
        (!is_done && !row.needs_review).then(|| (&row.name, NodeAnnotations { node: node.clone(), values }))
    });
    due.take(CHANGES_MAX).collect()
}

/// Requests to remove: ours that stand for none any more. That of a machine whose state is in doubt stays.
fn to_remove(snapshot: &ClusterSnapshot<'_>, requests: &[RequestObject]) -> Vec<OldRequest> {
    let wanted = wanted(snapshot);
    let wants_review = |request: &RequestObject| {
        let mut rows = snapshot.machines.iter().map(|view| view.row);
        rows.any(|row| row.needs_review && subject(Some(row)).as_ref() == Some(&request.subject))
    };
    let is_over = |request: &&RequestObject| {
        is_ours(snapshot, request)
            && !request.deleting
            && !wants_review(request)
            && wanted.iter().all(|new| (&new.subject, &new.name) != (&request.subject, &request.name))
    };
    let old = |request: &RequestObject| OldRequest {
        subject: request.subject.clone(),
        name: request.name.clone(),
        uid: request.uid.clone(),
    };
    requests.iter().filter(is_over).map(old).take(CHANGES_MAX).collect()
}

/// The next question. One at a time.
#[must_use]
pub fn next(snapshot: &ClusterSnapshot<'_>) -> Option<KubernetesOp> {
    spec(snapshot)?;
    if safety::store_is_current(snapshot).is_err() || snapshot.facts.meta.recovering {
        return None;
    }
    let Some(look) = look(snapshot) else { return Some(KubernetesOp::Handshake { define: true }) };
    let now = snapshot.now.mono_ms;
    if free_at(look) > now {
        return None;
    }
    // The definitions may be gone.
    let Some(seen) = look.requests.as_ref().filter(|_| look.failure.is_none()) else {
        return Some(KubernetesOp::Handshake { define: true });
    };
    let (make, remove) = (to_make(snapshot, &seen.what), to_remove(snapshot, &seen.what));
    let annotate: Vec<_> = to_annotate(snapshot).into_iter().map(|(_, wanted)| wanted).collect();
    let age = now.saturating_sub(seen.at_mono_ms);
    let list = Some(KubernetesOp::Handshake { define: false });
    if look.is_outdated {
        return (age >= AFTER_CHANGE_MS).then_some(list).flatten();
    }
    if !make.is_empty() || !remove.is_empty() || !annotate.is_empty() {
        // The list of an update pins the cluster. What is left there of ours goes from where it was listed.
        let listed = Some(&look.cluster_uid).filter(|_| make.is_empty());
        let cluster_uid = snapshot.cluster.kubernetes_uid.as_ref().or(listed).cloned();
        return match cluster_uid.filter(|_| age < CHANGE_WITHIN_MS) {
            Some(cluster_uid) => Some(KubernetesOp::Requests { cluster_uid, make, remove, annotate }),
            None => (age >= AFTER_CHANGE_MS).then_some(list).flatten(),
        };
    }
    (age >= every_ms(snapshot, &seen.what)).then_some(list).flatten()
}

/// Interval between two lists, in milliseconds.
fn every_ms(snapshot: &ClusterSnapshot<'_>, requests: &[RequestObject]) -> u64 {
    let ours = requests.iter().any(|request| is_ours(snapshot, request));
    if ours || !wanted(snapshot).is_empty() {
        return LOOK_EVERY_MS;
    }
    if snapshot.update().is_some() { OPEN_EVERY_MS } else { REST_EVERY_MS }
}

/// When the API server may be asked again, in monotonic milliseconds.
fn free_at(look: &HandshakeObservation) -> u64 {
    let delay_ms = kubernetes::questions::delay_ms;
    let failure = look.failure.iter().map(|failure| failure.at_mono_ms.saturating_add(delay_ms(&failure.what)));
    // An answer that is so late counts as lost.
    let open = look.asked.iter().map(|asked| asked.at_mono_ms.saturating_add(SETTLE_MS));
    failure.chain(open).max().unwrap_or(0)
}

/// The next time, Unix milliseconds, at which time alone brings a question or another reason.
#[must_use]
pub fn wakes_at_ms(snapshot: &ClusterSnapshot<'_>) -> Option<u64> {
    spec(snapshot)?;
    let look = look(snapshot)?;
    let later = |at: u64, by_ms: u64| at.saturating_add(by_ms);
    let listed = look.requests.iter().flat_map(|seen| {
        let every_ms = every_ms(snapshot, &seen.what);
        [every_ms, AFTER_CHANGE_MS, CHANGE_WITHIN_MS, FRESH_MS].map(|by_ms| later(seen.at_mono_ms, by_ms))
    });
    let seen = look.finalizers.values().map(|since| later(*since, facts::SETTLE_MS));
    let unsettled = look.unsettled_mono_ms.map(|at| later(at, SETTLE_MS));
    let inherited = later(snapshot.facts.live.started_mono_ms, SETTLE_MS);
    let moments = listed.chain(seen).chain(unsettled).chain([free_at(look), inherited]);
    let next = moments.filter(|at| *at > snapshot.now.mono_ms).min()?;
    let of_answers = standing_since_ms(snapshot).map(|since_ms| since_ms.saturating_add(facts::SETTLE_MS));
    let of_answers = of_answers.filter(|at_ms| *at_ms > snapshot.now.wall_ms).min();
    let next_ms = snapshot.now.wall_ms + (next - snapshot.now.mono_ms);
    Some(of_answers.map_or(next_ms, |at_ms| at_ms.min(next_ms)))
}

fn standing_since_ms(snapshot: &ClusterSnapshot<'_>) -> impl Iterator<Item = u64> {
    let of_machines = snapshot.machines.iter().filter_map(|view| view.update()?.standing.as_ref());
    let of_cluster = snapshot.update().and_then(|update| update.standing.as_ref());
    of_machines.chain(of_cluster).map(|standing| standing.since_ms).collect::<Vec<_>>().into_iter()
}

/// The last list, if it is young enough to decide by.
fn fresh<'a>(snapshot: &ClusterSnapshot<'a>) -> Result<&'a Seen<Vec<RequestObject>>, Blocked> {
    let look = look(snapshot);
    let age = |seen: &Seen<Vec<RequestObject>>| snapshot.now.mono_ms.saturating_sub(seen.at_mono_ms);
    if let Some(seen) = look.and_then(|look| look.requests.as_ref()).filter(|seen| age(seen) < FRESH_MS) {
        return Ok(seen);
    }
    Err(look.and_then(|look| look.failure.as_ref()).map_or_else(
        || {
            let message = "the requests and locks in the Kubernetes cluster are being listed";
            blocked(Reason::KubernetesUnavailable, message, "the API server has answered")
        },
        |failure| failed(&failure.what),
    ))
}

fn failed(failure: &KubernetesFailure) -> Blocked {
    let KubernetesFailure::Forbidden(words) = failure else { return kubernetes::failed(failure) };
    blocked(
        Reason::KubernetesUnavailable,
        format!("Error: the Kubernetes API server cannot be asked - {words}"),
        "the account has its rights (`musterctl kubernetes rbac --with-maintenance | kubectl apply -f -`)",
    )
}

/// A change in the cluster that is not seen yet: why the last try failed, or in these words that it comes.
fn is_changing(snapshot: &ClusterSnapshot<'_>, reason: Reason, message: &str) -> Blocked {
    let failure = look(snapshot).and_then(|look| look.change_failure.as_ref());
    failure.map_or_else(|| blocked(reason, message, "the API server has confirmed it"), failed)
}

/// What a request about a machine, or about the cluster itself, is about in the Kubernetes cluster. None: nothing, for
/// the cluster has no such handshake, or the machine was never Ready and has no node.
///
/// # Errors
/// The machine was Ready, and its node is unknown: without a request no controller would be asked.
fn known_subject(snapshot: &ClusterSnapshot<'_>, row: Option<&MachineRow>) -> Result<Option<Subject>, Blocked> {
    if spec(snapshot).is_none() {
        return Ok(None);
    }
    match (subject(row), row) {
        (None, Some(row)) if row.ready_at.is_some() => Err(blocked(
            Reason::KubernetesNodeUnclear,
            format!(
                "Error: the Kubernetes node of {} is not known yet, and its maintenance is requested there",
                row.name
            ),
            "a list of the nodes has shown it (`kubectl get nodes -o wide`)",
        )),
        (subject, _) => Ok(subject),
    }
}

/// The object that stands for a request. None: none is wanted, for the cluster has no such handshake, or the machine
/// was never Ready and has no node.
///
/// # Errors
/// Why it does not stand yet.
pub fn stands<'a>(
    snapshot: &ClusterSnapshot<'a>,
    row: Option<&MachineRow>,
) -> Result<Option<(&'a RequestObject, StandingRequest)>, Blocked> {
    let Some(subject) = known_subject(snapshot, row)? else { return Ok(None) };
    let seen = match fresh(snapshot) {
        // Its locks stay as they were seen last.
        Err(_) if row.is_some_and(|row| kubernetes::is_without_control_plane(snapshot, row)) => return Ok(None),
        seen => seen?,
    };
    let standing = standing(snapshot, row);
    match seen.what.iter().find(|request| takes_place(snapshot, request, &subject)) {
        Some(request) if !is_ours(snapshot, request) || request.deleting => Err(in_the_way(request)),
        Some(request) => match standing.filter(|standing| standing.uid == request.uid) {
            Some(standing) => Ok(Some((request, standing))),
            None => Err(about_to_be_made(snapshot)),
        },
        None => Err(about_to_be_made(snapshot)),
    }
}

fn standing(snapshot: &ClusterSnapshot<'_>, row: Option<&MachineRow>) -> Option<StandingRequest> {
    match row {
        Some(row) => row.update.as_ref()?.standing.clone(),
        None => snapshot.update()?.standing.clone(),
    }
}

fn about_to_be_made(snapshot: &ClusterSnapshot<'_>) -> Blocked {
    is_changing(snapshot, Reason::LocksActive, "the maintenance is about to be requested in the Kubernetes cluster")
}

/// Another request in the place of ours, or one that is not gone yet.
fn in_the_way(request: &RequestObject) -> Blocked {
    let (kind, name) = (kind(&request.subject), &request.name);
    if request.deleting {
        return held(request);
    }
    blocked(
        Reason::ForeignRequest,
        format!("Error: {kind} {name} is there already, and Muster did not make it"),
        format!("whoever made it removes it (`kubectl delete {} {name}`)", kind.to_lowercase()),
    )
}

/// A request that is being deleted, with who holds it.
fn held(request: &RequestObject) -> Blocked {
    let (kind, name) = (kind(&request.subject), &request.name);
    let finalizers = request.finalizers.join(", ");
    blocked(
        Reason::LocksReturning,
        format!("Error: {kind} {name} is being deleted, and is held by {finalizers}"),
        format!(
            "the controller behind that finalizer has let it go; or, if it is gone for good, `kubectl patch {} {name} \
             --type=merge -p '{{\"metadata\":{{\"finalizers\":null}}}}'`",
            kind.to_lowercase()
        ),
    )
}

const fn kind(subject: &Subject) -> &'static str {
    match subject {
        Subject::Cluster => "ClusterMaintenanceRequest",
        Subject::Node(_) => "NodeMaintenanceRequest",
    }
}

/// May a request about this be made: does the list of a moment ago show none, so that its answer belongs to ours?
///
/// # Errors
/// Whose request is there, or why that is unknown.
pub fn may_request(snapshot: &ClusterSnapshot<'_>, node: Option<&MachineName>) -> Result<(), Blocked> {
    let row = node.and_then(|node| snapshot.machines.iter().find(|view| view.row.name == *node)).map(|view| view.row);
    let Some(subject) = known_subject(snapshot, row)? else { return Ok(()) };
    let seen = fresh(snapshot)?;
    let other = seen.what.iter().find(|request| takes_place(snapshot, request, &subject));
    other.map_or(Ok(()), |request| {
        Err(if is_ours(snapshot, request) { about_to_go(snapshot, request) } else { in_the_way(request) })
    })
}

/// May a request of ours about this machine be left there, as far as the last list shows?
#[must_use]
pub fn may_be_left(facts: &Facts, row: &MachineRow) -> bool {
    let cluster = &row.spec.cluster_name;
    let kubernetes = facts.spec(cluster).and_then(|spec| spec.kubernetes.as_ref());
    let has_it = kubernetes.is_some_and(|kubernetes| kubernetes.maintenance.is_some());
    let Some(subject) = row.kubernetes_node.clone().map(Subject::Node).filter(|_| has_it) else { return false };
    let ours = |request: &RequestObject| {
        request.subject == subject && request.requested_by.as_deref() == Some(cluster.as_str())
    };
    let look = facts.live.handshakes.get(cluster);
    look.and_then(|look| look.requests.as_ref()).is_none_or(|seen| seen.what.iter().any(ours))
}

fn about_to_go(snapshot: &ClusterSnapshot<'_>, request: &RequestObject) -> Blocked {
    if request.deleting {
        return held(request);
    }
    let message = format!("the last {} {} is about to be removed", kind(&request.subject), request.name);
    is_changing(snapshot, Reason::LocksReturning, &message)
}

/// After the request is gone from the record: is it gone from the cluster?
///
/// # Errors
/// Who holds it, or why that is unknown.
pub fn is_gone(snapshot: &ClusterSnapshot<'_>, row: &MachineRow) -> Result<(), Blocked> {
    let Some(subject) = subject(Some(row)).filter(|_| spec(snapshot).is_some()) else { return Ok(()) };
    let last = look(snapshot).and_then(|look| look.requests.as_ref());
    let seen = match fresh(snapshot) {
        // The wait for it is over: nobody asks about it any more, and what was seen last is said.
        Err(_) if row.update.is_none() => last,
        seen => Some(seen?),
    };
    let ours = |request: &&RequestObject| request.subject == subject && is_ours(snapshot, request);
    if let Some(request) = seen.and_then(|seen| seen.what.iter().find(ours)) {
        return Err(about_to_go(snapshot, request));
    }
    if row.update.as_ref().is_some_and(|mine| mine.node_annotations.is_some()) {
        let message = "the annotations of its Kubernetes node for application controllers are being taken back";
        return Err(is_changing(snapshot, Reason::LocksReturning, message));
    }
    let never_seen = row.update.as_ref().is_some_and(|mine| mine.standing.is_none());
    match unsettled_until(snapshot).filter(|until| never_seen && *until > snapshot.now.mono_ms) {
        None => Ok(()),
        Some(_) => Err(blocked(
            Reason::LocksReturning,
            "a request that has no answer may still be made in the Kubernetes cluster",
            format!("{} s have passed without it", SETTLE_MS / 1_000),
        )),
    }
}

/// Until when a request without an answer may still be made, in monotonic milliseconds. The previous coordinator may
/// have sent one at its last moment.
fn unsettled_until(snapshot: &ClusterSnapshot<'_>) -> Option<u64> {
    let last = look(snapshot)?.unsettled_mono_ms;
    let last = last.unwrap_or(0).max(snapshot.facts.live.started_mono_ms);
    Some(last.saturating_add(SETTLE_MS))
}

/// Is a missing lock of this controller an answer to the request about this machine, or about the cluster?
///
/// # Errors
/// What shows that the controller has not seen the request, may yet make its lock, or takes the node for another.
pub fn is_without_lock(
    snapshot: &ClusterSnapshot<'_>,
    controller: &str,
    row: Option<&MachineRow>,
    request: (&RequestObject, &StandingRequest),
) -> Result<(), Blocked> {
    has_answered(snapshot, controller, request)?;
    let Some((row, label)) = row.and_then(|row| Some((row, guard(snapshot, controller, row)?))) else { return Ok(()) };
    let node = row.kubernetes_node.as_deref().unwrap_or_default();
    let key = label.split_once('=').map_or(label, |(key, _)| key);
    Err(blocked(
        Reason::ControllerCannotSee,
        format!("Error: {controller} has no NodeWorkloadLock for node {node}, which has its label {label}"),
        format!(
            "{controller} has made its lock (Rockoon knows no node whose name has a dot); or, if it has nothing there, \
             the label is gone (`kubectl label node {node} {key}-`)"
        ),
    ))
}

/// Has this controller put its finalizer on the request? Of a controller without a known one nobody can say.
#[must_use]
pub fn has_seen(snapshot: &ClusterSnapshot<'_>, controller: &str, row: Option<&MachineRow>) -> bool {
    let (Some(finalizer), _) = marks(snapshot, controller) else { return false };
    let request = stands(snapshot, row).ok().flatten();
    request.is_some_and(|(request, _)| request.finalizers.iter().any(|known| known == finalizer))
}

fn has_answered(
    snapshot: &ClusterSnapshot<'_>,
    controller: &str,
    (request, standing): (&RequestObject, &StandingRequest),
) -> Result<(), Blocked> {
    let (finalizer, handled) = marks(snapshot, controller);
    let settles = |at_ms: u64| match snapshot.now.wall_ms < at_ms.saturating_add(facts::SETTLE_MS) {
        true => Err(blocked(
            Reason::LocksSettling,
            format!("{controller} may yet make a lock in the Kubernetes cluster"),
            format!("it could see the request for {} s", facts::SETTLE_MS / 1_000),
        )),
        false => Ok(()),
    };
    let Some(finalizer) = finalizer else { return settles(standing.since_ms) };
    let kind = kind(&request.subject);
    if !request.finalizers.iter().any(|known| known == finalizer) {
        return Err(blocked(
            Reason::ControllerSilent,
            format!("{controller} has not seen {kind} {}: its finalizer {finalizer} is not there", request.name),
            "it has (is it running?); or, if it is gone for good, after an abort a manifest without it in \
             spec.kubernetes.maintenance, and `kubectl delete` of its locks",
        ));
    }
    match handled {
        Some(handled) if !request.annotations.iter().any(|known| known == handled) => Err(blocked(
            Reason::LocksSettling,
            format!("{controller} has seen {kind} {}, and has not handled it yet", request.name),
            format!("its annotation {handled} is there, or its lock"),
        )),
        Some(_) => Ok(()),
        None => {
            let key = (request.uid.clone(), finalizer.to_owned());
            let since = look(snapshot).and_then(|look| look.finalizers.get(&key)).copied();
            let since = since.unwrap_or(snapshot.now.mono_ms);
            settles(snapshot.now.wall_ms.saturating_sub(snapshot.now.mono_ms.saturating_sub(since)))
        }
    }
}
