//! Serialization of our own data as JSON.

use serde::Serialize;

/// Serialize data as JSON. Only for data that always serializes: plain data, maps with text keys. Never substitute an
/// empty value on failure: all empty values hash alike, and an empty record is worthless.
///
/// # Panics
/// If serialization fails, which is a bug.
#[must_use]
#[expect(clippy::panic, reason = "a bug: the process dies before anything is recorded or compared")]
pub fn json<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    match serde_json::to_vec(value) {
        Ok(text) => text,
        Err(error) => panic!("what always serializes does not: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    #[should_panic(expected = "what always serializes does not")]
    fn what_does_not_serialize_is_never_nothing() {
        drop(json(&BTreeMap::from([((1, 2), 3)])));
    }
}
