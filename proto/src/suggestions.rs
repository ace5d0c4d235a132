//! "Did you mean …?": the known name closest to a mistyped one.

/// Number of letters for each mistake allowed.
const LETTERS_PER_MISTAKE: usize = 3;
/// Longest name that is compared, in bytes: the cost is the product of both lengths.
const NAME_BYTES_MAX: usize = 253;

/// The known name closest to `name`, with at most a third of the letters wrong. Case and any prefix up to a '/' are
/// ignored. Digits must match exactly.
#[must_use]
pub fn nearest<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let own = |name: &str| name.rsplit('/').next().unwrap_or_default().to_lowercase();
    let digits = |name: &str| name.chars().filter(char::is_ascii_digit).collect::<String>();
    let distance = |known: &'k str| {
        let is_comparable = name.len().max(known.len()) <= NAME_BYTES_MAX && digits(name) == digits(known);
        is_comparable.then(|| (strsim::damerau_levenshtein(&own(name), &own(known)), known))
    };
    let (mistakes, nearest) = known.into_iter().filter_map(distance).min_by_key(|(mistakes, _)| *mistakes)?;
    (mistakes * LETTERS_PER_MISTAKE <= own(name).chars().count()).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_name_has_few_mistakes() {
        let known = ["x", "control-1", "worker-1", "worker-12", "operator/vera", "edge-7/db"];
        for (name, expected) in [
            ("wroker-12", Some("worker-12")),
            ("worker12", Some("worker-12")),
            ("WORKER-1", Some("worker-1")),
            ("worker-9", None),
            ("worker-11", None),
            ("zz", None),
            ("", None),
            ("operator/vear", Some("operator/vera")),
            ("viewer/vera", Some("operator/vera")),
            ("operator/nope", None),
        ] {
            assert_eq!(nearest(name, known), expected, "{name}");
        }
        assert_eq!(nearest("database", ["data-base"]), Some("data-base"));
        let long = "w".repeat(NAME_BYTES_MAX + 1);
        assert_eq!(nearest(&long, [long.as_str()]), None);
    }
}
