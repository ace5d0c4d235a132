//! Disk quota for the records of ended attempts, mostly their output.

use std::{fs, io, os::unix::fs::MetadataExt, path::Path};

use super::AttemptKey;
use crate::output::OUTPUT_BYTES_MAX;

/// Quota of all attempts together.
const RECORDS_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Block size of `stat`, independent of the file system's own.
const BLOCK_BYTES: u64 = 512;

/// Attempts beyond the quota. Input: attempts with their sizes, most valuable first. The first is under way and may
/// grow to the maximum.
pub(super) fn beyond(attempts: impl IntoIterator<Item = (AttemptKey, u64)>) -> Vec<AttemptKey> {
    let mut attempts = attempts.into_iter();
    let mut taken = attempts.next().map_or(0, |(_, bytes)| bytes.max(OUTPUT_BYTES_MAX));
    attempts
        .filter(|(_, bytes)| {
            taken = taken.saturating_add(*bytes);
            taken > RECORDS_BYTES_MAX
        })
        .map(|(key, _)| key)
        .collect()
}

/// Disk space of a record's files. Directories belong to the program and are removed at its end.
pub(super) fn bytes_of(record: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(record)? {
        let metadata = entry?.metadata()?;
        if metadata.is_file() {
            bytes += metadata.blocks() * BLOCK_BYTES;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    fn attempts(mib: &[u64]) -> Vec<(AttemptKey, u64)> {
        let named = mib.iter().enumerate().map(|(n, mib)| (format!("i{n}.1.1").parse().expect("a key"), mib * MIB));
        named.collect()
    }

    #[test]
    fn the_oldest_go_where_all_together_are_too_much() {
        let gone = |mib: &[u64]| beyond(attempts(mib)).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(gone(&[]).is_empty() && gone(&[300]).is_empty(), "what is under way stays");
        assert!(gone(&[0; 256]).is_empty());
        assert!(gone(&[0, 200, 40]).is_empty(), "the first may yet take 16");
        assert_eq!(gone(&[0, 200, 41, 0]), ["i2.1.1", "i3.1.1"], "what is older than one that goes, goes too");
        assert_eq!(gone(&[20, 200, 40]), ["i2.1.1"]);
    }

    #[test]
    fn what_files_take_is_counted_and_directories_are_not() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(bytes_of(dir.path()).expect("read"), 0);
        fs::write(dir.path().join("output"), vec![1; 100_000]).expect("written");
        fs::create_dir(dir.path().join("work")).expect("made");
        fs::write(dir.path().join("work/much"), vec![1; 1_000_000]).expect("written");
        let bytes = bytes_of(dir.path()).expect("read");
        assert!((100_000..200_000).contains(&bytes), "{bytes}");
        assert!(bytes_of(&dir.path().join("none")).is_err());
    }
}
