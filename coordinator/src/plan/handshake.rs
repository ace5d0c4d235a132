//! The maintenance handshake as custom resources: which requests are made and removed in the Kubernetes cluster,
//! whether one stands there, and whether it is gone. Level-triggered: what is recorded is compared with the last list.

mod deletion;
mod removing;

use std::collections::BTreeMap;

use muster_proto::{
    model::{Blocked, ClusterName, MachineName, MaintenanceObjects, ObjectController, Reason},
    seeded_bug::seeded_bug,
};

use super::{
    drain::kubernetes::{self, FRESH_MS, SETTLE_MS},
    locks::CONTROLLERS_PREFIX,
    requests::{Requested, requested},
    safety::{self, blocked},
    snapshot::ClusterSnapshot,
};
use crate::facts::{
    self, Facts, HandshakeObservation, MachineRow, Seen, StandingRequest,
    handshake::{NewRequest, NodeAnnotations, RequestMark, RequestObject, Subject},
    kubernetes::{KubernetesFailure, KubernetesNode, KubernetesOp},
};
pub use deletion::lets_delete;

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

/// The section `maintenance` that holds for a cluster: of its open update, else of the newest manifest. None: it has no
/// such handshake.
#[must_use]
pub fn section<'a>(facts: &'a Facts, cluster: &ClusterName) -> Option<&'a MaintenanceObjects> {
    facts.spec_in_force(cluster)?.kubernetes.as_ref()?.maintenance.as_ref()
}

/// Are a cluster's requests listed? After the section's end that goes on until none of ours is left.
#[must_use]
pub fn asks(facts: &Facts, cluster: &ClusterName) -> bool {
    let kubernetes = facts.spec_in_force(cluster).and_then(|spec| spec.kubernetes.as_ref());
    kubernetes.is_some_and(|kubernetes| kubernetes.maintenance.is_some() || is_left(facts, cluster))
}

/// May something of ours be in the Kubernetes cluster?
fn is_left(facts: &Facts, cluster: &ClusterName) -> bool {
    facts.clusters.get(cluster).is_some_and(|row| row.kubernetes_requests || !row.kubernetes_annotations.is_empty())
}

/// What may be of ours in a Kubernetes cluster that the newest manifest knows, in words. None: nothing.
#[must_use]
pub fn left_there(facts: &Facts, cluster: &ClusterName) -> Option<String> {
    let row = facts.clusters.get(cluster).filter(|_| is_left(facts, cluster))?;
    facts.spec(cluster)?.kubernetes.as_ref()?;
    let listed = facts.live.handshakes.get(cluster).and_then(|look| look.requests.as_ref());
    let ours = listed.iter().flat_map(|seen| &seen.what).filter(|request| is_of_cluster(facts, cluster, request));
    let ours: Vec<String> = ours.map(|request| format!("{} {}", kind(&request.subject), request.name)).collect();
    let requests = match ours.is_empty() {
        false => Some(safety::some_names(ours.iter().map(String::as_str))),
        true => row.kubernetes_requests.then(|| "maintenance requests".to_owned()),
    };
    let nodes = || safety::some_names(row.kubernetes_annotations.keys().map(String::as_str));
    let annotations = (!row.kubernetes_annotations.is_empty()).then(|| format!("annotations on node {}", nodes()));
    Some(requests.into_iter().chain(annotations).collect::<Vec<_>>().join(" and "))
}

/// The cluster's settings, as [`section`]. None: it has no such handshake.
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

