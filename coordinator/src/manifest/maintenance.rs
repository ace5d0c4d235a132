//! `kubernetes.maintenance`: the maintenance handshake as custom resources.

use muster_proto::model::{MaintenanceObjects, ObjectController};

use super::{
    fault::{Faults, shown},
    read::{Fields, Spot},
};

/// Fields of `kubernetes.maintenance`.
const MAINTENANCE: Fields = Fields { known: &["controllers"], later: &[] };
/// Fields of an entry of `controllers`.
const CONTROLLER: Fields = Fields { known: &["name", "finalizer", "handledAnnotation"], later: &[] };
/// Most declared controllers.
const CONTROLLERS_MAX: usize = 32;
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
        controllers.push(ObjectController { name, finalizer, handled_annotation });
    }
    Some(controllers)
}

/// A name as Kubernetes has it for labels, finalizers and annotations.
fn qualified(spot: &Spot<'_>, faults: &mut Faults<'_>) -> Option<String> {
    let text = spot.line(faults)?;
    let of_name = |c: char| c.is_ascii_alphanumeric() || "-._/".contains(c);
    if !text.is_empty() && text.len() <= QUALIFIED_BYTES_MAX && text.chars().all(of_name) {
        return Some(text.to_owned());
    }
    let problem = format!("'{}' is not a name", shown(text));
    spot.fault(faults, problem, "letters, digits, '-', '.', '_' and '/', such as example.com/finalizer");
    None
}
