//! `musterctl reboot`: reboots machines one after the other, after their workloads have moved away.

use muster_proto::{
    model::MachineType,
    resource::{Cluster, Kind, Machine},
    wire::RebootRequest,
};

use crate::{
    client::Coordinator,
    commands::{actions::show, update::Start},
    config::Context,
    errors::{Failure, not_this_version},
    name,
};

/// Reboot machines of a cluster, their workloads moved away first
///
/// In the order of an update: control machines one by one, then the workers, each only when its application controllers
/// have moved its workloads away. Every machine of the cluster must be Ready. A machine has rebooted when it is back
/// with another boot id. `pause`, `resume` and `abort` steer it, Ctrl-C detaches.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  musterctl reboot edge-7                                      every machine
  musterctl reboot edge-7 --machine worker-3 --machine worker-4
  musterctl reboot edge-7 --yes --detach && musterctl watch edge-7")]
pub(crate) struct Args {
    /// Name of the cluster
    #[arg(value_parser = name::cluster)]
    cluster: String,
    /// Only this machine; may be given several times
    #[arg(long = "machine", value_name = "MACHINE", value_parser = name::machine)]
    machines: Vec<String>,
    #[command(flatten)]
    start: Start,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let coordinator = context.coordinator().await?;
    let Args { cluster, machines, start } = args;
    if let Some(question) = question(&coordinator, &cluster, &machines).await?
        && !start.agreed(&question)?
    {
        return Ok(());
    }
    let accept_control_plane_downtime = start.accept_control_plane_downtime;
    let request = RebootRequest { cluster: cluster.clone(), machines, accept_control_plane_downtime };
    show(&coordinator.call_on(Kind::Clusters, &cluster, coordinator.fleet().reboot(request)).await?)?;
    start.follow(&cluster, context).await
}

/// The question to confirm, with the machines that would reboot in their order. None: the set of machines is empty.
async fn question(coordinator: &Coordinator, cluster: &str, named: &[String]) -> Result<Option<String>, Failure> {
    let of = coordinator.get_one(Kind::Clusters, cluster).await?;
    let of: Cluster = serde_json::from_slice(&of.json).map_err(not_this_version)?;
    let found = coordinator.get(Kind::Machines, "", cluster).await?;
    let found = found.iter().map(|machine| serde_json::from_slice(&machine.json)).collect::<Result<Vec<Machine>, _>>();
    let mut found = found.map_err(not_this_version)?;
    if let Some(unknown) = named.iter().find(|name| found.iter().all(|machine| machine.metadata.name != **name)) {
        coordinator.get(Kind::Machines, unknown, cluster).await?;
    }
    let revoked = of.status.revoked_nodes;
    found.retain(|machine| match named.is_empty() {
        true => !revoked.contains(&machine.metadata.name),
        false => named.contains(&machine.metadata.name),
    });
    let (control, workers): (Vec<_>, Vec<_>) =
        found.iter().partition(|machine| machine.spec.machine_type == MachineType::Control);
    let control = (!control.is_empty()).then(|| match control.len() {
        1 => "1 control machine".to_owned(),
        count => format!("{count} control machines one by one"),
    });
    let workers = (!workers.is_empty()).then(|| match (workers.len(), of.spec.max_worker_upgrade_count) {
        (1, _) => "1 worker".to_owned(),
        (count, 1) => format!("{count} workers one by one"),
        (count, most) => format!("{count} workers, at most {most} at once"),
    });
    let who: Vec<String> = control.into_iter().chain(workers).collect();
    Ok((!who.is_empty()).then(|| format!("Reboot {} of cluster {cluster}?", who.join(", then "))))
}