/// The controller that guards the machine's node by a label of its own, whoever is declared: it may have made no lock
/// yet.
#[must_use]
pub fn known_by_label(snapshot: &ClusterSnapshot<'_>, row: &MachineRow) -> Option<&'static str> {
    spec(snapshot).and_then(|_| guard(snapshot, ROCKOON, row)).map(|_| ROCKOON)
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
    let stays = |requested: &Requested<'_>| !requested.machine.is_some_and(MachineRow::has_left_kubernetes);
    let all = requested(snapshot.facts, cluster).filter(|_| spec(snapshot).is_some()).filter(stays);
    let objects = all.flat_map(|requested| {
        let mark = mark(snapshot.facts, &requested);
        let deletion = deletion::wanted(snapshot, &requested);
        subject(requested.machine).into_iter().chain(deletion).map(move |subject| (subject, mark)).collect::<Vec<_>>()
    });
    let object = |(subject, mark): (Subject, RequestMark)| {
        let name = name_of(snapshot, &subject);
        NewRequest { subject, name, scope: mark.scope, requested_by: cluster.to_string(), mark }
    };
    objects.map(object).collect()
}

/// What the object of this request says about it.
#[must_use]
pub fn mark(facts: &Facts, Requested { row, scope, .. }: &Requested<'_>) -> RequestMark {
    RequestMark { epoch: facts.meta.epoch, since_ms: row.since_ms, revision: row.revision, scope: *scope }
}

/// Name of our request about this.
fn name_of(snapshot: &ClusterSnapshot<'_>, subject: &Subject) -> String {
    match subject {
        Subject::Cluster => snapshot.cluster.name.to_string(),
        Subject::Node(node) | Subject::Deletion(node) => node.clone(),
    }
}

/// Is a request about this impossible beside that one: it is about the same, or has the name that ours would have?
fn takes_place(snapshot: &ClusterSnapshot<'_>, request: &RequestObject, subject: &Subject) -> bool {
    let has_name = subject.node().is_some() && request.name == name_of(snapshot, subject);
    request.subject == *subject || (has_name && kind(&request.subject) == kind(subject))
}

/// Did this coordinator make the request, or one before it? A coordinator of a higher epoch knows what this store does
/// not: its request is left to it.
#[must_use]
pub fn is_of_cluster(facts: &Facts, cluster: &ClusterName, request: &RequestObject) -> bool {
    let by_us = request.requested_by.as_deref() == Some(cluster.as_str());
    by_us && request.mark.is_none_or(|mark| mark.epoch <= facts.meta.epoch)
}

fn is_ours(snapshot: &ClusterSnapshot<'_>, request: &RequestObject) -> bool {
    is_of_cluster(snapshot.facts, &snapshot.cluster.name, request)
}

/// Requests to make: nobody's request is in their place, and their nodes are annotated.
fn to_make(snapshot: &ClusterSnapshot<'_>, requests: &[RequestObject]) -> Vec<NewRequest> {
    let is_free = |new: &NewRequest| !requests.iter().any(|known| takes_place(snapshot, known, &new.subject));
    let waits = to_annotate(snapshot);
    let is_annotated = |new: &NewRequest| waits.iter().all(|wanted| Some(wanted.node.as_str()) != new.subject.node());
    wanted(snapshot).into_iter().filter(is_free).filter(is_annotated).take(CHANGES_MAX).collect()
}

/// Nodes that are given other annotations, or have to give back ours. A controller reads them when it sees the request.
/// The node of a machine whose state is in doubt stays as it is.
fn to_annotate(snapshot: &ClusterSnapshot<'_>) -> Vec<NodeAnnotations> {
    let put = &snapshot.cluster.kubernetes_annotations;
    let mut wanted: BTreeMap<&str, BTreeMap<String, String>> =
        put.keys().map(|node| (node.as_str(), BTreeMap::new())).collect();
    let requested = requested(snapshot.facts, &snapshot.cluster.name).filter(|_| spec(snapshot).is_some());
    for (row, node) in requested.filter_map(|it| Some((it.machine?, it.machine?.kubernetes_node.as_deref()?))) {
        let for_controllers = row.annotations.iter().filter(|(name, _)| name.starts_with(CONTROLLERS_PREFIX));
        wanted.insert(node, for_controllers.map(|(name, value)| (name.clone(), value.clone())).collect());
    }
    let rests = |node: &str| {
        let mut rows = snapshot.machines.iter().map(|view| view.row);
        rows.any(|row| (row.needs_review || row.has_left_kubernetes()) && row.kubernetes_node.as_deref() == Some(node))
    };
    let is_done = |node: &str, values: &BTreeMap<String, String>| match put.get(node) {
        Some(put) => (put.confirmed && put.values == *values) || (values.is_empty() && seeded_bug("leave-annotations")),
        None => values.is_empty(),
    };
    let due = wanted.into_iter().filter(|(node, values)| !is_done(node, values) && !rests(node));
    due.map(|(node, values)| NodeAnnotations { node: node.to_owned(), values }).collect()
}

/// When a node may be annotated again after a failure, in monotonic milliseconds.
fn annotates_at(look: &HandshakeObservation, node: &str) -> u64 {
    let failure = look.annotation_failures.get(node);
    failure.map_or(0, |seen| seen.at_mono_ms.saturating_add(kubernetes::questions::delay_ms(&seen.what)))
}

/// Does this object stand for the request, or is it about to? One of ours that was made for an earlier request does
/// not: what answered that one is no answer to this.
fn is_for(snapshot: &ClusterSnapshot<'_>, new: &NewRequest, request: &RequestObject) -> bool {
    let is_about_same = || request.mark.is_some_and(|mark| mark.is_about_same(&new.mark));
    (&new.subject, &new.name) == (&request.subject, &request.name) && (is_known(snapshot, request) || is_about_same())
}

/// Is it recorded as the object that stands for an open request?
fn is_known(snapshot: &ClusterSnapshot<'_>, request: &RequestObject) -> bool {
    let is_it = |standing: &StandingRequest| standing.uid == request.uid;
    let machines = snapshot.machines.iter().filter_map(|view| view.update()).filter(|mine| mine.request.is_some());
    let of_machines = machines.flat_map(|mine| mine.standing.iter().chain(&mine.standing_deletion));
    let of_cluster = snapshot.update().and_then(|update| update.standing.as_ref());
    of_machines.chain(of_cluster).any(is_it)
}

/// The next question. One at a time.
#[must_use]
pub fn next(snapshot: &ClusterSnapshot<'_>) -> Option<KubernetesOp> {
    let may_ask = safety::store_is_current(snapshot).is_ok() && !snapshot.facts.meta.recovering;
    if !may_ask || !asks(snapshot.facts, &snapshot.cluster.name) {
        return None;
    }
    let define = spec(snapshot).is_some();
    let Some(look) = look(snapshot) else { return Some(KubernetesOp::Handshake { define }) };
    let now = snapshot.now.mono_ms;
    if free_at(look) > now {
        return None;
    }
    // The definitions may be gone.
    let Some(seen) = look.requests.as_ref().filter(|_| look.failure.is_none()) else {
        return Some(KubernetesOp::Handshake { define });
    };
    let (make, remove) = (to_make(snapshot, &seen.what), removing::to_remove(snapshot, &seen.what));
    let may_annotate = |wanted: &NodeAnnotations| annotates_at(look, &wanted.node) <= now;
    let annotate: Vec<_> = to_annotate(snapshot).into_iter().filter(may_annotate).take(CHANGES_MAX).collect();
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
    let is_open = snapshot.update().is_some() || is_left(snapshot.facts, &snapshot.cluster.name);
    if is_open { OPEN_EVERY_MS } else { REST_EVERY_MS }
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
    let look = look(snapshot).filter(|_| asks(snapshot.facts, &snapshot.cluster.name))?;
    let later = |at: u64, by_ms: u64| at.saturating_add(by_ms);
    let listed = look.requests.iter().flat_map(|seen| {
        let every_ms = every_ms(snapshot, &seen.what);
        [every_ms, AFTER_CHANGE_MS, CHANGE_WITHIN_MS, FRESH_MS].map(|by_ms| later(seen.at_mono_ms, by_ms))
    });
    let deleted = look.deletions.values().map(|since| later(*since, facts::SETTLE_MS));
    let unsettled = look.unsettled_mono_ms.map(|at| later(at, SETTLE_MS));
    let inherited = later(snapshot.facts.live.started_mono_ms, SETTLE_MS);
    let annotated = look.annotation_failures.keys().map(|node| annotates_at(look, node));
    let moments = listed.chain(annotated).chain(deleted).chain(unsettled).chain([free_at(look), inherited]);
    let next = moments.filter(|at| *at > snapshot.now.mono_ms).min()?;
    Some(snapshot.now.wall_ms + (next - snapshot.now.mono_ms))
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

/// A change in the cluster that is not seen yet: why the last try failed, for this node or for any request, or in these
/// words that it comes.
fn is_changing(snapshot: &ClusterSnapshot<'_>, subject: &Subject, reason: Reason, message: &str) -> Blocked {
    let failure = look(snapshot).and_then(|look| match subject {
        Subject::Node(node) if look.annotation_failures.contains_key(node) => {
            look.annotation_failures.get(node).map(|seen| &seen.what)
        }
        _ => look.change_failure.as_ref(),
    });
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
    // Seeded bug: take locks for an answer before the request is there.
    if seeded_bug("answer-before-request-object") {
        return Ok(None);
    }
    stands_as(snapshot, row, &subject, standing(snapshot, row))
}

/// The same for a request about this.
fn stands_as<'a>(
    snapshot: &ClusterSnapshot<'a>,
    row: Option<&MachineRow>,
    subject: &Subject,
    standing: Option<StandingRequest>,
) -> Result<Option<(&'a RequestObject, StandingRequest)>, Blocked> {
    let seen = match fresh(snapshot) {
        // Its locks stay as they were seen last.
        Err(_) if row.is_some_and(|row| kubernetes::is_without_control_plane(snapshot, row)) => return Ok(None),
        seen => seen?,
    };
    match seen.what.iter().find(|request| takes_place(snapshot, request, subject)) {
        Some(request) if !is_ours(snapshot, request) || request.deleting => Err(in_the_way(snapshot, request)),
        Some(request) => match standing.filter(|standing| standing.uid == request.uid) {
            Some(standing) => Ok(Some((request, standing))),
            None => Err(about_to_go(snapshot, request)),
        },
        None => Err(about_to_be_made(snapshot, subject)),
    }
}

fn standing(snapshot: &ClusterSnapshot<'_>, row: Option<&MachineRow>) -> Option<StandingRequest> {
    match row {
        Some(row) => row.update.as_ref()?.standing.clone(),
        None => snapshot.update()?.standing.clone(),
    }
}

fn about_to_be_made(snapshot: &ClusterSnapshot<'_>, subject: &Subject) -> Blocked {
    let what = match subject {
        Subject::Cluster | Subject::Node(_) => "the maintenance",
        Subject::Deletion(_) => "the end of its node",
    };
    let message = format!("{what} is about to be requested in the Kubernetes cluster");
    is_changing(snapshot, subject, Reason::LocksActive, &message)
}

/// Another request in the place of ours, or one that is not gone yet.
fn in_the_way(snapshot: &ClusterSnapshot<'_>, request: &RequestObject) -> Blocked {
    let (kind, name) = (kind(&request.subject), &request.name);
    if request.deleting {
        return held(request);
    }
    let ours = snapshot.facts.meta.epoch;
    let newer = request.mark.filter(|_| request.requested_by.as_deref() == Some(snapshot.cluster.name.as_str()));
    if let Some(newer) = newer.filter(|mark| mark.epoch > ours) {
        return blocked(
            Reason::ForeignRequest,
            format!(
                "Error: {kind} {name} is of a coordinator of this cluster with epoch {}, and this one has epoch \
                 {ours}: its store is older, or two coordinators are at work",
                newer.epoch
            ),
            format!(
                "that coordinator removes it; or, if it is gone for good, `kubectl delete {} {name}`",
                kind.to_lowercase()
            ),
        );
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
        Subject::Deletion(_) => "NodeDeletionRequest",
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
        Err(if is_ours(snapshot, request) { about_to_go(snapshot, request) } else { in_the_way(snapshot, request) })
    })
}

