//! Join tokens: `<id>.<secret>.<sha256 of the CA's public key info>`. The coordinator stores a digest of the secret;
//! the agent checks the CA before it sends the secret.

use aws_lc_rs::{constant_time, digest};

use super::{PkiError, random};

/// Length of the id, which is public.
const ID_BYTES: usize = 6;
/// Length of the secret; too long to guess.
const SECRET_BYTES: usize = 32;
/// Longest token that is parsed.
const TOKEN_BYTES_MAX: usize = 256;

/// A new token: its text is only shown once.
pub struct NewToken {
    /// Its name for operators.
    pub id: String,
    /// The text for the agent.
    pub text: String,
    /// Digest of its secret, for the store.
    pub secret_sha256: [u8; 32],
}

impl NewToken {
    /// Create a token that leads an agent to the CA with this pin.
    ///
    /// # Errors
    /// [`PkiError::Random`].
    pub fn make(ca_pin: &[u8; 32]) -> Result<Self, PkiError> {
        let id = hex(&random::<ID_BYTES>()?);
        let secret = hex(&random::<SECRET_BYTES>()?);
        Ok(Self { text: format!("{id}.{secret}.{}", hex(ca_pin)), secret_sha256: sha256(secret.as_bytes()), id })
    }
}

/// A token from an agent. It holds its secret only as a digest.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The id it claims.
    pub id: String,
    secret_sha256: [u8; 32],
}

impl Token {
    /// Parse a token. None: the text has another format.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split('.').collect();
        let [id, secret, pin] = parts.as_slice() else { return None };
        let hex_of = |part: &str, bytes| part.len() == 2 * bytes && part.bytes().all(|b| b.is_ascii_hexdigit());
        let good = text.len() <= TOKEN_BYTES_MAX
            && hex_of(id, ID_BYTES)
            && hex_of(secret, SECRET_BYTES)
            && hex_of(pin, digest::SHA256_OUTPUT_LEN);
        good.then(|| Self { id: (*id).to_owned(), secret_sha256: sha256(secret.as_bytes()) })
    }

    /// Does its secret have this digest? Runs in constant time.
    #[must_use]
    pub fn opens(&self, secret_sha256: &[u8; 32]) -> bool {
        constant_time::verify_slices_are_equal(&self.secret_sha256, secret_sha256).is_ok()
    }

    /// Digest of its secret.
    #[must_use]
    pub const fn secret_sha256(&self) -> &[u8; 32] {
        &self.secret_sha256
    }
}

pub(super) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut sum = [0; 32];
    sum.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    sum
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_opens_what_it_was_made_for() {
        let new = NewToken::make(&[0xab; 32]).expect("random");
        let other = NewToken::make(&[0xab; 32]).expect("random");
        let token = Token::parse(&new.text).expect("a token");
        assert_eq!(token.id, new.id);
        assert!(token.opens(&new.secret_sha256));
        assert!(!token.opens(&other.secret_sha256));
        assert_ne!(new.id, other.id);
        assert!(new.text.ends_with(&format!(".{}", "ab".repeat(32))), "{}", new.text);
        assert!(!new.text.contains(&hex(&new.secret_sha256)), "the digest is not the secret");
    }

    #[test]
    fn what_is_no_token() {
        let good = NewToken::make(&[1; 32]).expect("random").text;
        assert!(Token::parse(&good).is_some());
        let (id, rest) = good.split_once('.').expect("dots");
        for bad in [
            String::new(),
            "a.b.c".to_owned(),
            format!("{good}."),
            format!("{good}0"),
            format!(" {good}"),
            format!("{good}\n"),
            good.replacen('.', "", 1),
            format!("{id}g{rest}"),
            format!("zzzzzzzzzzzz.{rest}"),
            "9".repeat(10_000),
        ] {
            assert!(Token::parse(&bad).is_none(), "{bad}");
        }
    }
}
