//! The hash of an item, which decides whether it is already done. The coordinator computes it; the agent recomputes it
//! and refuses a mismatch.

use std::collections::{BTreeMap, BTreeSet};

use aws_lc_rs::digest;
use serde::Serialize;
use serde_json::Value;

use crate::{
    json::json,
    model::{AssignedItem, ItemHash, ItemName, Phase},
    variables::{VARS_PARAM, vars},
};

/// Number of the canonical form. A new form gets a new number, so that unchanged items keep their hash.
const SCHEMA: u32 = 1;

/// Params that only locate the control plane (LCM ignores the same ones), so that moving a VIP leaves items done.
pub const LOCATING_PARAMS: &[&str] = &[
    "controlNodeIP",
    "mirrors_mgmt_disabled",
    "release_needs_upgrade",
    "supplementary_addresses_in_ssl_keys",
    "target_release",
    "ucp_lb",
    "ucp_tag",
];

/// Canonical JSON: sorted keys, compact. The fields are in alphabetical order; the map sorts itself.
#[derive(Serialize)]
struct Canonical<'a> {
    name: &'a str,
    params: BTreeMap<&'a str, &'a str>,
    phase: &'a str,
    runner: &'a str,
    schema: u32,
    version: &'a str,
}

/// The hash of an item after its early variables are replaced. Late variables enter as their text. Left out are
/// locating params, those of `ignore_changes`, and settings that leave the result alone: `timeout`, `retries`,
/// `onInterrupt` and `disruptive`.
#[must_use]
pub fn item_hash(
    name: &ItemName,
    runner: &str,
    version: &str,
    params: &BTreeMap<String, String>,
    phase: Phase,
    ignore_changes: &BTreeSet<String>,
) -> ItemHash {
    let counts = |name: &str| !LOCATING_PARAMS.contains(&name) && !ignore_changes.contains(name);
    // If `vars` is malformed, its text counts; agents refuse to start such an item.
    let vars = params.get(VARS_PARAM).map(|text| match vars(text) {
        Ok(vars) => Value::Object(vars.into_iter().filter(|(name, _)| counts(name)).collect()).to_string(),
        Err(_) => text.clone(),
    });
    let plain = params.iter().filter(|(name, _)| *name != VARS_PARAM && counts(name));
    let plain = plain.map(|(name, value)| (name.as_str(), value.as_str()));
    of_json(&Canonical {
        name: name.as_str(),
        params: plain.chain(vars.as_deref().map(|vars| (VARS_PARAM, vars))).collect(),
        phase: phase.as_str(),
        runner,
        schema: SCHEMA,
        version,
    })
}

/// SHA-256 of the value's JSON.
#[must_use]
pub fn of_json<T: Serialize>(value: &T) -> ItemHash {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest::digest(&digest::SHA256, &json(value)).as_ref());
    ItemHash(hash)
}

impl AssignedItem {
    /// The hash that this item should carry.
    #[must_use]
    pub fn computed_hash(&self) -> ItemHash {
        item_hash(&self.name, &self.runner, &self.version, &self.params, self.phase, &self.ignore_changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash_of(version: &str, params: &[(&str, &str)]) -> String {
        let params = params.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let name = ItemName::new("images").expect("a label");
        item_hash(&name, "downloader", version, &params, Phase::Prepare, &["ignored".to_owned()].into()).to_string()
    }

    #[test]
    fn the_canonical_form_is_fixed() {
        // By sha256sum of {"name":"images","params":{"path":"/a b","url":"http://x"},"phase":"prepare",
        // "runner":"downloader","schema":1,"version":"1"} in one line. A change makes every deployed item look changed.
        assert_eq!(
            hash_of("1", &[("url", "http://x"), ("path", "/a b")]),
            "c26a6f5788310b9b7c6dfb433b11a766ec5283b76078a8a48bd2b906dc89fcf2"
        );
    }

    #[test]
    fn locating_params_stay_out() {
        let plain = hash_of("1", &[("a", "b")]);
        assert_eq!(plain, hash_of("1", &[("a", "b"), ("ucp_lb", "10.0.0.1"), ("ignored", "x")]));
        assert_ne!(plain, hash_of("2", &[("a", "b")]));
        assert_ne!(plain, hash_of("1", &[("a", "c")]));
    }

    #[test]
    fn vars_count_whatever_their_order() {
        let of = |vars: &str| hash_of("1", &[(VARS_PARAM, vars)]);
        let plain = of(r#"{"a":{"x":1,"y":[true]},"b":"2"}"#);
        assert_eq!(plain, of(r#"{ "b": "2", "a": {"y": [true], "x": 1}, "ucp_tag": 3, "ignored": [4]}"#));
        for other in [r#"{"a":{"x":1,"y":[true]},"b":2}"#, r#"{"a":{"x":1,"y":[true],"ignored":1},"b":"2"}"#] {
            assert_ne!(plain, of(other), "{other}");
        }
    }

    #[test]
    fn a_hash_survives_its_text() {
        let text = hash_of("1", &[]);
        let hash = ItemHash::try_from(text.clone()).expect("hex");
        assert_eq!(hash.to_string(), text);
        assert!(ItemHash::try_from("é".repeat(32)).is_err());
        assert!(ItemHash::try_from("0".repeat(63)).is_err());
    }
}
