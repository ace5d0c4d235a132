use muster_proto::resource::LineKind;

use super::*;
use crate::facts::kubernetes::{
    ClusterLoad, KubernetesFailure, KubernetesNode, NodeLoad, NodeRef, ScaleDown,
    check::{Nodes, Programs},
};

fn workload(kind: &'static str, name: &str, image: &str) -> Workload {
    let (namespace, name) = ("ops".to_owned(), name.to_owned());
    Workload { kind, namespace, name, images: vec![image.to_owned()], runs: true, ..Workload::default() }
}

/// A cluster with node `node-1` and these programs.
fn found(workloads: Vec<Workload>, orders: Vec<Order>, marks: NodeMarks) -> Vec<CheckLine> {
    let node = KubernetesNode {
        object: NodeRef { name: "node-1".to_owned(), uid: "u".to_owned(), resource_version: "1".to_owned() },
        boot_id: String::new(),
        labels: Vec::new(),
        internal_ips: Vec::new(),
        unschedulable: false,
        ready: true,
        deleting: false,
        finalizers: Vec::new(),
        drained_for: None,
        keep_cordoned: false,
        scale_down: ScaleDown::default(),
    };
    let load = ClusterLoad { cluster_uid: "c".to_owned(), nodes: vec![(node, NodeLoad::default())], daemon_sets: None };
    let marks = vec![marks];
    let inspection = Inspection {
        server: String::new(),
        cluster_uid: String::new(),
        version: Ok(String::new()),
        missing: Ok(Vec::new()),
        may_delete: Ok(true),
        may_apply: Ok(true),
        control_plane: Ok(Vec::new()),
        nodes: Ok(Nodes { load, marks: marks.clone() }),
        programs: Programs { workloads, orders, unknown: Vec::new() },
        handshake: None,
    };
    lines(&inspection, &marks)
}

/// The findings about these workloads, each with its weight.
fn of(workloads: Vec<Workload>) -> Vec<(LineKind, String)> {
    found(workloads, Vec::new(), NodeMarks::default()).into_iter().map(|line| (line.kind, line.text)).collect()
}

fn order(kind: OrderKind, state: &str, cluster: &str, paused: bool) -> Order {
    let (namespace, name) = ("ops".to_owned(), "one".to_owned());
    Order { kind, namespace, name, state: state.to_owned(), cluster: cluster.to_owned(), paused }
}

#[test]
fn program_is_known_by_image_name_or_label() {
    let labelled = Workload { app: "kured".to_owned(), ..workload("daemonset", "reboots", "mirror/x:1") };
    let locked = Workload { kured_lock: Some("{}".to_owned()), ..workload("daemonset", "reboots", "mirror/x:1") };
    for (workload, named) in [
        (workload("daemonset", "kured", "mirror/x:1"), "kured"),
        (workload("daemonset", "reboots", "ghcr.io/kubereboot/kured:1.17.0"), "kured"),
        (workload("daemonset", "reboots", "r:5000/kured@sha256:00"), "kured"),
        (labelled, "kured"),
        (locked, "kured"),
        (workload("deployment", "ca", "registry.k8s.io/autoscaling/cluster-autoscaler:v1.33.0"), "cluster-autoscaler"),
        (workload("cronjob", "d", "registry.k8s.io/descheduler/descheduler:v0.33.0"), "descheduler"),
        (workload("deployment", "suc", "rancher/system-upgrade-controller:v0.15.2"), "system-upgrade-controller"),
    ] {
        let lines = of(vec![workload.clone()]);
        assert!(matches!(&lines[..], [(_, text)] if text.starts_with(named)), "{workload:?}: {lines:?}");
    }
    let others = ["kured-exporter:1", "example.org/kured/exporter:1", "not-kured", "vertical-pod-autoscaler"];
    let others = others.map(|image| workload("deployment", "other", image)).to_vec();
    assert_eq!(of(others), [(LineKind::Ok, "none was found that drains or reboots nodes".to_owned())]);
}

#[test]
fn program_that_is_stopped_is_no_problem() {
    let images = ["kured", "cluster-autoscaler", "descheduler", "system-upgrade-controller"];
    for image in images {
        let stopped = Workload { runs: false, ..workload("deployment", "x", image) };
        assert!(matches!(&of(vec![stopped])[..], [(LineKind::Note, _)]), "{image}");
    }
}

