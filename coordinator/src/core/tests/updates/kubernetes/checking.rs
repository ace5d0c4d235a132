//! What a check of the cluster finds before an update.

use std::collections::BTreeSet;

use muster_proto::resource::{CheckLine, CheckSection, LineKind};

use super::*;
use crate::{
    documents::kubernetes::check,
    facts::kubernetes::{
        ClusterLoad, ControlServer, ControlState, EtcdState, KubernetesNode, NodeLoad,
        check::{Definitions, Handshake, Inspection, MAINTENANCE_RIGHTS, Nodes, Programs, RIGHTS, Right},
    },
};

/// Everything is as it should be, and the nodes are those of the simulated cluster.
fn healthy(server: ControlServer) -> ControlState {
    ControlState { server, lacks: None, etcd: Some(EtcdState::Healthy) }
}

fn inspection(fleet: &Fleet, kubernetes: &Kubernetes) -> Inspection {
    let of_node = |(name, node): (&String, &KubernetesNode)| {
        let pods = kubernetes.pods.get(name).cloned().unwrap_or_default();
        (node.clone(), NodeLoad { pods, budgets: kubernetes.budgets.clone(), attachments: Vec::new() })
    };
    let nodes = kubernetes.nodes.iter().map(of_node).collect();
    let servers = check::servers(fleet.core.facts(), &cluster(), fleet.core.limits(), fleet.now());
    let cluster_uid = kubernetes.cluster_uid.to_owned();
    Inspection {
        server: "https://10.0.0.1:6443".to_owned(),
        cluster_uid: cluster_uid.clone(),
        version: Ok("v1.36.2".to_owned()),
        missing: Ok(Vec::new()),
        may_delete: Ok(true),
        may_apply: Ok(true),
        control_plane: Ok(servers.into_iter().map(healthy).collect()),
        nodes: Ok(Nodes { load: ClusterLoad { cluster_uid, nodes, daemon_sets: None }, marks: Vec::new() }),
        programs: Programs::default(),
        handshake: None,
    }
}

fn report(fleet: &Fleet, found: Result<Inspection, KubernetesFailure>) -> Vec<CheckSection> {
    let report = check::report(fleet.core.facts(), &cluster(), &found, fleet.core.limits(), fleet.now());
    report.expect("a cluster with a Kubernetes").sections
}

fn lines(sections: &[CheckSection], title: &str) -> Vec<CheckLine> {
    sections.iter().find(|section| section.title == title).map(|section| section.lines.clone()).unwrap_or_default()
}

fn texts(lines: &[CheckLine], kind: LineKind) -> Vec<&str> {
    lines.iter().filter(|line| line.kind == kind).map(|line| line.text.as_str()).collect()
}

/// A cluster before its first update.
fn fleet(pods: impl FnOnce(&mut Kubernetes)) -> (Fleet, Kubernetes) {
    let (mut fleet, mut kubernetes) = at_workers(1, |_| {});
    let rollout = fleet.rollout();
    fleet.ask(Request::Abort { rollout }).expect("aborts");
    fleet.live(&mut kubernetes, 5);
    pods(&mut kubernetes);
    (fleet, kubernetes)
}

