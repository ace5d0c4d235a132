//! Which known name was meant by one that nobody has. One rule for all that guess: whoever follows a guess acts by it.

/// So many letters of a name for each that may be wrong.
const LETTERS_PER_SLIP: usize = 3;
/// Nothing is like a longer word, in characters: comparing takes the product of both lengths.
const WORD_CHARS_MAX: usize = 253;

/// The known name that differs least from `word`, if it differs in no more than a third of its letters. Case makes no
/// difference.
#[must_use]
pub fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    known
        .into_iter()
        .filter_map(|known| Some((slips(word, known)?, known)))
        .min_by_key(|(slips, _)| *slips)
        .map(|(_, known)| known)
}

/// Is `known` what a slip of the fingers makes of `word`?
#[must_use]
pub fn is_slip(word: &str, known: &str) -> bool {
    slips(word, known).is_some()
}

/// How many letters are wrong; None: too many.
fn slips(word: &str, known: &str) -> Option<usize> {
    let (word, known) = own_parts(word, known);
    let longest = word.chars().count().max(known.chars().count());
    if word.is_empty() || longest > WORD_CHARS_MAX || is_another_number(word, known) {
        return None;
    }
    let slips = strsim::damerau_levenshtein(&word.to_lowercase(), &known.to_lowercase());
    (slips <= longest / LETTERS_PER_SLIP).then_some(slips)
}

/// Another number is another name: `worker-9` is no misspelt `worker-1`.
fn is_another_number(word: &str, known: &str) -> bool {
    let parts = |name: &str| {
        let stem = name.trim_end_matches(|letter: char| letter.is_ascii_digit()).len();
        let (stem, number) = name.split_at(stem);
        (stem.to_lowercase(), number.trim_start_matches('0').to_owned())
    };
    let (word, known) = (parts(word), parts(known));
    word.0 == known.0 && word.1 != known.1 && !word.1.is_empty() && !known.1.is_empty()
}

/// What is compared: that both are options, or of the same, as `operator/anna` and `operator/bo` or `machine.ip` and
/// `machine.name`, makes them no more alike.
fn own_parts<'a>(word: &'a str, known: &'a str) -> (&'a str, &'a str) {
    let parts =
        |mark: char| word.split_once(mark).zip(known.split_once(mark)).filter(|(word, known)| word.0 == known.0);
    match parts('/').or_else(|| parts('.')) {
        Some(((_, word), (_, known))) => (word, known),
        None => (word.trim_start_matches('-'), known.trim_start_matches('-')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_one_that_fingers_slip_to() {
        let known = ["x", "control-1", "worker-1", "worker-12", "operator/vera", "machine.name", "--release"];
        for (word, expected) in [
            ("wroker-12", Some("worker-12")),
            ("worker12", Some("worker-12")),
            ("control1", Some("control-1")),
            ("WORKER-1", Some("worker-1")),
            ("worker-01", Some("worker-1")),
            ("worker-9", None),
            ("w", None),
            ("machine.ip", None),
            ("machine.nmae", Some("machine.name")),
            ("worker-11", None),
            ("zz", None),
            ("", None),
            ("operator/vear", Some("operator/vera")),
            ("operatr/vera", Some("operator/vera")),
            ("operator/nope", None),
            ("--relaese", Some("--release")),
            ("--re", None),
        ] {
            assert_eq!(nearest(word, known), expected, "{word}");
        }
        assert_eq!(nearest(&"w".repeat(WORD_CHARS_MAX + 1), known), None);
    }
}
