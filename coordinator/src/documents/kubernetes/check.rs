//! What stands in the way of an update, as the API server's answers to a check show.

mod controllers;
mod programs;

use std::collections::BTreeSet;

use muster_proto::{
    model::{ClusterName, KubernetesDrain, KubernetesSpec, MachineType, Now},
    resource::{CheckLine, CheckSection, KubernetesCheck, LineKind},
};

use crate::{
    facts::{
        Facts,
        kubernetes::{
            ClusterLoad, ControlServer, ControlState, KubernetesFailure, KubernetesNode, NodeLoad,
            check::{Inspection, MAINTENANCE_RIGHTS, RIGHTS, Right},
        },
    },
    plan::{
        Limits,
        drain::kubernetes::{control_plane, eviction, forcing::DrainRules, identity, is_ours},
        snapshot::{ClusterSnapshot, MachineView},
    },
};

/// Findings of one sort that are listed; the others are counted.
const SHOWN_MAX: usize = 20;
/// How an account gets its rights.
const APPLY_RIGHTS: &str = "musterctl kubernetes rbac | kubectl apply -f -";
/// How an account gets those for the maintenance handshake.
const APPLY_MAINTENANCE: &str = "musterctl kubernetes rbac --with-maintenance | kubectl apply -f -";
/// How an account gets the right to delete pods.
const APPLY_DELETE: &str = "musterctl kubernetes rbac --with-delete | kubectl apply -f -";
/// How an account gets the rights to apply add-ons.
const APPLY_ADDONS: &str = "musterctl kubernetes rbac --with-addons | kubectl apply -f -";
/// Where it says what to change for pods that can never leave.
const UNDRAINABLE: &str = "What to change: docs/how-to/kubernetes.md, \"A machine that cannot be drained\"";

fn line(kind: LineKind, text: impl Into<String>) -> CheckLine {
    CheckLine { kind, text: text.into(), next: None }
}

fn ok(text: impl Into<String>) -> CheckLine {
    line(LineKind::Ok, text)
}

fn note(text: impl Into<String>) -> CheckLine {
    line(LineKind::Note, text)
}

fn problem(text: impl Into<String>) -> CheckLine {
    line(LineKind::Problem, text)
}

fn then(line: CheckLine, next: impl Into<String>) -> CheckLine {
    CheckLine { next: Some(next.into()), ..line }
}

fn section(title: &str, lines: Vec<CheckLine>) -> CheckSection {
    CheckSection { title: title.to_owned(), lines }
}

/// The lines, but for those after the first [`SHOWN_MAX`], which are counted.
fn bounded(mut lines: Vec<CheckLine>) -> Vec<CheckLine> {
    let more = lines.len().saturating_sub(SHOWN_MAX);
    if let Some(last) = lines.get(SHOWN_MAX).filter(|_| more > 1) {
        let counted = line(last.kind, format!("and {more} more like these"));
        lines.truncate(SHOWN_MAX);
        lines.push(counted);
    }
    lines
}

/// The control machines to ask for in a check.
#[must_use]
pub fn servers(facts: &Facts, cluster: &ClusterName, limits: &Limits, now: Now) -> Vec<ControlServer> {
    ClusterSnapshot::of(facts, cluster, limits, now).map_or_else(Vec::new, |found| control_plane::all_servers(&found))
}

/// The findings. None: there is no such cluster, or it has no Kubernetes.
#[must_use]
pub fn report(
    facts: &Facts,
    cluster: &ClusterName,
    looked: &Result<Inspection, KubernetesFailure>,
    limits: &Limits,
    now: Now,
) -> Option<KubernetesCheck> {
    let snapshot = ClusterSnapshot::of(facts, cluster, limits, now)?;
    let spec = snapshot.spec.kubernetes.as_ref()?;
    let sections = match looked {
        Err(failure) => vec![section("API server", vec![unasked(failure)])],
        Ok(found) => {
            let mut sections = vec![api_server(&snapshot, found), rights(&snapshot, found)];
            sections.extend(control_machines(&found.control_plane));
            match &found.nodes {
                Err(failure) => sections.push(section("Nodes", vec![unasked(failure)])),
                Ok(nodes) => {
                    let machines = machines(&snapshot, &nodes.load);
                    sections.push(section("Nodes", node_lines(&snapshot, &nodes.load, &machines)));
                    sections.push(section("Pods", pod_lines(&machines, &spec.drain)));
                }
            }
            let marks = found.nodes.as_ref().map_or(&[][..], |nodes| &nodes.marks);
            if let (Some(spec), Some(found)) = (&spec.maintenance, &found.handshake) {
                sections.push(section("Controllers", controllers::lines(spec, found)));
            }
            sections.push(section("Other programs", programs::lines(found, marks)));
            sections
        }
    };
    Some(KubernetesCheck { cluster: cluster.to_string(), sections })
}

