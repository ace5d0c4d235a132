//! Spellings of a secret in an output: the plain text and the encodings that programs commonly print:
//! - base64 (both alphabets, padded or not, in lines, within other data);
//! - URLs;
//! - JSON and other strings with backslashes, also JSON within JSON;
//! - shell words;
//! - hexadecimal digits of either case, with blanks, colons or line ends between the bytes, as `xxd -p`, `od` and
//!   `openssl` print them.
//!
//! Not covered:
//! - hexadecimal of a secret under 4 bytes, with other output between its lines, or with more than 64 blanks between
//!   two bytes;
//! - compressed, encrypted or digested data;
//! - an encoding of an encoding, except JSON in JSON;
//! - a secret that other output interrupts.
//!
//! Within other data, the first and last character of base64 may be shared with it and stay visible: at most 4 bits at
//! either end.

use std::collections::BTreeSet;

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD},
};

/// Minimum length of a secret's line or of a piece of base64; shorter ones are too common to be hidden.
const PIECE_BYTES_MIN: usize = 8;
/// Minimum number of bytes in hexadecimal; fewer are too common to be hidden.
const HEX_BYTES_MIN: usize = 4;

/// Maximum of separators between the digits of two bytes: a colon, a line end and its indentation, as in `openssl`
/// output. A longer gap is another layout and would be held back indefinitely.
const HEX_SEPARATORS_MAX: usize = 64;

/// One spelling of a secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spelling {
    sort: Sort,
    /// Non-empty.
    bytes: Vec<u8>,
}

/// Encoding of a spelling's bytes in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sort {
    /// Literal bytes.
    Plain,
    /// Literal bytes with line ends between them.
    Wrapped,
    /// Any byte may be written as `%2F`, a blank as `+`.
    Percent,
    /// Two hexadecimal digits per byte.
    Hex,
    /// Any byte may be escaped by a backslash, as in JSON, C, Python, or a shell word.
    Backslash,
}

/// Match of a spelling with the start of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// The whole secret, with this length in the text.
    Whole(usize),
    /// The text ends before the secret does.
    Part,
    Not,
}

/// Match of the next part of a secret with the start of a text.
enum Step {
    /// Number of matched bytes in the secret and in the text.
    Taken(usize, usize),
    /// The text ends within it.
    Cut,
    Differs,
}

/// Every spelling of a secret and of each of its long lines, minus the newline that an editor or `echo` appends.
pub(super) fn all_of(secret: &[u8]) -> BTreeSet<Spelling> {
    let secret = secret.strip_suffix(b"\n").unwrap_or(secret);
    let mut all = BTreeSet::new();
    if secret.is_empty() {
        return all;
    }
    let lines = secret.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    for text in lines.filter(|line| line.len() >= PIECE_BYTES_MIN).chain([secret]) {
        all.extend(texts(text));
    }
    all.extend(
        base64(secret)
            .into_iter()
            .filter(|piece| piece.len() >= PIECE_BYTES_MIN)
            .map(|bytes| Spelling { sort: Sort::Wrapped, bytes }),
    );
    all
}

