//! Extended headers of POSIX archives: records of `LENGTH KEY=VALUE\n`, parsed by their lengths. A value may be binary:
//! a split at its newlines would produce false records.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};

use super::xattrs;

/// Keys that are irrelevant for the unpacked content: packer, time and place.
const NOTES: [&str; 12] = [
    "atime",
    "ctime",
    "charset",
    "comment",
    "hdrcharset",
    "uname",
    "gname",
    "SCHILY.dev",
    "SCHILY.ino",
    "SCHILY.nlink",
    "LIBARCHIVE.creationtime",
    "RHT.security.selinux",
];
/// Keys that the reader itself uses.
const READ: [&str; 6] = ["path", "linkpath", "size", "uid", "gid", "mtime"];
const SPARSE: &str = "GNU.sparse.";
const XATTR: &str = "SCHILY.xattr.";
/// The same attributes in another encoding: name with `%XX`, value in base64.
const XATTR_ENCODED: &str = "LIBARCHIVE.xattr.";
const ACL: &str = "SCHILY.acl.access";

/// Records of one header, or of several combined. The last value of a key wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Records {
    values: BTreeMap<String, Vec<u8>>,
    /// Alternating values of `GNU.sparse.offset` and `GNU.sparse.numbytes`, the one key pair of which all values count.
    pub(super) extents: Vec<Vec<u8>>,
}

impl Records {
    /// Parses records. None: invalid bytes.
    pub(super) fn parse(mut bytes: &[u8]) -> Option<Self> {
        let mut records = Self::default();
        // Some writers pad with NULs.
        while bytes.first().is_some_and(|byte| *byte != 0) {
            let blank = bytes.iter().position(|byte| *byte == b' ')?;
            let length: usize = number(bytes.get(..blank)?)?.try_into().ok()?;
            let (key, value) = split_at_equals(bytes.get(blank + 1..length)?.strip_suffix(b"\n")?)?;
            let key = String::from_utf8(key.to_vec()).ok()?;
            if matches!(key.as_str(), "GNU.sparse.offset" | "GNU.sparse.numbytes") {
                let expected =
                    if records.extents.len().is_multiple_of(2) { "GNU.sparse.offset" } else { "GNU.sparse.numbytes" };
                (key == expected).then(|| records.extents.push(value.to_vec()))?;
            }
            records.values.insert(key, value.to_vec());
            bytes = bytes.get(length..)?;
        }
        bytes.iter().all(|byte| *byte == 0).then_some(records)
    }

    /// Merges these over those of the whole archive.
    pub(super) fn over(self, global: &Self) -> Self {
        let mut values = global.values.clone();
        values.extend(self.values);
        // An empty value removes an earlier one.
        values.retain(|_, value| !value.is_empty());
        Self { values, extents: self.extents }
    }

    pub(super) fn get(&self, key: &str) -> Option<&[u8]> {
        self.values.get(key).map(Vec::as_slice)
    }

    /// A decimal number. `Some(None)`: the value is invalid.
    #[expect(clippy::option_option, reason = "three answers, each used once")]
    pub(super) fn number(&self, key: &str) -> Option<Option<u64>> {
        self.get(key).map(number)
    }

    pub(super) fn is_sparse(&self) -> bool {
        self.values.keys().any(|key| key.starts_with(SPARSE))
    }

    /// Extended attributes of the entry.
    ///
    /// # Errors
    /// Key of a record whose content would be lost.
    pub(super) fn xattrs(&self) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, &str> {
        let mut xattrs = BTreeMap::new();
        for (key, value) in &self.values {
            let (name, value) = if let Some(name) = key.strip_prefix(XATTR) {
                (unescaped(name), value.clone())
            } else if let Some(name) = key.strip_prefix(XATTR_ENCODED) {
                let value = value.strip_suffix(b"=").unwrap_or(value);
                let value = value.strip_suffix(b"=").unwrap_or(value);
                (unescaped(name), STANDARD_NO_PAD.decode(value).map_err(|_| key.as_str())?)
            } else if NOTES.contains(&key.as_str())
                || READ.contains(&key.as_str())
                || key.starts_with(SPARSE)
                || (key == ACL && says_no_more_than_mode(value))
            {
                continue;
            } else {
                return Err(key);
            };
            if !xattrs::is_label(&name) {
                xattrs.insert(name, value);
            }
        }
        Ok(xattrs)
    }
}

fn split_at_equals(record: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = record.iter().position(|byte| *byte == b'=')?;
    Some((record.get(..at)?, record.get(at + 1..)?))
}

