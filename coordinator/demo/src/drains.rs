//! Evidence of the drains in an update, from what the toy Kubernetes was asked and what became of its pods: pods left
//! by eviction alone, budgets held, and each node was given back.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    effects::Effect,
    moves::{self, Move},
};

/// What happened in the toy Kubernetes.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(super) struct Report {
    /// What Muster asked for, less the reads and Events that were answered.
    pub(super) requests: Vec<Request>,
    pub(super) pods: Vec<Pod>,
    pub(super) workloads: Vec<Workload>,
    pub(super) nodes: Vec<Node>,
}

/// An answered request of Muster's.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Request {
    /// Unix time of its arrival.
    pub(super) at_ms: u64,
    pub(super) asked: Asked,
    /// The node's name, or `NAMESPACE/NAME`.
    pub(super) object: String,
    pub(super) status: u16,
}

/// What a request asks for.
#[derive(Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Asked {
    Cordon,
    Uncordon,
    /// The pod's UID.
    Evict(String),
    /// Verb and resource of another one.
    Other(String),
}

/// A pod that was seen.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Pod {
    pub(super) uid: String,
    pub(super) name: String,
    pub(super) node: String,
    pub(super) gone: bool,
}

/// Replicas of a workload.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Workload {
    pub(super) name: String,
    pub(super) wanted: usize,
    /// The fewest that were Ready at any moment.
    pub(super) lowest: usize,
    /// What its budget promises.
    pub(super) promised: usize,
}

/// A node at the end.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) cordoned: bool,
    /// Keys of Muster's annotations.
    pub(super) annotations: Vec<String>,
}

/// Result of the check.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Drains {
    /// Broken guarantees; empty on success.
    pub(super) violations: Vec<String>,
    /// Pods that were evicted.
    pub(super) evicted: usize,
    /// Evictions that a budget refused.
    pub(super) refused: usize,
}

/// Status of an eviction that a budget refuses.
const REFUSED: u16 = 429;
/// Status of a request that lacks a right.
const FORBIDDEN: u16 = 403;
/// Most drains in the summary.
const TURNS_SHOWN: usize = 8;

impl Request {
    const fn is_done(&self) -> bool {
        matches!(self.status, 200..300)
    }

    /// Text for people.
    fn said(&self) -> String {
        let what = match &self.asked {
            Asked::Cordon => "cordon",
            Asked::Uncordon => "uncordon",
            Asked::Evict(_) => "evict",
            Asked::Other(what) => what,
        };
        format!("{what} {}, answered {}", self.object, self.status)
    }
}

/// Check the report: no pod leaves but by eviction, from a cordoned node and before its machine's items; ready replicas
/// never fall below what a budget promises; a node is cordoned between the end of its machine's lock and the end of its
/// request; nothing stays cordoned or annotated.
pub(super) fn examine(report: &Report, moves: &[Move], items: &[Effect], machines: &[String]) -> Drains {
    let evictions = || report.requests.iter().filter(|request| matches!(request.asked, Asked::Evict(_)));
    let mut found = Drains {
        violations: Vec::new(),
        evicted: evictions().filter(|eviction| eviction.is_done()).count(),
        refused: evictions().filter(|eviction| eviction.status == REFUSED).count(),
    };
    within_rights(report, &mut found.violations);
    only_evicted(report, &mut found.violations);
    budgets_held(report, &mut found.violations);
    for machine in machines {
        match cordons(report, machine) {
            Ok(cordons) => {
                while_requested(&cordons, moves, machine, &mut found.violations);
                drained_first(report, &cordons, items, machine, &mut found.violations);
            }
            Err(what) => found.violations.push(what),
        }
    }
    given_back(report, machines, &mut found.violations);
    found
}

