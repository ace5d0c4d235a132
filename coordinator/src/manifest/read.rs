//! Typed readers over the tree. Each reports its fault and returns `None`, so that one pass finds the faults of all
//! fields. Plain scalars follow the YAML 1.2 core schema; a text field requires quotes foreverything that some YAML
//! parser would read as another type.

use std::{ops::RangeInclusive, str::FromStr};

use muster_proto::{
    convert::LINE_BYTES_MAX,
    model::{LABEL_BYTES_MAX, Unknown, duration_ms},
};

use super::{
    fault::{Faults, NO_TEMPLATES, Position, shown},
    tree::{Entry, Node, Value, join, odd_blank},
    vars,
};

/// Longest single-line text (release, version).
pub const TEXT_BYTES_MAX: usize = 253;
const _: () = assert!(TEXT_BYTES_MAX <= LINE_BYTES_MAX, "what a manifest may say must fit the wire");
/// Problem of fields and kinds that LCM has and Muster will have.
pub(super) const LATER: &str = "known, but this release of Muster does not support it yet";

const HOUR_MS: u64 = 3_600_000;

/// Known fields of a map.
pub(super) struct Fields {
    /// Fields that this release reads.
    pub(super) known: &'static [&'static str],
    /// LCM's fields for a later release.
    pub(super) later: &'static [&'static str],
    /// LCM's fields that Muster has in another place, and what is expected instead.
    pub(super) elsewhere: &'static [(&'static str, &'static str)],
}

/// A value with its path.
#[derive(Clone, Debug)]
pub(super) struct Spot<'n> {
    node: &'n Node<'n>,
    pub(super) path: String,
}

/// A map with known fields only.
#[derive(Clone, Debug)]
pub(super) struct Map<'n> {
    pub(super) at: Position,
    pub(super) path: String,
    entries: &'n [Entry<'n>],
}

/// One entry of a map with free keys.
pub(super) struct Free<'n> {
    pub(super) key: &'n str,
    pub(super) key_at: Position,
    pub(super) value: Spot<'n>,
}

/// Type of a plain scalar for a YAML parser.
enum Plain {
    Null,
    Boolean(bool),
    /// A boolean in YAML 1.1, which many tools still use; text in YAML 1.2.
    OldBoolean,
    Number,
    Text,
}

fn plain(text: &str) -> Plain {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Plain::Null,
        "true" | "True" | "TRUE" => Plain::Boolean(true),
        "false" | "False" | "FALSE" => Plain::Boolean(false),
        "yes" | "Yes" | "YES" | "no" | "No" | "NO" | "on" | "On" | "ON" | "off" | "Off" | "OFF" => Plain::OldBoolean,
        _ if is_number(text) => Plain::Number,
        _ => Plain::Text,
    }
}

/// Integers and floats of the core schema (YAML 1.2.2, 10.3.2).
fn is_number(text: &str) -> bool {
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if let Some(hex) = text.strip_prefix("0x") {
        return !hex.is_empty() && hex.bytes().all(|b| b.is_ascii_hexdigit());
    }
    if let Some(octal) = text.strip_prefix("0o") {
        return !octal.is_empty() && octal.bytes().all(|b| (b'0'..=b'7').contains(&b));
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return true;
    }
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    digits(whole) && digits(fraction) && digits(exponent) && whole.len() + fraction.len() > 0 && !exponent.is_empty()
}

impl<'n> Spot<'n> {
    /// The root of a document.
    pub(super) const fn root(node: &'n Node<'n>) -> Self {
        Self { node, path: String::new() }
    }

    pub(super) const fn at(&self) -> Position {
        self.node.at
    }

    pub(super) fn fault(&self, faults: &mut Faults<'_>, problem: impl Into<String>, expected: impl Into<String>) {
        faults.add(self.node.at, &self.path, problem, expected);
    }

    /// Report a field of this map that is missing.
    pub(super) fn lacks(&self, faults: &mut Faults<'_>, name: &str, expected: impl Into<String>) {
        faults.add(self.node.at, &join(&self.path, name), "missing", expected);
    }

    /// Report a value of the wrong type.
    fn wrong<T>(&self, faults: &mut Faults<'_>, expected: &str) -> Option<T> {
        let problem = match &self.node.value {
            Value::Refused => return None,
            Value::List(_) => "this is a list",
            Value::Map(_) => "this is a map",
            Value::Scalar { plain: false, .. } => "this is a text in quotes",
            Value::Scalar { text, plain: true } => match plain(text) {
                Plain::Null => "no value",
                Plain::Boolean(_) => "this is a boolean",
                Plain::OldBoolean => "some YAML parsers read this as a boolean",
                Plain::Number => "this is a number",
                Plain::Text => "this is a text",
            },
        };
        self.fault(faults, problem, expected);
        None
    }

