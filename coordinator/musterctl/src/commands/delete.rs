//! `musterctl delete`: deletes an empty cluster.

use muster_proto::{resource::Kind, wire::DeleteClusterRequest};

use crate::{commands::actions::show, config::Context, errors::Failure, name, prompt::ask};

/// Forget a cluster that has no machines, as one whose name was mistyped
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: DeleteCommand,
}

#[derive(clap::Subcommand)]
enum DeleteCommand {
    #[command(alias = "clusters")]
    Cluster(ClusterArgs),
}

/// Forget a cluster that has no machines
///
/// With it go its manifest, machines that were declared and never enrolled, its join tokens, its secrets, and the
/// record of its rollouts. Refused while a machine of it is enrolled (`musterctl remove`). What operators did to it
/// stays in the audit.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  musterctl delete cluster egde-7")]
struct ClusterArgs {
    /// Its name
    #[arg(value_parser = name::cluster)]
    name: String,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let DeleteCommand::Cluster(ClusterArgs { name, yes }) = args.command;
    let coordinator = context.coordinator().await?;
    coordinator.has_cluster(Kind::Clusters, &name).await?;
    if !yes && !ask(&format!("Delete cluster {name}, its join tokens and its secrets?"))? {
        return Ok(());
    }
    let request = DeleteClusterRequest { cluster: name.clone() };
    show(&coordinator.call_on(Kind::Clusters, &name, coordinator.fleet().delete_cluster(request)).await?)
}