/// Muster asks for cordons, uncordons and evictions alone, and has every right that it needs.
fn within_rights(report: &Report, violations: &mut Vec<String>) {
    let others = report.requests.iter().filter(|request| match request.asked {
        Asked::Other(_) => true,
        Asked::Cordon | Asked::Uncordon | Asked::Evict(_) => request.status == FORBIDDEN,
    });
    violations.extend(others.map(|request| format!("Muster asked Kubernetes to {}", request.said())));
}

fn only_evicted(report: &Report, violations: &mut Vec<String>) {
    let is_evicted = |pod: &Pod| eviction(report, &pod.uid).is_some();
    let left = report.pods.iter().filter(|pod| pod.gone && !is_evicted(pod));
    violations.extend(left.map(|pod| format!("pod {} left {} without an eviction", pod.name, pod.node)));
}

/// The eviction of a pod.
fn eviction<'r>(report: &'r Report, pod_uid: &str) -> Option<&'r Request> {
    let evicts = |request: &&Request| matches!(&request.asked, Asked::Evict(uid) if uid == pod_uid);
    report.requests.iter().filter(evicts).find(|request| request.is_done())
}

fn budgets_held(report: &Report, violations: &mut Vec<String>) {
    let broken = report.workloads.iter().filter(|workload| workload.lowest < workload.promised);
    violations.extend(broken.map(|workload| {
        let Workload { name, wanted, lowest, promised } = workload;
        format!("{name}: only {lowest} of {wanted} pods were Ready; its budget promises {promised}")
    }));
}

/// Beginning and end of every cordon of a node.
fn cordons(report: &Report, node: &str) -> Result<Vec<(u64, u64)>, String> {
    let of_node = |request: &&Request| request.object == node && request.is_done();
    let mut cordons = Vec::new();
    let mut open = None;
    for request in report.requests.iter().filter(of_node) {
        open = match (&request.asked, open) {
            (Asked::Cordon, None) => Some(request.at_ms),
            (Asked::Uncordon, Some(start)) => {
                cordons.push((start, request.at_ms));
                None
            }
            (Asked::Cordon, Some(_)) => return Err(format!("{node}: cordoned twice")),
            (Asked::Uncordon, None) => return Err(format!("{node}: uncordoned before it was cordoned")),
            (Asked::Evict(_) | Asked::Other(_), open) => open,
        };
    }
    match (open, cordons.is_empty()) {
        (Some(_), _) => Err(format!("{node}: its cordon has no end")),
        (None, true) => Err(format!("{node}: never cordoned")),
        (None, false) => Ok(cordons),
    }
}

fn while_requested(cordons: &[(u64, u64)], moves: &[Move], machine: &str, violations: &mut Vec<String>) {
    // A machine without these lines is a violation already.
    let Some((released, gone)) = moves::away(moves, machine) else { return };
    for (start, end) in cordons {
        if *start < released {
            violations.push(format!("{machine}: cordoned {} ms before its lock was released", released - start));
        }
        if *end > gone {
            violations.push(format!("{machine}: uncordoned {} ms after its request had ended", end - gone));
        }
    }
}

fn drained_first(
    report: &Report,
    cordons: &[(u64, u64)],
    items: &[Effect],
    machine: &str,
    violations: &mut Vec<String>,
) {
    let first_item = items.iter().filter(|item| item.machine == machine).map(|item| item.at_ms).min();
    for pod in report.pods.iter().filter(|pod| pod.node == machine) {
        let Some(at_ms) = eviction(report, &pod.uid).map(|eviction| eviction.at_ms) else { continue };
        if !cordons.iter().any(|(start, end)| (start..=end).contains(&&at_ms)) {
            violations.push(format!("pod {} was evicted while {machine} was not cordoned", pod.name));
        }
        if first_item.is_some_and(|first| first < at_ms) {
            violations.push(format!("{machine}: its items began before pod {} was evicted", pod.name));
        }
    }
}

