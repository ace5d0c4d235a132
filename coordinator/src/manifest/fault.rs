//! Faults of a manifest, and the list that collects those of one `parse`. Text from the manifest enters a message only
//! through [`shown`]. Values of params and annotations stay out of messages: they may be secrets.

use std::fmt;

use muster_proto::suggestions::nearest;

/// Most faults reported at once; a last one counts the rest.
pub const FAULTS_MAX: usize = 100;
/// The expected form where the manifest has another tool's template.
pub(super) const NO_TEMPLATES: &str =
    "the value itself, or in params a variable such as ${cluster.release}: a manifest has no templates";
/// Longest excerpt of the manifest in a message, in characters.
const SHOWN_CHARS_MAX: usize = 64;
/// Longest name of a source in a message, in characters.
const FILE_CHARS_MAX: usize = 1024;

/// One fault of a manifest, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Name of the source as the operator gave it.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1, in characters.
    pub column: u32,
    /// The field, `spec.machineTypes.control[2].params.sha256`; empty: the whole document or file.
    pub path: String,
    /// The problem.
    pub problem: String,
    /// The expected form; may be empty.
    pub expected: String,
    /// The nearest known name, if any is near; else empty.
    pub nearest: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.file, self.line, self.column)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.problem)?;
        if !self.expected.is_empty() {
            write!(f, "; expected {}", self.expected)?;
        }
        if !self.nearest.is_empty() {
            write!(f, "; did you mean '{}'?", self.nearest)?;
        }
        Ok(())
    }
}

/// A position in a text; both numbers count from 1, the column in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) line: u32,
    pub(super) column: u32,
}

impl Position {
    /// Start of a text.
    pub(super) const START: Self = Self { line: 1, column: 1 };

    /// Position of the byte `at` of `text`. Lines end as in YAML: with LF, CR LF or CR.
    pub(super) fn of_byte(text: &str, at: usize) -> Self {
        let before = text.get(..at).unwrap_or_default();
        let unix = before.replace("\r\n", "\n");
        let mut lines = unix.split(['\n', '\r']).rev().peekable();
        let column = lines.peek().map_or(0, |line| line.chars().count()) + 1;
        Self { line: saturated(lines.count()), column: saturated(column) }
    }
}

/// A count in the form of a [`Fault`].
pub(super) fn saturated(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The faults found so far.
pub(super) struct Faults<'a> {
    names: Vec<&'a str>,
    file: usize,
    found: Vec<(usize, Fault)>,
    left_out: usize,
}

impl<'a> Faults<'a> {
    /// An empty list for sources of these names.
    pub(super) const fn new(names: Vec<&'a str>) -> Self {
        Self { names, file: 0, found: Vec::new(), left_out: 0 }
    }

    /// Attribute the following faults to this source.
    pub(super) const fn enter(&mut self, file: usize) {
        self.file = file;
    }

    /// Name of a source, safe for a message.
    pub(super) fn name(&self, file: usize) -> String {
        printable(self.names.get(file).copied().unwrap_or_default(), FILE_CHARS_MAX)
    }

    /// Number of faults found, including those beyond the limit.
    pub(super) const fn count(&self) -> usize {
        self.found.len() + self.left_out
    }

    /// Add a fault.
    pub(super) fn add(&mut self, at: Position, path: &str, problem: impl Into<String>, expected: impl Into<String>) {
        self.add_near(at, path, problem, expected, ("", []));
    }

    /// Add a fault, with the candidate that is nearest to `word`.
    pub(super) fn add_near<'c>(
        &mut self,
        at: Position,
        path: &str,
        problem: impl Into<String>,
        expected: impl Into<String>,
        (word, candidates): (&str, impl IntoIterator<Item = &'c str>),
    ) {
        if self.found.len() == FAULTS_MAX {
            self.left_out += 1;
            return;
        }
        let fault = Fault {
            file: self.name(self.file),
            line: at.line,
            column: at.column,
            path: path.to_owned(),
            problem: problem.into(),
            expected: expected.into(),
            nearest: nearest(word, candidates).unwrap_or_default().to_owned(),
        };
        self.found.push((self.file, fault));
    }

    /// All faults in the order of the text.
    pub(super) fn finish(mut self) -> Vec<Fault> {
        self.found.sort_by_key(|(file, fault)| (*file, fault.line, fault.column));
        let mut faults: Vec<Fault> = self.found.into_iter().map(|(_, fault)| fault).collect();
        if self.left_out > 0
            && let Some(last) = faults.last().cloned()
        {
            faults.push(Fault {
                path: String::new(),
                problem: format!("{} more faults are not shown", self.left_out),
                expected: String::new(),
                nearest: String::new(),
                ..last
            });
        }
        faults
    }
}

/// An excerpt of the manifest for a message: short and printable.
pub(super) fn shown(text: &str) -> String {
    printable(text, SHOWN_CHARS_MAX)
}

/// The same, with at most `chars_max` characters.
pub(super) fn printable(text: &str, chars_max: usize) -> String {
    let mut safe = String::new();
    for (count, c) in text.chars().enumerate() {
        if count == chars_max {
            safe.push('…');
            break;
        }
        match c {
            '\'' | '"' | '\\' => safe.push(c),
            other => safe.extend(other.escape_debug()),
        }
    }
    safe
}
