//! Other programs that drain or reboot nodes, and how an operator stops them during an update.

use std::collections::BTreeSet;

use muster_proto::resource::CheckLine;
use serde::Deserialize;

use super::{bounded, note, ok, problem, then};
use crate::facts::kubernetes::check::{Inspection, NodeMarks, Order, OrderKind, Workload};

/// Names of the programs' images and objects.
const KURED: &str = "kured";
const AUTOSCALER: &str = "cluster-autoscaler";
const DESCHEDULER: &str = "descheduler";
const UPGRADE_CONTROLLER: &str = "system-upgrade-controller";

/// The findings.
pub(super) fn lines(found: &Inspection, marks: &[NodeMarks]) -> Vec<CheckLine> {
    let programs = &found.programs;
    let nodes = found.nodes.iter().flat_map(|nodes| &nodes.load.nodes);
    let nodes: BTreeSet<&str> = nodes.map(|(node, _)| node.object.name.as_str()).collect();
    let has_plans = programs.orders.iter().any(|order| order.kind == OrderKind::UpgradePlan);
    let unknown = programs.unknown.iter();
    let unknown = unknown.map(|(kind, failure)| problem(format!("cannot look for programs by {kind}: {failure}")));
    let mut lines: Vec<CheckLine> = unknown.collect();
    for workload in &programs.workloads {
        let is = |name: &str| is_of(workload, name);
        lines.extend(match () {
            () if workload.kured_lock.is_some() || is(KURED) => Some(kured(workload, &nodes)),
            () if is(AUTOSCALER) => Some(autoscaler(workload, marks)),
            () if is(DESCHEDULER) => Some(descheduler(workload)),
            () if is(UPGRADE_CONTROLLER) => Some(upgrade_controller(workload, has_plans)),
            () => None,
        });
    }
    let clusters: BTreeSet<&str> = marks.iter().filter_map(|marks| marks.cluster_api.as_deref()).collect();
    lines.extend(bounded(programs.orders.iter().filter_map(|order| told(order, &clusters)).collect()));
    let checks = programs.orders.iter().filter(|order| order.kind == OrderKind::HealthCheck);
    let watched: BTreeSet<&str> = checks.map(|order| order.cluster.as_str()).collect();
    lines.extend(clusters.difference(&watched).map(|cluster| elsewhere(cluster)));
    if lines.is_empty() {
        lines.push(ok("none was found that drains or reboots nodes"));
    }
    lines
}

/// Is the workload this program? The image tells whatever the object's name is; without it the name or a label tells.
fn is_of(workload: &Workload, program: &str) -> bool {
    let of_image = |image: &String| {
        let last = image.rsplit('/').next().unwrap_or_default();
        last.split([':', '@']).next() == Some(program)
    };
    workload.name == program || workload.app == program || workload.images.iter().any(of_image)
}

fn place(workload: &Workload) -> String {
    format!("{} {}/{}", workload.kind, workload.namespace, workload.name)
}

/// How to stop the program, unless it is stopped.
fn stop(workload: &Workload) -> String {
    let Workload { kind, namespace, name, .. } = workload;
    match *kind {
        "cronjob" => format!("kubectl patch -n {namespace} cronjob {name} -p '{{\"spec\":{{\"suspend\":true}}}}'"),
        _ => format!("kubectl scale -n {namespace} {kind} {name} --replicas=0"),
    }
}

/// kured's lock, as its annotation has it.
#[derive(Deserialize)]
struct Lock {
    #[serde(rename = "nodeID")]
    node_id: String,
}

