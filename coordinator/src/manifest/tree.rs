//! Parses YAML text into a small tree whose nodes have positions. Depth and nodes are bounded. Aliases, tags and
//! directives are refused, so the tree matches the visible text. The only file that depends on the YAML library.

use std::{
    borrow::Cow,
    collections::{BTreeMap, btree_map},
};

use granit_parser::{ErrorKind, Event, Marker, Parser, ScalarStyle, ScanError, Span};

use super::fault::{Faults, NO_TEMPLATES, Position, saturated, shown};

/// Deepest nesting of maps and lists.
pub const DEPTH_MAX: usize = 32;
/// Most keys and values in all sources together; bounds the memory of a parse to about 40 MiB.
pub const NODES_MAX: usize = 500_000;
/// Limit of nesting in the library. It is above ours, so that ours is reported first, with a path.
const LIBRARY_DEPTH_MAX: usize = DEPTH_MAX + 1;
/// The key that merges another map's fields, in YAML 1.1.
const MERGE: &str = "<<";

/// A value and its start.
#[derive(Debug)]
pub(super) struct Node<'t> {
    pub(super) at: Position,
    pub(super) value: Value<'t>,
}

/// Kinds of YAML values.
#[derive(Debug)]
pub(super) enum Value<'t> {
    /// Text; `plain` = unquoted, so it may be a number, a boolean or null.
    Scalar { text: Cow<'t, str>, plain: bool },
    /// `- a`, `[a, b]`.
    List(Vec<Node<'t>>),
    /// `a: b`, `{a: b}`.
    Map(Vec<Entry<'t>>),
    /// Already reported as a fault; readers stay silent.
    Refused,
}

/// A key of a map and its value.
#[derive(Debug)]
pub(super) struct Entry<'t> {
    pub(super) at: Position,
    pub(super) key: Cow<'t, str>,
    pub(super) value: Node<'t>,
}

impl Node<'_> {
    /// Is it empty, like the document between two `---`? (The library reads that as `~`.)
    pub(super) fn is_nothing(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, plain: true } if text.is_empty() || text == "~")
    }
}

/// `path` extended by a key.
pub(super) fn join(path: &str, key: &str) -> String {
    let simple = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if !simple {
        return format!("{path}[\"{}\"]", shown(key));
    }
    let key = shown(key);
    if path.is_empty() { key } else { format!("{path}.{key}") }
}

/// The documents of a text, in order. `None` = unreadable.
pub(super) fn documents<'t>(text: &'t str, nodes: &mut usize, faults: &mut Faults<'_>) -> Vec<Option<Node<'t>>> {
    let options = granit_parser::options! {
        disallow_directives: true,
        emit_unresolved_aliases: true,
        emit_comments: false,
        flow_nesting_limit: LIBRARY_DEPTH_MAX,
        block_nesting_limit: LIBRARY_DEPTH_MAX,
    };
    let mut parser = Parser::new_from_str_with_options(text, options);
    let mut builder = Builder { text, open: Vec::new(), read: Position::START, nodes, documents: Vec::new(), faults };
    while let Some(event) = parser.next() {
        let went = match event {
            Ok((event, span)) => builder.take(event, span),
            Err(error) => {
                builder.syntax(&error);
                Err(Stop::Document)
            }
        };
        match went {
            Ok(()) => {}
            Err(Stop::Document) => {
                *builder.nodes += 1;
                builder.open.clear();
                builder.documents.push(None);
                if !matches!(parser.proceed_next_document(), Ok(true)) {
                    break;
                }
            }
            Err(Stop::Everything) => {
                builder.documents.push(None);
                break;
            }
        }
    }
    builder.documents
}

/// Why the reading of events stops.
enum Stop {
    /// The document is unreadable; the next one may be valid.
    Document,
    /// A limit is reached.
    Everything,
}

