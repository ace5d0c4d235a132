//! `musterctl reboot`: machines reboot one after the other, their workloads moved away first.

use muster_coordinator::view::Kind;
use muster_proto::wire::RebootRequest;

use crate::{actions::show, config::Context, failure::Failure, update::Start};

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
    cluster: String,
    /// Only this machine; may be given several times
    #[arg(long = "machine", value_name = "MACHINE")]
    machines: Vec<String>,
    #[command(flatten)]
    start: Start,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let coordinator = context.coordinator().await?;
    let Args { cluster, machines, start } = args;
    let who = match machines.as_slice() {
        [] => format!("every machine of cluster {cluster}"),
        some => some.join(", "),
    };
    if !start.agreed(&format!("Reboot {who}?"), "the reboot")? {
        return Ok(());
    }
    let accept_control_plane_downtime = start.accept_control_plane_downtime;
    let request = RebootRequest { cluster: cluster.clone(), machines, accept_control_plane_downtime };
    show(&coordinator.call_on(Kind::Clusters, &cluster, coordinator.fleet().reboot(request)).await?)?;
    start.follow(&cluster, context).await
}
