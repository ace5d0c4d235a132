//! The house rules (docs/ARCHITECTURE.md) that no compiler checks: sizes, names, and allowed imports. Reads the sources
//! of the workspace and reports every violation with its place.

mod reasons;
mod rules;
mod source;

use std::{fmt::Write as _, fs, path::Path};

use anyhow::Context as _;
use rules::RULES;
use source::Source;

/// The crates under these rules.
const CRATES: &[&str] = &["agent", "coordinator", "proto", "tests"];

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    line: usize,
    what: String,
}

/// All Rust files below a folder, by path from the root of the workspace.
fn collect(root: &Path, folder: &Path, sources: &mut Vec<Source>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("target") {
            collect(root, &path, sources)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root)?.to_str().context("a path that is not UTF-8")?;
            sources.push(Source::new(name, &fs::read_to_string(&path)?)?);
        }
    }
    Ok(())
}

fn workspace() -> anyhow::Result<Vec<Source>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no folder above the crate")?;
    let mut sources = Vec::new();
    for name in CRATES {
        collect(root, &root.join(name), &mut sources)?;
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(sources)
}

#[test]
fn the_workspace_is_tidy() -> anyhow::Result<()> {
    let sources = workspace()?;
    assert!(sources.len() > 30, "only {} files found: is the walk broken?", sources.len());
    assert!(sources.iter().any(|source| rules::is_pure(&source.path)), "no pure module found: did they move?");
    let mut report = String::new();
    for source in &sources {
        let mut violations: Vec<Violation> = RULES.iter().flat_map(|rule| rule(source)).collect();
        violations.sort();
        for Violation { line, what } in violations {
            let _ = writeln!(report, "{}:{line}: {what}", source.path);
        }
    }
    assert!(report.is_empty(), "\n{report}");
    Ok(())
}

/// Each rule reports its seeded violation only.
#[test]
fn each_rule_fires() -> anyhow::Result<()> {
    let long = |lines: usize| "// x\n".repeat(lines);
    let function = |lines: usize| format!("fn f() {{\n{}}}\n", "    f();\n".repeat(lines - 2));
    let pair = format!("\nfn f() -> Result<u8, u8> {{\n{}}}\n", "    f();\n".repeat(69));
    let tested = format!("fn f() {{}}\n#[cfg(test)]\nmod tests {{\n{}}}\n", long(900));
    let to_do = ["// TO", "DO: later\n"].concat();
    let cases: &[(&str, &str, &[usize])] = &[
        ("agent/src/a.rs", &long(800), &[]),
        ("agent/src/a.rs", &long(801), &[801]),
        ("agent/src/a.rs", &tested, &[]),
        ("agent/src/a/tests.rs", &long(900), &[]),
        ("tests/kubernetes/src/a.rs", &long(801), &[801]),
        ("agent/src/a.rs", &format!("//{}", "ä".repeat(118)), &[]),
        ("agent/src/a.rs", &format!("\n//{}", "x".repeat(119)), &[2]),
        ("agent/src/a.rs", &function(70), &[]),
        ("agent/src/a.rs", &format!("\n{}", function(71)), &[2]),
        ("agent/src/a.rs", &pair, &[2]),
        ("agent/src/a.rs", "trait T { fn f(); }\ntype F = fn();\nfn g() -> [u8; 2] { [0; 2] }\n", &[]),
        ("agent/src/a.rs", "\nstruct Survey;\n// Survey, planted\n", &[2]),
        ("agent/src/utils.rs", "", &[1]),
        ("agent/src/common/mod.rs", "", &[1]),
        ("agent/src/a.rs", "\nmod helpers;\n", &[2]),
        ("agent/src/a.rs", "mod types { }\n", &[1]),
        ("agent/src/typesetting.rs", "mod commoner;\n", &[]),
        ("coordinator/src/core.rs", "use tokio::time;\n", &[1]),
        ("coordinator/src/core/a.rs", "\nfn f() { tracing::info!(\"x\") }\n", &[2]),
        ("coordinator/src/plan/a.rs", "use std::{collections::BTreeMap, fs};\n", &[1]),
        ("coordinator/src/facts.rs", "fn f() -> bool { std::env::var(\"X\").is_ok() }\n", &[1]),
        ("coordinator/musterctl/src/view.rs", "use std::collections::HashMap;\n", &[1]),
        ("agent/src/core/a.rs", "use std::time::{Duration, Instant};\n", &[1]),
        (
            "proto/src/model/a.rs",
            "// tokio, HashMap\n/// SystemTime\nfn f() -> &'static str { \"std::fs tonic\" }\n",
            &[],
        ),
        ("proto/src/model/a.rs", "#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n", &[]),
        ("coordinator/src/engine.rs", "use std::{fs, collections::HashMap};\n", &[]),
        ("agent/src/a.rs", "use muster_coordinator::plan;\n", &[1]),
        ("coordinator/src/a.rs", "use muster_agent::core;\n", &[1]),
        ("coordinator/musterctl/src/a.rs", "use muster_coordinator::{plan, pki};\n", &[1]),
        ("coordinator/demo/src/a.rs", "use muster_coordinator as c;\n", &[1]),
        ("coordinator/demo/src/a.rs", "#[cfg(test)]\nuse muster_coordinator::manifest;\n", &[]),
        ("coordinator/src/a.rs", "use muster_proto::wire::Fault;\n", &[1]),
        ("agent/src/engine.rs", "use muster_proto::{model::Seq, wire};\n", &[1]),
        ("proto/src/resource.rs", "use crate::{model, wire as w};\n", &[1]),
        ("agent/src/link/a.rs", "use muster_proto::wire;\n", &[]),
        ("coordinator/src/server/a.rs", "use muster_proto::{wire, model};\n", &[]),
        ("coordinator/musterctl/src/main.rs", "use muster_proto::wire;\n", &[]),
        ("agent/src/a.rs", "fn f(wire: u8) -> u8 { wire }\n", &[]),
        ("coordinator/src/a.rs", "\nfn f() -> bool { reason == \"Lost\" }\n", &[2]),
        ("coordinator/src/a.rs", "fn f() -> bool { reason == Reason::Lost }\n", &[]),
        ("agent/src/a.rs", "fn f() -> bool { known.message.ends_with(\"full\") }\n", &[1]),
        ("agent/src/a.rs", "#[cfg(test)]\nmod tests {\n    fn f() -> bool { reason == \"Lost\" }\n}\n", &[]),
        ("agent/src/a.rs", &to_do, &[1]),
        ("agent/src/a.rs", "#[test]\n#[ignore = \"slow\"]\nfn f() {}\n", &[2]),
        ("agent/src/a.rs", "#[allow(unused, dead_code)]\nfn f() {}\n", &[1]),
        ("agent/src/a.rs", "struct Held(#[expect(dead_code, reason = \"held for its Drop\")] File);\n", &[]),
    ];
    for (path, text, expected) in cases {
        let source = Source::new(path, text)?;
        let lines: Vec<usize> = RULES.iter().flat_map(|rule| rule(&source)).map(|violation| violation.line).collect();
        let start: String = text.chars().take(60).collect();
        assert_eq!(lines, *expected, "{path}: {start:?}");
    }
    Ok(())
}
