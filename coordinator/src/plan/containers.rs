//! Containers started with `docker run`: a drain leaves them in place, and a restart of their machine, or of its Docker
//! Engine, restarts them.

use crate::facts::MachineRow;

/// Containers named in one sentence; the others are counted.
const NAMED_MAX: usize = 4;

/// `plain, proxy and 3 more containers`: running containers that a drain leaves in place, according to the machine's
/// last report. None: there are none.
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

/// End of a sentence that names them; empty if there are none.
#[must_use]
pub fn stay(row: &MachineRow) -> String {
    left(row).map(|names| format!("; of no service, so nobody moves them: {names}")).unwrap_or_default()
}
