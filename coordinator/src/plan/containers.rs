//! Containers that somebody made with `docker run`: no drain moves them, and whoever restarts their machine, or its
//! Docker Engine, restarts them.

use crate::facts::MachineRow;

/// Containers that are named in one sentence; the rest is counted.
const NAMED_MAX: usize = 4;

/// `plain, proxy and 3 more containers`: those that run on the machine and that nobody moves, as it last said. None:
/// there are none.
#[must_use]
pub fn left(row: &MachineRow) -> Option<String> {
    let names = &row.host.as_ref()?.containers;
    let shown = names.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        _ if names.is_empty() => None,
        0 => Some(shown),
        more => Some(format!("{shown} and {more} more containers")),
    }
}

/// A sentence's end that names them; empty: there are none.
#[must_use]
pub fn stay(row: &MachineRow) -> String {
    left(row).map(|names| format!("; of no service, so nobody moves them: {names}")).unwrap_or_default()
}
