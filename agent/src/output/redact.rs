//! Redacts known secret values in a stream, independent of chunk boundaries, in all spellings of `spelling`.

use std::{collections::BTreeSet, sync::Arc};

use super::spelling::{self, Fit, Spelling};

/// Replacement of a secret.
const REDACTED: &[u8] = b"[redacted]";

/// Minimum length of a partial secret that is redacted: fewer bytes are harmless and may well be something else.
const PART_BYTES_MIN: usize = 4;

/// Values to hide in every output.
#[derive(Clone, Debug)]
pub(crate) struct Hidden {
    spellings: Arc<[Spelling]>,
    /// Spellings that may begin with each byte.
    by_start: Arc<[Vec<usize>]>,
}

impl Hidden {
    /// Hides these values. An empty value is ignored.
    pub(crate) fn of<'a>(secrets: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let spellings: BTreeSet<_> = secrets.into_iter().flat_map(spelling::all_of).collect();
        let spellings: Arc<[_]> = spellings.into_iter().collect();
        let mut by_start = vec![Vec::new(); 256];
        for (index, spelling) in spellings.iter().enumerate() {
            for start in spelling.starts() {
                if let Some(of_start) = by_start.get_mut(usize::from(start)) {
                    of_start.push(index);
                }
            }
        }
        Self { spellings, by_start: by_start.into() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.spellings.is_empty()
    }

    /// Length of the longest secret that the text begins with, and whether it may be the start of a longer one.
    fn at_start_of(&self, text: &[u8]) -> (Option<usize>, bool) {
        let start = text.first().and_then(|first| self.by_start.get(usize::from(*first)));
        let (mut whole, mut part) = (None, false);
        for spelling in start.into_iter().flatten().filter_map(|index| self.spellings.get(*index)) {
            match spelling.fit(text) {
                // Take the longest, so that the rest of a secret around a shorter one stays hidden too.
                Fit::Whole(length) => whole = whole.max(Some(length)),
                Fit::Part => part = true,
                Fit::Not => {}
            }
        }
        (whole, part)
    }
}

/// Holds back a possible start of a secret until the next chunk decides.
#[derive(Debug)]
pub(crate) struct Redactor {
    hidden: Hidden,
    held: Vec<u8>,
}

impl Redactor {
    pub(crate) const fn new(hidden: Hidden) -> Self {
        Self { hidden, held: Vec::new() }
    }

    /// Takes a chunk and returns the output that can be shown.
    pub(crate) fn push(&mut self, chunk: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(chunk);
        self.take(false)
    }

    /// Redacts a complete text.
    pub(crate) fn all_of(mut self, text: &str) -> String {
        let mut shown = self.push(text.as_bytes());
        shown.extend(self.finish());
        String::from_utf8_lossy(&shown).into_owned()
    }

    /// Returns the held bytes at the end of the stream. The start of a secret is hidden like the whole.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        self.take(true)
    }

    fn take(&mut self, is_end: bool) -> Vec<u8> {
        if self.hidden.is_empty() {
            return std::mem::take(&mut self.held);
        }
        let mut shown = Vec::with_capacity(self.held.len());
        let mut rest = self.held.as_slice();
        while let Some((first, behind)) = rest.split_first() {
            let (whole, part) = self.hidden.at_start_of(rest);
            if part && !is_end {
                break;
            }
            let hides_all = part && rest.len() >= PART_BYTES_MIN;
            if let Some(length) = hides_all.then_some(rest.len()).or(whole) {
                shown.extend_from_slice(REDACTED);
                rest = rest.get(length..).unwrap_or_default();
            } else {
                shown.push(*first);
                rest = behind;
            }
        }
        self.held = rest.to_vec();
        shown
    }
}

#[cfg(test)]
#[path = "redact_tests.rs"]
mod tests;
