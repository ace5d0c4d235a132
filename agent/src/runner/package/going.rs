//! What goes when packages come, read from the table that dnf shows before it does anything. PURE: nothing is run here.

use std::collections::BTreeSet;

use super::dnf::split;

/// How dnf ends when it has told what it would do.
const ABORTED: &str = "Operation aborted.";

/// What goes in a transaction, as dnf's table tells it: names with their architectures.
#[derive(Debug, Default)]
pub(super) struct Going {
    /// Those that it could not leave.
    pub(super) removed: BTreeSet<(String, String)>,
    /// Those that something in it says it replaces.
    pub(super) replaced: BTreeSet<(String, String)>,
    /// The table is there, and nothing was done.
    pub(super) is_told: bool,
    /// The rows that follow are of packages that are removed.
    removing: bool,
}

impl Going {
    /// Reads a line: a heading `Removing dependent packages:`, a row ` old  noarch  1-1  @site  6` below it, or below
    /// any row `     replacing  old.noarch 1-1`. A row whose name is long is two lines, the second farther in.
    pub(super) fn take(&mut self, line: &str) {
        let mut words = line.split_ascii_whitespace();
        let (first, second) = (words.next().unwrap_or_default(), words.next());
        if line == ABORTED {
            self.is_told = true;
        } else if !line.starts_with(' ') {
            self.removing = line.starts_with("Removing");
        } else if let ("replacing", Some((name, architecture))) =
            (first, second.and_then(|package| package.rsplit_once('.')))
        {
            self.replaced.insert((name.to_owned(), architecture.to_owned()));
        } else if self.removing && !line.starts_with("  ") {
            self.removed.insert((first.to_owned(), second.unwrap_or_default().to_owned()));
        }
    }

    pub(super) fn replaces(&self, name: &str) -> bool {
        self.replaced.iter().any(|package| is_of(name, package))
    }

    /// What goes and is none of these.
    pub(super) fn unnamed(&self, names: &[String]) -> Option<String> {
        let is_named = |package: &&(String, String)| names.iter().any(|name| is_of(name, package));
        let others: Vec<&str> =
            self.removed.iter().chain(&self.replaced).filter(|p| !is_named(p)).map(|(name, _)| name.as_str()).collect();
        (!others.is_empty()).then(|| others.join(", "))
    }
}

/// Does an item mean this package by that name? Of a long row no architecture is known.
fn is_of(wanted: &str, (name, architecture): &(String, String)) -> bool {
    let (bare, wanted) = split(wanted);
    bare == name && (architecture.is_empty() || wanted.is_none_or(|wanted| wanted == architecture))
}