/// May a request of ours about this machine be left there, as far as the last list shows?
#[must_use]
pub fn may_be_left(facts: &Facts, row: &MachineRow) -> bool {
    let cluster = &row.spec.cluster_name;
    if row.kubernetes_node.is_none() || section(facts, cluster).is_none() {
        return false;
    }
    let ours = |request: &RequestObject| is_about(request, row) && is_of_cluster(facts, cluster, request);
    let look = facts.live.handshakes.get(cluster);
    look.and_then(|look| look.requests.as_ref()).is_none_or(|seen| seen.what.iter().any(ours))
}

/// Requests about a machine that are still there, as far as the last list shows, for its operator. None: none.
#[must_use]
pub fn left_behind(facts: &Facts, row: &MachineRow) -> Option<String> {
    let cluster = &row.spec.cluster_name;
    let seen = facts.live.handshakes.get(cluster)?.requests.as_ref()?;
    let ours = |request: &&RequestObject| {
        is_about(request, row) && request.requested_by.as_deref() == Some(cluster.as_str()) && request.deleting
    };
    let left: Vec<String> = seen.what.iter().filter(ours).map(|request| held(request).message).collect();
    (!left.is_empty()).then(|| left.join("; "))
}

fn about_to_go(snapshot: &ClusterSnapshot<'_>, request: &RequestObject) -> Blocked {
    if request.deleting {
        return held(request);
    }
    if let Err(stays) = removing::may_be_removed(snapshot, request) {
        return stays;
    }
    let message = format!("the last {} {} is about to be removed", kind(&request.subject), request.name);
    is_changing(snapshot, &request.subject, Reason::LocksReturning, &message)
}

