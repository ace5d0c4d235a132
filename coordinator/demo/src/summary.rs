//! Summary of the demo: how long it took, and whether the guarantees held.

use std::{fs, path::PathBuf, time::Duration};

use muster_proto::{
    model::LockState,
    resource::{Kind, Lock, Machine, Of},
};
use musterctl::{
    client::Coordinator,
    config::Config,
    errors::{Failure, not_this_version},
    terminal,
};

use super::{
    CLUSTER, COMMENT, DEPLOY_ITEMS, Wanted,
    drains::{self, Report},
    effects::{self, Findings},
    layout::Layout,
    manifest::SECOND,
    moves,
};

/// Print the summary. A broken guarantee is a failure.
pub(super) async fn show(layout: &Layout, wanted: Wanted, whole: Duration) -> Result<(), Failure> {
    let (path, text) = read(layout)?;
    let effects = effects::of_release(&effects::parse(&text).map_err(Failure::failed)?, None);
    let findings = effects::examine(&effects, &wanted.names(), DEPLOY_ITEMS);
    terminal::print(COMMENT)?;
    print(&lines(wanted, whole, &findings, retries(layout).await?))?;
    kept(&findings.violations, &[path])
}

fn read(layout: &Layout) -> Result<(PathBuf, String), Failure> {
    let path = layout.effects();
    let text = fs::read_to_string(&path)
        .map_err(|source| Failure::failed(format!("cannot read {}", path.display())).because(source))?;
    Ok((path, text))
}

fn print(lines: &[String]) -> Result<(), Failure> {
    lines.iter().try_for_each(|line| terminal::print(&format!("{COMMENT}{line}")))
}

fn kept(violations: &[String], evidence: &[PathBuf]) -> Result<(), Failure> {
    if violations.is_empty() {
        return Ok(());
    }
    Err(Failure::failed(format!("{} promises were broken", violations.len())).next(format!(
        "{}\nEvidence: {}",
        violations.join("\n"),
        evidence.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ")
    )))
}

/// Print the result of the update. A broken guarantee, or something still held, is a failure.
pub(super) async fn show_update(
    layout: &Layout,
    wanted: Wanted,
    width: u32,
    kubernetes: Option<&Report>,
) -> Result<(), Failure> {
    let (path, text) = read(layout)?;
    let items = effects::of_release(&effects::parse(&text).map_err(Failure::failed)?, Some(SECOND));
    let moved: Vec<_> = text.lines().filter_map(moves::parse).collect();
    let mut moves = moves::examine(&moved, &items, &wanted.names(), width);
    moves.violations.extend(left_over(layout).await?);
    let mut evidence = vec![path];
    let mut more = Vec::new();
    if let Some(report) = kubernetes {
        let drains = drains::examine(report, &moved, &items, &wanted.names());
        more = drains::lines(report, &drains, &wanted.names());
        moves.violations.extend(drains.violations);
        evidence.push(layout.kubernetes_report());
    }
    let lines = [
        ("update", format!("{:.1} s", Duration::from_millis(moves.makespan_ms).as_secs_f64())),
        ("at once", format!("{} workers without their workloads at the peak, {width} allowed", moves.workers_at_once)),
        ("order", "workloads away, items, given back; control machines first".to_owned()),
    ];
    if moves.violations.is_empty() {
        print(&lines.map(|(name, value)| format!("{name:10}  {value}")))?;
        let more: Vec<String> = more.iter().map(|(name, value)| format!("{name:10}  {value}")).collect();
        print(&more)?;
    }
    kept(&moves.violations, &evidence)
}

/// Requests that still exist, and locks that are still inactive.
async fn left_over(layout: &Layout) -> Result<Vec<String>, Failure> {
    let coordinator = Coordinator::connect(&Config::read(&layout.config())?).await?;
    let requests = coordinator.get(Kind::Requests(Of::All), "", CLUSTER).await?;
    let mut left: Vec<String> =
        requests.iter().map(|request| format!("maintenance of {} is still requested", request.name)).collect();
    for found in coordinator.get(Kind::Locks(Of::All), "", CLUSTER).await? {
        let lock: Lock = serde_json::from_slice(&found.json).map_err(not_this_version)?;
        if lock.status.state != LockState::Active && lock.spec.node_name.is_some() {
            left.push(format!("lock {} is {}", found.name, lock.status.state));
        }
    }
    Ok(left)
}

/// Attempts beyond the first, over all items of all machines.
async fn retries(layout: &Layout) -> Result<u32, Failure> {
    let coordinator = Coordinator::connect(&Config::read(&layout.config())?).await?;
    let mut retries = 0;
    for found in coordinator.get(Kind::Machines, "", CLUSTER).await? {
        let machine: Machine = serde_json::from_slice(&found.json).map_err(not_this_version)?;
        retries += machine.status.state_item_statuses.values().map(|item| item.attempt.saturating_sub(1)).sum::<u32>();
    }
    Ok(retries)
}

fn lines(wanted: Wanted, whole: Duration, findings: &Findings, retries: u32) -> Vec<String> {
    let ideal_s = wanted.ideal().as_secs_f64();
    let makespan = Duration::from_millis(findings.makespan_ms).as_secs_f64();
    let ratio =
        if ideal_s > 0.0 { format!(", {:.2} x ideal ({ideal_s:.1} s)", makespan / ideal_s) } else { String::new() };
    let handover = match findings.handover_median_ms() {
        Some(median) => format!("{median} ms (median of {})", findings.handovers_ms.len()),
        None => "nobody had to wait".to_owned(),
    };
    let broken = |word: &str| findings.violations.iter().filter(|said| said.contains(word)).count();
    let twice = match broken("item ") {
        0 => format!("nothing ({} items, each once)", findings.items),
        count => format!("{count} items ran more or less than once"),
    };
    let order = match broken("began") {
        0 => "control machines one by one, then the workers".to_owned(),
        count => format!("broken {count} times"),
    };
    [
        ("time", format!("{:.1} s in all", whole.as_secs_f64())),
        ("deploy", format!("{makespan:.1} s{ratio}")),
        ("hand-over", handover),
        ("at once", format!("{} workers at the peak", findings.workers_at_once)),
        ("order", order),
        ("retries", retries.to_string()),
        ("ran twice", twice),
    ]
    .map(|(name, value)| format!("{name:10}  {value}"))
    .into()
}
