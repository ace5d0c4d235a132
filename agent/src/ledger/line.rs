//! The text of the log: per line 8 hex digits of CRC-32, a blank, a JSON array of records, a newline. The checksum
//! goes on from that of the line before, so that it covers all JSON up to here: a line that is gone, or of another log,
//! shows in the next one.

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
    /// Of the last whole line.
    pub chain: Chain,
}

/// The checksum of a line, from which the next one's goes on. A log begins with the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chain(u32);

/// Length of a checksum and the blank behind it.
const HEAD_BYTES: usize = 9;

impl Chain {
    /// Of the line that follows with this JSON.
    fn with(self, json: &[u8]) -> Self {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.0);
        hasher.update(json);
        Self(hasher.finalize())
    }

    /// As it stands at the beginning of its line.
    fn head(self) -> String {
        format!("{:08x} ", self.0)
    }

    /// What a line says its checksum is.
    fn read(line: &[u8]) -> Option<Self> {
        let digits = str::from_utf8(line.get(..HEAD_BYTES)?).ok()?;
        let read = Self(u32::from_str_radix(digits.trim_end(), 16).ok()?);
        (read.head() == digits).then_some(read)
    }
}

/// The line of one batch behind that of `before`, and its checksum.
#[must_use]
pub fn encode(before: Chain, batch: &[Record]) -> (Vec<u8>, Chain) {
    let json = json(batch);
    let chain = before.with(&json);
    let mut line = chain.head().into_bytes();
    line.extend(json);
    line.push(b'\n');
    (line, chain)
}

/// Reads a log. A last line without its end was being written when the power went, and is left out. Whatever has an
/// end was written whole, for the next line is only written when the one before is on the disk.
///
/// # Errors
/// Where it is damaged, and how.
pub fn parse(bytes: &[u8]) -> Result<Parsed, BadLine> {
    let mut parsed = Parsed::default();
    for (at, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let bad = |problem| BadLine { line: at + 1, problem };
        let Some(whole) = line.strip_suffix(b"\n") else {
            // A whole line, and one more byte: that was its end. A zero is none: space that was added and not written.
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

/// Every sound line of a log, and whether there were others. A line is held against what the one before says of itself,
/// so that damage in that one does not cost it.
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

/// The batch of a line without its end, and the checksum of the line.
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
