//! Packages that a transaction removes, parsed from the table that dnf shows before it acts. PURE: it runs nothing.

use std::collections::BTreeSet;

use super::dnf::split;

/// dnf's last line after a preview.
const ABORTED: &str = "Operation aborted.";

/// Packages that a transaction removes according to dnf's table: names with architectures.
#[derive(Debug, Default)]
pub(super) struct Going {
    /// Packages that are removed.
    pub(super) removed: BTreeSet<(String, String)>,
    /// Packages that another one in the transaction replaces.
    pub(super) replaced: BTreeSet<(String, String)>,
    /// The table is complete, and dnf stopped after the preview.
    pub(super) is_told: bool,
    /// The next rows list removed packages.
    removing: bool,
}

impl Going {
    /// Parses a line: a heading `Removing dependent packages:`, a row ` old  noarch  1-1  @site  6` below it, or below
    /// any row `     replacing  old.noarch 1-1`. A row with a long name takes two lines, the second further indented.
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

    /// Removed packages that are missing in `names`.
    pub(super) fn unnamed(&self, names: &[String]) -> Option<String> {
        let is_named = |package: &&(String, String)| names.iter().any(|name| is_of(name, package));
        let others: Vec<&str> =
            self.removed.iter().chain(&self.replaced).filter(|p| !is_named(p)).map(|(name, _)| name.as_str()).collect();
        (!others.is_empty()).then(|| others.join(", "))
    }
}

/// Does this name in an item mean this package? A long row lacks the architecture.
fn is_of(wanted: &str, (name, architecture): &(String, String)) -> bool {
    let (bare, wanted) = split(wanted);
    bare == name && (architecture.is_empty() || wanted.is_none_or(|wanted| wanted == architecture))
}
