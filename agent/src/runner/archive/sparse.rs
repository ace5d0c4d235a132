//! Sparse files: maps of the stored parts. GNU tar writes three forms of POSIX records and one of its own.

use std::io::{self, Read};

use super::pax::{Records, number};

/// Block size of an archive: the alignment of headers and contents.
pub(super) const BLOCK_BYTES: usize = 512;
/// Maximum of parts in one file.
const EXTENTS_MAX: usize = 1_000_000;
/// Maximum length of a number in a map: the digits of 2^64 and a newline.
const NUMBER_BYTES_MAX: usize = 21;
const NOT_KNOWN: &str = "is sparse in a way that is not known";

/// A stored part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) at: u64,
    pub(super) bytes: u64,
}

/// All parts of a file, in order. The gaps are zeros.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Extents {
    pub(super) list: Vec<Extent>,
    /// Size of the file.
    pub(super) size: u64,
}

impl Extents {
    /// A completely stored file.
    pub(super) fn whole(size: u64) -> Self {
        Self { list: vec![Extent { at: 0, bytes: size }], size }
    }

    /// Checks a map. `stored`: bytes of content.
    pub(super) fn new(list: Vec<Extent>, size: u64, stored: u64) -> Result<Self, &'static str> {
        let mut end = 0_u64;
        let mut sum = 0_u64;
        for Extent { at, bytes } in &list {
            let in_order = *at >= end;
            end = at
                .checked_add(*bytes)
                .filter(|end| in_order && *end <= size)
                .ok_or("has a map that is no map of it")?;
            sum += bytes;
        }
        if sum == stored { Ok(Self { list, size }) } else { Err("has more or less content than its map says") }
    }
}

/// Adds a part, up to the maximum.
pub(super) fn push(list: &mut Vec<Extent>, extent: Extent) -> Result<(), &'static str> {
    list.push(extent);
    if list.len() > EXTENTS_MAX { Err("has too many parts") } else { Ok(()) }
}

/// Sparse map in the records of a header.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PaxMap {
    /// Forms 0.0 and 0.1: complete.
    Told { list: Vec<Extent>, size: u64 },
    /// Form 1.0: the content starts with the map.
    InContent { size: u64 },
}

impl PaxMap {
    pub(super) fn of(records: &Records) -> Result<Self, &'static str> {
        let of = |key: &str| records.number(key).map(|number| number.ok_or(NOT_KNOWN)).transpose();
        let real_size = of("GNU.sparse.realsize")?;
        match (of("GNU.sparse.major")?, of("GNU.sparse.minor")?) {
            (Some(1), Some(0)) => return Ok(Self::InContent { size: real_size.ok_or(NOT_KNOWN)? }),
            (None, None) | (Some(0), Some(0 | 1)) => {}
            _ => return Err(NOT_KNOWN),
        }
        let size = of("GNU.sparse.size")?.or(real_size).ok_or(NOT_KNOWN)?;
        let told: Vec<&[u8]> = match records.get("GNU.sparse.map") {
            Some(map) => map.split(|byte| *byte == b',').collect(),
            None => records.extents.iter().map(Vec::as_slice).collect(),
        };
        let count = of("GNU.sparse.numblocks")?.ok_or(NOT_KNOWN)?;
        let mut list = Vec::new();
        for pair in told.chunks(2) {
            let [at, bytes] = pair else { return Err(NOT_KNOWN) };
            push(&mut list, Extent { at: number(at).ok_or(NOT_KNOWN)?, bytes: number(bytes).ok_or(NOT_KNOWN)? })?;
        }
        if list.len() as u64 == count { Ok(Self::Told { list, size }) } else { Err(NOT_KNOWN) }
    }
}

/// Map of form 1.0: a count, then offset and length of each part, one number per line; padded to a block.
pub(super) fn read_map(content: &mut impl Read) -> Result<Vec<Extent>, Result<&'static str, io::Error>> {
    let mut lines = Lines { content, block: [0; BLOCK_BYTES], at: BLOCK_BYTES };
    let mut list = Vec::new();
    for _ in 0..lines.number()? {
        push(&mut list, Extent { at: lines.number()?, bytes: lines.number()? }).map_err(Ok)?;
    }
    Ok(list)
}

/// Lines of a map, read block by block: the rest of the last block is padding.
struct Lines<'a, R> {
    content: &'a mut R,
    block: [u8; BLOCK_BYTES],
    /// Consumed bytes of the block.
    at: usize,
}

impl<R: Read> Lines<'_, R> {
    fn number(&mut self) -> Result<u64, Result<&'static str, io::Error>> {
        let mut digits = Vec::new();
        loop {
            if self.at == BLOCK_BYTES {
                self.content.read_exact(&mut self.block).map_err(Err)?;
                self.at = 0;
            }
            let byte = self.block.get(self.at).copied();
            self.at += 1;
            match byte {
                Some(b'\n') => return number(&digits).ok_or(Ok(NOT_KNOWN)),
                Some(byte) if digits.len() < NUMBER_BYTES_MAX => digits.push(byte),
                _ => return Err(Ok(NOT_KNOWN)),
            }
        }
    }
}
