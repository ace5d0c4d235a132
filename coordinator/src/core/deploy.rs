//! Manual start of a deployment with the machines that have reported. Others join when they report.

use std::sync::Arc;

use muster_proto::model::{ClusterName, MachineName, MachineType, Now};

use super::{Refusal, Reply, operators};
use crate::{
    facts::{AuditObject, MachineRow, Transaction},
    plan::{Limits, safety::some_names, snapshot::ClusterSnapshot},
};

pub(super) fn cluster(
    tx: &mut Transaction<'_>,
    actor: &str,
    cluster: &ClusterName,
    limits: &Limits,
    now: Now,
) -> Result<Reply, Refusal> {
    operators::known_cluster(tx, cluster)?;
    let started = tx.clusters.get(cluster).is_some_and(|row| row.rollout_seq > 0 || row.deploy_requested);
    if started {
        let begun = tx.clusters.get(cluster).is_some_and(|row| row.rollout_seq > 0);
        let line = match tx.open_rollout(cluster) {
            Some(open) if open.update.is_some() => {
                format!("cluster {cluster}: machines that have come since join it when {} has ended", open.name)
            }
            None if begun => format!(
                "cluster {cluster}: it has been deployed; machines that report join it, and what a newer manifest asks \
                 of the others is brought about by `musterctl update {cluster}`"
            ),
            _ => format!("cluster {cluster}: its deployment has begun already; machines that report join it"),
        };
        return Ok(Reply::Done(vec![line]));
    }
    let reported = ClusterSnapshot::of(tx, cluster, limits, now).map(|snapshot| snapshot.reported());
    let Some(reported) = reported.filter(|reported| reported.control > 0) else {
        let message = format!("no control machine of {cluster} has reported yet; {}", way_out(tx, cluster));
        return Err(Refusal::State { reason: "NoControlMachine", message });
    };
    if let Some(row) = tx.cluster_mut(cluster) {
        row.deploy_requested = true;
    }
    let line = format!(
        "cluster {cluster}: deployment started with {} control and {} worker machines; others join when they report",
        reported.control, reported.worker
    );
    operators::audited(tx, actor, "deploy", AuditObject::Cluster(cluster), vec![line], now)
}

/// How to get a control machine to report: an enrolled one must report a fitting address, or one must enrol.
fn way_out(tx: &Transaction<'_>, cluster: &ClusterName) -> String {
    let enrolled = |machine: &&Arc<MachineRow>| {
        machine.id.is_some() && !machine.revoked && machine.spec.machine_type == MachineType::Control
    };
    let silent: Vec<&MachineName> = tx.machines_of(cluster).filter(enrolled).map(|machine| &machine.name).collect();
    match silent.first() {
        Some(first) => format!(
            "{} enrolled; does `muster-agent` run there? `musterctl describe machine {first}` says what is missing",
            some_names(silent.iter().map(|name| name.as_str()))
        ),
        None => format!("enrol one with a token of `musterctl token create --cluster {cluster} --type control`"),
    }
}