/// A question without an answer.
fn unasked(failure: &KubernetesFailure) -> CheckLine {
    let line = problem(format!("the API server cannot be asked: {failure}"));
    match failure {
        KubernetesFailure::Forbidden(_) => then(line, APPLY_RIGHTS),
        KubernetesFailure::Unauthorized(_) => then(
            line,
            "musterctl secret create NAME --cluster CLUSTER, again; or renew adminConf on the control machines",
        ),
        KubernetesFailure::AnotherCluster { .. } => then(line, "Correct the kubeconfig's server."),
        _ => line,
    }
}

fn api_server(snapshot: &ClusterSnapshot<'_>, found: &Inspection) -> CheckSection {
    let version = match &found.version {
        Ok(version) => ok(format!("{} answers, version {version}", found.server)),
        Err(failure) => note(format!("{} answers; its version is unknown: {failure}", found.server)),
    };
    let uid = &found.cluster_uid;
    let identity = match &snapshot.cluster.kubernetes_uid {
        Some(_) => ok(format!("it belongs to the cluster that was there first (kube-system has UID {uid})")),
        None => note(format!("kube-system has UID {uid}; the first update pins it")),
    };
    section("API server", vec![version, identity])
}

fn rights(snapshot: &ClusterSnapshot<'_>, found: &Inspection) -> CheckSection {
    let of_handshake = found.handshake.iter();
    let of_handshake = of_handshake.map(|of| (&of.missing, &MAINTENANCE_RIGHTS[..], APPLY_MAINTENANCE));
    let asked: Vec<_> = [(&found.missing, &RIGHTS[..], APPLY_RIGHTS)].into_iter().chain(of_handshake).collect();
    let all: usize = asked.iter().map(|(_, rights, _)| rights.len()).sum();
    let mut lines: Vec<CheckLine> = asked.iter().flat_map(|(missing, _, apply)| lacking(missing, apply)).collect();
    if lines.is_empty() {
        lines.push(ok(format!("the account has all {all}")));
    }
    // Most clusters never need it: it is never a problem.
    lines.extend(match &found.may_delete {
        Ok(true) => Some(ok("the account may delete pods, which it does for `musterctl drain-force` alone")),
        Ok(false) => {
            let line = note("the account may not delete pods: `musterctl drain-force`, the last resort, needs that");
            Some(then(line, APPLY_DELETE))
        }
        Err(_) => None,
    });
    // A cluster without add-ons does not need it.
    let has_addons = snapshot.spec.kubernetes.as_ref().is_some_and(KubernetesSpec::has_addons);
    lines.extend(match &found.may_apply {
        _ if !has_addons => None,
        Ok(true) => Some(ok("the account may apply whatever the manifests of add-ons have")),
        Ok(false) => {
            let line = problem("the account may not do everything, and so cannot apply the manifests of add-ons");
            Some(then(line, APPLY_ADDONS))
        }
        Err(_) => None,
    });
    section("Rights", lines)
}

/// The rights that the account lacks, with how it gets them.
fn lacking(missing: &Result<Vec<Right>, KubernetesFailure>, apply: &str) -> Vec<CheckLine> {
    match missing {
        Err(failure) => {
            vec![problem(format!("the API server does not say what rights the account has: {failure}"))]
        }
        Ok(missing) => missing.iter().map(|right| then(problem(format!("missing: {right}")), apply)).collect(),
    }
}

/// The API servers of control machines. None: there is at most one.
fn control_machines(asked: &Result<Vec<ControlState>, KubernetesFailure>) -> Option<CheckSection> {
    let lines = match asked {
        Err(failure) => vec![unasked(failure)],
        Ok(states) if states.is_empty() => return None,
        Ok(states) => {
            let lacking = states.iter().filter_map(|state| {
                let server = &state.server;
                let line = problem(format!("{} ({}): {}", server.hostname, server.address, state.problem()?));
                Some(then(line, "No other control machine goes down before that is resolved."))
            });
            let lacking: Vec<CheckLine> = lacking.collect();
            let count = states.len();
            if lacking.is_empty() {
                let api_servers =
                    ok(format!("the API servers of all {count} are ready, each at its machine's address"));
                vec![api_servers, etcd_members(states)]
            } else {
                bounded(lacking)
            }
        }
    };
    Some(section("Control machines", lines))
}

/// The etcd members of control machines without a problem.
fn etcd_members(states: &[ControlState]) -> CheckLine {
    if states.iter().all(|state| state.etcd.is_some()) {
        return ok(format!("the etcd members of all {} say that they are healthy", states.len()));
    }
    let line = note("the health of etcd is not asked: the manifest has no spec.kubernetes.etcd");
    then(line, "Set it where etcd runs on the control machines.")
}

