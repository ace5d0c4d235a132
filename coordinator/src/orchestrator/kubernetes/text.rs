//! Text from outside, made fit for logs and terminals.

use std::error::Error;

/// Longest text of the server's that is shown, in characters.
pub(crate) const MAX_TEXT: usize = 512;

/// The text on one line, without control characters, at most [`MAX_TEXT`] characters long.
///
/// A server's or a webhook's words reach terminals: they must not move the cursor, forge a log line or reverse text.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::new();
    let mut length = 0;
    let mut chars = text.trim().chars().map(printable).peekable();
    while let Some(c) = chars.next() {
        length += 1;
        if length == MAX_TEXT && chars.peek().is_some() {
            line.push('…');
            break;
        }
        line.push(c);
    }
    line
}

/// The character itself, a space for white space, or U+FFFD for one that controls how text is shown.
fn printable(c: char) -> char {
    match c {
        '\u{2028}' | '\u{2029}' => ' ',
        c if c.is_whitespace() => ' ',
        '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' => {
            char::REPLACEMENT_CHARACTER
        }
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    }
}

/// An error with all its causes, on one line. A cause that its parent repeats is left out.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.ends_with(&words) {
            text = format!("{text}: {words}");
        }
        cause = error.source();
    }
    one_line(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_replaces_control_characters() {
        assert_eq!(one_line("  a\r\nb\tc\u{1b}[31m\u{202e}d\u{2028}e\n"), "a  b c\u{fffd}[31m\u{fffd}d e");
    }

    #[test]
    fn one_line_cuts_at_512_characters() {
        assert_eq!(one_line(&"é".repeat(512)), "é".repeat(512));
        let cut = one_line(&"é".repeat(513));
        assert_eq!(cut.chars().count(), 512);
        assert!(cut.ends_with("é…"));
    }

    #[test]
    fn chain_skips_repeated_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("inner")]
        struct Inner;
        #[derive(Debug, thiserror::Error)]
        #[error("outer: {0}")]
        struct Repeats(#[source] Inner);
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Hides(#[source] Inner);
        assert_eq!(chain(&Repeats(Inner)), "outer: inner");
        assert_eq!(chain(&Hides(Inner)), "outer: inner");
    }
}