/// A list or map that is still open.
enum Open<'t> {
    List {
        at: Position,
        values: Vec<Node<'t>>,
    },
    Map {
        at: Position,
        entries: Vec<Entry<'t>>,
        seen: BTreeMap<Cow<'t, str>, Position>,
        key: Option<(Position, Cow<'t, str>, Key)>,
    },
}

impl Open<'_> {
    const fn at(&self) -> Position {
        let (Self::List { at, .. } | Self::Map { at, .. }) = self;
        *at
    }
}

/// What to do with the value that follows a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Key {
    Keep,
    Drop,
}

struct Builder<'t, 'f, 'n> {
    text: &'t str,
    open: Vec<Open<'t>>,
    /// End of the last event.
    read: Position,
    nodes: &'f mut usize,
    documents: Vec<Option<Node<'t>>>,
    faults: &'f mut Faults<'n>,
}

impl<'t> Builder<'t, '_, '_> {
    fn take(&mut self, event: Event<'t>, span: Span) -> Result<(), Stop> {
        let at = position(span.start);
        self.read = position(span.end);
        let tagged = span.tag_start().is_some();
        if let Some(tag) = span.tag_start() {
            let path = self.path();
            self.faults.add(position(tag), &path, "a tag ('!name')", "the value alone, in quotes if it is text");
        }
        match event {
            Event::Scalar(..) if tagged => self.value(Node { at, value: Value::Refused }),
            Event::Scalar(text, style, ..) => {
                self.value(Node { at, value: Value::Scalar { text, plain: style == ScalarStyle::Plain } })
            }
            Event::Alias(_) | Event::UnresolvedAlias(_) => {
                // A merged alias is reported with its key.
                if !matches!(self.open.last(), Some(Open::Map { key: Some((_, key, Key::Drop)), .. }) if key == MERGE) {
                    let path = self.path();
                    self.faults.add(at, &path, "an alias ('*name')", "the value itself, written out");
                }
                self.value(Node { at, value: Value::Refused })
            }
            Event::SequenceStart(..) => self.nest(at, Open::List { at, values: Vec::new() }),
            Event::MappingStart(..) => {
                self.nest(at, Open::Map { at, entries: Vec::new(), seen: BTreeMap::new(), key: None })
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open::List { at, values }) => self.value(Node { at, value: Value::List(values) }),
                Some(Open::Map { at, entries, .. }) => self.value(Node { at, value: Value::Map(entries) }),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Open a list or map, if limits and position allow.
    fn nest(&mut self, at: Position, opened: Open<'t>) -> Result<(), Stop> {
        if self.open.len() == DEPTH_MAX {
            let path = self.path();
            self.faults.add(at, &path, "nested too deeply", format!("at most {DEPTH_MAX} levels"));
            return Err(Stop::Document);
        }
        if let Some(Open::Map { key: None, .. }) = self.open.last() {
            let path = self.path();
            if self.is_template(at, &opened) {
                self.faults.add(at, &path, "a template ('{{ … }}')", NO_TEMPLATES);
            } else {
                self.faults.add(at, &path, "a list or map as key", "a name as key");
            }
            return Err(Stop::Document);
        }
        self.open.push(opened);
        Ok(())
    }

    /// Is it the second brace of `{{ … }}`, a template of other tools?
    fn is_template(&self, at: Position, opened: &Open<'_>) -> bool {
        let before = self.open.last().map(Open::at);
        matches!(opened, Open::Map { .. })
            && before.is_some_and(|before| before.line == at.line && before.column + 1 == at.column)
            && self.mark(at) == Some('{')
    }

    /// Put a finished value, or the key for the next one, in its place.
    fn value(&mut self, node: Node<'t>) -> Result<(), Stop> {
        *self.nodes += 1;
        if *self.nodes > NODES_MAX {
            self.faults.add(node.at, "", "too many keys and values", format!("at most {NODES_MAX} in one apply"));
            return Err(Stop::Everything);
        }
        match self.open.last_mut() {
            None => self.documents.push(Some(node)),
            Some(Open::List { values, .. }) => values.push(node),
            Some(Open::Map { entries, key, .. }) if key.is_some() => {
                if let Some((at, key, Key::Keep)) = key.take() {
                    entries.push(Entry { at, key, value: node });
                }
            }
            Some(Open::Map { .. }) => self.key(node),
        }
        Ok(())
    }

    fn key(&mut self, node: Node<'t>) {
        let Some(Open::Map { seen, key, .. }) = self.open.last_mut() else { return };
        let text = match node.value {
            Value::Scalar { text, plain: true } if text == MERGE => {
                *key = Some((node.at, text, Key::Drop));
                let path = self.path();
                self.faults.add(node.at, &path, "a merge key ('<<')", "the fields themselves, written out");
                return;
            }
            Value::Scalar { text, .. } => text,
            Value::List(_) | Value::Map(_) | Value::Refused => {
                *key = Some((node.at, Cow::Borrowed(""), Key::Drop));
                return;
            }
        };
        let first = match seen.entry(text.clone()) {
            btree_map::Entry::Vacant(free) => {
                free.insert(node.at);
                *key = Some((node.at, text, Key::Keep));
                return;
            }
            btree_map::Entry::Occupied(first) => first.get().line,
        };
        *key = Some((node.at, text, Key::Drop));
        let path = self.path();
        self.faults.add(node.at, &path, "the same key twice", format!("each key once; the first is at line {first}"));
    }

    fn syntax(&mut self, error: &ScanError) {
        let path = self.path();
        let at = position(*error.marker());
        match error.kind() {
            ErrorKind::DirectiveDisallowed => {
                self.faults.add(at, "", "a YAML directive", "YAML 1.2 without directives")
            }
            ErrorKind::RecursionLimitExceeded => {
                self.faults.add(at, &path, "nested too deeply", format!("at most {DEPTH_MAX} levels"));
            }
            kind => {
                let reason = shown_reason(&kind.to_string());
                if let Some((blank, name)) = self.odd_blank(at) {
                    self.faults.add(blank, "", format!("not YAML: {name}"), "an ordinary blank (U+0020)");
                    return;
                }
                match self.tab_in_indentation(at, reason.contains("tab")) {
                    Some(tab) => self.faults.add(tab, "", "not YAML: a tab where a line is indented", "blanks"),
                    None => self.faults.add(at, &path, format!("not YAML: {reason}"), self.cure(kind, at)),
                }
            }
        }
    }

    /// The expected form. The library reports where it gave up, which may be lines after the mistake.
    fn cure(&self, kind: &ErrorKind, at: Position) -> String {
        use ErrorKind as E;
        let quoted = matches!(
            kind,
            E::UnclosedQuotedScalar
                | E::InvalidQuotedScalarIndent
                | E::DocumentIndicatorInQuotedScalar
                | E::InvalidTrailingSingleQuotedScalar
                | E::InvalidTrailingDoubleQuotedScalar
        );
        let opened = if quoted { self.quote() } else { self.bracket() };
        match (opened, kind) {
            (Some((line, mark)), _) if line < at.line => format!("the {mark} of line {line} closed before here"),
            (_, E::MappingValueNotAllowed) => {
                "'key: value' indented as its neighbours, a value with ': ' in quotes".into()
            }
            (_, E::ExpectedBlockMappingKey) => "'key: value' indented as its neighbours".into(),
            (_, E::ExpectedBlockSequenceEntry) => "'- ' before each entry of a list, indented as its neighbours".into(),
            (_, E::SimpleKeyExpected) => {
                "'key: value' or '- value', a blank behind ':' and '-'; text of '|' is indented deeper than its key"
                    .into()
            }
            (_, E::UnexpectedCharacter { character: '@' | '`' | '%' }) => {
                "a value that begins with such a character in quotes".into()
            }
            (_, E::UnknownQuotedScalarEscape) => "the value in single quotes, where '\\' is itself".into(),
            _ => String::new(),
        }
    }

    /// The first quote after the last complete event, and its line.
    fn quote(&self) -> Option<(u32, char)> {
        let lines = self.text.lines().zip(1..).skip_while(|(_, line)| *line < self.read.line);
        let skipped = |line| if line == self.read.line { self.read.column as usize - 1 } else { 0 };
        let quote = |text: &str, line| text.chars().skip(skipped(line)).find(|c| matches!(c, '"' | '\''));
        lines.filter_map(|(text, line)| Some((line, quote(text, line)?))).next()
    }

    /// The outermost open bracket, and its line.
    fn bracket(&self) -> Option<(u32, char)> {
        self.open.iter().find_map(|open| {
            let mark = self.mark(open.at())?;
            matches!(mark, '[' | '{').then_some((open.at().line, mark))
        })
    }

    /// The character at a position.
    fn mark(&self, at: Position) -> Option<char> {
        self.text.lines().nth(at.line as usize - 1)?.chars().nth(at.column as usize - 1)
    }

    /// The tab behind a syntax error. The library reports its last position, which may be lines before.
    fn tab_in_indentation(&self, at: Position, of_a_tab: bool) -> Option<Position> {
        let lines = self.text.lines().zip(1..).skip_while(|(_, line)| *line < at.line);
        let tab = |(text, line): (&str, u32)| {
            let indent = text.len() - text.trim_start_matches([' ', '\t']).len();
            let column = text[..indent].find('\t')? + 1;
            (of_a_tab || line == at.line).then_some(Position { line, column: saturated(column) })
        };
        lines.filter(|(text, _)| !text.trim().is_empty()).find_map(tab)
    }

    /// A character that looks like a blank, or is invisible, where YAML needs a blank: before a line's first word, or
    /// after a ':'. The last one before a syntax error, because it may have been read as text lines before.
    fn odd_blank(&self, at: Position) -> Option<(Position, String)> {
        let found = |(text, line): (&str, u32)| {
            let mut is_needed = true;
            for (index, c) in text.chars().enumerate() {
                match odd_blank(c) {
                    Some(name) if is_needed => return Some((Position { line, column: saturated(index + 1) }, name)),
                    Some(_) | None => is_needed = c == ':' || (is_needed && matches!(c, ' ' | '\t' | '-')),
                }
            }
            None
        };
        self.text.lines().zip(1..).take_while(|(_, line)| *line <= at.line).filter_map(found).last()
    }

    /// Path of the value under construction.
    fn path(&self) -> String {
        self.open.iter().fold(String::new(), |path, open| match open {
            Open::List { values, .. } => format!("{path}[{}]", values.len()),
            Open::Map { key: Some((_, key, _)), .. } => join(&path, key),
            Open::Map { key: None, .. } => path,
        })
    }
}

/// Name of a character that looks like a blank to people but is text to YAML. Editors and web pages leave such
/// characters.
pub(super) fn odd_blank(c: char) -> Option<String> {
    let name = match c {
        '\u{a0}' => "a no-break blank",
        '\u{2007}' | '\u{202f}' | '\u{2002}'..='\u{200a}' | '\u{3000}' => "a blank of another width",
        '\u{200b}'..='\u{200d}' | '\u{2060}' | '\u{feff}' => "an invisible character",
        _ => return None,
    };
    Some(format!("{name} (U+{:04X})", u32::from(c)))
}

/// The library's description of a syntax error. It may quote a character of the text.
fn shown_reason(reason: &str) -> String {
    reason.chars().filter(|c| !c.is_control()).take(200).collect()
}

fn position(marker: Marker) -> Position {
    Position { line: saturated(marker.line().max(1)), column: saturated(marker.col() + 1) }
}
