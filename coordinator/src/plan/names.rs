//! Names of machines, as operators read them.

/// Names shown in one sentence; the rest is counted.
const NAMES_SHOWN_MAX: usize = 4;

/// The first few names, and how many more there are.
pub fn some_names<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    let shown = names.iter().take(NAMES_SHOWN_MAX).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMES_SHOWN_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// The same as the beginning of a sentence: `control-1 is`, `control-1, worker-3 are`.
pub fn some_names_are<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    let are = if names.len() == 1 { "is" } else { "are" };
    format!("{} {are}", some_names(names))
}