/// kured reboots nothing while its lock is held by another name than a node's.
fn kured(workload: &Workload, nodes: &BTreeSet<&str>) -> CheckLine {
    let place = place(workload);
    let lock = workload.kured_lock.as_deref().and_then(|lock| serde_json::from_str::<Lock>(lock).ok());
    let holder = lock.map(|lock| lock.node_id).filter(|holder| !holder.is_empty());
    match holder {
        _ if !workload.runs => note(format!("kured ({place}) runs nowhere")),
        Some(holder) if !nodes.contains(holder.as_str()) => {
            note(format!("kured ({place}) is stopped: {holder} holds its lock; release it after the update"))
        }
        Some(node) => problem(format!("kured ({place}) reboots node {node}")),
        None => then(
            problem(format!("kured ({place}) drains and reboots nodes by itself")),
            format!(
                "Stop it during updates: kubectl annotate -n {} {} {} 'weave.works/kured-node-lock={{\"nodeID\":\
                 \"muster\"}}'",
                workload.namespace, workload.kind, workload.name
            ),
        ),
    }
}

/// The autoscaler takes a drained node for an unneeded one.
fn autoscaler(workload: &Workload, marks: &[NodeMarks]) -> CheckLine {
    let place = place(workload);
    let left_alone = !marks.is_empty() && marks.iter().all(|marks| marks.scale_down_disabled);
    match workload.runs {
        false => note(format!("cluster-autoscaler ({place}) is stopped")),
        true if left_alone => note(format!("cluster-autoscaler ({place}) removes no node: all are annotated")),
        true => then(
            note(format!(
                "cluster-autoscaler ({place}) leaves a node in its drain alone, for Muster annotates it; afterwards it \
                 may remove nodes that it needs no more"
            )),
            format!("To stop it: {}", stop(workload)),
        ),
    }
}

/// The descheduler evicts within budgets, so drains take longer at worst.
fn descheduler(workload: &Workload) -> CheckLine {
    let place = place(workload);
    match workload.runs {
        false => note(format!("descheduler ({place}) is stopped")),
        true => then(
            note(format!("descheduler ({place}) evicts pods too, so drains may wait longer for budgets")),
            format!("To stop it: {}", stop(workload)),
        ),
    }
}

fn upgrade_controller(workload: &Workload, has_plans: bool) -> CheckLine {
    let place = place(workload);
    match workload.runs {
        false => note(format!("system-upgrade-controller ({place}) is stopped")),
        true if !has_plans => note(format!("system-upgrade-controller ({place}) has no plans")),
        true => then(
            problem(format!("system-upgrade-controller ({place}) has plans, by which it drains nodes")),
            format!("Stop it during updates: {}", stop(workload)),
        ),
    }
}

fn told(order: &Order, clusters: &BTreeSet<&str>) -> Option<CheckLine> {
    let Order { kind, namespace, name, state, cluster, paused } = order;
    match kind {
        // Its controller is a part of k0s. A plan in another state has ended.
        OrderKind::AutopilotPlan => matches!(state.as_str(), "" | "Schedulable" | "SchedulableWait").then(|| {
            then(
                problem(format!("plan {name} of k0s autopilot is under way: it drains and updates machines")),
                format!("Wait for its end: kubectl get plans.autopilot.k0sproject.io {name} -o yaml"),
            )
        }),
        // The controller that carries it out is named.
        OrderKind::UpgradePlan => None,
        OrderKind::HealthCheck if !clusters.contains(cluster.as_str()) => {
            Some(note(format!("MachineHealthCheck {namespace}/{name} is about another Cluster API cluster, {cluster}")))
        }
        OrderKind::HealthCheck if *paused => Some(note(format!("MachineHealthCheck {namespace}/{name} is paused"))),
        OrderKind::HealthCheck => Some(then(
            problem(format!("MachineHealthCheck {namespace}/{name} replaces machines whose node is not Ready")),
            format!(
                "Pause it during updates: kubectl annotate -n {namespace} machinehealthchecks.cluster.x-k8s.io {name} \
                 cluster.x-k8s.io/paused=true"
            ),
        )),
    }
}

/// Nodes of a Cluster API cluster without a health check here: it has its objects in another cluster.
fn elsewhere(cluster: &str) -> CheckLine {
    note(format!(
        "nodes belong to Cluster API cluster {cluster}: pause its MachineHealthChecks in its management cluster"
    ))
}

#[cfg(test)]
mod tests;
