//! The answer to a request for a file: conditions, validators and ranges of RFC 9110, as a function of its headers.

use std::{
    fs::Metadata,
    os::unix::fs::MetadataExt,
    time::{Duration, SystemTime},
};

use http::{
    HeaderMap, HeaderName,
    header::{IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE},
};

/// A file that was modified in the second of its date may be modified again within it: such a date is no proof.
const DATE_PROVES_AFTER: Duration = Duration::from_secs(1);

/// The end of the year 9999, in Unix seconds: an HTTP date has four digits for the year.
const DATE_S_MAX: u64 = 253_402_300_799;

/// Version of a file's content, which clients compare.
#[derive(Clone, Debug)]
pub(super) struct Version {
    /// A strong entity tag.
    pub(super) tag: String,
    /// In whole seconds, as sent to clients.
    pub(super) modified: SystemTime,
    pub(super) bytes: u64,
}

impl Version {
    pub(super) fn of(found: &Metadata) -> Self {
        Self {
            tag: format!("\"{:x}-{:x}-{:x}-{:x}\"", found.ino(), found.len(), found.mtime(), found.mtime_nsec()),
            modified: date(found.mtime()),
            bytes: found.len(),
        }
    }

    fn is_in(&self, tags: &str, compare: impl Fn(&str, &str) -> bool) -> bool {
        tags.trim() == "*" || tags.split(',').any(|tag| compare(tag.trim(), &self.tag))
    }
}

/// A file's modification time as an HTTP date, clamped to its range.
fn date(mtime_s: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(mtime_s).unwrap_or(0).min(DATE_S_MAX))
}

/// Kind of answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Whole,
    /// From one byte to another, inclusive.
    Part(u64, u64),
    NotModified,
    PreconditionFailed,
    NoSuchRange,
}

/// The steps of RFC 9110, 13.2.2, in their order.
pub(super) fn answer(headers: &HeaderMap, version: &Version, now: SystemTime) -> Answer {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let date = |name: HeaderName| text(name).and_then(|text| httpdate::parse_http_date(text).ok());
    let strong = |one: &str, other: &str| one == other;
    let weak = |one: &str, other: &str| one.trim_start_matches("W/") == other;
    let changed = match (text(IF_MATCH), date(IF_UNMODIFIED_SINCE)) {
        (Some(tags), _) => !version.is_in(tags, strong),
        (None, Some(date)) => version.modified > date,
        (None, None) => false,
    };
    if changed {
        return Answer::PreconditionFailed;
    }
    let known = match (text(IF_NONE_MATCH), date(IF_MODIFIED_SINCE)) {
        (Some(tags), _) => version.is_in(tags, weak),
        (None, Some(date)) => version.modified <= date,
        (None, None) => false,
    };
    if known {
        return Answer::NotModified;
    }
    let fits = headers.get(IF_RANGE).is_none_or(|_| {
        let proves = now.duration_since(version.modified).is_ok_and(|age| age > DATE_PROVES_AFTER);
        text(IF_RANGE) == Some(&version.tag) || (proves && date(IF_RANGE) == Some(version.modified))
    });
    match text(RANGE).filter(|_| fits) {
        Some(range) => part(range, version.bytes),
        None => Answer::Whole,
    }
}