    /// Text of any kind; NUL is rejected.
    pub(super) fn text(&self, faults: &mut Faults<'_>) -> Option<&'n str> {
        let text = match &self.node.value {
            Value::Scalar { text, plain: false } => text,
            Value::Scalar { text, plain: true } if matches!(plain(text), Plain::Text) => text,
            Value::Scalar { text, .. } if matches!(plain(text), Plain::Null) => return self.wrong(faults, "a string"),
            Value::Scalar { .. } => return self.wrong(faults, "a string: put it in quotes"),
            Value::List(_) | Value::Map(_) | Value::Refused => return self.wrong(faults, "a string"),
        };
        if text.contains('\0') {
            self.fault(faults, "text with a NUL character", "text without it");
            return None;
        }
        Some(text)
    }

    /// A short, non-empty text of one line.
    pub(super) fn line(&self, faults: &mut Faults<'_>) -> Option<&'n str> {
        let text = self.text(faults)?;
        if text.trim().is_empty() || text.len() > TEXT_BYTES_MAX || text.chars().any(char::is_control) {
            self.fault(faults, "not a short line of text", format!("1 to {TEXT_BYTES_MAX} bytes, one line"));
            return None;
        }
        if text.contains("{{") {
            self.fault(faults, "a template ('{{ … }}')", NO_TEMPLATES);
            return None;
        }
        Some(text)
    }

    /// The value as JSON, down to `levels` levels. `text` checks each text and reports its faults.
    pub(super) fn data(
        &self,
        levels: usize,
        text: &impl Fn(&Self, &str, &mut Faults<'_>) -> bool,
        faults: &mut Faults<'_>,
    ) -> Option<serde_json::Value> {
        self.data_below((levels, levels), text, faults)
    }

    /// The same with the number of levels left, and the maximum.
    fn data_below(
        &self,
        (levels, most): (usize, usize),
        text: &impl Fn(&Self, &str, &mut Faults<'_>) -> bool,
        faults: &mut Faults<'_>,
    ) -> Option<serde_json::Value> {
        let nested = matches!(self.node.value, Value::List(_) | Value::Map(_));
        if nested && levels == 0 {
            self.fault(faults, "nested too deeply", format!("at most {most} levels"));
            return None;
        }
        let levels = (levels.saturating_sub(1), most);
        match &self.node.value {
            Value::Refused => None,
            Value::List(_) => {
                let values: Vec<_> =
                    self.list(faults)?.iter().map(|spot| spot.data_below(levels, text, faults)).collect();
                values.into_iter().collect::<Option<Vec<_>>>().map(serde_json::Value::Array)
            }
            Value::Map(_) => {
                let mut values = Vec::new();
                for Free { key, key_at, value } in self.free(faults)? {
                    if !vars::is_key(key) {
                        let expected = "one without NUL that does not begin with '__ansible'";
                        faults.add(key_at, &value.path, "a key that Ansible does not take as it is", expected);
                    }
                    values.push(value.data_below(levels, text, faults).map(|value| (key.to_owned(), value)));
                }
                values.into_iter().collect::<Option<serde_json::Map<_, _>>>().map(serde_json::Value::Object)
            }
            Value::Scalar { text: scalar, plain: true } => match plain(scalar) {
                Plain::Null => Some(serde_json::Value::Null),
                Plain::Boolean(value) => Some(value.into()),
                Plain::OldBoolean => self.wrong(faults, "true or false, or the word in quotes"),
                Plain::Number => {
                    let number = vars::number(scalar);
                    if number.is_none() {
                        let expected = "a plain decimal number, or it in quotes";
                        self.fault(faults, "a number that not every parser reads alike", expected);
                    }
                    number
                }
                Plain::Text => self.text(faults).filter(|it| text(self, it, faults)).map(Into::into),
            },
            Value::Scalar { plain: false, .. } => self.text(faults).filter(|it| text(self, it, faults)).map(Into::into),
        }
    }

    pub(super) fn boolean(&self, faults: &mut Faults<'_>) -> Option<bool> {
        match &self.node.value {
            Value::Scalar { text, plain: true } if let Plain::Boolean(value) = plain(text) => Some(value),
            _ => self.wrong(faults, "true or false"),
        }
    }

    /// A decimal whole number in a range.
    pub(super) fn number(&self, faults: &mut Faults<'_>, range: RangeInclusive<u32>) -> Option<u32> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        let text = match &self.node.value {
            Value::Scalar { text, plain: true } if matches!(plain(text), Plain::Number) => text,
            _ => return self.wrong(faults, &expected),
        };
        let written_plainly = text == "0" || !text.trim_start_matches('-').starts_with(['0', '+']);
        let problem = match text.parse::<i64>() {
            Ok(value) if written_plainly => match u32::try_from(value) {
                Ok(value) if range.contains(&value) => return Some(value),
                _ => "a number out of range",
            },
            _ => "not a plain whole number",
        };
        self.fault(faults, problem, expected);
        None
    }

    /// A positive duration with units, `1h30m`, in milliseconds.
    pub(super) fn duration_ms(&self, faults: &mut Faults<'_>, max_ms: u64) -> Option<u64> {
        let most = max_ms / HOUR_MS;
        let expected = format!("a time with units like 90s, 30m or 1h30m, at most {most}h");
        let text = match &self.node.value {
            Value::Scalar { text, plain: true } if matches!(plain(text), Plain::Number) => {
                self.fault(faults, "a time without a unit", expected);
                return None;
            }
            Value::Scalar { text, plain: false } => text,
            Value::Scalar { text, plain: true } if matches!(plain(text), Plain::Text) => text,
            _ => return self.wrong(faults, &expected),
        };
        let problem = match duration_ms(text) {
            None => "not a time",
            Some(0) => "no time at all",
            Some(ms) if ms > max_ms => "too long a time",
            Some(ms) => return Some(ms),
        };
        self.fault(faults, problem, expected);
        None
    }

    /// One of a closed set of words.
    pub(super) fn word<T: FromStr<Err = Unknown>>(&self, faults: &mut Faults<'_>, what: &str) -> Option<T> {
        let text = self.text(faults)?;
        match text.parse() {
            Ok(value) => Some(value),
            Err(Unknown { known }) => {
                self.unknown(faults, &format!("unknown {what} '{}'", shown(text)), known);
                None
            }
        }
    }

    /// Report an unknown word.
    pub(super) fn unknown(&self, faults: &mut Faults<'_>, problem: &str, known: &[&str]) {
        let word = match &self.node.value {
            Value::Scalar { text, .. } => text,
            Value::List(_) | Value::Map(_) | Value::Refused => "",
        };
        faults.add_near(self.node.at, &self.path, problem, one_of(known), (word, known.iter().copied()));
    }

    /// A name: a DNS-1123 label.
    pub(super) fn label<T: TryFrom<String>>(&self, faults: &mut Faults<'_>) -> Option<T> {
        let name = T::try_from(self.text(faults)?.to_owned()).ok();
        if name.is_none() {
            let expected = format!("1 to {LABEL_BYTES_MAX} of a-z, 0-9 and '-', first and last a letter or digit");
            self.fault(faults, "not a name (DNS-1123 label)", expected);
        }
        name
    }

    pub(super) fn list(&self, faults: &mut Faults<'_>) -> Option<Vec<Self>> {
        match &self.node.value {
            Value::List(values) => {
                let spot = |(index, node)| Self { node, path: format!("{}[{index}]", self.path) };
                Some(values.iter().enumerate().map(spot).collect())
            }
            Value::Map(_) | Value::Scalar { .. } | Value::Refused => self.wrong(faults, "a list"),
        }
    }

    /// A field of this map, or the map itself if it is missing: a position for a fault.
    pub(super) fn child(&self, name: &str) -> Self {
        match &self.node.value {
            Value::Map(entries) if let Some(entry) = entries.iter().find(|entry| entry.key == name) => {
                Self { node: &entry.value, path: join(&self.path, name) }
            }
            _ => self.clone(),
        }
    }

    /// The target of a JSON pointer from here, or the last existing value on its way.
    pub(super) fn at_pointer(&self, pointer: &str) -> Self {
        let step = |spot: Self, key: &str| {
            let key = key.replace("~1", "/").replace("~0", "~");
            match &spot.node.value {
                Value::List(values) => match key.parse().ok().and_then(|index: usize| values.get(index)) {
                    Some(node) => Self { node, path: format!("{}[{key}]", spot.path) },
                    None => spot,
                },
                Value::Map(_) | Value::Scalar { .. } | Value::Refused => spot.child(&key),
            }
        };
        pointer.split('/').skip(1).fold(self.clone(), step)
    }

    /// Position and path of a key of this map.
    pub(super) fn key(&self, key: &str) -> (Position, String) {
        let at = match &self.node.value {
            Value::Map(entries) => entries.iter().find(|entry| entry.key == key).map(|entry| entry.at),
            Value::List(_) | Value::Scalar { .. } | Value::Refused => None,
        };
        (at.unwrap_or(self.node.at), join(&self.path, key))
    }

    /// The keys of this map; empty for other values.
    pub(super) fn keys(&self) -> Vec<&'n str> {
        match &self.node.value {
            Value::Map(entries) => entries.iter().map(|entry| entry.key.as_ref()).collect(),
            Value::List(_) | Value::Scalar { .. } | Value::Refused => Vec::new(),
        }
    }

    fn entries(&self, faults: &mut Faults<'_>) -> Option<&'n [Entry<'n>]> {
        match &self.node.value {
            Value::Map(entries) => Some(entries),
            Value::List(_) | Value::Scalar { .. } | Value::Refused if self.path.is_empty() => {
                self.wrong(faults, "a manifest: a map with apiVersion, kind, metadata and spec")
            }
            Value::List(_) | Value::Scalar { .. } | Value::Refused => self.wrong(faults, "a map"),
        }
    }

    /// A map with these fields. Other fields are reported and left out.
    pub(super) fn map(&self, faults: &mut Faults<'_>, fields: &Fields) -> Option<Map<'n>> {
        let entries = self.entries(faults)?;
        for Entry { at, key, .. } in entries {
            let path = join(&self.path, key);
            if let Some((_, instead)) = fields.elsewhere.iter().find(|(field, _)| *field == key.as_ref()) {
                faults.add(*at, &path, "not a field of this map", *instead);
            } else if fields.later.contains(&key.as_ref()) {
                faults.add(*at, &path, LATER, "it left out");
            } else if !fields.known.contains(&key.as_ref()) {
                let candidates = fields.known.iter().chain(fields.later).copied();
                let odd = key.chars().find_map(odd_blank).map(|name| format!(", with {name} in it"));
                let problem = format!("unknown field{}", odd.unwrap_or_default());
                faults.add_near(*at, &path, problem, one_of(fields.known), (key, candidates));
            }
        }
        Some(Map { at: self.node.at, path: self.path.clone(), entries })
    }

    /// A map whose keys are free.
    pub(super) fn free(&self, faults: &mut Faults<'_>) -> Option<Vec<Free<'n>>> {
        let free = |entry: &'n Entry<'n>| Free {
            key: &entry.key,
            key_at: entry.at,
            value: Spot { node: &entry.value, path: join(&self.path, &entry.key) },
        };
        Some(self.entries(faults)?.iter().map(free).collect())
    }
}

impl<'n> Map<'n> {
    pub(super) fn get(&self, name: &str) -> Option<Spot<'n>> {
        let entry = self.entries.iter().find(|entry| entry.key == name)?;
        Some(Spot { node: &entry.value, path: join(&self.path, name) })
    }

    /// A required field.
    pub(super) fn required(&self, faults: &mut Faults<'_>, name: &str) -> Option<Spot<'n>> {
        self.required_of(faults, name, &[])
    }

    /// A required field with one of these words.
    pub(super) fn required_of(&self, faults: &mut Faults<'_>, name: &str, known: &[&str]) -> Option<Spot<'n>> {
        let found = self.get(name);
        if found.is_none() {
            let words = if known.is_empty() { String::new() } else { format!(", {}", one_of(known)) };
            faults.add(self.at, &join(&self.path, name), "missing", format!("a field '{name}'{words}"));
        }
        found
    }

    /// A required field with a word of a closed set.
    pub(super) fn required_word<T: FromStr<Err = Unknown>>(
        &self,
        faults: &mut Faults<'_>,
        name: &str,
        what: &str,
    ) -> Option<T> {
        let known = "".parse::<T>().err().map_or(&[][..], |unknown| unknown.known);
        self.required_of(faults, name, known).and_then(|spot| spot.word(faults, what))
    }

    /// An optional field with a default. `None` = present, but with a fault.
    pub(super) fn or<T>(&self, name: &str, default: T, read: impl FnOnce(Spot<'n>) -> Option<T>) -> Option<T> {
        match self.get(name) {
            Some(spot) => read(spot),
            None => Some(default),
        }
    }
}

/// `one of: a, b, c`.
pub(super) fn one_of(words: &[&str]) -> String {
    match words {
        [one] => (*one).to_owned(),
        _ => format!("one of: {}", words.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_core_schema() {
        for text in
            ["0", "007", "-1", "+12", "1.10", ".5", "1.", "1e3", "1.5E-3", "0x1F", "0o17", ".inf", "-.INF", ".nan"]
        {
            assert!(is_number(text), "{text}");
        }
        for text in ["", ".", "-", "+", "1.2.3", "1e", "e3", "0x", "0o8", "17.3.0", "1_000", "1h", ".e3", "-.nan", "1 "]
        {
            assert!(!is_number(text), "{text}");
        }
    }
}