fn given_back(report: &Report, machines: &[String], violations: &mut Vec<String>) {
    for node in &report.nodes {
        if node.cordoned {
            violations.push(format!("node {} is still cordoned", node.name));
        }
        if !node.annotations.is_empty() {
            violations.push(format!("node {} still has {}", node.name, node.annotations.join(", ")));
        }
    }
    let missing = machines.iter().filter(|machine| report.nodes.iter().all(|node| node.name != **machine));
    violations.extend(missing.map(|machine| format!("node {machine} is gone")));
}

/// The result as lines of the summary: a name, and a text for it.
pub(super) fn lines(report: &Report, drains: &Drains, machines: &[String]) -> Vec<(String, String)> {
    let refused = match drains.refused {
        0 => "no eviction was refused".to_owned(),
        1 => "1 eviction was refused, and tried again until another pod was Ready".to_owned(),
        count => format!("{count} evictions were refused, and tried again until another pod was Ready"),
    };
    let workloads = report.workloads.iter().map(|workload| {
        let Workload { name, wanted, lowest, promised } = workload;
        (name.clone(), format!("never fewer than {lowest} of {wanted} pods Ready; its budget promises {promised}"))
    });
    let pods = format!("{} left their nodes, each by eviction from a cordoned node:", drains.evicted);
    let nodes = format!("{} cordoned in their turn and given back: none is cordoned or annotated", report.nodes.len());
    [("pods".to_owned(), pods)]
        .into_iter()
        .chain(turns(report, machines))
        .chain([("budgets".to_owned(), refused)])
        .chain(workloads)
        .chain([("nodes".to_owned(), nodes)])
        .collect()
}

/// The drains that moved pods, in their order.
fn turns(report: &Report, machines: &[String]) -> Vec<(String, String)> {
    let mut turns: Vec<(u64, String, String)> = machines.iter().filter_map(|machine| turn(report, machine)).collect();
    turns.sort();
    let more = turns.len().saturating_sub(TURNS_SHOWN);
    let mut lines: Vec<_> = turns.into_iter().take(TURNS_SHOWN).map(|(_, name, text)| (name, text)).collect();
    if more > 0 {
        lines.push(("…".to_owned(), format!("and those of {more} more nodes")));
    }
    lines
}

fn turn(report: &Report, machine: &str) -> Option<(u64, String, String)> {
    let (start, end) = *cordons(report, machine).ok()?.first()?;
    let is_here = |uid: &str| report.pods.iter().any(|pod| pod.uid == uid && pod.node == machine);
    let evictions =
        report.requests.iter().filter(|request| matches!(&request.asked, Asked::Evict(uid) if is_here(uid)));
    let (done, refused): (Vec<_>, Vec<_>) =
        evictions.filter(|eviction| eviction.is_done() || eviction.status == REFUSED).partition(|it| it.is_done());
    if done.is_empty() {
        return None;
    }
    let seconds = Duration::from_millis(end.saturating_sub(start)).as_secs_f64();
    let pods = if done.len() == 1 { "pod" } else { "pods" };
    let text = format!("{} {pods}; cordoned for {seconds:.1} s; evictions refused: {}", done.len(), refused.len());
    Some((start, machine.to_owned(), text))
}

#[cfg(test)]
mod tests {
    use super::{super::effects, *};

    const LINES: &str = "\
1 worker-1 request-seen
2 worker-1 workloads-moved
3 worker-1 lock-inactive
6 worker-1 a start 1 deploy 2
7 worker-1 a end 1 deploy 2
9 worker-1 request-gone
10 worker-1 lock-active
";

    fn request(at_ms: u64, asked: Asked, object: &str, status: u16) -> Request {
        Request { at_ms, asked, object: object.to_owned(), status }
    }

    fn pod(uid: &str, node: &str, gone: bool) -> Pod {
        Pod { uid: uid.to_owned(), name: format!("shop/{uid}"), node: node.to_owned(), gone }
    }