#[test]
fn check_of_sound_cluster_has_no_problem() {
    let (fleet, kubernetes) = fleet(|kubernetes| web(kubernetes, "worker-1", &["a", "b"]));
    let sections = report(&fleet, Ok(inspection(&fleet, &kubernetes)));
    let titles: Vec<&str> = sections.iter().map(|section| section.title.as_str()).collect();
    assert_eq!(titles, ["API server", "Rights", "Control machines", "Nodes", "Pods", "Other programs"]);
    let all: Vec<CheckLine> = sections.iter().flat_map(|section| section.lines.clone()).collect();
    assert_eq!(texts(&all, LineKind::Problem), Vec::<&str>::new());
    assert_eq!(texts(&all, LineKind::Note), Vec::<&str>::new());
    let said = texts(&all, LineKind::Ok).join("\n");
    for expected in ["version v1.36.2", "there first", "all 18", "all 3 are ready", "5 of 5 machines", "any of 2 pods"]
    {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

#[test]
fn check_without_answer_says_why_alone() {
    let (fleet, _) = fleet(|_| {});
    let another = KubernetesFailure::another_cluster("a", "b");
    let sections = report(&fleet, Err(another));
    assert_eq!(sections.len(), 1);
    let [line] = &sections[0].lines[..] else { panic!("{sections:?}") };
    assert!(line.kind == LineKind::Problem && line.text.contains("another cluster"), "{line:?}");
}

#[test]
fn check_names_missing_rights() {
    let (fleet, kubernetes) = fleet(|_| {});
    let missing = Ok(RIGHTS[6..8].to_vec());
    let sections = report(&fleet, Ok(Inspection { missing, ..inspection(&fleet, &kubernetes) }));
    let rights = lines(&sections, "Rights");
    let expected = ["missing: create pods/eviction", "missing: list poddisruptionbudgets.policy"];
    assert_eq!(texts(&rights, LineKind::Problem), expected);
    let mut problems = rights.iter().filter(|line| line.kind == LineKind::Problem);
    assert!(problems.all(|line| line.next.as_deref().is_some_and(|next| next.contains("kubernetes rbac"))));
}

/// A cluster without the handshake needs none of its rights, and one with it needs both kinds.
#[test]
fn check_names_missing_rights_of_handshake() {
    let (fleet, kubernetes) = fleet(|_| {});
    let with = |missing: &[Right]| {
        let handshake = Handshake {
            missing: Ok(missing.to_vec()),
            definitions: Ok(Definitions::default()),
            controllers: Ok(BTreeSet::new()),
        };
        let found = Inspection { handshake: Some(handshake), ..inspection(&fleet, &kubernetes) };
        lines(&report(&fleet, Ok(found)), "Rights")
    };
    assert!(texts(&with(&[]), LineKind::Ok).contains(&"the account has all 31"));
    let rights = with(&MAINTENANCE_RIGHTS[10..12]);
    let expected = [
        "missing: list nodeworkloadlocks.lcm.mirantis.com",
        "missing: get customresourcedefinitions.apiextensions.k8s.io",
    ];
    assert_eq!(texts(&rights, LineKind::Problem), expected);
    let mut problems = rights.iter().filter(|line| line.kind == LineKind::Problem);
    assert!(problems.all(|line| line.next.as_deref().is_some_and(|next| next.contains("--with-maintenance"))));
}

#[test]
fn check_names_nodes_and_machines_that_disagree() {
    let (fleet, mut kubernetes) = fleet(|_| {});
    kubernetes.nodes.remove("worker-1");
    kubernetes.node("worker-2").boot_id = "another".to_owned();
    let mut spare = kubernetes.nodes["control-1"].clone();
    spare.object.name = "spare".to_owned();
    spare.object.uid = "uid-spare".to_owned();
    (spare.boot_id, spare.internal_ips, spare.unschedulable) = ("spare".to_owned(), Vec::new(), true);
    kubernetes.nodes.insert("spare".to_owned(), spare);
    let node = kubernetes.node("control-1");
    (node.unschedulable, node.drained_for) = (true, Some("r-1/uid-control-1".to_owned()));
    let sections = report(&fleet, Ok(inspection(&fleet, &kubernetes)));
    let nodes = lines(&sections, "Nodes");
    assert_eq!(texts(&nodes, LineKind::Ok), ["3 of 5 machines have a node each"]);
    let problems = texts(&nodes, LineKind::Problem);
    assert!(
        matches!(problems[..], [first, second] if first.starts_with("worker-1: the cluster has no Kubernetes node")
        && second.starts_with("worker-2: Kubernetes node worker-2 has its name")),
        "{problems:?}"
    );
    let expected = [
        "node spare is no machine of this cluster",
        "node control-1 has the annotation muster/drained-for, from a drain that gave nothing back",
        "node spare was cordoned by an operator, and stays so after an update",
    ];
    assert_eq!(texts(&nodes, LineKind::Note), expected);
    let remedy = nodes.iter().find_map(|line| line.next.clone().filter(|next| next.contains("annotate")));
    let expected = "kubectl uncordon control-1; kubectl annotate node control-1 muster/drained-for-";
    assert_eq!(remedy.as_deref(), Some(expected));
}

#[test]
fn check_names_every_pod_that_stays() {
    let (fleet, kubernetes) = fleet(|kubernetes| {
        web(kubernetes, "worker-1", &["a", "b"]);
        under_budget(kubernetes, &["worker-1"], budget(2, 2, 2));
        let mut alone = pod("alone");
        alone.controller = None;
        kubernetes.pods.insert("worker-2".to_owned(), vec![alone]);
    });
    let sections = report(&fleet, Ok(inspection(&fleet, &kubernetes)));
    let pods = lines(&sections, "Pods");
    let problems = texts(&pods, LineKind::Problem);
    assert_eq!(problems.len(), 3, "{problems:?}");
    assert!(problems[0].starts_with("worker-1: pod shop/a: disruption budget shop/web needs 2"), "{problems:?}");
    assert!(problems[2].starts_with("worker-2: pod shop/alone has no controller"), "{problems:?}");
}

#[test]
fn check_counts_what_it_does_not_list() {
    let names: Vec<String> = (0..30).map(|number| format!("pod-{number}")).collect();
    let (fleet, kubernetes) = fleet(|kubernetes| {
        let alone = |name: &String| crate::facts::kubernetes::Pod { controller: None, ..pod(name) };
        kubernetes.pods.insert("worker-1".to_owned(), names.iter().map(alone).collect());
    });
    let pods = lines(&report(&fleet, Ok(inspection(&fleet, &kubernetes))), "Pods");
    assert_eq!(pods.len(), 21);
    assert_eq!(pods.last().map(|line| line.text.as_str()), Some("and 10 more like these"));
}

#[test]
fn check_names_etcd_that_is_not_healthy() {
    let (fleet, kubernetes) = fleet(|_| {});
    let mut found = inspection(&fleet, &kubernetes);
    found.control_plane.as_mut().expect("asked")[1].etcd = Some(EtcdState::Unhealthy("RAFT NO LEADER".to_owned()));
    let control = lines(&report(&fleet, Ok(found)), "Control machines");
    let problems = texts(&control, LineKind::Problem);
    assert!(matches!(problems[..], [one] if one.contains("control-2") && one.ends_with("RAFT NO LEADER")));
    let healthy = lines(&report(&fleet, Ok(inspection(&fleet, &kubernetes))), "Control machines");
    assert_eq!(texts(&healthy, LineKind::Ok).len(), 2, "{healthy:?}");
    let mut unasked = inspection(&fleet, &kubernetes);
    for state in unasked.control_plane.as_mut().expect("asked") {
        (state.server.etcd, state.etcd) = (None, None);
    }
    let unasked = lines(&report(&fleet, Ok(unasked)), "Control machines");
    assert!(matches!(texts(&unasked, LineKind::Note)[..], [one] if one.contains("spec.kubernetes.etcd")));
}

#[test]
fn check_names_api_servers_that_lack_something() {
    let (fleet, kubernetes) = fleet(|_| {});
    let mut found = inspection(&fleet, &kubernetes);
    for state in found.control_plane.as_mut().expect("asked").iter_mut().skip(2) {
        state.lacks = Some("its API server is not ready: etcd".to_owned());
    }
    let control = lines(&report(&fleet, Ok(found)), "Control machines");
    let problems = texts(&control, LineKind::Problem);
    assert!(matches!(problems[..], [one] if one.starts_with("control-3 (") && one.ends_with("etcd")), "{problems:?}");
}