/// After the request is gone from the record: is it gone from the cluster?
///
/// # Errors
/// Who holds it, or why that is unknown.
pub fn is_gone(snapshot: &ClusterSnapshot<'_>, row: &MachineRow) -> Result<(), Blocked> {
    if row.kubernetes_node.is_none() || spec(snapshot).is_none() {
        return Ok(());
    }
    let last = look(snapshot).and_then(|look| look.requests.as_ref());
    let seen = match fresh(snapshot) {
        // The wait for it is over: nobody asks about it any more, and what was seen last is said.
        Err(_) if row.update.is_none() => last,
        seen => Some(seen?),
    };
    let ours = |request: &&RequestObject| is_about(request, row) && is_ours(snapshot, request);
    if let Some(request) = seen.and_then(|seen| seen.what.iter().find(ours)) {
        return Err(about_to_go(snapshot, request));
    }
    let put = &snapshot.cluster.kubernetes_annotations;
    if let Some(subject) =
        subject(Some(row)).filter(|subject| subject.node().is_some_and(|node| put.contains_key(node)))
    {
        let message = "the annotations of its Kubernetes node for application controllers are being taken back";
        return Err(is_changing(snapshot, &subject, Reason::LocksReturning, message));
    }
    let never_seen = row.update.as_ref().is_some_and(|mine| mine.standing.is_none());
    let until = unsettled_until(snapshot.facts, &row.spec.cluster_name);
    match until.filter(|until| never_seen && *until > snapshot.now.mono_ms) {
        None => Ok(()),
        Some(_) => Err(blocked(
            Reason::LocksReturning,
            "a request that has no answer may still be made in the Kubernetes cluster",
            format!("{} s have passed without it", SETTLE_MS / 1_000),
        )),
    }
}

