//! The text of the log: per line 8 hex digits of CRC-32, a blank, a JSON array of records, a newline.

use muster_proto::json::json;

use crate::core::Record;

/// A line that this program did not write so.
#[derive(Debug, PartialEq, Eq)]
pub struct BadLine {
    /// From 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: &'static str,
}

/// A log that was read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// One per line.
    pub batches: Vec<Vec<Record>>,
    /// Length of the whole lines.
    pub whole_bytes: u64,
    /// Length of the first line.
    pub first_line_bytes: u64,
    /// A line whose writing was cut off follows them.
    pub torn: bool,
}

/// The line of one batch.
#[must_use]
pub fn encode(batch: &[Record]) -> Vec<u8> {
    let json = json(batch);
    let mut line = format!("{:08x} ", crc32fast::hash(&json)).into_bytes();
    line.extend(json);
    line.push(b'\n');
    line
}

/// Why a line cannot be read.
enum Fault {
    /// It may have been being written when the power went.
    MaybeTorn(&'static str),
    /// It was written whole.
    Damaged(&'static str),
}

/// Reads a log. A last line that is not whole was being written when the power went: it is left out. A line with
/// another behind it was whole once, and so was one whose checksum is right.
///
/// # Errors
/// Where it is damaged, and how.
pub fn parse(bytes: &[u8]) -> Result<Parsed, BadLine> {
    let mut parsed = Parsed::default();
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n').enumerate().peekable();
    while let Some((at, line)) = lines.next() {
        match decode(line) {
            Ok(batch) => {
                parsed.batches.push(batch);
                parsed.whole_bytes += line.len() as u64;
                if at == 0 {
                    parsed.first_line_bytes = line.len() as u64;
                }
            }
            Err(Fault::MaybeTorn(_)) if lines.peek().is_none() => parsed.torn = true,
            Err(Fault::MaybeTorn(problem) | Fault::Damaged(problem)) => {
                return Err(BadLine { line: at + 1, problem });
            }
        }
    }
    Ok(parsed)
}

/// Every sound line of a log, and whether there were others.
pub(super) fn parse_what_is_sound(bytes: &[u8]) -> (Vec<Record>, bool) {
    let mut damaged = false;
    let mut records = Vec::new();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        match decode(line) {
            Ok(batch) => records.extend(batch),
            Err(_) => damaged = true,
        }
    }
    (records, damaged)
}

fn decode(line: &[u8]) -> Result<Vec<Record>, Fault> {
    let whole = line.strip_suffix(b"\n").ok_or(Fault::MaybeTorn("it has no end"))?;
    let (crc, json) = whole.split_at_checked(9).ok_or(Fault::MaybeTorn("it is too short"))?;
    let crc = str::from_utf8(crc)
        .ok()
        .and_then(|text| text.strip_suffix(' '))
        .and_then(|digits| u32::from_str_radix(digits, 16).ok())
        .ok_or(Fault::MaybeTorn("it does not begin with a checksum"))?;
    if crc32fast::hash(json) != crc {
        return Err(Fault::MaybeTorn("its checksum is wrong"));
    }
    serde_json::from_slice(json).map_err(|_| {
        Fault::Damaged("it holds records that this version does not know: install the muster-agent that wrote them")
    })
}
