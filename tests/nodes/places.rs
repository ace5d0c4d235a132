//! Searches every byte that a fleet produced for known values.

use std::sync::{Mutex, PoisonError};

use anyhow::{Result, ensure};
use muster_tests::nodes::{Nodes, node::Node};

/// Reads values, one a line, and prints every place on a machine that contains one of them: its files (including the
/// journal's), its processes' arguments and environments, its journal as text, and systemd's properties of its units.
/// The values are never passed as arguments.
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

/// The places on a machine, one a line.
pub(crate) fn places_on(node: &Node, values: &[&str]) -> Result<String> {
    node.run_with(&["sh", "-c", LOOK], &values.join("\n"))?.ok()
}

pub(crate) fn has_none(what: &str, text: &str, values: &[&str]) -> Result<()> {
    ensure!(!values.iter().any(|value| text.contains(value)), "{what}:\n{text}");
    Ok(())
}

/// Checks that none of the values occurs on the nodes, the coordinator or the operator's machine, or in their outputs,
/// including those about this machine.
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