/// Another's request about this machine, for which controllers keep its locks inactive.
#[must_use]
pub fn foreign_request(snapshot: &ClusterSnapshot<'_>, row: &MachineRow) -> Option<Blocked> {
    let mut seen = look(snapshot).filter(|_| spec(snapshot).is_some())?.requests.iter().flat_map(|seen| &seen.what);
    let foreign = seen.find(|request| is_about(request, row) && !is_ours(snapshot, request))?;
    Some(in_the_way(snapshot, foreign))
}

/// Are the requests about a machine that has left Kubernetes gone from there?
///
/// # Errors
/// Who holds one, or why that is unknown.
pub fn is_withdrawn(snapshot: &ClusterSnapshot<'_>, row: &MachineRow) -> Result<(), Blocked> {
    let mine = row.update.as_ref();
    let requested =
        mine.is_some_and(|mine| mine.request.is_some() || mine.standing.is_some() || mine.standing_deletion.is_some());
    if !requested || row.kubernetes_node.is_none() || spec(snapshot).is_none() {
        return Ok(());
    }
    let mut seen = fresh(snapshot)?.what.iter();
    let ours = seen.find(|request| is_about(request, row) && is_ours(snapshot, request));
    ours.map_or(Ok(()), |request| Err(about_to_go(snapshot, request)))
}