/// A machine and its node.
struct Found<'s, 'a> {
    view: &'s MachineView<'a>,
    /// Its node with what is on it; None: it has none and needs none. Or why that is unclear.
    node: Result<Option<&'s (KubernetesNode, NodeLoad)>, CheckLine>,
}

fn machines<'s, 'a>(snapshot: &'s ClusterSnapshot<'a>, load: &'s ClusterLoad) -> Vec<Found<'s, 'a>> {
    let nodes: Vec<KubernetesNode> = load.nodes.iter().map(|(node, _)| node.clone()).collect();
    let of_cluster = snapshot.machines.iter().filter(|view| !view.row.revoked);
    let found = of_cluster.map(|view| {
        let node = match identity::of(snapshot, view, &nodes) {
            Ok(node) => Ok(node.and_then(|node| load.nodes.iter().find(|(known, _)| known.object == node.object))),
            Err(blocked) => {
                let message = blocked.message.trim_start_matches("Error: ");
                let line = problem(format!("{}: {message}", view.row.name));
                Err(then(line, format!("Clears when {}", blocked.clears_when)))
            }
        };
        Found { view, node }
    });
    found.collect()
}

fn node_lines(snapshot: &ClusterSnapshot<'_>, load: &ClusterLoad, machines: &[Found<'_, '_>]) -> Vec<CheckLine> {
    let name = |found: &Found<'_, '_>| found.view.row.name.clone();
    let with_node = machines.iter().filter(|found| matches!(found.node, Ok(Some(_)))).count();
    let mut lines = Vec::new();
    if with_node > 0 {
        lines.push(ok(format!("{with_node} of {} machines have a node each", machines.len())));
    }
    lines.extend(bounded(machines.iter().filter_map(|found| found.node.as_ref().err().cloned()).collect()));
    let without = machines.iter().filter(|found| matches!(found.node, Ok(None)));
    let without = without.map(|found| note(format!("{} has no node, and was never Ready: no drain", name(found))));
    lines.extend(bounded(without.collect()));
    // Those that could be a machine's are named with that machine.
    let is_machines =
        |node: &KubernetesNode| snapshot.machines.iter().any(|view| identity::is_candidate(view.row, node));
    let foreign = load.nodes.iter().map(|(node, _)| node).filter(|node| !is_machines(node));
    let foreign = foreign.map(|node| note(format!("node {} is no machine of this cluster", node.object.name)));
    lines.extend(bounded(foreign.collect()));
    let draining: BTreeSet<&str> = snapshot.machines.iter().filter_map(|view| identity::target_uid(view.row)).collect();
    lines.extend(bounded(load.nodes.iter().filter_map(|(node, _)| cordon(node, &draining)).collect()));
    let unready = machines.iter().filter_map(|found| {
        let (node, _) = found.node.as_ref().ok()?.as_ref()?;
        // Those of control machines have a section of their own.
        let worker = found.view.row.spec.machine_type != MachineType::Control;
        (worker && !node.ready).then(|| note(format!("node {} is not Ready", node.object.name)))
    });
    lines.extend(bounded(unready.collect()));
    lines
}

/// A node that is cordoned, or that bears Muster's annotation.
fn cordon(node: &KubernetesNode, draining: &BTreeSet<&str>) -> Option<CheckLine> {
    let name = &node.object.name;
    if draining.contains(node.object.uid.as_str()) {
        return Some(note(format!("node {name} is in the drain of a rollout")));
    }
    if node.drained_for.is_some() {
        let what = if is_ours(node) { "from a drain that gave nothing back" } else { "which is not about this node" };
        let line = note(format!("node {name} has the annotation muster/drained-for, {what}"));
        let uncordon = if node.unschedulable { format!("kubectl uncordon {name}; ") } else { String::new() };
        return Some(then(line, format!("{uncordon}kubectl annotate node {name} muster/drained-for-")));
    }
    node.unschedulable.then(|| {
        then(
            note(format!("node {name} was cordoned by an operator, and stays so after an update")),
            format!("kubectl uncordon {name}"),
        )
    })
}

fn pod_lines(machines: &[Found<'_, '_>], policy: &KubernetesDrain) -> Vec<CheckLine> {
    let mut lines = Vec::new();
    let mut leaving = 0;
    for found in machines {
        let Ok(Some((_, load))) = &found.node else { continue };
        leaving += eviction::leaving(load).count();
        let rules = DrainRules::of_cluster(policy);
        let kept = eviction::undrainable_pods(load, &rules);
        lines.extend(kept.map(|kept| then(problem(format!("{}: {}", found.view.row.name, kept.why)), UNDRAINABLE)));
    }
    if lines.is_empty() {
        return vec![ok(format!("no disruption budget or other cause keeps any of {leaving} pods for good"))];
    }
    bounded(lines)
}
