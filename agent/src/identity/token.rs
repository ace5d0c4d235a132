//! The text of a join token: `<id>.<secret>.<sha256 of the CA's public key info>`.

use std::{
    io::{self, Read},
    path::Path,
};

use crate::identity::IdentityError;

/// Maximum size of a token file. A token is about 130 bytes long.
pub const TOKEN_BYTES_MAX: u64 = 1024;

/// Fault in a token's text. Its message omits the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenFault {
    /// Empty text.
    #[error("it is empty")]
    Empty,
    /// Longer than any token.
    #[error("it is longer than {TOKEN_BYTES_MAX} bytes")]
    TooLong,
    /// A number of parts other than three.
    #[error("it does not have the three parts <id>.<secret>.<digest>")]
    Parts,
    /// Invalid characters in the id or secret.
    #[error("it has a character that no token has")]
    Characters,
    /// The last part is an invalid CA digest.
    #[error("its last part is not the 64 hex digits of a digest")]
    Digest,
}

/// A join token. No `Debug`: it holds a secret.
#[derive(Clone)]
pub struct JoinToken {
    text: String,
    ca_spki_sha256: [u8; 32],
}

impl JoinToken {
    /// Parses a token and checks its format.
    ///
    /// # Errors
    /// [`TokenFault`].
    pub fn parse(text: &str) -> Result<Self, TokenFault> {
        let text = text.trim();
        if text.is_empty() {
            return Err(TokenFault::Empty);
        }
        if text.len() as u64 > TOKEN_BYTES_MAX {
            return Err(TokenFault::TooLong);
        }
        let [id, secret, digest] = text.split('.').collect::<Vec<_>>()[..] else { return Err(TokenFault::Parts) };
        let word = |part: &str| part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if id.is_empty() || secret.is_empty() {
            return Err(TokenFault::Parts);
        }
        if !word(id) || !word(secret) {
            return Err(TokenFault::Characters);
        }
        let ca_spki_sha256 =
            muster_proto::model::ItemHash::try_from(digest.to_owned()).map_err(|_| TokenFault::Digest)?.0;
        Ok(Self { text: text.to_owned(), ca_spki_sha256 })
    }

    /// Reads a token from a file, or from standard input for `-`.
    ///
    /// # Errors
    /// [`IdentityError::TokenFile`] or [`IdentityError::Token`].
    pub fn read(path: &Path) -> Result<Self, IdentityError> {
        // The token is now in a shell's history; keep it out of the logs.
        if path.to_str().is_some_and(|text| Self::parse(text).is_ok()) {
            return Err(IdentityError::TokenGiven);
        }
        let stdin = path == Path::new("-");
        let from = if stdin { "standard input".to_owned() } else { path.display().to_string() };
        let mut text = String::new();
        let read = |source: &mut dyn Read| source.take(TOKEN_BYTES_MAX + 2).read_to_string(&mut text);
        let outcome = if stdin {
            let mut read = read;
            read(&mut io::stdin().lock())
        } else {
            std::fs::File::open(path).and_then(|mut file| {
                let mut read = read;
                read(&mut file)
            })
        };
        outcome.map_err(|source| IdentityError::TokenFile { from, source })?;
        Self::parse(&text).map_err(IdentityError::Token)
    }

    /// Public id, which operators use.
    #[must_use]
    pub fn id(&self) -> &str {
        self.text.split('.').next().unwrap_or_default()
    }

