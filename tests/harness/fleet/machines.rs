//! Machines as `musterctl get machines -o json` prints them, independent of how musterctl was run.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result};
use muster_proto::resource::Machine;

use super::{look_every, programs::Ran};

/// Arguments that list all machines.
pub(crate) const GET: &[&str] = &["get", "machines", "-o", "json"];

/// Arguments that get one machine.
pub(crate) const fn one(name: &str) -> [&str; 5] {
    ["get", "machine", name, "-o", "json"]
}

/// Machines by name, from the output of musterctl with [`GET`] or [`one`].
///
/// # Errors
/// Fails if musterctl failed, or if its output has another format.
pub(crate) fn of(got: Ran) -> Result<BTreeMap<String, Machine>> {
    let mut list: BTreeMap<String, Vec<Machine>> = serde_json::from_str(&got.ok()?)?;
    let machines = list.remove("items").context("no items")?;
    Ok(machines.into_iter().map(|machine| (machine.metadata.name.clone(), machine)).collect())
}

/// Polls musterctl until a machine satisfies a condition. The coordinator may be down meanwhile.
///
/// # Errors
/// Fails on timeout.
pub(crate) fn wait(
    (every, time_limit): (Duration, Duration),
    (name, what): (&str, &str),
    get: impl Fn() -> Result<Ran>,
    wanted: impl Fn(&Machine) -> bool,
) -> Result<Machine> {
    let mut last = None;
    let seen = look_every(every, &format!("{name}: {what}"), time_limit, || {
        last = get().and_then(of).ok().and_then(|mut machines| machines.remove(name));
        Ok(last.clone().filter(&wanted))
    });
    seen.with_context(|| format!("last seen: {last:?}"))
}
