//! Ages in kubectl's format, and sizes for people.

use jiff::Timestamp;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// Time from `then` to `now`. A time in the future (another machine's clock) is `0s`.
#[must_use]
pub fn age(then: Timestamp, now: Timestamp) -> String {
    span(now.as_second().saturating_sub(then.as_second()))
}

/// A number of seconds, in two units at most; the second only while it matters.
#[must_use]
pub fn span(seconds: i64) -> String {
    let s = seconds.max(0);
    let pair = |big: i64, b: &str, small: i64, l: &str| match s % big / small {
        0 => format!("{}{b}", s / big),
        rest => format!("{}{b}{rest}{l}", s / big),
    };
    match s {
        _ if s < 2 * MINUTE => format!("{s}s"),
        _ if s < 10 * MINUTE => pair(MINUTE, "m", 1, "s"),
        _ if s < 3 * HOUR => format!("{}m", s / MINUTE),
        _ if s < 8 * HOUR => pair(HOUR, "h", MINUTE, "m"),
        _ if s < 2 * DAY => format!("{}h", s / HOUR),
        _ if s < 8 * DAY => pair(DAY, "d", HOUR, "h"),
        _ if s < 2 * YEAR => format!("{}d", s / DAY),
        _ => pair(YEAR, "y", DAY, "d"),
    }
}

/// A number of bytes: `64 MiB`, `1.5 GiB`.
#[must_use]
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut unit_bytes = 1024_u64;
    let mut name = "KiB";
    for next in UNITS.into_iter().skip(1) {
        if count / unit_bytes < 1024 {
            break;
        }
        unit_bytes *= 1024;
        name = next;
    }
    let (whole, tenth) = (count / unit_bytes, count % unit_bytes * 10 / unit_bytes);
    if whole >= 10 || tenth == 0 { format!("{whole} {name}") } else { format!("{whole}.{tenth} {name}") }
}

/// A time, to the second: `2026-03-01 12:00:03Z`.
pub(super) fn moment(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// Time until or since a moment: `in 3d`, `2h ago`.
pub(super) fn until(moment: Timestamp, now: Timestamp) -> String {
    let left = moment.as_second().saturating_sub(now.as_second());
    if left > 0 { format!("in {}", span(left)) } else { format!("{} ago", span(-left)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_like_kubectl() {
        for (seconds, expected) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (190, "3m10s"),
            (600, "10m"),
            (3 * 3600 - 1, "179m"),
            (3 * 3600, "3h"),
            (4 * 3600 + 120, "4h2m"),
            (47 * 3600, "47h"),
            (3 * 86_400, "3d"),
            (3 * 86_400 + 7200, "3d2h"),
            (100 * 86_400, "100d"),
            (800 * 86_400, "2y70d"),
        ] {
            assert_eq!(span(seconds), expected, "{seconds}");
        }
    }

    #[test]
    fn sizes() {
        for (count, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (64 << 20, "64 MiB"),
            (10_000_000_000, "9.3 GiB"),
            (u64::MAX, "16383 PiB"),
        ] {
            assert_eq!(bytes(count), expected);
        }
    }
}
