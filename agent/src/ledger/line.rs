//! The text of the log: per line 8 hex digits of CRC-32, a blank, a JSON array of records, a newline.

use crate::core::Record;

/// A line that this program did not write so.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadLine {
    /// From 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: &'static str,
}

/// A log that was read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Parsed {
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
pub(super) fn encode(batch: &[Record]) -> Vec<u8> {
    // Records are made of strings, numbers and maps keyed by either: they always serialize.
    let json = serde_json::to_vec(batch).unwrap_or_default();
    let mut line = format!("{:08x} ", crc32fast::hash(&json)).into_bytes();
    line.extend(json);
    line.push(b'\n');
    line
}

/// Reads a log. A last line that is not whole was being written when the power went: it is left out. A line that is
/// damaged, with a sound one behind it, was whole once.
pub(super) fn parse(bytes: &[u8]) -> Result<Parsed, BadLine> {
    let mut parsed = Parsed::default();
    let mut bad: Option<BadLine> = None;
    for (at, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        match (decode(line), &mut bad) {
            (Ok(batch), None) => {
                parsed.batches.push(batch);
                parsed.whole_bytes += line.len() as u64;
                if at == 0 {
                    parsed.first_line_bytes = line.len() as u64;
                }
            }
            (Ok(_), Some(_)) => return Err(bad.unwrap_or(BadLine { line: at + 1, problem: "" })),
            (Err(problem), None) => bad = Some(BadLine { line: at + 1, problem }),
            (Err(_), Some(_)) => {}
        }
    }
    parsed.torn = bad.is_some();
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

fn decode(line: &[u8]) -> Result<Vec<Record>, &'static str> {
    let line = line.strip_suffix(b"\n").ok_or("it has no end")?;
    let (crc, json) = line.split_at_checked(9).ok_or("it is too short")?;
    let crc = str::from_utf8(crc)
        .ok()
        .and_then(|text| text.strip_suffix(' '))
        .and_then(|digits| u32::from_str_radix(digits, 16).ok())
        .ok_or("it does not begin with a checksum")?;
    if crc32fast::hash(json) != crc {
        return Err("its checksum is wrong");
    }
    serde_json::from_slice(json).map_err(|_| "it holds records that this version does not know")
}
