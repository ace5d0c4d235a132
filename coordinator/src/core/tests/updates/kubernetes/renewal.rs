//! The renewal of pods of `OnDelete` DaemonSets at the end of an update: one node after another, each in a turn of its
//! own, and what holds it.

mod looks;
mod pods;
mod requests;

use std::collections::BTreeMap;

use muster_proto::model::{DeadlineOutcome, OnDeleteDaemonSets, Phase, RunnerKind, Scope, StateItem};

use super::*;
use crate::{
    core::{Refusal, tests::fleet::item},
    documents,
    facts::{
        ClusterStage,
        kubernetes::{
            Budget, ClusterLoad, Eviction, NodeLoad, PodName, PodRef,
            daemon_sets::{DaemonPod, DaemonSet, DaemonSets},
        },
    },
    plan::update::renewal,
};

const NODES: [&str; 3] = ["control-1", "worker-1", "worker-2"];
const SET: &str = "tf/vrouter";
const OLD: &str = "old-hash";
const NEW: &str = "new-hash";

fn daemon_pod(node: &str, hash: &str) -> DaemonPod {
    let mut known = pod(&format!("vrouter-{node}-{hash}"));
    known.object.namespace = "tf".to_owned();
    known.of_daemon_set = true;
    DaemonPod { pod: known, node: node.to_owned(), hash: hash.to_owned(), ready: true }
}

fn vrouter(hash: &str, newest: &str) -> DaemonSet {
    let pods: Vec<DaemonPod> = NODES.iter().map(|node| daemon_pod(node, hash)).collect();
    let mut set = DaemonSet { name: SET.to_owned(), newest: Some(newest.to_owned()), pods, ..DaemonSet::default() };
    count(&mut set);
    set.desired = set.current;
    set
}

/// The numbers of its status.
fn count(set: &mut DaemonSet) {
    let updated = set.pods.iter().filter(|pod| Some(&pod.hash) == set.newest.as_ref()).count();
    set.current = i64::try_from(set.pods.len()).expect("few");
    set.updated = i64::try_from(updated).expect("few");
}

impl Kubernetes {
    /// The answer to the eviction of a DaemonSet's pod. None: it is of none.
    pub(super) fn evict_daemon_pod(&mut self, evicted: &PodRef) -> Option<Eviction> {
        let set = self.daemon_sets.sets.first_mut()?;
        let at = set.pods.iter().position(|known| known.pod.object == *evicted)?;
        let refused = set.pods[at].pod.budgets.iter().any(|name| self.daemon_sets.budgets[name].allowed == 0);
        self.log.push(format!("evict {}{}", evicted.name, if refused { ": refused" } else { "" }));
        if refused {
            return Some(Eviction::Budget("it would violate the pod's disruption budget".to_owned()));
        }
        set.pods[at].pod.deletion_s = Some(1);
        if !self.slow {
            self.replace(evicted, true);
        }
        Some(Eviction::Accepted)
    }

    /// The old pod ends, and the DaemonSet's controller makes another one.
    fn replace(&mut self, old: &PodRef, ready: bool) {
        let set = self.daemon_sets.sets.first_mut().expect("a set");
        let at = set.pods.iter().position(|known| known.pod.object == *old).expect("the pod");
        let newest = set.newest.clone().expect("a template");
        set.pods[at] = DaemonPod { ready, ..daemon_pod(&set.pods[at].node.clone(), &newest) };
        count(set);
    }

    fn set(&mut self) -> &mut DaemonSet {
        self.daemon_sets.sets.first_mut().expect("a set")
    }

    /// The pod on this node.
    fn on(&mut self, node: &str) -> &mut DaemonPod {
        self.set().pods.iter_mut().find(|pod| pod.node == node).expect("a pod")
    }

    fn evictions(&self) -> usize {
        self.log.iter().filter(|line| line.starts_with("evict")).count()
    }
}

/// A deployed cluster whose updates renew pods.
fn renewing() -> Fleet {
    at_rest_with(|spec| spec.on_delete = vec![selector()])
}

fn selector() -> OnDeleteDaemonSets {
    OnDeleteDaemonSets { namespace: "tf".to_owned(), ..OnDeleteDaemonSets::default() }
}