#[test]
fn kured_stops_while_no_node_has_its_lock() {
    let locked = |lock: &str| Workload { kured_lock: Some(lock.to_owned()), ..workload("daemonset", "kured", "kured") };
    for (lock, expected) in [
        (r#"{"nodeID":"manual"}"#, LineKind::Note),
        (r#"{"nodeID":"node-1","metadata":{},"created":"2026-01-01T00:00:00Z","TTL":0}"#, LineKind::Problem),
        (r#"{"nodeID":""}"#, LineKind::Problem),
        (r#"{"maxOwners":2,"locks":[]}"#, LineKind::Problem),
        ("", LineKind::Problem),
    ] {
        assert_eq!(of(vec![locked(lock)])[0].0, expected, "{lock}");
    }
}

#[test]
fn remedy_stops_program() {
    let next = |workload| found(vec![workload], Vec::new(), NodeMarks::default()).remove(0).next.expect("a remedy");
    let lock = r#"kubectl annotate -n ops daemonset kured 'weave.works/kured-node-lock={"nodeID":"muster"}'"#;
    assert!(next(workload("daemonset", "kured", "kured")).ends_with(lock));
    let scale = "kubectl scale -n ops deployment ca --replicas=0";
    assert!(next(workload("deployment", "ca", "cluster-autoscaler")).ends_with(scale));
    let suspend = r#"kubectl patch -n ops cronjob d -p '{"spec":{"suspend":true}}'"#;
    assert!(next(workload("cronjob", "d", "descheduler")).ends_with(suspend));
}

#[test]
fn autoscaler_leaves_annotated_nodes_alone() {
    let autoscaler = || vec![workload("deployment", "ca", "cluster-autoscaler")];
    let annotated = NodeMarks { scale_down_disabled: true, ..NodeMarks::default() };
    let line = |marks| found(autoscaler(), Vec::new(), marks).remove(0);
    assert!(line(annotated).kind == LineKind::Note && line(NodeMarks::default()).kind == LineKind::Note);
    assert!(line(NodeMarks::default()).text.contains("leaves a node in its drain alone"));
}

#[test]
fn upgrade_controller_needs_plans() {
    let controller = || vec![workload("deployment", "suc", "system-upgrade-controller")];
    assert_eq!(of(controller())[0].0, LineKind::Note);
    let plans = vec![order(OrderKind::UpgradePlan, "", "", false)];
    let lines = found(controller(), plans, NodeMarks::default());
    assert!(matches!(&lines[..], [line] if line.kind == LineKind::Problem), "{lines:?}");
}

#[test]
fn autopilot_plan_counts_until_it_ends() {
    for (state, expected) in [
        ("", LineKind::Problem),
        ("Schedulable", LineKind::Problem),
        ("SchedulableWait", LineKind::Problem),
        ("Completed", LineKind::Ok),
        ("ApplyFailed", LineKind::Ok),
    ] {
        let lines = found(Vec::new(), vec![order(OrderKind::AutopilotPlan, state, "", false)], NodeMarks::default());
        assert_eq!(lines[0].kind, expected, "{state}");
    }
}

#[test]
fn health_check_counts_for_nodes_of_its_cluster() {
    let check = |cluster, paused| vec![order(OrderKind::HealthCheck, "", cluster, paused)];
    let own = || NodeMarks { cluster_api: Some("edge".to_owned()), ..NodeMarks::default() };
    assert_eq!(found(Vec::new(), check("edge", false), own())[0].kind, LineKind::Problem);
    assert_eq!(found(Vec::new(), check("edge", true), own())[0].kind, LineKind::Note);
    assert_eq!(found(Vec::new(), check("edge", false), NodeMarks::default())[0].kind, LineKind::Note);
    let elsewhere = found(Vec::new(), Vec::new(), own());
    assert!(elsewhere[0].text.contains("in its management cluster"), "{elsewhere:?}");
}

#[test]
fn what_cannot_be_listed_is_a_problem() {
    let failure = KubernetesFailure::Forbidden("deployments.apps is forbidden".to_owned());
    let programs = Programs { unknown: vec![("deployment", failure)], ..Programs::default() };
    let inspection = Inspection {
        server: String::new(),
        cluster_uid: String::new(),
        version: Ok(String::new()),
        missing: Ok(Vec::new()),
        may_delete: Ok(true),
        may_apply: Ok(true),
        control_plane: Ok(Vec::new()),
        nodes: Err(KubernetesFailure::Other(String::new())),
        programs,
        handshake: None,
    };
    let lines = lines(&inspection, &[]);
    assert!(matches!(&lines[..], [line] if line.kind == LineKind::Problem), "{lines:?}");
}
