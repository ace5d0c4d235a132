//! Text format of the log. A line is 8 hex digits of CRC-32, a blank, a JSON array of records, and a newline. Each
//! checksum continues the previous line's, so that it covers all JSON up to here: the next line reveals a missing or
//! foreign line.

use muster_proto::json::json;

use crate::core::Record;

/// An invalid line, different from what this program writes.
#[derive(Debug, PartialEq, Eq)]
pub struct BadLine {
    /// Number of the line, from 1.
    pub line: usize,
    /// The problem.
    pub problem: &'static str,
}

/// A parsed log.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// Batches, one per line.
    pub batches: Vec<Vec<Record>>,
    /// Total length of the complete lines.
    pub whole_bytes: u64,
    /// Length of the first line.
    pub first_line_bytes: u64,
    /// Does a torn line follow?
    pub torn: bool,
    /// Checksum of the last complete line.
    pub chain: Chain,
}

/// Checksum of a line, which the next line's continues. A log starts with the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chain(u32);

/// Length of a checksum and its blank.
const HEAD_BYTES: usize = 9;

impl Chain {
    /// Checksum of a following line with this JSON.
    fn with(self, json: &[u8]) -> Self {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.0);
        hasher.update(json);
        Self(hasher.finalize())
    }

    /// Text at the start of its line.
    fn head(self) -> String {
        format!("{:08x} ", self.0)
    }

    /// Checksum that a line claims.
    fn read(line: &[u8]) -> Option<Self> {
        let digits = str::from_utf8(line.get(..HEAD_BYTES)?).ok()?;
        let read = Self(u32::from_str_radix(digits.trim_end(), 16).ok()?);
        (read.head() == digits).then_some(read)
    }
}

/// The line of one batch after `before`, and its checksum.
#[must_use]
pub fn encode(before: Chain, batch: &[Record]) -> (Vec<u8>, Chain) {
    let json = json(batch);
    let chain = before.with(&json);
    let mut line = chain.head().into_bytes();
    line.extend(json);
    line.push(b'\n');
    (line, chain)
}

/// Parses a log. A last line that lacks its newline was cut off by a power loss and is dropped. A line with a newline
/// is complete, because the next line is written only when the previous one is on disk.
///
/// # Errors
/// Position and kind of the damage.
pub fn parse(bytes: &[u8]) -> Result<Parsed, BadLine> {
    let mut parsed = Parsed::default();
    for (at, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let bad = |problem| BadLine { line: at + 1, problem };
        let Some(whole) = line.strip_suffix(b"\n") else {
            // A complete line plus one damaged byte: that was its newline. A zero byte instead is allocated but
            // unwritten space.
            let end = line.split_last().filter(|(end, _)| **end != 0);
            let written = end.is_some_and(|(_, whole)| decode(parsed.chain, whole).is_ok());
            parsed.torn = true;
            return if written { Err(bad("its end is damaged")) } else { Ok(parsed) };
        };
        let (batch, chain) = decode(parsed.chain, whole).map_err(bad)?;
        parsed.batches.push(batch);
        parsed.chain = chain;
        parsed.whole_bytes += line.len() as u64;
        if at == 0 {
            parsed.first_line_bytes = line.len() as u64;
        }
    }
    Ok(parsed)
}

/// Every valid line of a log, and whether others exist. Each line is checked against the checksum that the previous one
/// claims, so damage in that one leaves it valid.
pub(super) fn parse_what_is_sound(bytes: &[u8]) -> (Vec<Record>, bool) {
    let mut damaged = false;
    let mut records = Vec::new();
    let mut before = Some(Chain::default());
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let whole = line.strip_suffix(b"\n");
        match before.zip(whole).and_then(|(before, whole)| decode(before, whole).ok()) {
            Some((batch, _)) => records.extend(batch),
            None => damaged = true,
        }
        before = Chain::read(line);
    }
    (records, damaged)
}

/// Batch and checksum of a line, given without its newline.
fn decode(before: Chain, line: &[u8]) -> Result<(Vec<Record>, Chain), &'static str> {
    let chain = Chain::read(line).ok_or("it does not begin with a checksum")?;
    let json = line.get(HEAD_BYTES..).unwrap_or_default();
    if before.with(json) != chain {
        return Err("its checksum is wrong, or a line before it is missing");
    }
    let unknown = "it holds records that this version does not know: install the muster-agent that wrote them";
    let batch = serde_json::from_slice(json).map_err(|_| unknown)?;
    Ok((batch, chain))
}