/// Every machine is at the new release, and the template of the DaemonSet changed meanwhile.
fn at_renewal(set_up: impl FnOnce(&mut Kubernetes)) -> (Fleet, Kubernetes) {
    at_renewal_of(renewing(), set_up)
}

/// The same with a fleet at rest.
fn at_renewal_of(fleet: Fleet, set_up: impl FnOnce(&mut Kubernetes)) -> (Fleet, Kubernetes) {
    let before = before_controls_of(fleet, 2, |kubernetes| kubernetes.daemon_sets.sets = vec![vrouter(OLD, OLD)]);
    let (mut fleet, mut kubernetes) = after_controls(before);
    fleet.live(&mut kubernetes, 12);
    assert_eq!(kubernetes.evictions(), 0);
    kubernetes.set().newest = Some(NEW.to_owned());
    count(kubernetes.set());
    set_up(&mut kubernetes);
    for worker in ["worker-1", "worker-2"] {
        fleet.complete_in(&mut kubernetes, worker);
    }
    kubernetes.log.clear();
    fleet.live(&mut kubernetes, 6);
    (fleet, kubernetes)
}

/// Its locks go, its pods are renewed, and its workloads come back.
fn renew(fleet: &mut Fleet, kubernetes: &mut Kubernetes, name: &str) {
    assert_eq!(fleet.requests(), [name], "{:?}", fleet.says(name));
    fleet.lock("ceph", Some(name), LockState::Inactive);
    fleet.live(kubernetes, 8);
    assert!(fleet.requests().is_empty(), "{}", fleet.says(name));
    fleet.lock("ceph", Some(name), LockState::Active);
    fleet.live(kubernetes, 4);
}

fn stage(fleet: &Fleet) -> Option<bool> {
    let rollout = fleet.core.facts().rollouts.values().filter_map(|row| row.update.as_ref()).next_back();
    rollout.expect("an update").stages.get(&ClusterStage::PodsRenewed).map(|stage| stage.succeeded)
}

/// What the cluster as a whole waits for.
fn cluster_says(fleet: &Fleet) -> String {
    let blocked = fleet.look("control-1", |snapshot, _| crate::plan::blocked::of_cluster(snapshot));
    blocked.map(|blocked| blocked.message).unwrap_or_default()
}

fn is_open(fleet: &Fleet) -> bool {
    fleet.core.facts().open_rollout(&cluster()).is_some()
}

#[test]
fn pods_are_renewed_node_by_node() {
    let (mut fleet, mut kubernetes) = at_renewal(|_| {});
    for (n, name) in NODES.iter().enumerate() {
        assert_eq!(fleet.slots(), [*name], "one node at a time");
        assert_eq!(kubernetes.evictions(), n, "not before its locks are inactive: {:?}", kubernetes.log);
        renew(&mut fleet, &mut kubernetes, name);
    }
    assert_eq!(stage(&fleet), Some(true));
    assert!(!is_open(&fleet));
    let evicted: Vec<String> = NODES.iter().map(|name| format!("evict vrouter-{name}-{OLD}")).collect();
    assert_eq!(kubernetes.log, evicted, "nothing is cordoned, and nothing else leaves");
}

#[test]
fn unchanged_template_renews_nothing() {
    let (fleet, kubernetes) = at_renewal(|kubernetes| {
        kubernetes.set().newest = Some(OLD.to_owned());
        count(kubernetes.set());
    });
    assert_eq!((stage(&fleet), is_open(&fleet), kubernetes.evictions()), (Some(true), false, 0));
}

#[test]
fn unseen_template_is_waited_for() {
    let (mut fleet, mut kubernetes) = at_renewal(|kubernetes| kubernetes.set().newest = None);
    assert_eq!((stage(&fleet), fleet.slots().len()), (Some(false), 0));
    let blocked = cluster_says(&fleet);
    assert!(blocked.contains("DaemonSet tf/vrouter has not seen its newest template"), "{blocked}");
    kubernetes.set().newest = Some(NEW.to_owned());
    fleet.live(&mut kubernetes, 62);
    assert_eq!(fleet.slots(), ["control-1"]);
}

