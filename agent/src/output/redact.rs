//! Takes known secret values out of a stream, wherever its chunks are cut.

/// Stands in the output where a secret was.
const REDACTED: &[u8] = b"[redacted]";

/// A cut-off secret of fewer bytes tells nothing, and may well be none.
const PART_BYTES_MIN: usize = 4;

/// Holds back what may be the beginning of a secret until the next chunk tells.
#[derive(Debug, Default)]
pub struct Redactor {
    /// Longest first, so that a secret inside another does not uncover the rest of it.
    secrets: Vec<Vec<u8>>,
    held: Vec<u8>,
}

impl Redactor {
    /// For these values. An empty one is no secret.
    #[must_use]
    pub fn new(secrets: &[Vec<u8>]) -> Self {
        let mut secrets: Vec<_> = secrets.iter().filter(|secret| !secret.is_empty()).cloned().collect();
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Self { secrets, held: Vec::new() }
    }

    /// What may be shown after this chunk.
    #[must_use]
    pub fn push(&mut self, chunk: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(chunk);
        if self.secrets.is_empty() {
            return std::mem::take(&mut self.held);
        }
        let mut shown = Vec::with_capacity(self.held.len());
        let mut rest = self.held.as_slice();
        while let Some((first, behind)) = rest.split_first() {
            if self.secrets.iter().any(|secret| secret.len() > rest.len() && secret.starts_with(rest)) {
                break;
            }
            if let Some(after) = self.secrets.iter().find_map(|secret| rest.strip_prefix(secret.as_slice())) {
                shown.extend_from_slice(REDACTED);
                rest = after;
            } else {
                shown.push(*first);
                rest = behind;
            }
        }
        self.held = rest.to_vec();
        shown
    }

    /// A text that is there as a whole.
    #[must_use]
    pub fn all_of(mut self, text: &str) -> String {
        let mut shown = self.push(text.as_bytes());
        shown.extend(self.finish());
        String::from_utf8_lossy(&shown).into_owned()
    }

    /// What was held back, when nothing more comes: the beginning of a secret is hidden like the whole.
    #[must_use]
    pub fn finish(&mut self) -> Vec<u8> {
        let held = std::mem::take(&mut self.held);
        let holds_one = self.secrets.iter().any(|secret| held.starts_with(secret));
        if holds_one || held.len() >= PART_BYTES_MIN { REDACTED.to_vec() } else { held }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redacted(secrets: &[&str], text: &str, cut_every: usize) -> String {
        let secrets: Vec<_> = secrets.iter().map(|secret| secret.as_bytes().to_vec()).collect();
        let mut redactor = Redactor::new(&secrets);
        let mut shown: Vec<u8> = text.as_bytes().chunks(cut_every).flat_map(|chunk| redactor.push(chunk)).collect();
        shown.extend(redactor.finish());
        String::from_utf8(shown).expect("text")
    }

    #[test]
    fn secrets_go_wherever_the_chunks_are_cut() {
        for (secrets, text, expected) in [
            (&["hunter2"][..], "password=hunter2\n", "password=[redacted]\n"),
            (&["hunter2"], "hunter hunter2 hunter22", "hunter [redacted] [redacted]2"),
            (&["aab"], "aaab aab", "a[redacted] [redacted]"),
            (&["key", "key-long"], "key key-long key-lon", "[redacted] [redacted] [redacted]"),
            (&["longer-secret", "secret"], "a secret", "a [redacted]"),
            (&["hunter2"], "it ends in hunte", "it ends in [redacted]"),
            (&["hunter2"], "it ends in hu", "it ends in hu"),
            (&["ab"], "", ""),
            (&[""], "nothing is secret", "nothing is secret"),
            (&[], "nothing is secret", "nothing is secret"),
        ] {
            for cut_every in 1..=text.len().max(1) {
                assert_eq!(redacted(secrets, text, cut_every), expected, "{secrets:?} every {cut_every}");
            }
        }
    }
}