/// Parses decimal digits only.
pub(super) fn number(digits: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(digits).ok()?;
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Parses a time such as `-1234.5` to seconds and nanoseconds.
pub(super) fn time(text: &[u8]) -> Option<(i64, i64)> {
    let text = std::str::from_utf8(text).ok()?;
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    let (seconds, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let seconds = i64::try_from(number(seconds.as_bytes())?).ok()? * sign;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nanos: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
    match (nanos.parse::<i64>().ok()?, sign) {
        (nanos, sign) if nanos == 0 || sign > 0 => Some((seconds, nanos)),
        (nanos, _) => Some((seconds.checked_sub(1)?, 1_000_000_000 - nanos)),
    }
}

/// Does the access control list cover only owner, group and others?
fn says_no_more_than_mode(acl: &[u8]) -> bool {
    let base = |line: &[u8]| [&b"user::"[..], b"group::", b"other::"].iter().any(|who| line.starts_with(who));
    acl.split(|byte| matches!(byte, b'\n' | b',')).all(|line| line.is_empty() || base(line))
}

/// Decodes `%XX`.
fn unescaped(name: &str) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match digits.and_then(|two| u8::from_str_radix(two, 16).ok()).filter(|_| *first == b'%') {
            Some(byte) => {
                plain.push(byte);
                rest = behind.get(2..).unwrap_or_default();
            }
            None => {
                plain.push(*first);
                rest = behind;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(records: &[(&str, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let length = (rest + 1..rest + 8).find(|length| rest + length.to_string().len() == *length).expect("one");
            bytes.extend(format!("{length} {key}=").into_bytes());
            bytes.extend(*value);
            bytes.push(b'\n');
        }
        bytes
    }

    #[test]
    fn records_are_read_by_length() {
        let bytes = records(&[("SCHILY.xattr.user.a", b"\n20 path=somewhere\n"), ("path", b"a=b"), ("mtime", b"1")]);
        let found = Records::parse(&bytes).expect("records");
        assert_eq!(found.get("path"), Some(&b"a=b"[..]));
        assert_eq!(found.xattrs().expect("kept")[&b"user.a"[..]], b"\n20 path=somewhere\n");
        for bad in ["7 a=b\n", "5 a=b\n", "6 a=b", "6 a-b\n", "x a=b\n", "+6 a=b\n", "6 a=b\n\0x", " 6 a=b\n"] {
            assert_eq!(Records::parse(bad.as_bytes()), None, "{bad:?}");
        }
        assert!(Records::parse(b"6 a=b\n\0\0").is_some());
    }

    #[test]
    fn last_record_counts_and_empty_unsets() {
        let parse = |found: &[(&str, &[u8])]| Records::parse(&records(found)).expect("records");
        let global = parse(&[("path", b"global"), ("uid", b"7")]);
        let own = parse(&[("path", b"first"), ("path", b"last"), ("uid", b"")]).over(&global);
        assert_eq!((own.get("path"), own.get("uid")), (Some(&b"last"[..]), None));
    }

    #[test]
    fn attributes_are_kept_or_named() {
        let of = |key: &str, value: &[u8]| Records::parse(&records(&[(key, value)])).expect("records");
        let one = |name: &[u8], value: &[u8]| Ok(BTreeMap::from([(name.to_vec(), value.to_vec())]));
        assert_eq!(of("SCHILY.xattr.security.capability", b"\x01\n").xattrs(), one(b"security.capability", b"\x01\n"));
        assert_eq!(of("LIBARCHIVE.xattr.user.%41", b"AQo").xattrs(), one(b"user.A", b"\x01\n"));
        assert_eq!(of("LIBARCHIVE.xattr.user.a", b"AQo=").xattrs(), one(b"user.a", b"\x01\n"));
        for key in ["comment", "RHT.security.selinux", "SCHILY.xattr.security.selinux", "atime"] {
            assert_eq!(of(key, b"x").xattrs(), Ok(BTreeMap::new()), "{key}");
        }
        assert_eq!(of(ACL, b"user::rw-\ngroup::r--\nother::---").xattrs(), Ok(BTreeMap::new()));
        for (key, value) in [(ACL, "user::rw-,user:7:rwx"), ("SCHILY.fflags", "append"), ("LIBARCHIVE.xattr.a", "*")] {
            assert_eq!(of(key, value.as_bytes()).xattrs(), Err(key));
        }
    }

    #[test]
    fn times_have_fractions_and_signs() {
        for (text, expected) in [
            ("0", Some((0, 0))),
            ("1234.5", Some((1234, 500_000_000))),
            ("1234.1234567891", Some((1234, 123_456_789))),
            ("-1.25", Some((-2, 750_000_000))),
            ("-3", Some((-3, 0))),
            ("", None),
            ("1.x", None),
            ("1.", Some((1, 0))),
            ("--1", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(time(text.as_bytes()), expected, "{text}");
        }
    }
}
