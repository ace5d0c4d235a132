//! `kubernetes.onDelete`: DaemonSets whose pods are renewed at the end of an update.

use std::collections::BTreeMap;

use muster_proto::model::OnDeleteDaemonSets;

use super::{
    fault::{Faults, shown},
    maintenance::{is_label_value, is_name},
    read::{Fields, Free, Spot},
};

/// Fields of an entry.
const ENTRY: Fields = Fields { known: &["namespace", "matchLabels"], later: &[], elsewhere: &[] };
/// Most entries.
const ENTRIES_MAX: usize = 32;
/// Most labels of an entry.
const LABELS_MAX: usize = 16;
/// Longest name of a namespace, in bytes.
const NAMESPACE_BYTES_MAX: usize = 63;

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
        match_labels.insert(label.key.to_owned(), value(&label, faults)?);
    }
    Some(OnDeleteDaemonSets { namespace, name_prefix: String::new(), match_labels })
}

/// The value of a label. One that no label can have would select nothing.
fn value(Free { key, value, .. }: &Free<'_>, faults: &mut Faults<'_>) -> Option<String> {
    if !is_name(key) {
        value.fault(faults, format!("'{}' is not the name of a label", shown(key)), "such as app");
        return None;
    }
    let text = value.text(faults)?;
    if is_label_value(text) {
        return Some(text.to_owned());
    }
    let expected = "letters, digits, '-', '.' and '_', such as tf-vrouter-agent";
    value.fault(faults, format!("'{}' is not the value of a label", shown(text)), expected);
    None
}

/// The name of a namespace.
pub(super) fn namespace(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<String> {
    let text = spot.line(faults)?;
    let of_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !text.is_empty() && text.len() <= NAMESPACE_BYTES_MAX && text.chars().all(of_name) {
        return Some(text.to_owned());
    }
    spot.fault(
        faults,
        format!("'{}' is not a namespace", shown(text)),
        "lower-case letters, digits and '-', such as tf",
    );
    None
}

#[cfg(test)]
mod tests {
    use muster_proto::model::OnDeleteDaemonSets;

    use super::{ENTRIES_MAX, LABELS_MAX, NAMESPACE_BYTES_MAX};
    use crate::manifest::{Fault, kubernetes::tests::read_beside_kubeconfig};

    fn read(entries: &str) -> Result<Vec<OnDeleteDaemonSets>, Vec<Fault>> {
        Ok(read_beside_kubeconfig(&format!("onDelete: {entries}"))?.on_delete)
    }

    #[test]
    fn selectors_are_read() {
        assert_eq!(read("[]"), Ok(Vec::new()));
        let entries = "[{namespace: tf, matchLabels: {app: tf-vrouter-agent, example.com/zone: \"\"}}, \
                       {namespace: net-2, matchLabels: {app: cni}}]";
        let of = |namespace: &str, labels: &[(&str, &str)]| OnDeleteDaemonSets {
            namespace: namespace.to_owned(),
            name_prefix: String::new(),
            match_labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        };
        let tf = of("tf", &[("app", "tf-vrouter-agent"), ("example.com/zone", "")]);
        assert_eq!(read(entries), Ok(vec![tf, of("net-2", &[("app", "cni")])]));
    }

    #[test]
    fn faulty_selectors_are_named() {
        let long = "a".repeat(NAMESPACE_BYTES_MAX + 1);
        let labels: Vec<String> = (0..=LABELS_MAX).map(|n| format!("l{n}: a")).collect();
        let entries = vec!["{namespace: tf, matchLabels: {app: a}}"; ENTRIES_MAX + 1].join(", ");
        let with = |labels: &str| format!("{{namespace: tf, matchLabels: {labels}}}");
        let within = |namespace: &str| format!("{{namespace: {namespace}, matchLabels: {{app: a}}}}");
        let not_a_namespace = |namespace: &str| format!("'{namespace}' is not a namespace");
        for (entries, path, problem) in [
            (entries, "", "too many entries".to_owned()),
            ("{matchLabels: {app: a}}".to_owned(), "[0].namespace", "missing".to_owned()),
            (within("TF"), "[0].namespace", not_a_namespace("TF")),
            (within("a.b"), "[0].namespace", not_a_namespace("a.b")),
            (within(&long), "[0].namespace", "is not a namespace".to_owned()),
            ("{namespace: tf}".to_owned(), "[0].matchLabels", "missing".to_owned()),
            (with("{}"), "[0].matchLabels", "0 labels".to_owned()),
            (with(&format!("{{{}}}", labels.join(", "))), "[0].matchLabels", format!("{} labels", LABELS_MAX + 1)),
            (with("[app]"), "[0].matchLabels", "list".to_owned()),
            (with("{a b: c}"), "[0].matchLabels[\"a b\"]", "'a b' is not the name of a label".to_owned()),
            (with("{app: b/c}"), "[0].matchLabels.app", "'b/c' is not the value of a label".to_owned()),
            (with(&format!("{{app: {long}}}")), "[0].matchLabels.app", "is not the value of a label".to_owned()),
            (with("{app: true}"), "[0].matchLabels.app", "boolean".to_owned()),
            ("{namespace: tf, matchLabels: {app: a}, name: b}".to_owned(), "[0].name", "unknown field".to_owned()),
        ] {
            let found = read(&format!("[{entries}]")).expect_err(&entries);
            let at = format!("spec.kubernetes.onDelete{path}");
            let named = |fault: &Fault| fault.path == at && fault.problem.contains(&problem);
            assert!(found.len() == 1 && found.iter().all(named), "{entries}: {found:?}");
        }
    }
}
