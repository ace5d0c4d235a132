//! Machines as `musterctl get machines -o json` has them, however musterctl was run.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result};
use muster_proto::resource::Machine;

use super::{look_every, programs::Ran};

/// The words that ask for all of them.
pub(crate) const GET: &[&str] = &["get", "machines", "-o", "json"];

/// The words that ask for one of them.
pub(crate) const fn one(name: &str) -> [&str; 5] {
    ["get", "machine", name, "-o", "json"]
}

/// By name, from what [`GET`] or [`one`] made musterctl print.
///
/// # Errors
/// musterctl failed, or printed something else.
pub(crate) fn of(got: Ran) -> Result<BTreeMap<String, Machine>> {
    let mut list: BTreeMap<String, Vec<Machine>> = serde_json::from_str(&got.ok()?)?;
    let machines = list.remove("items").context("no items")?;
    Ok(machines.into_iter().map(|machine| (machine.metadata.name.clone(), machine)).collect())
}

/// Waits until a machine is as wanted; musterctl is asked again and again. The coordinator may be away meanwhile.
///
/// # Errors
/// It is not, in time.
pub(crate) fn wait(
    (every, patience): (Duration, Duration),
    (name, what): (&str, &str),
    get: impl Fn() -> Result<Ran>,
    wanted: impl Fn(&Machine) -> bool,
) -> Result<Machine> {
    let mut last = None;
    let seen = look_every(every, &format!("{name}: {what}"), patience, || {
        last = get().and_then(of).ok().and_then(|mut machines| machines.remove(name));
        Ok(last.clone().filter(&wanted))
    });
    seen.with_context(|| format!("last seen: {last:?}"))
}
