//! `kubernetes.onDelete`: DaemonSets whose pods are renewed at the end of an update.

use std::collections::BTreeMap;

use muster_proto::model::OnDeleteDaemonSets;

use super::{
    fault::{Faults, shown},
    maintenance::qualified,
    read::{Fields, Spot},
};

/// Fields of an entry.
const ENTRY: Fields = Fields { known: &["namespace", "matchLabels"], later: &[] };
/// Most entries.
const ENTRIES_MAX: usize = 32;
/// Most labels of an entry.
const LABELS_MAX: usize = 16;
/// Longest name of a namespace and longest value of a label, in bytes.
const LABEL_BYTES_MAX: usize = 63;

/// Parse `kubernetes.onDelete`.
pub(super) fn read(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<Vec<OnDeleteDaemonSets>> {
    let entries = spot.list(faults)?;
    if entries.len() > ENTRIES_MAX {
        spot.fault(faults, "too many entries", format!("at most {ENTRIES_MAX}"));
        return None;
    }
    entries.iter().map(|spot| entry(spot, faults)).collect()
}

fn entry(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<OnDeleteDaemonSets> {
    let map = spot.map(faults, &ENTRY)?;
    let namespace = namespace(&map.required(faults, "namespace")?, faults)?;
    let at = map.required(faults, "matchLabels")?;
    let labels = at.free(faults)?;
    if labels.is_empty() || labels.len() > LABELS_MAX {
        at.fault(faults, format!("{} labels", labels.len()), format!("between 1 and {LABELS_MAX}"));
        return None;
    }
    let mut match_labels = BTreeMap::new();
    for label in labels {
        match_labels.insert(label.key.to_owned(), qualified(&label.value, faults)?);
    }
    Some(OnDeleteDaemonSets { namespace, name_prefix: String::new(), match_labels })
}

/// The name of a namespace.
pub(super) fn namespace(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<String> {
    let text = spot.line(faults)?;
    let of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !text.is_empty() && text.len() <= LABEL_BYTES_MAX && text.chars().all(of_name) {
        return Some(text.to_owned());
    }
    spot.fault(
        faults,
        format!("'{}' is not a namespace", shown(text)),
        "lower-case letters, digits and '-', such as tf",
    );
    None
}