    /// The full text for the coordinator.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Digest of the coordinator's CA.
    #[must_use]
    pub const fn ca_spki_sha256(&self) -> [u8; 32] {
        self.ca_spki_sha256
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn token_texts() {
        let digest = "0123456789abcdef".repeat(4);
        let check = |text: &str, expected: Result<(), TokenFault>| {
            assert_eq!(JoinToken::parse(text).map(|_| ()), expected, "{text}");
        };
        check(&format!("abc123.Zx_-9.{digest}"), Ok(()));
        check(&format!("  abc123.Zx_-9.{digest}\n"), Ok(()));
        check("", Err(TokenFault::Empty));
        check(" \n", Err(TokenFault::Empty));
        check(&"a".repeat(1025), Err(TokenFault::TooLong));
        check("abc", Err(TokenFault::Parts));
        check(&format!("a.b.c.{digest}"), Err(TokenFault::Parts));
        check(&format!(".b.{digest}"), Err(TokenFault::Parts));
        check(&format!("a..{digest}"), Err(TokenFault::Parts));
        check(&format!("a.b c.{digest}"), Err(TokenFault::Characters));
        check(&format!("a.b\0.{digest}"), Err(TokenFault::Characters));
        check(&format!("é.b.{digest}"), Err(TokenFault::Characters));
        check("a.b.", Err(TokenFault::Digest));
        check("a.b.0123", Err(TokenFault::Digest));
        check(&format!("a.b.{}", "g".repeat(64)), Err(TokenFault::Digest));
    }

    #[test]
    fn a_token_is_read_from_a_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("token");
        let error = JoinToken::read(&path).err().expect("an error");
        assert!(matches!(&error, IdentityError::TokenFile { from, .. } if from.ends_with("token")), "{error}");
        std::fs::write(&path, format!("a.b.{}\n", "0".repeat(64))).expect("written");
        let read = JoinToken::read(&path).ok();
        assert_eq!(read.map(|token| (token.id().to_owned(), token.ca_spki_sha256())), Some(("a".to_owned(), [0; 32])));
        let given = JoinToken::read(Path::new(&format!("a.secret.{}", "0".repeat(64)))).err().expect("no file's name");
        assert!(matches!(&given, IdentityError::TokenGiven) && !given.to_string().contains("secret"), "{given}");
        std::fs::write(&path, [0xff, 0xfe]).expect("written");
        assert!(matches!(JoinToken::read(&path), Err(IdentityError::TokenFile { .. })));
        std::fs::write(&path, "x".repeat(5000)).expect("written");
        assert!(matches!(JoinToken::read(&path), Err(IdentityError::Token(TokenFault::TooLong))));
    }

    /// Texts that resemble a token.
    fn nearly_a_token() -> impl Strategy<Value = String> {
        prop_oneof![
            any::<String>(),
            "[a-zA-Z0-9_.-]{0,40}",
            "[ \n]{0,2}[0-9a-f]{1,16}\\.[0-9a-zA-Z_-]{1,64}\\.[0-9a-fA-F]{62,66}[ \n]{0,2}",
            ("[a-z.]{0,6}", 0..1200_usize).prop_map(|(part, times)| part.repeat(times)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_is_a_token_or_none(text in nearly_a_token()) {
            let dir = tempfile::tempdir().expect("a directory");
            std::fs::write(dir.path().join("token"), &text).expect("written");
            let read = JoinToken::read(&dir.path().join("token"));
            match JoinToken::parse(&text) {
                Ok(token) => {
                    prop_assert_eq!(token.text(), text.trim());
                    prop_assert!(token.text().bytes().all(|b| b.is_ascii_graphic()), "nothing else is sent");
                    let parts: Vec<&str> = token.text().split('.').collect();
                    prop_assert!(parts.len() == 3 && parts.iter().all(|part| !part.is_empty()));
                    let digest = muster_proto::model::ItemHash(token.ca_spki_sha256()).to_string();
                    prop_assert_eq!(digest, parts[2].to_ascii_lowercase());
                    prop_assert!(read.is_ok_and(|read| read.text() == token.text()));
                }
                Err(fault) => {
                    let said = fault.to_string();
                    prop_assert!(text.trim().len() < 30 || !said.contains(text.trim()), "{}", said);
                    prop_assert!(matches!(read, Err(IdentityError::Token(_))), "the file's is refused as well");
                }
            }
        }
    }
}