/// The next node waits while a successor is missing, or is not Ready, and past the deadline an operator decides.
#[test]
fn successor_must_be_ready() {
    let (mut fleet, mut kubernetes) = at_renewal(|kubernetes| kubernetes.slow = true);
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 8);
    assert_eq!(fleet.why("control-1").as_deref(), Some("KubernetesPodRenewal"));
    assert!(fleet.says("control-1").contains("was evicted, and terminates"), "{}", fleet.says("control-1"));
    let old = kubernetes.on("control-1").pod.object.clone();
    kubernetes.replace(&old, false);
    fleet.live(&mut kubernetes, 8);
    assert!(fleet.says("control-1").contains("is not Ready"), "{}", fleet.says("control-1"));
    assert_eq!(fleet.requests(), ["control-1"]);
    fleet.live(&mut kubernetes, 31 * 60);
    assert!(fleet.is_paused(), "{}", fleet.says("control-1"));
    assert_eq!((kubernetes.evictions(), fleet.slots()), (1, vec!["control-1"]));
    kubernetes.on("control-1").ready = true;
    fleet.live(&mut kubernetes, 4);
    assert!(fleet.requests().is_empty(), "what was evicted comes to its end");
}

/// A template that is set back while its pod is refused needs no renewal.
#[test]
fn template_that_comes_back_ends_turn() {
    let (mut fleet, mut kubernetes) = at_renewal(refusing);
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 12);
    assert!((2..=3).contains(&kubernetes.evictions()), "at most one in 5 s: {:?}", kubernetes.log);
    let says = "Error: pod tf/vrouter-control-1-old-hash cannot be evicted: budget tf/vrouter needs 2 healthy pods and \
                has 2";
    assert_eq!(fleet.says("control-1"), says);
    kubernetes.set().newest = Some(OLD.to_owned());
    count(kubernetes.set());
    fleet.live(&mut kubernetes, SETTLE_MS / 1_000 + 10);
    assert!(fleet.requests().is_empty(), "{}", fleet.says("control-1"));
    fleet.lock("ceph", Some("control-1"), LockState::Active);
    fleet.live(&mut kubernetes, 6);
    assert!(!is_open(&fleet), "{}", fleet.says("worker-1"));
}

/// A budget that allows none now, and may later.
fn refusing(kubernetes: &mut Kubernetes) {
    under(kubernetes, Budget { expected: 3, ..budget(2, 2, 3) });
}

fn under(kubernetes: &mut Kubernetes, budget: Budget) {
    kubernetes.daemon_sets.budgets.insert("tf/vrouter".to_owned(), budget);
    kubernetes.set().pods.iter_mut().for_each(|pod| pod.pod.budgets = vec!["tf/vrouter".to_owned()]);
}

#[test]
fn budget_that_never_allows_defers_untouched() {
    let (mut fleet, mut kubernetes) = at_renewal(|kubernetes| {
        let words = "daemonsets.apps does not implement the scale subresource".to_owned();
        under(kubernetes, Budget { observed: false, sync_failed: Some(words), ..budget(0, 0, 0) });
    });
    fleet.live(&mut kubernetes, 12);
    for name in NODES {
        assert_eq!(fleet.why(name).as_deref(), Some("KubernetesUndrainable"), "{name}: {}", fleet.says(name));
        assert!(fleet.says(name).contains("does not implement the scale subresource"), "{}", fleet.says(name));
        let way_out = format!("`musterctl retry {name}` once what it says has passed");
        assert_eq!(fleet.clears_when(name), way_out, "nothing is drained, so nothing is forced");
        let pod = PodName { namespace: "tf".to_owned(), name: format!("vrouter-{name}-{OLD}") };
        let forced = fleet.ask(Request::DrainForce { machine: machine(name), pod });
        let Err(Refusal::State { message, .. }) = forced else { panic!("{forced:?}") };
        assert!(message.ends_with("its Kubernetes node is not drained for that"), "{message}");
    }
    assert_eq!((kubernetes.evictions(), fleet.requests().len()), (0, 0));
    under(&mut kubernetes, budget(2, 3, 3));
    fleet.ask(Request::Retry { machine: machine("control-1"), item: None }).expect("again");
    fleet.live(&mut kubernetes, 4);
    renew(&mut fleet, &mut kubernetes, "control-1");
    assert_eq!(kubernetes.evictions(), 1);
}

