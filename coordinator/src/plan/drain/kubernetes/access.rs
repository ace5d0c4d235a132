//! How a cluster's API server is reached: the kubeconfig in a secret, or on the control machines.

use core::net::IpAddr;
use std::{cmp::Reverse, sync::Arc};

use muster_proto::model::{ClusterName, KubeconfigSource, KubernetesSpec, MachineType};

use crate::{
    facts::{
        Facts, MachineRow,
        kubernetes::{AdminConfFile, KubernetesAccess, KubernetesFailure},
    },
    plan::secrets,
};

/// Control machines at whose addresses the API server is tried.
const ADDRESSES_MAX: usize = 3;

/// The way to a cluster's API server.
///
/// # Errors
/// There is none: the secret is missing, or no control machine has been Ready.
pub fn of(facts: &Facts, cluster: &ClusterName, spec: &KubernetesSpec) -> Result<KubernetesAccess, KubernetesFailure> {
    let path = match &spec.source {
        KubeconfigSource::Secret(name) => {
            let missing =
                || KubernetesFailure::Other(format!("there is no secret {name}, which spec.kubernetes names"));
            let secret = secrets::find(facts, cluster, name).ok_or_else(missing)?;
            return Ok(KubernetesAccess::Secret(Arc::clone(secret)));
        }
        KubeconfigSource::AdminConf(path) => path,
    };
    let mut rows: Vec<&MachineRow> = holders(facts, cluster).collect();
    if rows.is_empty() {
        let why = format!("no control machine is Ready yet: its agent reads {path} there");
        return Err(KubernetesFailure::NoKubeconfig(why));
    }
    let is_connected = |row: &MachineRow| {
        facts.live.machines.get(&row.name).is_some_and(|live| live.session.is_some() && !row.revoked)
    };
    let is_disturbed = |row: &MachineRow| row.update.as_ref().is_some_and(|mine| mine.disturbed());
    rows.sort_by_key(|row| (Reverse(is_connected(row)), is_disturbed(row)));
    Ok(KubernetesAccess::AdminConf(Arc::new(AdminConfFile {
        cluster: cluster.clone(),
        path: path.clone(),
        kubernetes_uid: facts.clusters.get(cluster).and_then(|row| row.kubernetes_uid.clone()),
        holders: rows.into_iter().filter_map(|row| Some((row.name.clone(), row.id?))).collect(),
    })))
}

/// Addresses of the control machines.
pub fn addresses(facts: &Facts, cluster: &ClusterName) -> Arc<[IpAddr]> {
    holders(facts, cluster).filter_map(|row| row.internal_ip()?.parse().ok()).take(ADDRESSES_MAX).collect()
}

/// Control machines that have been Ready, and so may have the file.
fn holders<'a>(facts: &'a Facts, cluster: &ClusterName) -> impl Iterator<Item = &'a MachineRow> {
    let rows = facts.machines.values().map(|row| &**row).filter(|row| row.spec.cluster_name == *cluster);
    let controls = rows.filter(|row| row.spec.machine_type == MachineType::Control);
    controls.filter(|row| row.ready_at.is_some() && !row.revoked && row.removal.is_none())
}
