//! Makes text from other parties safe for terminals and logs: line ends, which could forge a record, and control
//! sequences are escaped. Text from a manifest, a peer or a program passes through here before it is shown.

use std::fmt::Write as _;

/// Escape a text into one line: every control character, line ends included, becomes visible (`^[`, as `cat -v` shows
/// it).
#[must_use]
pub fn printable(text: &str) -> String {
    escape(text, false)
}

/// Escape a text into several lines: as [`printable`], but keep line ends and tabs.
#[must_use]
pub fn printable_lines(text: &str) -> String {
    escape(text, true)
}

/// Does a terminal or a reader treat this as something other than text? These are C0 and C1 controls (a terminal takes
/// U+009B for an escape), and characters that turn the reading direction or end a line for some readers.
#[must_use]
pub const fn is_unprintable(c: char) -> bool {
    matches!(
        c,
        '\0'..='\x1f'
            | '\x7f'..='\u{9f}'
            | '\u{61c}'
            | '\u{200e}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
    )
}

fn escape(text: &str, lines: bool) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' if lines => safe.push(c),
            '\x7f' => safe.push_str("^?"),
            '\0'..='\x1f' => {
                safe.push('^');
                safe.push(char::from_u32(u32::from(c) + 0x40).unwrap_or('?'));
            }
            c if is_unprintable(c) => {
                let _ = write!(safe, "\\u{{{:x}}}", u32::from(c)); // writing to a String cannot fail
            }
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_passes() {
        for (text, one, many) in [
            ("plain", "plain", "plain"),
            ("a\x1b[31mb", "a^[[31mb", "a^[[31mb"),
            ("a\nb\tc", "a^Jb^Ic", "a\nb\tc"),
            ("a\r\x7f\u{9b}", "a^M^?\\u{9b}", "a^M^?\\u{9b}"),
            ("x\u{202e}y", "x\\u{202e}y", "x\\u{202e}y"),
            ("x\u{2028}y\u{61c}", "x\\u{2028}y\\u{61c}", "x\\u{2028}y\\u{61c}"),
            ("Zürich …", "Zürich …", "Zürich …"),
        ] {
            assert_eq!(printable(text), one);
            assert_eq!(printable_lines(text), many);
        }
    }
}