#[test]
fn pod_on_foreign_node_is_named() {
    let (mut fleet, mut kubernetes) = at_renewal(|kubernetes| {
        kubernetes.set().pods = vec![daemon_pod("elsewhere", OLD)];
        count(kubernetes.set());
    });
    let blocked = cluster_says(&fleet);
    assert!(blocked.contains("its node elsewhere is of no machine of this update"), "{blocked}");
    fleet.live(&mut kubernetes, 31 * 60);
    assert!(fleet.is_paused() && kubernetes.evictions() == 0);
    let stuck = fleet.look("control-1", |snapshot, _| crate::plan::update::overdue_stage(snapshot));
    assert_eq!(stuck.map(|(stage, _)| stage), Some(crate::facts::ClusterStage::PodsRenewed));
    let old = kubernetes.on("elsewhere").pod.object.clone();
    kubernetes.replace(&old, true);
    fleet.ask(Request::Resume { rollout: fleet.rollout() }).expect("goes on");
    fleet.live(&mut kubernetes, 6);
    assert!(!is_open(&fleet));
}

#[test]
fn abort_gives_request_back() {
    for evicted in [false, true] {
        let (mut fleet, mut kubernetes) = at_renewal(|kubernetes| kubernetes.slow = true);
        if evicted {
            fleet.lock("ceph", Some("control-1"), LockState::Inactive);
            fleet.live(&mut kubernetes, 8);
        }
        fleet.ask(Request::Abort { rollout: fleet.rollout() }).expect("aborts");
        fleet.live(&mut kubernetes, 4);
        assert_eq!(fleet.requests().is_empty(), !evicted, "an eviction comes to its end");
        if evicted {
            let old = kubernetes.on("control-1").pod.object.clone();
            kubernetes.replace(&old, true);
            fleet.live(&mut kubernetes, 4);
            assert!(fleet.requests().is_empty());
            fleet.lock("ceph", Some("control-1"), LockState::Active);
        }
        fleet.live(&mut kubernetes, 4);
        assert!(!is_open(&fleet), "{evicted}: {}", fleet.says("control-1"));
        assert_eq!(kubernetes.evictions(), usize::from(evicted));
    }
}

/// The record of the eviction is enough for the next coordinator. It evicts nothing twice.
#[test]
fn next_coordinator_goes_on_with_renewal() {
    let (mut fleet, mut kubernetes) = at_renewal(|kubernetes| kubernetes.slow = true);
    fleet.lock("ceph", Some("control-1"), LockState::Inactive);
    fleet.live(&mut kubernetes, 8);
    assert_eq!(kubernetes.evictions(), 1);
    fleet.kubernetes.clear();
    fleet.restart();
    fleet.all_report();
    fleet.report_boots();
    fleet.watch("ceph", 2);
    fleet.live(&mut kubernetes, 20);
    assert_eq!((kubernetes.evictions(), fleet.requests()), (1, vec!["control-1"]));
    let old = kubernetes.on("control-1").pod.object.clone();
    kubernetes.replace(&old, true);
    fleet.live(&mut kubernetes, 6);
    assert!(fleet.requests().is_empty(), "{}", fleet.says("control-1"));
    fleet.lock("ceph", Some("control-1"), LockState::Active);
    fleet.live(&mut kubernetes, 6);
    assert_eq!(fleet.requests(), ["worker-1"], "{}", fleet.says("worker-1"));
}

#[test]
fn locks_of_renewal_defer_past_deadline() {
    let (mut fleet, mut kubernetes) = at_renewal(|_| {});
    let outcome = fleet.core.facts().spec(&cluster()).expect("applied").update_deadlines.node_locks.outcome;
    assert_eq!(outcome, DeadlineOutcome::Defer);
    fleet.live(&mut kubernetes, 32 * 60);
    assert_eq!(fleet.why("control-1").as_deref(), Some("Deferred"), "{}", fleet.says("control-1"));
    assert_eq!(kubernetes.evictions(), 0);
    renew(&mut fleet, &mut kubernetes, "worker-1");
}

