//! `vars`: structured variables of a playbook, as YAML; and `ignoreChanges`: names whose changes do not rerun an item.

use std::collections::{BTreeMap, BTreeSet};

use muster_proto::{
    model::{IGNORE_CHANGES_MAX, PARAM_BYTES_MAX, RunnerKind, VAR_NAME_BYTES_MAX, VARS_DEPTH_MAX, is_var_name},
    variables::{VARS_PARAM, vars},
};
use serde_json::Value;

use super::{
    fault::Faults,
    params::{Secrets, variables},
    read::{Free, Map, Spot, one_of},
};

type Params = BTreeMap<String, String>;

/// Add `vars` to the params, under the name that carries them. None: they have faults.
pub(super) fn read(
    map: &Map<'_>,
    runner: Option<RunnerKind>,
    params: Option<Params>,
    secrets: Secrets<'_>,
    faults: &mut Faults<'_>,
) -> Option<Params> {
    let Some(spot) = map.get("vars") else { return params };
    if runner.is_some_and(|runner| runner != RunnerKind::Ansible) {
        spot.fault(faults, "variables of a playbook for another runner", "runner ansible, or params");
        return None;
    }
    let before = faults.count();
    let taken = |key: &str| params.as_ref().is_some_and(|params| params.contains_key(key));
    for Free { key, key_at, value } in spot.free(faults)? {
        if !is_var_name(key) {
            let expected = format!("1 to {VAR_NAME_BYTES_MAX} letters, digits and '_', no digit first");
            faults.add(key_at, &value.path, "not a variable's name", expected);
        } else if taken(key) {
            faults.add(key_at, &value.path, "a param has this name", "the value in one of the two");
        }
    }
    let text = |spot: &Spot<'_>, text: &str, faults: &mut Faults<'_>| variables(spot, text, secrets, faults);
    let data = spot.data(VARS_DEPTH_MAX, &text, faults)?.to_string();
    if data.len() > PARAM_BYTES_MAX {
        spot.fault(faults, "too long together", format!("at most {} KiB as JSON", PARAM_BYTES_MAX / 1024));
    }
    let mut params = params?;
    params.insert(VARS_PARAM.to_owned(), data);
    (faults.count() == before).then_some(params)
}

/// `ignoreChanges`: names of params and `vars` of the item.
pub(super) fn ignored(spot: &Spot<'_>, params: Option<&Params>, faults: &mut Faults<'_>) -> Option<BTreeSet<String>> {
    let before = faults.count();
    let spots = spot.list(faults)?;
    if spots.len() > IGNORE_CHANGES_MAX {
        spot.fault(faults, "too many names", format!("at most {IGNORE_CHANGES_MAX}"));
    }
    let own = params.and_then(|params| params.get(VARS_PARAM)).and_then(|text| vars(text).ok()).unwrap_or_default();
    let plain = params.into_iter().flatten().map(|(name, _)| name.as_str()).filter(|name| *name != VARS_PARAM);
    let known: BTreeSet<&str> = plain.chain(own.keys().map(String::as_str)).collect();
    let mut names = BTreeSet::new();
    for spot in spots {
        let Some(name) = spot.text(faults) else { continue };
        if params.is_some() && !known.contains(name) {
            let known: Vec<&str> = known.iter().copied().collect();
            let expected = if known.is_empty() { "no name: the item has no params".to_owned() } else { one_of(&known) };
            faults.add_near(
                spot.at(),
                &spot.path,
                "no param of the item, and none of its vars",
                expected,
                (name, known),
            );
        }
        names.insert(name.to_owned());
    }
    (faults.count() == before).then_some(names)
}

/// Does Ansible accept this key unchanged at every level?
pub(super) fn is_key(key: &str) -> bool {
    !key.starts_with("__ansible") && !key.contains('\0')
}

/// A number in JSON's form. None: YAML parsers disagree on it, or JSON lacks an equivalent.
pub(super) fn number(text: &str) -> Option<Value> {
    let digits = text.trim_start_matches('-');
    let (whole, _) = digits.split_once(['.', 'e', 'E']).unwrap_or((digits, ""));
    let plain =
        !whole.is_empty() && whole.bytes().all(|b| b.is_ascii_digit()) && (whole == "0" || !whole.starts_with('0'));
    if !plain {
        return None;
    }
    if whole.len() == digits.len() {
        return text.parse::<i64>().map(Value::from).or_else(|_| text.parse::<u64>().map(Value::from)).ok();
    }
    text.parse::<f64>().ok().filter(|number| number.is_finite()).map(Value::from)
}
