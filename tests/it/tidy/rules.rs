//! The rules, each a function from a file to its violations.

use super::{Violation, source::Source};

/// Longest file, without its tests (docs/ARCHITECTURE.md).
const FILE_LINES_MAX: usize = 800;
/// Longest line, in characters.
const LINE_CHARS_MAX: usize = 120;
/// Longest function, from `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;
/// Meaningless names.
const EMPTY_NAMES: &[&str] = &["utils", "util", "common", "helpers", "helper", "types"];
/// Modules that decide only; effects are elsewhere.
const PURE: &[&str] = &[
    "agent/src/core",
    "coordinator/src/core",
    "coordinator/src/facts",
    "coordinator/src/plan",
    "coordinator/musterctl/src/view",
    "proto/src/model",
];
/// Words forbidden in pure modules.
const IMPURE_WORDS: &[&str] =
    &["tokio", "tonic", "tracing", "SystemTime", "Instant", "HashMap", "HashSet", "rand", "new_v4"];
/// Modules of the standard library forbidden in pure modules.
const IMPURE_STD: &[&str] = &["fs", "net", "env", "process", "thread"];
/// Modules that may use messages of the wire.
const WIRE: &[&str] = &[
    "agent/src/identity",
    "agent/src/link",
    "agent/tests",
    "coordinator/demo/src",
    "coordinator/examples",
    "coordinator/musterctl/src",
    "coordinator/src/server",
    "coordinator/tests",
    "proto/src/convert",
    "proto/src/lib",
    "tests",
];

/// Forms of branches on a message or on the name of a reason.
const BRANCHES_ON_TEXT: &[&str] = &[
    "match reason.as_str()",
    "match why.reason.as_str()",
    "message == ",
    "message.contains(",
    "message.ends_with(",
    "message.split(",
    "message.starts_with(",
    "reason != \"",
    "reason == \"",
    "reason.as_str() == ",
];

/// Names that were words of our own. The right ones: `ClusterSnapshot`, `MachineView`, `Transaction`, `DesiredState`,
/// `LockCommand`, `RolloutCommand`, `ItemOverride`, `Authenticator`, `FailedAttempts`, `Limiter`, `seeded_bug`.
const OLD_NAMES: &[&str] = &[
    "BlockNews",
    "Draft",
    "Guesses",
    "News",
    "Patience",
    "Seats",
    "Survey",
    "SwarmLook",
    "Wish",
    "appointments",
    "distrust",
    "in_doubt",
    "kept_open",
    "knock",
    "only_added",
    "patience",
    "patience_ms",
    "planted",
    "plants",
    "set_aside",
    "situations",
    "wish",
];

/// Programs of operators.
const CLIENTS: &[&str] = &["coordinator/demo/src", "coordinator/musterctl/src"];

/// All rules.
pub(super) const RULES: &[fn(&Source) -> Vec<Violation>] = &[
    file_length,
    line_length,
    function_length,
    telling_names,
    pure_modules,
    crates_apart,
    clients_know_the_wire_only,
    wire_stays_at_the_rim,
    nothing_left_for_later,
    no_branch_on_text,
    names_of_the_field,
];

