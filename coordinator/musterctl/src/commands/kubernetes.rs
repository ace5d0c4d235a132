//! `musterctl kubernetes`: what an operator needs before the first update of machines under a Kubernetes cluster.

use clap::{Subcommand, ValueEnum};
use muster_proto::{
    resource::{Kind, KubernetesCheck},
    wire::CheckKubernetesRequest,
};

use crate::{
    config::Context,
    errors::{Exit, Failure, not_this_version},
    name, terminal, view,
};

/// The account that `rbac` makes.
const RBAC: &str = include_str!("../../../../packaging/kubernetes/rbac.yaml");
/// The right that the account needs for `drain-force`.
const RBAC_DELETE: &str = include_str!("../../../../packaging/kubernetes/rbac-delete.yaml");

/// The rights that the account needs for the handshake as custom resources.
const RBAC_MAINTENANCE: &str = include_str!("../../../../packaging/kubernetes/rbac-maintenance.yaml");

/// The binding that the account needs to apply add-ons.
const RBAC_ADDONS: &str = include_str!("../../../../packaging/kubernetes/rbac-addons.yaml");

/// Check a Kubernetes cluster before its machines are updated, and print the rights that Muster needs there
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: KubernetesCommand,
}

#[derive(Subcommand)]
enum KubernetesCommand {
    Check(CheckArgs),
    Rbac(RbacArgs),
}

/// Check whether anything in a Kubernetes cluster stands in the way of an update
///
/// The coordinator asks the cluster's API server with the credentials it has: its rights, which machine is which node,
/// pods that can never be evicted, and other programs that drain or reboot nodes. It changes nothing. Exit status 4 if
/// something stands in the way.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  musterctl kubernetes check edge-7\n  musterctl kubernetes check edge-7 -o json")]
struct CheckArgs {
    /// Name of the cluster
    #[arg(value_parser = name::cluster)]
    cluster: String,
    /// Output format
    #[arg(short, long)]
    output: Option<Format>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Json,
    Yaml,
}

/// Print the manifest of the coordinator's account and its rights
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  musterctl kubernetes rbac | kubectl apply -f -
  musterctl kubernetes rbac --with-delete | kubectl apply -f -")]
struct RbacArgs {
    /// With the right to delete pods, which `musterctl drain-force` needs
    #[arg(long)]
    with_delete: bool,
    /// With the rights for requests and locks as custom resources (`spec.kubernetes.maintenance`)
    #[arg(long)]
    with_maintenance: bool,
    /// With every right, to apply the manifests of add-ons (`spec.kubernetes.helmController`, `addons`)
    #[arg(long)]
    with_addons: bool,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args.command {
        KubernetesCommand::Check(args) => check(args, context).await,
        KubernetesCommand::Rbac(RbacArgs { with_delete, with_maintenance, with_addons }) => {
            let more = [(with_delete, RBAC_DELETE), (with_maintenance, RBAC_MAINTENANCE), (with_addons, RBAC_ADDONS)];
            let more = more.into_iter().filter(|(wanted, _)| *wanted).map(|(_, manifest)| manifest);
            let manifests: Vec<&str> = [RBAC].into_iter().chain(more).map(str::trim_end).collect();
            terminal::print(&manifests.join("\n---\n"))
        }
    }
}

async fn check(args: CheckArgs, context: &Context) -> Result<(), Failure> {
    let coordinator = context.coordinator().await?;
    let CheckArgs { cluster, output } = args;
    let request = CheckKubernetesRequest { cluster: cluster.clone() };
    let mut fleet = coordinator.fleet();
    let answer = coordinator.call_on(Kind::Clusters, &cluster, fleet.check_kubernetes(request)).await?;
    let check: KubernetesCheck = serde_json::from_slice(&answer.json).map_err(not_this_version)?;
    match output {
        Some(Format::Json) => terminal::print(&super::get::pretty_json(&super::get::value(&answer.json)?)?)?,
        Some(Format::Yaml) => terminal::print(super::get::yaml(&super::get::value(&answer.json)?)?.trim_end())?,
        None => terminal::print_all(&view::check_lines(&check))?,
    }
    match check.problems() {
        0 => Ok(()),
        1 => Err(Failure::new(Exit::Refused, format!("1 problem stands in the way of an update of {cluster}"))),
        more => Err(Failure::new(Exit::Refused, format!("{more} problems stand in the way of an update of {cluster}"))),
    }
}
