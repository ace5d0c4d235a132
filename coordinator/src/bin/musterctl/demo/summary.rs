//! The demo's last words: what it took, and whether the promises were kept.

use std::{fs, time::Duration};

use muster_coordinator::view::Kind;
use muster_proto::resource::Machine;

use super::{
    CLUSTER, DEPLOY_ITEMS, Wanted,
    effects::{self, Findings},
    layout::Layout,
};
use crate::{client::Coordinator, config::Config, failure::Failure, get::not_this_version, terminal};

/// Prints the summary. A broken promise is a failure.
pub(super) async fn show(layout: &Layout, wanted: Wanted, whole: Duration) -> Result<(), Failure> {
    let path = layout.effects();
    let text = fs::read_to_string(&path)
        .map_err(|source| Failure::failed(format!("cannot read {}", path.display())).because(source))?;
    let effects = effects::parse(&text).map_err(Failure::failed)?;
    let findings = effects::examine(&effects, &wanted.names(), DEPLOY_ITEMS);
    terminal::print("")?;
    terminal::print_all(&lines(wanted, whole, &findings, retries(layout).await?))?;
    if findings.violations.is_empty() {
        return Ok(());
    }
    Err(Failure::failed(format!("{} promises were broken", findings.violations.len())).next(format!(
        "{}\nEvidence: {}",
        findings.violations.join("\n"),
        path.display()
    )))
}

/// Attempts beyond the first, of all items of all machines.
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
