//! Every named reason has its row in docs/reference/reasons.md, and every row a reason: README promises "every NOTE".
//! Reasons of machines and clusters are an enum; codes of failed swarm-joins are literals.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::Context as _;
use muster_proto::model::Reason;

use super::{rules::is_in, workspace};

/// Modules that name codes.
const NAMED_IN: &[&str] = &["agent/src/core", "coordinator/src/plan", "proto/src/model/input"];
/// Other names in these modules: states, stages, kinds of documents and secrets.
const NO_REASONS: &[&str] = &[
    "ClusterMaintenanceRequest",
    "ClusterWorkloadLock",
    "Deploy",
    "ItemInput",
    "MusterCordoned",
    "MusterDrainWaits",
    "MusterDrained",
    "NodeDeletionRequest",
    "NodeMaintenanceRequest",
    "NodeWorkloadLock",
    "Pending",
    "Prepare",
    "Ready",
    "Reboot",
    "Reconfigure",
    "Token",
    "Uninitialized",
];
/// The names of states and steps of a machine's turn are no reasons.
const OF_TURNS: &str = "coordinator/src/plan/update/transitions";
/// States of an item that only the view names.
const OF_THE_VIEW: &[&str] = &["Retrying"];
/// Header prefixes of tables of reasons: NOTEs, and messages of machines that cannot join the swarm.
const TABLES: &[&str] = &["| NOTE |", "| text |"];

/// Is it a word of letters only, with an initial capital?
fn is_name(text: &str) -> bool {
    text.len() > 3
        && text.starts_with(|c: char| c.is_ascii_uppercase())
        && text.chars().all(|c| c.is_ascii_alphabetic())
}

/// String literals in a line of code.
fn literals(line: &str) -> impl Iterator<Item = &str> {
    let code = if line.trim_start().starts_with("//") { "" } else { line };
    code.split('"').skip(1).step_by(2)
}

fn is_scanned(path: &str) -> bool {
    NAMED_IN.iter().any(|module| is_in(path, module)) && !is_in(path, OF_TURNS)
}

fn named() -> anyhow::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for source in workspace()?.iter().filter(|source| is_scanned(&source.path)) {
        let lines = source.lines.iter().zip(1..).filter(|(_, number)| !source.is_test(*number));
        names.extend(lines.flat_map(|(line, _)| literals(line)).filter(|text| is_name(text)).map(str::to_owned));
    }
    for word in NO_REASONS {
        assert!(names.remove(*word), "{word} is named nowhere: take it out of NO_REASONS");
    }
    Ok(names)
}

/// Names in the first column of one kind of table: `X` and `Y` of "| `X`, `Y: …` | …".
fn rows(text: &str, table: &str) -> Vec<String> {
    let mut rows = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        inside = line.starts_with(table) || (inside && line.starts_with('|'));
        let first = line.split('|').nth(1).filter(|_| inside).unwrap_or_default();
        let quoted = first.split('`').skip(1).step_by(2);
        rows.extend(quoted.filter_map(|text| text.split(':').next()).map(str::to_owned));
    }
    rows
}

#[test]
fn every_reason_has_its_row() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no folder above the crate")?;
    let text = fs::read_to_string(root.join("docs/reference/reasons.md"))?;
    let mut reasons = named()?;
    assert!(reasons.contains("NoManagerReachable"), "did they move? {reasons:?}");
    reasons.extend(Reason::ALL.iter().map(|reason| reason.as_str().to_owned()));
    let all: Vec<String> = TABLES.iter().flat_map(|table| rows(&text, table)).collect();
    let missing: Vec<&String> = reasons.iter().filter(|reason| !all.contains(reason)).collect();
    assert!(missing.is_empty(), "no row in docs/reference/reasons.md (or none of a reason: NO_REASONS): {missing:?}");
    let notes = rows(&text, TABLES[0]);
    let known = |row: &&String| reasons.contains(*row) || OF_THE_VIEW.contains(&row.as_str());
    let stale: Vec<&String> = notes.iter().filter(|row| !known(row)).collect();
    assert!(stale.is_empty(), "rows of docs/reference/reasons.md that no code names: {stale:?}");
    let twice: Vec<&String> =
        notes.iter().filter(|row| notes.iter().filter(|other| other == row).count() > 1).collect();
    assert!(twice.is_empty(), "rows that are there twice: {twice:?}");
    Ok(())
}
