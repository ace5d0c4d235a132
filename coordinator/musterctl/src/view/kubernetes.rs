//! The page of a checked Kubernetes cluster.

use muster_proto::{
    printable::printable,
    resource::{CheckSection, KubernetesCheck, LineKind},
};

/// Width of the longest word for a finding's weight, and a gap.
const INDENT: usize = 9;

/// The page: each section with its findings, and a last line if nothing stands in the way.
#[must_use]
pub fn check_lines(check: &KubernetesCheck) -> Vec<String> {
    let mut lines: Vec<String> = check.sections.iter().flat_map(section_lines).collect();
    if check.problems() == 0 {
        lines.push(printable(&format!("Nothing stands in the way of an update of {}.", check.cluster)));
    }
    lines
}

fn section_lines(section: &CheckSection) -> Vec<String> {
    let mut lines = vec![printable(&section.title)];
    for (index, line) in section.lines.iter().enumerate() {
        let word = match line.kind {
            LineKind::Ok => "ok",
            LineKind::Note => "note",
            LineKind::Problem => "problem",
        };
        lines.push(printable(&format!("  {word:INDENT$}{}", line.text)));
        // Several findings with one remedy show it once, after the last.
        let same = section.lines.get(index + 1).is_some_and(|after| after.next == line.next);
        if let Some(next) = line.next.as_ref().filter(|_| !same) {
            lines.push(printable(&format!("  {:INDENT$}-> {next}", "")));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use muster_proto::resource::CheckLine;

    use super::*;

    fn line(kind: LineKind, text: &str, next: Option<&str>) -> CheckLine {
        CheckLine { kind, text: text.to_owned(), next: next.map(str::to_owned) }
    }

    fn page(lines: Vec<CheckLine>) -> Vec<String> {
        let sections = vec![CheckSection { title: "Rights".to_owned(), lines }];
        check_lines(&KubernetesCheck { cluster: "edge-7".to_owned(), sections })
    }

    #[test]
    fn shared_remedy_is_shown_once() {
        let missing = |text| line(LineKind::Problem, text, Some("apply"));
        let shown = page(vec![missing("list pods"), missing("get nodes"), line(LineKind::Note, "x\u{1b}[2J", None)]);
        let expected =
            ["Rights", "  problem  list pods", "  problem  get nodes", "           -> apply", "  note     x^[[2J"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn clean_check_ends_with_verdict() {
        let shown = page(vec![line(LineKind::Ok, "all 16", None)]);
        assert_eq!(shown, ["Rights", "  ok       all 16", "Nothing stands in the way of an update of edge-7."]);
    }
}
