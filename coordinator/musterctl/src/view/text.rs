//! Cuts text to a width, and folds similar rows into one line.

/// Fewest alike neighbours that are folded into one line.
const FOLDED_MIN: usize = 4;

/// Rows with their names. Alike neighbours share one: sixty machines with the same wait must not push a failed one off
/// the screen.
pub(super) fn folded<T>(rows: &[T], is_alike: impl Fn(&T, &T) -> bool, name: impl Fn(&T) -> &str) -> Vec<(String, &T)> {
    let mut lines = Vec::new();
    for alike in rows.chunk_by(is_alike) {
        match alike {
            [first, .., last] if alike.len() >= FOLDED_MIN => {
                lines.push((format!("{} … {} ({})", name(first), name(last), alike.len()), first));
            }
            few => lines.extend(few.iter().map(|row| (name(row).to_owned(), row))),
        }
    }
    lines
}

/// At most `chars_max` characters; a cut is marked.
pub(super) fn cut(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(chars_max.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// The text with a full stop at its end.
pub(super) fn sentence(text: &str) -> String {
    if text.ends_with('.') { text.to_owned() } else { format!("{text}.") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_marks_what_is_missing() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abcd", 3), "ab…");
    }
}