/// Spellings that keep most of the text literal.
fn texts(text: &[u8]) -> Vec<Spelling> {
    let is_in_every_url = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    let mut sorts = vec![Sort::Plain];
    sorts.extend((!text.iter().all(is_in_every_url)).then_some(Sort::Percent));
    sorts.extend((!text.iter().all(u8::is_ascii_alphanumeric)).then_some(Sort::Backslash));
    sorts.extend((text.len() >= HEX_BYTES_MIN).then_some(Sort::Hex));
    let mut all: Vec<_> = sorts.into_iter().map(|sort| Spelling { sort, bytes: text.to_vec() }).collect();
    // Already escaped text, for JSON in JSON, with non-ASCII characters literal or escaped.
    let json = in_json(text).filter(|json| json != text);
    let nested = json.iter().flat_map(|json| [json.clone(), in_ascii(json)]);
    all.extend(nested.map(|bytes| Spelling { sort: Sort::Backslash, bytes }));
    // Shell quoting: each inner quote ends the quoted string and starts a new one.
    if text.contains(&b'\'') {
        let quoted = |quote: &[u8]| text.split(|byte| *byte == b'\'').collect::<Vec<_>>().join(quote);
        all.extend([&br"'\''"[..], br#"'"'"'"#].map(|quote| Spelling { sort: Sort::Plain, bytes: quoted(quote) }));
    }
    all
}

/// A text as the content of a JSON string. None: it is not UTF-8.
fn in_json(text: &[u8]) -> Option<Vec<u8>> {
    let json = serde_json::to_vec(std::str::from_utf8(text).ok()?).ok()?;
    json.strip_prefix(b"\"")?.strip_suffix(b"\"").map(<[u8]>::to_vec)
}

/// JSON with every non-ASCII character as `\u00e9`.
fn in_ascii(json: &[u8]) -> Vec<u8> {
    let mut units = [0; 2];
    let mut spell = |c: char| {
        let units = c.encode_utf16(&mut units).iter();
        if c.is_ascii() { c.to_string() } else { units.map(|unit| format!("\\u{unit:04x}")).collect() }
    };
    String::from_utf8_lossy(json).chars().map(&mut spell).collect::<String>().into_bytes()
}

/// Base64 of a secret alone, and of a secret after, before or between other data.
fn base64(secret: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for (padded, bare) in [(STANDARD, STANDARD_NO_PAD), (URL_SAFE, URL_SAFE_NO_PAD)] {
        // Three bytes become four characters: preceding data shifts the secret by zero, one or two bytes.
        for shift in 0..3 {
            // Number of characters that also encode the preceding data.
            let shared = [0, 2, 3].get(shift).copied().unwrap_or_default();
            for end in [&b""[..], b"\n"] {
                let data = [&[0, 0][..shift], secret, end].concat();
                let bare = bare.encode(&data);
                let whole = data.len() * 8 / 6;
                let pieces = [padded.encode(&data), bare.get(..whole).unwrap_or_default().to_owned(), bare];
                all.extend(pieces.map(|piece| piece.into_bytes().split_off(shared)));
            }
        }
    }
    all
}

impl Spelling {
    /// First bytes of all texts that match it.
    pub(super) fn starts(&self) -> Vec<u8> {
        if self.sort == Sort::Hex {
            let digit = self.bytes.first().map(|byte| format!("{:x}", byte >> 4)).unwrap_or_default();
            return BTreeSet::from([digit.to_ascii_lowercase(), digit.to_ascii_uppercase()])
                .into_iter()
                .flat_map(String::into_bytes)
                .collect();
        }
        let more = match self.sort {
            Sort::Hex | Sort::Plain | Sort::Wrapped => &b""[..],
            Sort::Percent => b"%+",
            Sort::Backslash => b"\\",
        };
        self.bytes.iter().take(1).chain(more).copied().collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Matches it with the start of the text.
    pub(super) fn fit(&self, text: &[u8]) -> Fit {
        let (mut secret, mut rest) = (self.bytes.as_slice(), text);
        while !secret.is_empty() {
            let step = match self.sort {
                Sort::Plain => plain(secret, rest),
                Sort::Wrapped => wrapped(secret, rest),
                Sort::Percent => percent(secret, rest),
                Sort::Hex => hex(secret, rest),
                Sort::Backslash => backslash(secret, rest),
            };
            match step {
                Step::Taken(of_secret, of_text) => {
                    secret = secret.get(of_secret..).unwrap_or_default();
                    rest = rest.get(of_text..).unwrap_or_default();
                }
                Step::Cut => return Fit::Part,
                Step::Differs => return Fit::Not,
            }
        }
        Fit::Whole(text.len() - rest.len())
    }
}

fn plain(secret: &[u8], text: &[u8]) -> Step {
    match text.first() {
        None => Step::Cut,
        found if found == secret.first() => Step::Taken(1, 1),
        Some(_) => Step::Differs,
    }
}

fn wrapped(secret: &[u8], text: &[u8]) -> Step {
    if text == b"\r" {
        return Step::Cut;
    }
    let line_end = [&b"\r\n"[..], b"\n"].into_iter().find(|end| text.starts_with(end)).map_or(0, <[u8]>::len);
    match plain(secret, text.get(line_end..).unwrap_or_default()) {
        Step::Taken(..) => Step::Taken(1, line_end + 1),
        other => other,
    }
}

/// Matches one byte in hexadecimal. Separators from the previous byte may come first, except at the secret's start.
fn hex(secret: &[u8], text: &[u8]) -> Step {
    let separators = text.iter().take_while(|byte| b" :\r\n".contains(byte)).count();
    if separators > HEX_SEPARATORS_MAX {
        return Step::Differs;
    }
    match number(text.get(separators..).unwrap_or_default(), 2, 16) {
        byte if byte.is_first_of(secret) => Step::Taken(1, separators + 2),
        Number::Cut => Step::Cut,
        Number::Is(_) | Number::Not => Step::Differs,
    }
}

fn percent(secret: &[u8], text: &[u8]) -> Step {
    match text {
        [b'+', ..] if secret.starts_with(b" ") => Step::Taken(1, 1),
        [b'%', digits @ ..] => match number(digits, 2, 16) {
            byte if byte.is_first_of(secret) => Step::Taken(1, 3),
            Number::Cut => Step::Cut,
            Number::Is(_) | Number::Not => plain(secret, text),
        },
        _ => plain(secret, text),
    }
}

fn backslash(secret: &[u8], text: &[u8]) -> Step {
    let [b'\\', escape @ ..] = text else { return plain(secret, text) };
    let (found, length) = match escape {
        [] => return Step::Cut,
        // A byte, or a character in Python's texts.
        [b'x', digits @ ..] => match number(digits, 2, 16) {
            byte if byte.is_first_of(secret) => (byte.as_byte(), 3),
            character => (character.as_char(), 3),
        },
        [b'0'..=b'3', ..] => (number(escape, 3, 8).as_byte(), 3),
        [b'u', digits @ ..] => utf16(digits),
        [b'U', digits @ ..] => (number(digits, 8, 16).as_char(), 9),
        [letter, ..] => (Escaped::Is(vec![meant_by(*letter)]), 1),
    };
    match found {
        Escaped::Is(bytes) if secret.starts_with(&bytes) => Step::Taken(bytes.len(), 1 + length),
        Escaped::Cut => Step::Cut,
        // A literal backslash.
        Escaped::Is(_) | Escaped::Not => plain(secret, text),
    }
}

/// Meaning of a character after a backslash.
const fn meant_by(letter: u8) -> u8 {
    match letter {
        b'a' => 7,
        b'b' => 8,
        b't' => b'\t',
        b'n' => b'\n',
        b'v' => 11,
        b'f' => 12,
        b'r' => b'\r',
        b'e' | b'E' => 27,
        other => other,
    }
}

/// Characters that a numeric escape encodes.
enum Escaped {
    Is(Vec<u8>),
    Cut,
    Not,
}

/// Decodes `00e9`, or `d83d\ude00`, after `\u`; also returns its length including the `u`.
fn utf16(digits: &[u8]) -> (Escaped, usize) {
    match number(digits, 4, 16) {
        Number::Is(high @ 0xd800..0xdc00) => {
            let second = digits.get(4..).unwrap_or_default();
            let low = match second {
                [] | [b'\\'] => Number::Cut,
                [b'\\', b'u', digits @ ..] => number(digits, 4, 16),
                _ => Number::Not,
            };
            let pair = match low {
                Number::Is(low @ 0xdc00..0xe000) => Number::Is(0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00)),
                Number::Is(_) | Number::Not => Number::Not,
                Number::Cut => Number::Cut,
            };
            (pair.as_char(), 11)
        }
        other => (other.as_char(), 5),
    }
}

/// Number at the start of a text.
enum Number {
    Is(u32),
    /// The text ends within the digits.
    Cut,
    Not,
}

fn number(text: &[u8], count: usize, radix: u32) -> Number {
    let digits = text.get(..count).unwrap_or(text);
    if !digits.iter().all(|digit| char::from(*digit).is_digit(radix)) {
        return Number::Not;
    }
    if digits.len() < count {
        return Number::Cut;
    }
    let value = std::str::from_utf8(digits).ok().and_then(|digits| u32::from_str_radix(digits, radix).ok());
    value.map_or(Number::Not, Number::Is)
}

impl Number {
    /// Is it the first byte of the text?
    fn is_first_of(&self, text: &[u8]) -> bool {
        text.first().is_some_and(|first| matches!(self, Self::Is(value) if *value == u32::from(*first)))
    }

    fn as_byte(&self) -> Escaped {
        self.to_bytes(|value| u8::try_from(value).ok().map(|byte| vec![byte]))
    }

    fn as_char(&self) -> Escaped {
        self.to_bytes(|value| char::from_u32(value).map(|c| c.to_string().into_bytes()))
    }

    fn to_bytes(&self, bytes: impl Fn(u32) -> Option<Vec<u8>>) -> Escaped {
        match self {
            Self::Is(value) => bytes(*value).map_or(Escaped::Not, Escaped::Is),
            Self::Cut => Escaped::Cut,
            Self::Not => Escaped::Not,
        }
    }
}
