//! Which node of the cluster is a machine's. A node is the machine's if it bears its place (hostname or InternalIP) and
//! its boot id, and no other machine claims it: an agent may lie about itself, and an address may move.

use core::net::IpAddr;

use muster_proto::{
    model::{Blocked, Reason},
    seeded_bug::seeded_bug,
};

use crate::{
    facts::{DepartingObject, KubernetesTarget, MachineRow, kubernetes::KubernetesNode},
    plan::{
        safety::blocked,
        snapshot::{ClusterSnapshot, MachineView},
    },
};

/// Could this node be the machine's, by one of its marks?
#[must_use]
pub fn is_candidate(row: &MachineRow, node: &KubernetesNode) -> bool {
    has_place(row, node) || has_boot(row, node) || is_recorded(row, node)
}

/// Does the record name this node: the machine's drain, its removal, or a cordon that it still owes?
#[must_use]
pub fn is_recorded(row: &MachineRow, node: &KubernetesNode) -> bool {
    let owed = row.owed_cordon.as_ref().map(|owed| owed.uid.as_str());
    let departing = match row.departing_object() {
        Some(DepartingObject::Node { uid, .. }) => Some(uid.as_str()),
        Some(DepartingObject::Unknown | DepartingObject::Gone) | None => None,
    };
    [target_uid(row), departing, owed].contains(&Some(node.object.uid.as_str()))
}

/// Does the node have the machine's hostname or address?
#[must_use]
pub fn has_place(row: &MachineRow, node: &KubernetesNode) -> bool {
    let Some(host) = &row.host else { return false };
    let address = row.internal_ip().and_then(|address| address.parse::<IpAddr>().ok());
    node.object.name == host.hostname || address.is_some_and(|address| node.internal_ips.contains(&address))
}

/// Did the node's kubelet start in the machine's current boot?
#[must_use]
pub fn has_boot(row: &MachineRow, node: &KubernetesNode) -> bool {
    // Seeded bug: a node is a machine's by its name or address alone.
    if seeded_bug("ignore-boot-id") {
        return has_place(row, node);
    }
    row.host.as_ref().is_some_and(|host| !host.boot_id.is_empty() && host.boot_id == node.boot_id)
}

/// The UID of the recorded node of a machine that is being drained.
#[must_use]
pub fn target_uid(row: &MachineRow) -> Option<&str> {
    match &row.update.as_ref()?.drains.kubernetes.as_ref()?.target {
        KubernetesTarget::Node { uid, .. } => Some(uid),
        KubernetesTarget::Unknown | KubernetesTarget::Absent => None,
    }
}

/// The machine's node among the candidates. None: the cluster has no node for it, and the machine was never Ready.
///
/// # Errors
/// Why the node is not known for certain.
pub fn of<'n>(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    nodes: &'n [KubernetesNode],
) -> Result<Option<&'n KubernetesNode>, Blocked> {
    let row = view.row;
    let machine = &row.name;
    let unclear = |message: String, clears_when: String| {
        Err(blocked(Reason::KubernetesNodeUnclear, format!("Error: {message}"), clears_when))
    };
    let mut own = nodes.iter().filter(|node| has_place(row, node) && has_boot(row, node));
    match (own.next(), own.next()) {
        (Some(node), None) => claimed(snapshot, row, node).map_or(Ok(Some(node)), Err),
        (Some(first), Some(second)) => {
            let (first, second) = (&first.object.name, &second.object.name);
            unclear(
                format!("Kubernetes nodes {first} and {second} both have its boot id and its name or address"),
                "one of them is deleted (`kubectl get nodes -o wide`)".to_owned(),
            )
        }
        (None, _) => match (nodes.iter().find(|node| has_place(row, node)), nodes.iter().find(|n| has_boot(row, n))) {
            (Some(node), _) => unclear(
                format!(
                    "Kubernetes node {} has its name or address, and was started in another boot",
                    node.object.name
                ),
                format!("the kubelet of {machine} has reported to this cluster (`systemctl status kubelet` there)"),
            ),
            (None, Some(node)) => unclear(
                format!("Kubernetes node {} has its boot id, and neither its name nor its address", node.object.name),
                "name or InternalIP of the node is the machine's".to_owned(),
            ),
            (None, None) if view.ready_once() => Err(blocked(
                Reason::KubernetesNodeNotFound,
                format!("Error: the cluster has no Kubernetes node for {machine}, which was Ready before"),
                format!("its kubelet has registered it again, or `musterctl remove {machine}`"),
            )),
            (None, None) => Ok(None),
        },
    }
}

/// Another machine with the same claim. A revoked machine has none.
#[must_use]
pub fn claimed(snapshot: &ClusterSnapshot<'_>, row: &MachineRow, node: &KubernetesNode) -> Option<Blocked> {
    let mut others = snapshot.machines.iter().filter(|other| other.row.name != row.name && !other.row.revoked);
    let claims =
        |other: &&MachineView<'_>| has_boot(other.row, node) || target_uid(other.row) == Some(node.object.uid.as_str());
    let other = others.find(claims)?;
    Some(blocked(
        Reason::KubernetesNodeUnclear,
        format!("Error: machine {} claims Kubernetes node {} as well", other.row.name, node.object.name),
        "one of the two is revoked (`musterctl revoke`): the one that is gone, or that lies",
    ))
}