/// Until when a request without an answer may still be made, in monotonic milliseconds. The previous coordinator may
/// have sent one at its last moment.
#[must_use]
pub fn unsettled_until(facts: &Facts, cluster: &ClusterName) -> Option<u64> {
    let last = facts.live.handshakes.get(cluster)?.unsettled_mono_ms;
    let last = last.unwrap_or(0).max(facts.live.started_mono_ms);
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
    request: &RequestObject,
) -> Result<(), Blocked> {
    let Some((row, label)) = row.and_then(|row| Some((row, guard(snapshot, controller, row)?))) else {
        return has_answered(snapshot, controller, request, "");
    };
    let node = row.kubernetes_node.as_deref().unwrap_or_default();
    let key = label.split_once('=').map_or(label, |(key, _)| key);
    let unlabel = format!("`kubectl label node {node} {key}-`");
    has_answered(snapshot, controller, request, &format!(", and {unlabel}"))?;
    // Seeded bug: believe a controller that does not know its node.
    if seeded_bug("believe-controller-that-cannot-see") {
        return Ok(());
    }
    Err(blocked(
        Reason::ControllerCannotSee,
        format!("Error: {controller} has no NodeWorkloadLock for node {node}, which has its label {label}"),
        format!(
            "{controller} has made its lock (Rockoon knows no node whose name has a dot); or, if it has nothing there, \
             the label is gone ({unlabel})"
        ),
    ))
}

/// May a controller that nobody knows yet make its lock about this?
///
/// # Errors
/// It could see the request for too short a time.
pub fn is_seen_by_all(snapshot: &ClusterSnapshot<'_>, request: &RequestObject) -> Result<(), Blocked> {
    settles(snapshot, "an application controller", first_seen(snapshot, request))
}

/// When a list of this process showed the request first, in monotonic milliseconds.
fn first_seen(snapshot: &ClusterSnapshot<'_>, request: &RequestObject) -> Option<u64> {
    look(snapshot)?.first_seen.get(&request.uid).copied()
}

/// Could this controller see since this moment, in monotonic milliseconds, what it makes its lock for? None: it was
/// not there.
fn settles(snapshot: &ClusterSnapshot<'_>, controller: &str, since_mono_ms: Option<u64>) -> Result<(), Blocked> {
    if since_mono_ms.is_some_and(|since| is_settled(snapshot, since)) {
        return Ok(());
    }
    Err(blocked(
        Reason::LocksSettling,
        format!("{controller} may yet make a lock in the Kubernetes cluster"),
        format!("it could see the request for {} s", facts::SETTLE_MS / 1_000),
    ))
}

