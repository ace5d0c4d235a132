//! Conversion between wire and model: the only place that checks wire values. A message that passes is well-formed;
//! other code decides what it may do.

mod assignment;
mod control_plane;
mod facts;
mod hello;
mod input;
mod status;
mod swarm;

pub use facts::CONTAINERS_MAX;
pub use hello::Hello;

use crate::model::{AuthCode, ItemHash, Phase};

/// An invalid wire value. Sent to the peer and logged, so it leaves out the value itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct WireError {
    /// Path of the field in the message.
    pub field: &'static str,
    /// Why the value is invalid.
    pub problem: &'static str,
}

impl WireError {
    pub(crate) const fn new(field: &'static str, problem: &'static str) -> Self {
        Self { field, problem }
    }
}

impl From<WireError> for tonic::Status {
    fn from(error: WireError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

/// Most items one machine can have.
pub const ITEMS_MAX: usize = 1024;
/// Longest free text of one line (message, version, name of an operating system).
pub const LINE_BYTES_MAX: usize = 4096;
/// Longest result a runner may leave.
pub const RESULT_BYTES_MAX: usize = 16 * 1024;

/// Highest epoch, generation or event number accepted from the wire: it leaves the receiver room to count on.
const COUNT_MAX: u64 = 1 << 62;
/// Highest attempt number accepted: retries are configured in tens.
const ATTEMPT_MAX: u32 = 1_000_000;

/// Check a number that only grows, by one at a time.
///
/// # Errors
/// [`WireError`] if it is implausibly high.
pub fn count(field: &'static str, value: u64) -> Result<u64, WireError> {
    if value <= COUNT_MAX { Ok(value) } else { Err(WireError::new(field, "nobody can have counted so far")) }
}

/// Check a number that counts from 1; 0 means none.
fn counted(field: &'static str, value: u64) -> Result<u64, WireError> {
    if value == 0 { Err(WireError::new(field, "counts from 1")) } else { count(field, value) }
}

fn text(field: &'static str, value: String, bytes_max: usize) -> Result<String, WireError> {
    if value.len() > bytes_max {
        return Err(WireError::new(field, "too long"));
    }
    if value.contains('\0') {
        return Err(WireError::new(field, "has a NUL"));
    }
    Ok(value)
}

fn line(field: &'static str, value: String) -> Result<String, WireError> {
    let value = text(field, value, LINE_BYTES_MAX)?;
    if value.chars().any(char::is_control) {
        return Err(WireError::new(field, "has a control character"));
    }
    Ok(value)
}

/// Check a line that must be non-empty.
fn word(field: &'static str, value: String) -> Result<String, WireError> {
    if value.is_empty() { Err(WireError::new(field, "missing")) } else { line(field, value) }
}

fn hash(field: &'static str, value: &[u8]) -> Result<ItemHash, WireError> {
    value.try_into().map(ItemHash).map_err(|_| WireError::new(field, "a hash has 32 bytes"))
}

/// Convert an optional authentication code, which may be empty.
///
/// # Errors
/// [`WireError`] if it has a length other than 0 or 32 bytes.
pub fn code(field: &'static str, value: &[u8]) -> Result<AuthCode, WireError> {
    if value.is_empty() {
        return Ok(AuthCode::NONE);
    }
    value.try_into().map(AuthCode::new).map_err(|_| WireError::new(field, "a code has 32 bytes"))
}

/// Convert an optional phase; `PHASE_UNSPECIFIED` is none.
fn phase(field: &'static str, value: i32) -> Result<Option<Phase>, WireError> {
    use crate::wire::Phase as Wire;
    match Wire::try_from(value) {
        Ok(Wire::Unspecified) => Ok(None),
        Ok(Wire::Prepare) => Ok(Some(Phase::Prepare)),
        Ok(Wire::Deploy) => Ok(Some(Phase::Deploy)),
        Ok(Wire::Reconfigure) => Ok(Some(Phase::Reconfigure)),
        Err(_) => Err(WireError::new(field, "unknown phase")),
    }
}

fn wire_phase(phase: Option<Phase>) -> i32 {
    use crate::wire::Phase as Wire;
    let wire = match phase {
        None => Wire::Unspecified,
        Some(Phase::Prepare) => Wire::Prepare,
        Some(Phase::Deploy) => Wire::Deploy,
        Some(Phase::Reconfigure) => Wire::Reconfigure,
    };
    wire.into()
}

/// Cut a text to at most `bytes_max` bytes at a character boundary; keep its end.
#[must_use]
pub fn keep_end(text: &str, bytes_max: usize) -> &str {
    let mut at = text.len().saturating_sub(bytes_max);
    while !text.is_char_boundary(at) {
        at += 1;
    }
    text.get(at..).unwrap_or_default()
}

/// Turn a text into one line of at most [`LINE_BYTES_MAX`] bytes: control characters become blanks, the rest is cut.
#[must_use]
pub fn as_line(text: &str) -> String {
    let mut line: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    while line.len() > LINE_BYTES_MAX {
        line.pop();
    }
    line
}
