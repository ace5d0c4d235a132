//! `musterctl maintenance`: takes one machine out of service for as long as its operator needs.

use muster_proto::{
    resource::{Cluster, Kind, Machine},
    wire::{EnterMaintenanceRequest, LeaveMaintenanceRequest, Resource},
};
use serde::de::DeserializeOwned;

use crate::{
    client::Coordinator,
    commands::{actions::show, update::Start, watch},
    config::Context,
    errors::{Failure, not_this_version},
    name, terminal,
};

/// Take one machine out of service, and bring it back
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: MaintenanceCommand,
}

#[derive(clap::Subcommand)]
enum MaintenanceCommand {
    Enter(EnterArgs),
    Leave(LeaveArgs),
}

/// Take a machine out of service
///
/// Its application controllers are asked to move its workloads away, its Swarm node is drained, and then no item is run
/// on it until `leave`: reboot it, power it off, open it. It must be Ready; it counts as one of the machines that may
/// be down at once (maxWorkerUpgradeCount, one control machine), and meanwhile nothing else begins in its cluster.
/// Ends with status 0 when it is out of service, 4 when a person must decide (it says what). Ctrl-C only detaches.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  musterctl maintenance enter worker-3
  musterctl maintenance enter worker-3 --yes --detach && musterctl watch edge-7
  musterctl maintenance leave worker-3")]
struct EnterArgs {
    /// Name of the machine
    #[arg(value_parser = name::machine)]
    machine: String,
    #[command(flatten)]
    start: Start,
}

/// Bring a machine back into service
///
/// Once it is connected, its Swarm node gets the availability it had, its maintenance request is removed, and its
/// application controllers bring its workloads back. A machine that is not out of service yet gives back what it holds.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  musterctl maintenance leave worker-3")]
struct LeaveArgs {
    /// Name of the machine
    #[arg(value_parser = name::machine)]
    machine: String,
    /// Do not follow
    #[arg(long)]
    detach: bool,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args.command {
        MaintenanceCommand::Enter(args) => enter(args, context).await,
        MaintenanceCommand::Leave(args) => leave(args, context).await,
    }
}

async fn enter(args: EnterArgs, context: &Context) -> Result<(), Failure> {
    let coordinator = context.coordinator().await?;
    let EnterArgs { machine, start } = args;
    let cluster = cluster_of(&coordinator, &machine).await?;
    if !start.agreed(&format!("Take {machine} of cluster {cluster} out of service?"))? {
        return Ok(());
    }
    let accept_control_plane_downtime = start.accept_control_plane_downtime;
    let request = EnterMaintenanceRequest { machine: machine.clone(), accept_control_plane_downtime };
    show(&coordinator.call_on(Kind::Machines, &machine, coordinator.fleet().enter_maintenance(request)).await?)?;
    start.follow(&cluster, context).await
}

async fn leave(args: LeaveArgs, context: &Context) -> Result<(), Failure> {
    let coordinator = context.coordinator().await?;
    let LeaveArgs { machine, detach } = args;
    let cluster = cluster_of(&coordinator, &machine).await?;
    let request = LeaveMaintenanceRequest { machine: machine.clone() };
    show(&coordinator.call_on(Kind::Machines, &machine, coordinator.fleet().leave_maintenance(request)).await?)?;
    if detach {
        return Ok(());
    }
    let ended = watch::to_the_end(&cluster, context).await;
    // Other machines in maintenance keep the rollout open, and its end concerns them; otherwise it concerns this one.
    let found: Machine = coordinator.get_one(Kind::Machines, &machine).await.and_then(read)?;
    if found.status.maintenance.is_some() || found.status.indeterminate {
        return ended;
    }
    let of: Cluster = coordinator.get_one(Kind::Clusters, &cluster).await.and_then(read)?;
    if of.status.rollout.is_some() || ended.is_err() {
        terminal::say(&format!("machine {machine} is back in service"));
    }
    Ok(())
}

async fn cluster_of(coordinator: &Coordinator, machine: &str) -> Result<String, Failure> {
    let machine: Machine = coordinator.get_one(Kind::Machines, machine).await.and_then(read)?;
    Ok(machine.spec.cluster_name.to_string())
}

fn read<T: DeserializeOwned>(found: Resource) -> Result<T, Failure> {
    serde_json::from_slice(&found.json).map_err(not_this_version)
}