/// Parse one range; several ranges or an invalid one are answered with the whole file.
fn part(range: &str, bytes: u64) -> Answer {
    let parsed = || {
        let (first, last) = range.strip_prefix("bytes=")?.trim().split_once('-')?;
        let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u64>().ok())?;
        match (first, last) {
            ("", last) => number(last).map(|count| (bytes.saturating_sub(count), u64::MAX)),
            (first, "") => Some((number(first)?, u64::MAX)),
            (first, last) => Some((number(first)?, number(last)?)).filter(|(first, last)| first <= last),
        }
    };
    match parsed() {
        None => Answer::Whole,
        Some((first, _)) if first >= bytes => Answer::NoSuchRange,
        Some((first, last)) => Answer::Part(first, last.min(bytes - 1)),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn date_ends_with_the_year_9999() {
        for (mtime_s, shown) in [
            (-1, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (253_402_300_799, "Fri, 31 Dec 9999 23:59:59 GMT"),
            (253_402_300_800, "Fri, 31 Dec 9999 23:59:59 GMT"),
            (i64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ] {
            assert_eq!(httpdate::fmt_http_date(date(mtime_s)), shown, "{mtime_s}");
        }
    }

    #[test]
    fn answer_follows_conditions() {
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let version = Version { tag: "\"v1\"".to_owned(), modified, bytes: 100 };
        let same = "Tue, 14 Nov 2023 22:13:20 GMT";
        let (before, after) = ("Tue, 14 Nov 2023 22:13:19 GMT", "Tue, 14 Nov 2023 22:13:21 GMT");
        let range = |value| (RANGE, value);
        for (headers, expected) in [
            (vec![], Answer::Whole),
            (vec![range("bytes=10-19")], Answer::Part(10, 19)),
            (vec![range("bytes=10-")], Answer::Part(10, 99)),
            (vec![range("bytes=90-200")], Answer::Part(90, 99)),
            (vec![range("bytes=-10")], Answer::Part(90, 99)),
            (vec![range("bytes=-200")], Answer::Part(0, 99)),
            (vec![range("bytes=100-")], Answer::NoSuchRange),
            (vec![range("bytes=-0")], Answer::NoSuchRange),
            (vec![range("bytes=19-10")], Answer::Whole),
            (vec![range("bytes=0-1,5-6")], Answer::Whole),
            (vec![range("bytes=+1-2")], Answer::Whole),
            (vec![range("lines=1-2")], Answer::Whole),
            (vec![range("bytes=99999999999999999999-")], Answer::Whole),
            (vec![range("bytes=1-2"), (IF_RANGE, "\"v1\"")], Answer::Part(1, 2)),
            (vec![range("bytes=1-2"), (IF_RANGE, "\"v0\"")], Answer::Whole),
            (vec![range("bytes=1-2"), (IF_RANGE, "W/\"v1\"")], Answer::Whole),
            (vec![range("bytes=1-2"), (IF_RANGE, same)], Answer::Part(1, 2)),
            (vec![range("bytes=1-2"), (IF_RANGE, before)], Answer::Whole),
            (vec![range("bytes=1-2"), (IF_RANGE, after)], Answer::Whole),
            (vec![range("bytes=1-2"), (IF_RANGE, "nonsense")], Answer::Whole),
            (vec![(IF_NONE_MATCH, "\"v0\", W/\"v1\"")], Answer::NotModified),
            (vec![(IF_NONE_MATCH, "*")], Answer::NotModified),
            (vec![(IF_NONE_MATCH, "\"v0\""), (IF_MODIFIED_SINCE, after)], Answer::Whole),
            (vec![(IF_MODIFIED_SINCE, same)], Answer::NotModified),
            (vec![(IF_MODIFIED_SINCE, before)], Answer::Whole),
            (vec![(IF_MATCH, "\"v1\"")], Answer::Whole),
            (vec![(IF_MATCH, "W/\"v1\"")], Answer::PreconditionFailed),
            (vec![(IF_UNMODIFIED_SINCE, before)], Answer::PreconditionFailed),
            (vec![(IF_UNMODIFIED_SINCE, same)], Answer::Whole),
        ] {
            let map = headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect();
            assert_eq!(answer(&map, &version, modified + Duration::from_secs(60)), expected, "{headers:?}");
        }
        let map = [range("bytes=1-2"), (IF_RANGE, same)].map(|(name, value)| (name, HeaderValue::from_static(value)));
        assert_eq!(answer(&map.into_iter().collect(), &version, modified), Answer::Whole, "changed in this second");
    }
}
