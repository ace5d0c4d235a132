//! `musterctl deploy`: starts a deployment by hand.

use muster_proto::{resource::Kind, wire::DeployRequest};

use crate::{commands::actions::show, config::Context, errors::Failure, name};

/// Start deploying a cluster with the machines that are there
///
/// Not needed where the manifest declares its machines (`spec.machines`, or Machine documents): then the deployment
/// begins by itself when all of them have reported.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  musterctl plan edge-7      who would go when, and why not now\n  musterctl deploy edge-7"
)]
pub(crate) struct Args {
    /// Name of the cluster
    #[arg(value_parser = name::cluster)]
    cluster: String,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let coordinator = context.coordinator().await?;
    let request = DeployRequest { cluster: args.cluster.clone() };
    show(&coordinator.call_on(Kind::Clusters, &args.cluster, coordinator.fleet().deploy(request)).await?)
}
