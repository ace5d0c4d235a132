//! The maintenance requests that exist, as application controllers see them.

use muster_proto::model::{ClusterName, Scope};

use crate::facts::{Facts, MachineRow, RequestRow, UpdateRow};

/// An existing maintenance request, with its content for the controllers.
#[derive(Clone, Copy, Debug)]
pub struct Requested<'a> {
    /// Its machine. None: it concerns the cluster itself.
    pub machine: Option<&'a MachineRow>,
    /// Its row, with its start.
    pub row: RequestRow,
    /// Permitted operations.
    pub scope: Scope,
    /// The machine is removed for good.
    pub removal: bool,
    /// The release of the update, if any; else empty.
    pub release: &'a str,
}

impl Requested<'_> {
    /// The machine's name; empty for the cluster's own request.
    #[must_use]
    pub fn machine_name(&self) -> &str {
        self.machine.map_or("", |row| row.name.as_str())
    }
}

/// Existing requests: the cluster's own, then those of its machines.
pub fn requested<'a>(facts: &'a Facts, cluster: &'a ClusterName) -> impl Iterator<Item = Requested<'a>> {
    let update = facts.open_rollout(cluster).and_then(|rollout| rollout.update.as_ref());
    let scope = update.map_or(Scope::Drain, |update: &UpdateRow| update.scope);
    let coming = update.filter(|update| update.kind.brings_release());
    let coming = coming.and_then(|update| facts.specs.get(&(cluster.clone(), update.version)));
    let coming = coming.map_or("", |spec| spec.release.as_str());
    let own = update.and_then(|update| update.request);
    let own = own.map(|row| Requested { machine: None, row, scope, removal: false, release: coming });
    let of_machines = facts.machines_of(cluster).filter_map(move |machine| {
        let mine = machine.update.as_ref()?;
        // A machine that is removed meanwhile stays at its release.
        let release = if mine.maintenance.is_some() { "" } else { coming };
        // The workloads of a removed machine may not stay, whatever the update around it permits.
        let removal = machine.is_removed();
        let scope = if removal { Scope::Os } else { scope };
        Some(Requested { machine: Some(machine), row: mine.request?, scope, removal, release })
    });
    own.into_iter().chain(of_machines)
}
