//! Rule 1, its Kubernetes: a control machine is disturbed only while the node of every other is Ready, its API server
//! says that it is, and its etcd member that it is healthy. The connection of an agent proves nothing about them.

use core::net::IpAddr;
use std::{collections::BTreeMap, sync::Arc};

use muster_proto::{
    model::{Blocked, EtcdClient, EtcdProbe, MachineType, PROBE_VARIABLES, Reason},
    seeded_bug::seeded_bug,
    variables::{VariableError, replace_late},
};

use super::{fresh, spec, unanswered};
use crate::{
    facts::{
        KubernetesObservation,
        kubernetes::{ControlServer, EtcdQuestion},
    },
    plan::{
        safety::{accepts_downtime, blocked, some_names},
        snapshot::{ClusterSnapshot, MachineView},
    },
};

/// Control machines whose addresses go with a question. All are connected to at once.
const FALLBACKS_MAX: usize = 9;

/// The other control machines that have been Ready, if they count for this machine: an operator may accept that the
/// control plane is down. One without a known address counts as one that lacks everything.
pub(super) fn others<'s, 'a>(snapshot: &'s ClusterSnapshot<'a>, view: &MachineView<'_>) -> Vec<&'s MachineView<'a>> {
    let control = view.row.spec.machine_type == MachineType::Control && view.row.removal.is_none();
    // Seeded bug: trust the agents alone.
    if !control || accepts_downtime(snapshot, view) || seeded_bug("ignore-api-servers") {
        return Vec::new();
    }
    deployed(snapshot).filter(|other| other.row.name != view.row.name).collect()
}

/// None: its host or its agent is unknown.
fn server(snapshot: &ClusterSnapshot<'_>, view: &MachineView<'_>) -> Option<ControlServer> {
    let hostname = view.row.host.as_ref()?.hostname.clone();
    let address = address(view)?;
    let probe = spec(snapshot).and_then(|spec| spec.etcd.as_ref());
    let etcd = match probe {
        None => None,
        Some(probe) => Some(EtcdQuestion {
            agent: view.row.id?,
            probe: probe_of(probe, view.row.name.as_str(), &hostname, address).ok()?,
        }),
    };
    Some(ControlServer { hostname, address, etcd })
}

fn address(view: &MachineView<'_>) -> Option<IpAddr> {
    view.row.internal_ip()?.parse().ok()
}

/// The settings for one machine: their variables have values.
fn probe_of(probe: &EtcdProbe, name: &str, hostname: &str, address: IpAddr) -> Result<EtcdProbe, VariableError> {
    let in_url = match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    };
    let values = |address: String| {
        let [of_name, of_hostname, of_address] = PROBE_VARIABLES.map(str::to_owned);
        BTreeMap::from([(of_name, name.to_owned()), (of_hostname, hostname.to_owned()), (of_address, address)])
    };
    let (of_url, of_file) = (values(in_url), values(address.to_string()));
    let file = |text: &String| replace_late(text, &of_file);
    let client = probe.client.as_ref().map(|client| {
        Ok(EtcdClient { certificate_file: file(&client.certificate_file)?, key_file: file(&client.key_file)? })
    });
    Ok(EtcdProbe {
        health: replace_late(&probe.health, &of_url)?,
        ca_file: probe.ca_file.as_ref().map(file).transpose()?,
        client: client.transpose()?,
    })
}

/// Control machines that may have an API server.
fn deployed<'s, 'a>(snapshot: &'s ClusterSnapshot<'a>) -> impl Iterator<Item = &'s MachineView<'a>> {
    let counts = |view: &&MachineView<'_>| view.ready_once() && !view.row.revoked && view.row.removal.is_none();
    snapshot.of_type(MachineType::Control).filter(counts)
}

/// Every control machine whose API server counts for another one. Empty: there is at most one.
#[must_use]
pub fn all_servers(snapshot: &ClusterSnapshot<'_>) -> Vec<ControlServer> {
    let servers: Vec<_> = deployed(snapshot).filter_map(|view| server(snapshot, view)).collect();
    if servers.len() < 2 { Vec::new() } else { servers }
}

/// Addresses to ask where the kubeconfig's server cannot be connected to.
#[must_use]
pub fn fallbacks(snapshot: &ClusterSnapshot<'_>) -> Arc<[IpAddr]> {
    deployed(snapshot).filter_map(address).take(FALLBACKS_MAX).collect()
}

/// The control machines to look at next. Empty: none, or it was done a moment ago.
pub(super) fn due(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    look: &KubernetesObservation,
    every_ms: u64,
) -> Vec<ControlServer> {
    let old = look.control_plane.as_ref().is_none_or(|seen| {
        let lacks = seen.what.iter().any(|state| state.problem().is_some());
        let age_ms = snapshot.now.mono_ms.saturating_sub(seen.at_mono_ms);
        fresh(snapshot, Some(seen)).is_none() || (lacks && age_ms >= every_ms)
    });
    if !old {
        return Vec::new();
    }
    others(snapshot, view).into_iter().filter_map(|view| server(snapshot, view)).collect()
}

/// Do the other control machines keep the control plane going, as a look a moment ago shows?
///
/// # Errors
/// The first few that do not, and what they lack.
pub(super) fn keeps_going(
    snapshot: &ClusterSnapshot<'_>,
    view: &MachineView<'_>,
    look: &KubernetesObservation,
) -> Result<(), Blocked> {
    let others = others(snapshot, view);
    if others.is_empty() {
        return Ok(());
    }
    if let Some(unknown) = others.iter().find(|other| server(snapshot, other).is_none()) {
        let message = format!("Error: the address of control machine {} is unknown", unknown.row.name);
        return Err(blocked(Reason::Quorum, message, "its agent reports it"));
    }
    let Some(seen) = &look.control_plane else {
        return Err(unanswered(look, "the other control machines are being looked at"));
    };
    let lacking = seen.what.iter().filter_map(|state| Some((&state.server.hostname, state.problem()?)));
    let lacking: Vec<String> = lacking.map(|(hostname, problem)| format!("{hostname}: {problem}")).collect();
    if !lacking.is_empty() {
        let lacking = some_names(lacking.iter().map(String::as_str));
        let message = format!("Error: other control machines are not ready - {lacking}");
        let clears_when = "they are (`kubectl get nodes`, `kubectl get --raw /readyz`, `etcdctl endpoint health`)";
        return Err(blocked(Reason::Quorum, message, clears_when));
    }
    match fresh(snapshot, Some(seen)) {
        Some(_) => Ok(()),
        None => Err(unanswered(look, "the other control machines are being looked at")),
    }
}
