//! Borderless columns, as in kubectl, for `awk` and people alike.

use comfy_table::{ColumnConstraint, ContentArrangement, Width, presets};
use muster_proto::printable::printable;

use super::text;

/// Blanks between columns.
const GAP: u16 = 3;
/// Smallest width to which a column is cut, in characters.
const CUT_CHARS_MIN: u16 = 40;
/// Smallest width of a wrapped column, in characters.
const WRAPPED_CHARS_MIN: u16 = 30;
/// A non-breaking blank.
const NO_BREAK: &str = "\u{a0}";

/// Headers and rows of text.
#[derive(Clone, Debug)]
pub struct Table {
    headers: &'static [&'static str],
    rows: Vec<Vec<String>>,
    /// Longest line, in characters: the last column is wrapped to fit.
    line_chars_max: Option<u16>,
}

impl Table {
    /// Create an empty table.
    #[must_use]
    pub const fn new(headers: &'static [&'static str]) -> Self {
        Self { headers, rows: Vec::new(), line_chars_max: None }
    }

    /// Limit lines to this many characters: the text of the last column is wrapped.
    #[must_use]
    pub const fn within(mut self, line_chars_max: u16) -> Self {
        self.line_chars_max = Some(line_chars_max);
        self
    }

    /// Add a row. Control characters become visible, and an empty cell becomes `-`, except in the last column.
    pub fn push(&mut self, row: Vec<String>) {
        let last = self.headers.len().saturating_sub(1);
        let cell = |(at, text): (usize, String)| match text.as_str() {
            "" if at < last => "-".to_owned(),
            text => printable(text),
        };
        self.rows.push(row.into_iter().enumerate().map(cell).collect());
    }

    /// Cut the text of one column so that lines have at most this many characters, but keep a readable minimum.
    pub fn cut(&mut self, header: &str, line_chars_max: u16) {
        let Some(at) = self.headers.iter().position(|known| *known == header) else { return };
        let widths = self.widths();
        let others = widths.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, width)| width + GAP);
        let most = line_chars_max.saturating_sub(others.sum()).max(CUT_CHARS_MIN);
        for cell in self.rows.iter_mut().filter_map(|row| row.get_mut(at)) {
            *cell = text::cut(cell, most.into());
        }
    }

    /// Is it empty?
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Header and rows, aligned.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut table = self.body();
        table.set_header(self.headers.iter().copied());
        if let Some(most) = self.line_chars_max {
            let widths = table.column_max_content_widths();
            let (last, before) = (widths.len().saturating_sub(1), widths.iter().rev().skip(1));
            let taken = before.fold(0_u16, |sum, width| sum.saturating_add(width + GAP));
            let left = most.saturating_sub(taken).max(WRAPPED_CHARS_MIN).saturating_add(GAP);
            if let Some(column) = table.column_mut(last) {
                column.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(left)));
            }
        }
        finish(&mut table, &[]).into_iter().map(|line| line.replace(NO_BREAK, " ")).collect()
    }

    /// The rows alone, in columns at least as wide as given, to continue a table printed earlier.
    #[must_use]
    pub fn lines_below(&self, widths: &[u16]) -> Vec<String> {
        finish(&mut self.body(), widths)
    }

    /// Width of each column's text, for [`Self::lines_below`].
    #[must_use]
    pub fn widths(&self) -> Vec<u16> {
        let mut table = self.body();
        table.set_header(self.headers.iter().copied());
        table.column_max_content_widths()
    }

    fn body(&self) -> comfy_table::Table {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        let rows = self.rows.iter().map(|row| row.iter().map(|cell| self.whole_commands(cell)));
        table.add_rows(rows.map(Iterator::collect::<Vec<String>>));
        table
    }

    /// Keep commands (in backticks) unbroken when a cell is wrapped: the first half could be a command of its own.
    fn whole_commands(&self, cell: &str) -> String {
        if self.line_chars_max.is_none() {
            return cell.to_owned();
        }
        let parts = cell.split('`').enumerate();
        let parts = parts.map(|(at, part)| if at % 2 == 1 { part.replace(' ', NO_BREAK) } else { part.to_owned() });
        parts.collect::<Vec<_>>().join("`")
    }
}

fn finish(table: &mut comfy_table::Table, widths: &[u16]) -> Vec<String> {
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, GAP));
        if let Some(width) = widths.get(at) {
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(width + GAP)));
        }
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[&[&str]]) -> Table {
        let mut table = Table::new(&["NAME", "STATE", "NOTE"]);
        for row in rows {
            table.push(row.iter().map(|cell| (*cell).to_owned()).collect());
        }
        table
    }

    #[test]
    fn columns_align_and_lines_end_at_their_text() {
        let lines = table(&[&["a", "Ready", ""], &["worker-10", "", "x\ny"]]).lines();
        assert_eq!(lines, ["NAME        STATE   NOTE", "a           Ready", "worker-10   -       x^Jy"]);
    }

    #[test]
    fn later_rows_stand_below_earlier_ones() {
        let widths = table(&[&["worker-10", "Ready", ""]]).widths();
        assert_eq!(table(&[&["a", "Deploy", "n"]]).lines_below(&widths), ["a           Deploy   n"]);
    }

    #[test]
    fn a_line_that_would_be_too_long_goes_on_below() {
        let mut table =
            table(&[&["a", "Ready", ""], &["worker-10", "Deploy", "one two three four five six seven eight"]]);
        table = table.within(52);
        let lines = [
            "NAME        STATE    NOTE",
            "a           Ready",
            "worker-10   Deploy   one two three four five six",
            "                     seven eight",
        ];
        assert_eq!(table.lines(), lines);
    }

    #[test]
    fn a_command_is_not_broken() {
        let table = table(&[&["a", "Failed", "one two three: `retry worker-3 engine`, or wait"]]).within(40);
        assert_eq!(
            table.lines()[1..],
            ["a      Failed   one two three:", "                `retry worker-3 engine`, or", "                wait"]
        );
    }

    #[test]
    fn an_empty_table_is_its_header() {
        assert_eq!(table(&[]).lines(), ["NAME   STATE   NOTE"]);
    }
}