    fn good() -> Report {
        let evict = |at_ms, status| request(at_ms, Asked::Evict("old".to_owned()), "shop/old", status);
        Report {
            requests: vec![
                request(4, Asked::Cordon, "worker-1", 200),
                evict(5, 429),
                evict(6, 201),
                request(8, Asked::Uncordon, "worker-1", 200),
            ],
            pods: vec![pod("old", "worker-1", true), pod("new", "worker-2", false)],
            workloads: vec![Workload { name: "shop/web".to_owned(), wanted: 3, lowest: 2, promised: 2 }],
            nodes: vec![Node { name: "worker-1".to_owned(), cordoned: false, annotations: Vec::new() }],
        }
    }

    fn found(report: &Report) -> Drains {
        let moves: Vec<Move> = LINES.lines().filter_map(moves::parse).collect();
        examine(report, &moves, &effects::parse(LINES).expect("lines"), &["worker-1".to_owned()])
    }

    #[test]
    fn a_good_update() {
        assert_eq!(found(&good()), Drains { violations: Vec::new(), evicted: 1, refused: 1 });
    }

    #[test]
    fn the_summary_names_pods_and_budgets() {
        let report = good();
        let lines = lines(&report, &found(&report), &["worker-1".to_owned()]);
        let lines: Vec<String> = lines.iter().map(|(name, text)| format!("{name}: {text}")).collect();
        let expected = [
            "pods: 1 left their nodes, each by eviction from a cordoned node:",
            "worker-1: 1 pod; cordoned for 0.0 s; evictions refused: 1",
            "budgets: 1 eviction was refused, and tried again until another pod was Ready",
            "shop/web: never fewer than 2 of 3 pods Ready; its budget promises 2",
            "nodes: 1 cordoned in their turn and given back: none is cordoned or annotated",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_report_is_read_as_written() {
        let text = serde_json::to_string(&good()).expect("JSON");
        let read: Report = serde_json::from_str(&text).expect("a report");
        assert_eq!(serde_json::to_string(&read).expect("JSON"), text);
    }

    #[test]
    fn every_broken_promise_is_found() {
        type Break = fn(&mut Report);
        let breaks: [(Break, &str); 14] = [
            (
                |it| it.requests.push(request(7, Asked::Other("delete pods".to_owned()), "shop/new", 403)),
                "Muster asked",
            ),
            (|it| it.requests[1].status = 403, "Muster asked Kubernetes to evict shop/old"),
            (|it| it.requests[2].status = 404, "pod shop/old left worker-1 without"),
            (|it| it.pods[1].gone = true, "pod shop/new left worker-2 without"),
            (|it| it.workloads[0].lowest = 1, "shop/web: only 1 of 3 pods were Ready"),
            (|it| it.requests[0].at_ms = 2, "worker-1: cordoned 1 ms before"),
            (|it| it.requests[3].at_ms = 11, "worker-1: uncordoned 2 ms after"),
            (|it| it.requests[3].status = 409, "worker-1: its cordon has no end"),
            (|it| it.requests.clear(), "worker-1: never cordoned"),
            (|it| it.requests[0].status = 409, "worker-1: uncordoned before"),
            (|it| it.requests[2].at_ms = 3, "pod shop/old was evicted while worker-1"),
            (|it| it.requests[2].at_ms = 7, "worker-1: its items began before"),
            (|it| it.nodes[0].cordoned = true, "node worker-1 is still cordoned"),
            (|it| it.nodes[0].annotations.push("muster/drained-for".to_owned()), "node worker-1 still has muster/"),
        ];
        for (break_it, expected) in breaks {
            let mut report = good();
            break_it(&mut report);
            let violations = found(&report).violations;
            assert!(violations.iter().any(|said| said.starts_with(expected)), "{expected}: {violations:?}");
        }
        let report = Report { nodes: Vec::new(), ..good() };
        assert_eq!(found(&report).violations, ["node worker-1 is gone"]);
    }
}
