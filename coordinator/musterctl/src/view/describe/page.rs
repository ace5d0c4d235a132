//! The layout of a page: `Field:   value`, sections, indented tables.

use crate::view::{LINE_CHARS_MAX, Table, printable};

/// Column at which values begin.
const VALUE_COLUMN: usize = 20;
/// Indent of lines in a section.
const INDENT: &str = "  ";

/// A page under construction.
#[derive(Default)]
pub(super) struct Page {
    pub(super) lines: Vec<String>,
    in_section: bool,
}

impl Page {
    pub(super) fn field(&mut self, name: &str, value: &str) {
        let indent = if self.in_section { INDENT } else { "" };
        let label = format!("{indent}{name}:");
        self.push(&format!("{label:VALUE_COLUMN$}{}", printable(value)));
    }

    pub(super) fn section(&mut self, title: &str) {
        self.in_section = true;
        self.push(&format!("{}:", printable(title)));
    }

    /// Return to the top level of the page.
    pub(super) const fn end_section(&mut self) {
        self.in_section = false;
    }

    pub(super) fn line(&mut self, text: &str) {
        self.push(&format!("{INDENT}{}", printable(text)));
    }

    pub(super) fn table(&mut self, table: &Table) {
        if table.is_empty() {
            self.line("(none)");
            return;
        }
        for line in table.clone().within(LINE_CHARS_MAX - 2).lines() {
            self.push(&format!("{INDENT}{line}"));
        }
    }

    fn push(&mut self, line: &str) {
        self.lines.push(line.trim_end().to_owned());
    }
}