/// What a plan warns of where this was listed.
fn warned(looked: Result<DaemonSets, KubernetesFailure>) -> Vec<String> {
    let mut fleet = renewing();
    release(&mut fleet, &["install"], 1);
    let nodes = Kubernetes::of(&fleet).nodes.into_values().map(|node| (node, NodeLoad::default())).collect();
    let load = ClusterLoad { cluster_uid: CLUSTER_UID.to_owned(), nodes, daemon_sets: Some(looked) };
    let (facts, limits, options) = (fleet.core.facts(), fleet.core.limits(), Options::of(Scope::Drain));
    let mut plan = documents::plan(facts, &cluster(), &options, limits, fleet.now()).expect("a plan");
    documents::kubernetes::warn(&mut plan, facts, &cluster(), &Ok(load), limits, fleet.now());
    plan.update.expect("something to do").warnings
}

/// The DaemonSet, with this budget over its pods.
fn budgeted(budget: Budget) -> Result<DaemonSets, KubernetesFailure> {
    let mut set = vrouter(OLD, OLD);
    set.pods.iter_mut().for_each(|pod| pod.pod.budgets = vec![SET.to_owned()]);
    Ok(DaemonSets { sets: vec![set], budgets: BTreeMap::from([(SET.to_owned(), budget)]), ..DaemonSets::default() })
}

/// Said once, not for each of its pods, and only where no eviction can ever be allowed.
#[test]
fn plan_warns_of_budget_that_never_allows() {
    let words = "daemonsets.apps does not implement the scale subresource";
    let failed = Budget { observed: false, sync_failed: Some(words.to_owned()), ..budget(0, 0, 0) };
    for (budget, why) in [(failed, words), (budget(3, 3, 3), "needs 3 healthy pods of 3")] {
        let warnings = warned(budgeted(budget));
        let [warning] = &warnings[..] else { panic!("{why}: {warnings:?}") };
        assert!(warning.starts_with("DaemonSet tf/vrouter: its pods cannot be renewed: "), "{warning}");
        assert!(warning.contains(why), "{warning}");
    }
    assert_eq!(warned(budgeted(budget(2, 2, 3))), Vec::<String>::new(), "it may allow one later");
    assert_eq!(warned(Ok(DaemonSets { sets: vec![vrouter(OLD, OLD)], ..DaemonSets::default() })), Vec::<String>::new());
}

#[test]
fn plan_warns_of_daemon_sets_that_are_not_found() {
    let none = "no DaemonSet of update strategy OnDelete is as spec.kubernetes.onDelete says (namespace tf): the \
                update would wait for one at its end";
    assert_eq!(warned(Ok(DaemonSets { unmatched: vec![selector()], ..DaemonSets::default() })), [none]);
    let forbidden = KubernetesFailure::Forbidden("daemonsets is forbidden".to_owned());
    let warnings = warned(Err(forbidden.clone()));
    assert_eq!(warnings, [format!("the DaemonSets whose pods are renewed cannot be listed: {forbidden}")]);
}

/// An item for vRouters is no item of any machine, and stands for the renewal.
#[test]
fn item_for_vrouters_renews_pods() {
    let mut fleet = at_rest_with(|_| {});
    let mut spec = (**fleet.core.facts().spec(&cluster()).expect("applied")).clone();
    for items in spec.machine_types.values_mut() {
        let vrouters = item("vrouters", Phase::Deploy);
        items.push(StateItem { runner: RunnerKind::VrouterRestart, params: BTreeMap::new(), ..vrouters });
    }
    fleet.ask(apply(spec, &[])).expect("applies");
    let wanted = renewal::wanted(fleet.core.facts().spec(&cluster()).expect("applied"));
    assert_eq!(wanted, [OnDeleteDaemonSets::of_vrouter()]);
    let (mut fleet, mut kubernetes) = at_renewal_of(fleet, |_| {});
    for name in NODES {
        let items = &fleet.agents[name].assignment.as_ref().expect("a list").items;
        assert!(items.iter().all(|item| item.name.as_str() != "vrouters"), "{name}: {items:?}");
        renew(&mut fleet, &mut kubernetes, name);
    }
    assert_eq!((kubernetes.evictions(), stage(&fleet)), (NODES.len(), Some(true)));
}
