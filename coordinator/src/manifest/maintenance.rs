//! `kubernetes.maintenance`: the maintenance handshake as custom resources.

use muster_proto::model::{MaintenanceObjects, ObjectController};

use super::{
    fault::{Faults, shown},
    read::{Fields, Spot},
};

/// Fields of `kubernetes.maintenance`.
const MAINTENANCE: Fields = Fields { known: &["controllers"], later: &[], elsewhere: &[] };
/// Fields of an entry of `controllers`.
const CONTROLLER: Fields =
    Fields { known: &["name", "finalizer", "handledAnnotation", "nodeLabels"], later: &[], elsewhere: &[] };
/// Most declared controllers.
const CONTROLLERS_MAX: usize = 32;
/// Most labels of a controller's nodes.
const NODE_LABELS_MAX: usize = 16;
/// Longest value of a label, in bytes.
const VALUE_BYTES_MAX: usize = 63;
/// Longest name of a label, a finalizer or an annotation: a DNS name, a slash and a label.
const QUALIFIED_BYTES_MAX: usize = 253 + 1 + 63;

/// Parse `kubernetes.maintenance`.
pub(super) fn read(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<MaintenanceObjects> {
    let map = spot.map(faults, &MAINTENANCE)?;
    let controllers = map.or("controllers", Vec::new(), |spot| controllers(&spot, faults))?;
    Some(MaintenanceObjects { controllers })
}

fn controllers(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<Vec<ObjectController>> {
    let entries = spot.list(faults)?;
    if entries.len() > CONTROLLERS_MAX {
        spot.fault(faults, "too many controllers", format!("at most {CONTROLLERS_MAX}"));
        return None;
    }
    let mut controllers: Vec<ObjectController> = Vec::new();
    for spot in entries {
        let map = spot.map(faults, &CONTROLLER)?;
        let at = map.required(faults, "name")?;
        let name = qualified(&at, faults)?;
        if controllers.iter().any(|known| known.name == name) {
            at.fault(faults, format!("'{}' is there already", shown(&name)), "each controller once");
            return None;
        }
        let finalizer = map.or("finalizer", None, |spot| qualified(&spot, faults).map(Some))?;
        let handled_annotation = map.or("handledAnnotation", None, |spot| qualified(&spot, faults).map(Some))?;
        if let (Some(at), None) = (map.get("handledAnnotation"), &finalizer) {
            at.fault(faults, "without 'finalizer'", "both, or 'finalizer' alone");
            return None;
        }
        let node_labels = map.or("nodeLabels", Vec::new(), |spot| labels(&spot, faults))?;
        controllers.push(ObjectController { name, finalizer, handled_annotation, node_labels });
    }
    Some(controllers)
}

/// Labels as `kubectl get nodes --selector` takes them: `KEY=VALUE`.
fn labels(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<Vec<String>> {
    let entries = spot.list(faults)?;
    if entries.len() > NODE_LABELS_MAX {
        spot.fault(faults, "too many labels", format!("at most {NODE_LABELS_MAX}"));
        return None;
    }
    entries.iter().map(|spot| label(spot, faults)).collect()
}

fn label(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<String> {
    let text = spot.line(faults)?;
    match text.split_once('=') {
        Some((key, value)) if is_name(key) && is_label_value(value) => Some(text.to_owned()),
        _ => {
            let problem = format!("'{}' is not a label", shown(text));
            spot.fault(faults, problem, "KEY=VALUE, such as openstack-compute-node=enabled");
            None
        }
    }
}

const fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '/')
}

/// Can a label have this value? It may be empty.
pub(super) fn is_label_value(text: &str) -> bool {
    text.len() <= VALUE_BYTES_MAX && text.chars().all(|c| is_of_name(c) && c != '/')
}

/// Can a label, a finalizer or an annotation have this name?
pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= QUALIFIED_BYTES_MAX && text.chars().all(is_of_name)
}

/// A name as Kubernetes has it for labels, finalizers and annotations.
fn qualified(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<String> {
    let text = spot.line(faults)?;
    if is_name(text) {
        return Some(text.to_owned());
    }
    let problem = format!("'{}' is not a name", shown(text));
    spot.fault(faults, problem, "letters, digits, '-', '.', '_' and '/', such as example.com/finalizer");
    None
}

#[cfg(test)]
mod tests {
    use muster_proto::model::{MaintenanceObjects, ObjectController};

    use super::{CONTROLLERS_MAX, NODE_LABELS_MAX};
    use crate::manifest::{Fault, kubernetes::tests::read_beside_kubeconfig};

    fn read(maintenance: &str) -> Result<Option<MaintenanceObjects>, Vec<Fault>> {
        Ok(read_beside_kubeconfig(&format!("maintenance: {maintenance}"))?.maintenance)
    }

    #[test]
    fn maintenance_settings_are_read() {
        assert_eq!(read("{}"), Ok(Some(MaintenanceObjects::default())));
        let text = "{controllers: [{name: openstack}, {name: storage, finalizer: example.com/seen, \
                    handledAnnotation: example.com/done, nodeLabels: [storage=yes, example.com/rack=]}]}";
        let controllers = read(text).expect("valid").expect("set").controllers;
        let bare = |name: &str| ObjectController {
            name: name.to_owned(),
            finalizer: None,
            handled_annotation: None,
            node_labels: Vec::new(),
        };
        let storage = ObjectController {
            finalizer: Some("example.com/seen".to_owned()),
            handled_annotation: Some("example.com/done".to_owned()),
            node_labels: vec!["storage=yes".to_owned(), "example.com/rack=".to_owned()],
            ..bare("storage")
        };
        assert_eq!(controllers, [bare("openstack"), storage]);
    }

    #[test]
    fn faulty_maintenance_settings_are_named() {
        let many = |what: &str, most: usize| vec![what; most + 1].join(", ");
        let labels = many("a=b", NODE_LABELS_MAX);
        let controllers = many("{name: a}", CONTROLLERS_MAX);
        for (controllers, path, problem) in [
            ("[{name: a}, {name: a}]".to_owned(), "[1].name", "'a' is there already"),
            ("[{name: a b}]".to_owned(), "[0].name", "'a b' is not a name"),
            ("[{finalizer: a}]".to_owned(), "[0].name", "missing"),
            ("[{name: a, handledAnnotation: b}]".to_owned(), "[0].handledAnnotation", "without 'finalizer'"),
            ("[{name: a, nodeLabels: [b]}]".to_owned(), "[0].nodeLabels[0]", "'b' is not a label"),
            ("[{name: a, nodeLabels: [=b]}]".to_owned(), "[0].nodeLabels[0]", "'=b' is not a label"),
            ("[{name: a, nodeLabels: [b=c/d]}]".to_owned(), "[0].nodeLabels[0]", "'b=c/d' is not a label"),
            (format!("[{{name: a, nodeLabels: [{labels}]}}]"), "[0].nodeLabels", "too many labels"),
            (format!("[{controllers}]"), "", "too many controllers"),
            ("[{name: a, color: red}]".to_owned(), "[0].color", "unknown field"),
        ] {
            let found = read(&format!("{{controllers: {controllers}}}")).expect_err(&controllers);
            let at = format!("spec.kubernetes.maintenance.controllers{path}");
            let named = |fault: &Fault| fault.path.starts_with(&at) && fault.problem.contains(problem);
            assert!(found.iter().any(named), "{controllers}: {found:?}");
        }
    }
}
