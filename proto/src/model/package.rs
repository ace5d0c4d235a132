//! Packages as items name them: `NAME` or `NAME=VERSION`, for both apt and dnf.

/// Longest name and longest version.
const WORD_BYTES_MAX: usize = 200;

/// Split a word into a package's name and the desired version, if given. None: the word is malformed.
#[must_use]
pub fn package_and_version(word: &str) -> Option<(&str, Option<&str>)> {
    let (name, version) = word.split_once('=').map_or((word, None), |(name, version)| (name, Some(version)));
    (is_name(name) && version.is_none_or(is_version)).then_some((name, version))
}

/// A `-` at the end would mean "remove" to apt.
fn is_name(text: &str) -> bool {
    begins_and_fits(text) && !text.ends_with('-') && all(text, b"+-._:")
}

fn is_version(text: &str) -> bool {
    begins_and_fits(text) && all(text, b".+-~:^_")
}

fn begins_and_fits(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.len() <= WORD_BYTES_MAX
}

fn all(text: &str, marks: &[u8]) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || marks.contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_name_packages() {
        let long = "a".repeat(WORD_BYTES_MAX);
        for (word, wanted) in [
            ("docker.io", ("docker.io", None)),
            ("libc6:amd64", ("libc6:amd64", None)),
            ("g++-12=12.2.0-14+deb12u1", ("g++-12", Some("12.2.0-14+deb12u1"))),
            ("vim=2:9.0~rc1^2", ("vim", Some("2:9.0~rc1^2"))),
            (&long, (&long, None)),
        ] {
            assert_eq!(package_and_version(word), Some(wanted), "{word}");
        }
        let too_long = long.clone() + "a";
        for word in ["", "=1", "a=", "docker.io,", "a>=1", "a=1=2", "-y", "a-", "a/b", "a b", "ä", &too_long] {
            assert_eq!(package_and_version(word), None, "{word}");
        }
    }
}
