//! Where known values are in a fleet: every byte that it produced is looked at.

use std::sync::{Mutex, PoisonError};

use anyhow::{Result, ensure};
use muster_tests::nodes::{Nodes, node::Node};

/// Reads values, a line each, and names every place on a machine that has one of them: its files (the journal's among
/// them), what its processes show of themselves, its journal as text, and what systemd knows of its units. The values
/// are never an argument.
const LOOK: &str = r#"values=$(cat)
look() { printf '%s\n' "$values" | grep --binary-files=text --fixed-strings --file=- "$@"; }
look --recursive --files-with-matches --devices=skip /etc /root /run /tmp /var /opt /srv || true
for file in /proc/[0-9]*/cmdline /proc/[0-9]*/environ; do
    look --quiet "$file" 2>/dev/null && echo "$file"
done
if command -v journalctl >/dev/null && [ -d /run/systemd/system ]; then
    journalctl --all --output=export | look --quiet && echo the journal
    systemctl show --all '*' | look --quiet && echo "properties of units"
fi
true"#;

/// The places of a machine, one a line.
pub(crate) fn places_on(node: &Node, values: &[&str]) -> Result<String> {
    node.run_with(&["sh", "-c", LOOK], &values.join("\n"))?.ok()
}

pub(crate) fn has_none(what: &str, text: &str, values: &[&str]) -> Result<()> {
    ensure!(!values.iter().any(|value| text.contains(value)), "{what}:\n{text}");
    Ok(())
}

/// None of the values is anywhere: on the nodes, where the coordinator and the operator are, in what they say, of that
/// machine among others.
pub(crate) fn nowhere(fleet: &Nodes, machine: &str, values: &[&str]) -> Result<()> {
    let found = Mutex::new(Vec::new());
    fleet.on_every_node(|_, node| {
        let places = places_on(node, values)?;
        let places = places.lines().map(|place| format!("{}: {place}", node.name));
        found.lock().unwrap_or_else(PoisonError::into_inner).extend(places);
        Ok(())
    })?;
    let all = values.join("\n");
    let of = |whose: &str, places: String| places.lines().map(|place| format!("{whose}: {place}")).collect::<Vec<_>>();
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.extend(of("the coordinator", fleet.look_at_coordinator(LOOK, &all)?));
    found.extend(of("the operator", fleet.operate(LOOK, &all)?));
    ensure!(found.is_empty(), "values are in\n{}", found.join("\n"));
    has_none("the coordinator's log", &fleet.coordinator_log()?, values)?;
    for kind in ["secrets", "machines", "clusters", "tokens", "audit"] {
        has_none(kind, &fleet.ctl(&["get", kind, "-o", "json"])?.ok()?, values)?;
    }
    for words in [&["describe", "machine", machine][..], &["get", "machines", "-o", "wide"]] {
        has_none(&words.join(" "), &fleet.ctl(words)?.ok()?, values)?;
    }
    Ok(())
}
