//! Lists of names in a sentence.

/// Most names shown in one sentence; the rest is counted.
const NAMES_SHOWN_MAX: usize = 4;

/// The first few names, and the number of those left out.
#[must_use]
pub fn some_names<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    let shown = names.iter().take(NAMES_SHOWN_MAX).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMES_SHOWN_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
