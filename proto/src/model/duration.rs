//! Durations as written in manifests, documents and options: `7d`, `24h`, `1h30m`, `90s`.

use serde::{Deserialize, Deserializer, Serializer, de};

/// Days, hours, minutes and seconds in milliseconds.
const UNITS: [(char, u64); 4] = [('d', 86_400_000), ('h', 3_600_000), ('m', 60_000), ('s', 1000)];

/// Parse days, hours, minutes and seconds, in this order, each at most once, into milliseconds. None: the text is
/// invalid.
#[must_use]
pub fn duration_ms(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut total_ms = 0u64;
    for (unit, unit_ms) in UNITS {
        let Some((count, after)) = rest.split_once(unit) else { continue };
        if count.is_empty() || !count.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        total_ms = count.parse::<u64>().ok()?.checked_mul(unit_ms)?.checked_add(total_ms)?;
        rest = after;
    }
    (rest.is_empty() && !text.is_empty()).then_some(total_ms)
}

/// A duration as text, with hours as the largest unit, as in LCM. None: it has a fraction of a second, which manifests
/// cannot express.
fn duration_text(ms: u64) -> Option<String> {
    let mut text = String::new();
    let mut left_ms = ms;
    for (unit, unit_ms) in UNITS.into_iter().skip(1) {
        if left_ms >= unit_ms {
            text.push_str(&format!("{}{unit}", left_ms / unit_ms));
            left_ms %= unit_ms;
        }
    }
    match ms {
        0 => Some("0s".to_owned()),
        _ => (left_ms == 0).then_some(text),
    }
}

/// For fields in milliseconds that documents show as text; a value with fractions of a second stays a number.
pub(super) fn serialize<S: Serializer>(ms: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    match duration_text(*ms) {
        Some(text) => serializer.serialize_str(&text),
        None => serializer.serialize_u64(*ms),
    }
}

/// Accept text, or a number of milliseconds.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Ms(u64),
        Text(String),
    }
    match Either::deserialize(deserializer)? {
        Either::Ms(ms) => Ok(ms),
        Either::Text(text) => duration_ms(&text).ok_or_else(|| de::Error::custom("not a time such as 1h30m")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, expected) in [
            ("90s", Some(90_000)),
            ("30m", Some(1_800_000)),
            ("24h", Some(86_400_000)),
            ("1h30m", Some(5_400_000)),
            ("1h0m1s", Some(3_601_000)),
            ("0s", Some(0)),
            ("", None),
            ("30", None),
            ("h", None),
            ("30m1h", None),
            ("-1h", None),
            ("+1h", None),
            ("1.5h", None),
            ("1d", Some(86_400_000)),
            ("1d12h", Some(129_600_000)),
            ("12h1d", None),
            ("1h 30m", None),
            ("1h30", None),
            ("18446744073709551615h", None),
        ] {
            assert_eq!(duration_ms(text), expected, "{text}");
        }
    }

    #[test]
    fn a_document_says_what_the_manifest_said() {
        for (ms, expected) in [
            (0, Some("0s")),
            (1000, Some("1s")),
            (90_000, Some("1m30s")),
            (5_400_000, Some("1h30m")),
            (86_400_000, Some("24h")),
            (3_601_000, Some("1h1s")),
            (1, None),
            (60_001, None),
        ] {
            assert_eq!(duration_text(ms).as_deref(), expected, "{ms}");
            assert_eq!(duration_text(ms).and_then(|text| duration_ms(&text)).unwrap_or(ms), ms);
        }
    }
}