/// Is what vanished of the locks about this gone for good, or could it be made anew: a controller that is upgraded or
/// installed again does that?
///
/// # Errors
/// The controller that may do it.
pub fn lost_for_good(snapshot: &ClusterSnapshot<'_>, request: &RequestObject) -> Result<(), Blocked> {
    let lost = look(snapshot).and_then(|look| look.lost.get(&request.subject));
    let open = lost.into_iter().flatten().find(|(_, since)| !is_settled(snapshot, **since));
    open.map_or(Ok(()), |(controller, _)| {
        Err(blocked(
            Reason::LocksSettling,
            format!("a lock of {controller} in the Kubernetes cluster has vanished, and may be made anew"),
            format!("a list of {} s later lacks it too", facts::SETTLE_MS / 1_000),
        ))
    })
}

/// Was the last list made so long after this moment, in monotonic milliseconds, that it shows what a controller did
/// then?
fn is_settled(snapshot: &ClusterSnapshot<'_>, since_mono_ms: u64) -> bool {
    let listed = look(snapshot).and_then(|look| look.requests.as_ref()).map_or(0, |seen| seen.at_mono_ms);
    listed >= since_mono_ms.saturating_add(facts::SETTLE_MS)
}

/// Has this controller put its finalizer on the request? Of a controller without a known one nobody can say.
#[must_use]
pub fn has_seen(snapshot: &ClusterSnapshot<'_>, controller: &str, row: Option<&MachineRow>) -> bool {
    let (Some(finalizer), _) = marks(snapshot, controller) else { return false };
    let request = stands(snapshot, row).ok().flatten();
    request.is_some_and(|(request, _)| request.finalizers.iter().any(|known| known == finalizer))
}

/// `unlabel`: what else ends the wait for a controller that is gone.
fn has_answered(
    snapshot: &ClusterSnapshot<'_>,
    controller: &str,
    request: &RequestObject,
    unlabel: &str,
) -> Result<(), Blocked> {
    let (finalizer, handled) = marks(snapshot, controller);
    let Some(finalizer) = finalizer else { return settles(snapshot, controller, first_seen(snapshot, request)) };
    let kind = kind(&request.subject);
    // Seeded bug: take the silence of a controller that has not seen the request for consent.
    if seeded_bug("ignore-silent-object-controller") {
        return Ok(());
    }
    if !request.finalizers.iter().any(|known| known == finalizer) {
        let is_declared = declared(snapshot).any(|declared| declared.name == controller);
        let undeclare =
            if is_declared { "after an abort a manifest without it in spec.kubernetes.maintenance, " } else { "" };
        return Err(blocked(
            Reason::ControllerSilent,
            format!("{controller} has not seen {kind} {}: its finalizer {finalizer} is not there", request.name),
            format!(
                "it has (is it running?); or, if it is gone for good, {undeclare}`kubectl delete` of its locks{unlabel}"
            ),
        ));
    }
    match handled {
        Some(handled) => is_handled(snapshot, controller, request, handled),
        None => {
            let key = (request.uid.clone(), finalizer.to_owned());
            let since = look(snapshot).and_then(|look| look.finalizers.get(&key)).copied();
            settles(snapshot, controller, since)
        }
    }
}

/// Has the controller put its annotation on the request, as it does when it is through with it? One that takes longer
/// than to make a lock is waited for as for a lock, with its deadline.
fn is_handled(
    snapshot: &ClusterSnapshot<'_>,
    controller: &str,
    request: &RequestObject,
    handled: &str,
) -> Result<(), Blocked> {
    if request.annotations.iter().any(|known| known == handled) {
        return Ok(());
    }
    let is_late = first_seen(snapshot, request).is_some_and(|since| is_settled(snapshot, since));
    Err(blocked(
        if is_late { Reason::LocksActive } else { Reason::LocksSettling },
        format!("{controller} has not handled {} {} yet", kind(&request.subject), request.name),
        format!("its annotation {handled} is there, or its lock (is it running?)"),
    ))
}

/// Is the request about the node of this machine?
fn is_about(request: &RequestObject, row: &MachineRow) -> bool {
    row.kubernetes_node.is_some() && request.subject.node() == row.kubernetes_node.as_deref()
}