/// Is this file the module `module` (a path without `.rs`) or below it?
pub(super) fn is_in(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

pub(super) fn is_pure(path: &str) -> bool {
    PURE.iter().any(|module| is_in(path, module))
}

fn violation(line: usize, what: impl Into<String>) -> Violation {
    Violation { line, what: what.into() }
}

fn file_length(source: &Source) -> Vec<Violation> {
    let lines = (1..=source.lines.len()).filter(|line| !source.is_test(*line)).count();
    let is_library = ["tests/harness/", "tests/kubernetes/src/"].iter().any(|folder| source.path.starts_with(folder));
    let of_tests_only = source.path.starts_with("tests/") && !is_library;
    let too_long = lines > FILE_LINES_MAX && !of_tests_only;
    let found = too_long.then(|| violation(source.lines.len(), format!("{lines} lines; at most {FILE_LINES_MAX}")));
    found.into_iter().collect()
}

fn line_length(source: &Source) -> Vec<Violation> {
    let lengths = source.lines.iter().map(|line| line.chars().count()).enumerate();
    lengths
        .filter(|(_, length)| *length > LINE_CHARS_MAX)
        .map(|(index, length)| violation(index + 1, format!("a line of {length}; at most {LINE_CHARS_MAX}")))
        .collect()
}

fn function_length(source: &Source) -> Vec<Violation> {
    let mut found = Vec::new();
    for (at, token) in source.tokens.iter().enumerate().filter(|(_, token)| token.text == "fn") {
        // A type, such as `fn(u32) -> bool`, has no body.
        if source.stands(at + 1, &["("]) {
            continue;
        }
        let mut end = at + 1;
        while source.tokens.get(end).is_some_and(|token| !matches!(token.text.as_str(), "{" | ";")) {
            let bracket = matches!(source.tokens[end].text.as_str(), "(" | "[");
            end = if bracket { source.close_of(end) } else { end + 1 };
        }
        if !source.stands(end, &["{"]) {
            continue;
        }
        let last = source.tokens[source.close_of(end) - 1].line;
        let lines = last + 1 - token.line;
        if lines > FUNCTION_LINES_MAX {
            found.push(violation(token.line, format!("a function of {lines} lines; at most {FUNCTION_LINES_MAX}")));
        }
    }
    found
}

fn telling_names(source: &Source) -> Vec<Violation> {
    let parts = source.path.split('/').map(|part| part.trim_end_matches(".rs"));
    let of_file = parts.filter(|part| EMPTY_NAMES.contains(part)).map(|part| (1, part));
    let modules = source.tokens.iter().zip(source.tokens.iter().skip(1));
    let of_modules = modules
        .filter(|(before, name)| before.text == "mod" && EMPTY_NAMES.contains(&name.text.as_str()))
        .map(|(_, name)| (name.line, name.text.as_str()));
    of_file.chain(of_modules).map(|(line, name)| violation(line, format!("'{name}' says nothing"))).collect()
}

fn names_of_the_field(source: &Source) -> Vec<Violation> {
    let old = source.tokens.iter().filter(|token| OLD_NAMES.contains(&token.text.as_str()));
    old.map(|token| violation(token.line, format!("{} has another name: OLD_NAMES", token.text))).collect()
}

fn pure_modules(source: &Source) -> Vec<Violation> {
    if !is_pure(&source.path) {
        return Vec::new();
    }
    let words = source.tokens.iter().filter(|token| IMPURE_WORDS.contains(&token.text.as_str()));
    let words = words.map(|token| (token.line, token.text.clone()));
    let modules = source.imports("std").into_iter().filter(|(_, name)| IMPURE_STD.contains(name));
    let modules = modules.map(|(line, name)| (line, format!("std::{name}")));
    words
        .chain(modules)
        .filter(|(line, _)| !source.is_test(*line))
        .map(|(line, name)| violation(line, format!("{name} in a pure module")))
        .collect()
}

fn crates_apart(source: &Source) -> Vec<Violation> {
    let foreign: &[&str] = match source.path.split('/').next() {
        Some("agent") => &["muster_coordinator"],
        Some("coordinator") => &["muster_agent"],
        Some("proto") => &["muster_agent", "muster_coordinator"],
        _ => &[],
    };
    let found = source.tokens.iter().filter(|token| foreign.contains(&token.text.as_str()));
    found.map(|token| violation(token.line, format!("{} is another side's", token.text))).collect()
}

/// musterctl and the demo use only the wire of the coordinator.
fn clients_know_the_wire_only(source: &Source) -> Vec<Violation> {
    if !CLIENTS.iter().any(|module| is_in(&source.path, module)) {
        return Vec::new();
    }
    let found = source.tokens.iter().filter(|token| token.text == "muster_coordinator");
    // Their tests may let the parser check the manifests that they write.
    let found = found.filter(|token| !source.is_test(token.line));
    found.map(|token| violation(token.line, "a client that knows the coordinator's inside")).collect()
}

fn wire_stays_at_the_rim(source: &Source) -> Vec<Violation> {
    if WIRE.iter().any(|module| is_in(&source.path, module)) {
        return Vec::new();
    }
    let mut imports = source.imports("muster_proto");
    if source.path.starts_with("proto/") {
        imports.extend(source.imports("crate"));
    }
    let found = imports.into_iter().filter(|(_, name)| *name == "wire");
    found.map(|(line, _)| violation(line, "messages of the wire end at link, server and musterctl")).collect()
}

/// Cases that code must tell apart are an enum: no decision depends on the text of a message, or the name of a reason.
fn no_branch_on_text(source: &Source) -> Vec<Violation> {
    let production = ["agent/src", "coordinator/demo/src", "coordinator/musterctl/src", "coordinator/src", "proto/src"];
    if !production.iter().any(|module| source.path.starts_with(&format!("{module}/"))) {
        return Vec::new();
    }
    let branches = |line: &str| BRANCHES_ON_TEXT.iter().any(|form| line.contains(form));
    let lines = (1..).zip(&source.lines).filter(|(number, line)| !source.is_test(*number) && branches(line));
    lines.map(|(number, _)| violation(number, "a branch on a text: make it an enum")).collect()
}

fn nothing_left_for_later(source: &Source) -> Vec<Violation> {
    let marks = [["TO", "DO"].concat(), ["FIX", "ME"].concat()];
    let lines = source.lines.iter().enumerate();
    let mut found: Vec<Violation> = lines
        .filter(|(_, line)| marks.iter().any(|mark| line.contains(mark.as_str())))
        .map(|(index, _)| violation(index + 1, "a note for later: do it, or open an issue"))
        .collect();
    for (at, token) in source.tokens.iter().enumerate() {
        if source.stands(at, &["#", "[", "ignore"]) {
            found.push(violation(token.line, "an ignored test"));
        }
        // `expect(dead_code)` is for fields held for their Drop; the compiler reports when it is no longer true.
        if source.stands(at, &["allow", "("])
            && source.words(at + 2).take(source.close_of(at + 1) - at - 2).any(|word| word == "dead_code")
        {
            found.push(violation(token.line, "dead code: delete it"));
        }
    }
    found
}
