//! `musterctl secret`: write-only values that items refer to.

use std::{
    fs::File,
    io::{self, Read},
    path::PathBuf,
};

use muster_proto::{
    model::INPUT_BYTES_MAX,
    resource::Kind,
    wire::{CreateSecretRequest, DeleteSecretRequest, ShareSecretRequest},
};

use crate::{
    commands::{actions::show, get},
    config::Context,
    errors::Failure,
    name,
};

/// Make, list and delete secrets: values for params, kept encrypted and never shown again
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: SecretCommand,
}

#[derive(clap::Subcommand)]
enum SecretCommand {
    Create(CreateArgs),
    Share(ShareArgs),
    Unshare(UnshareArgs),
    /// List the secrets; values are never shown
    #[command(alias = "ls")]
    List(ListArgs),
    Delete(DeleteArgs),
}

/// Make a secret, or a new version of one
///
/// Params refer to it as `${secret.NAME}`. A machine fetches it right before an item that does, and only then. A new
/// version takes the place of the old one: items that refer to it run again, on deployed machines with the next update.
/// Versions are counted over all secrets: a new one may begin with 5. A new secret says for whom it is: for one
/// cluster, or for several that share it. No other cluster's manifest can name it.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  musterctl secret create registry-password --clusters edge-7,edge-8 --from-file password.txt
  pass show registry | musterctl secret create registry-password --cluster edge-7 --from-file -")]
struct CreateArgs {
    /// As params refer to it: lower-case letters, digits and '-'
    name: String,
    /// File that holds the value, "-" for standard input; at most 64 KiB
    #[arg(long, value_name = "FILE")]
    from_file: PathBuf,
    /// This cluster's own; it comes before a shared one of the same name
    #[arg(long, value_name = "NAME", value_parser = name::cluster, conflicts_with = "clusters")]
    cluster: Option<String>,
    /// Shared by these clusters; a new value stays with those that share it already
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = name::cluster)]
    clusters: Vec<String>,
}

/// Let items of further clusters refer to a shared secret
///
/// Its value and version stay: nothing runs again. Whoever may apply a manifest of one of these clusters can have it.
#[derive(clap::Args)]
struct ShareArgs {
    /// Its name
    name: String,
    /// These clusters
    #[arg(long, value_name = "NAMES", value_delimiter = ',', required = true, value_parser = name::cluster)]
    clusters: Vec<String>,
}

/// Let items of these clusters refer to a shared secret no more
#[derive(clap::Args)]
struct UnshareArgs {
    /// Its name
    name: String,
    /// These clusters
    #[arg(long, value_name = "NAMES", value_delimiter = ',', required = true, value_parser = name::cluster)]
    clusters: Vec<String>,
    /// Though items of theirs refer to it: they cannot be started then
    #[arg(long)]
    in_use: bool,
}

#[derive(clap::Args)]
struct ListArgs {
    /// Of this cluster only
    #[arg(long, value_parser = name::cluster)]
    cluster: Option<String>,
}

/// Delete a secret
#[derive(clap::Args)]
struct DeleteArgs {
    /// Its name; of a cluster's also CLUSTER/NAME
    name: String,
    /// The one of this cluster
    #[arg(long, value_name = "NAME", value_parser = name::cluster)]
    cluster: Option<String>,
    /// Though items refer to it: they cannot be started then
    #[arg(long)]
    in_use: bool,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args.command {
        SecretCommand::Create(args) => create(args, context).await,
        SecretCommand::Share(ShareArgs { name, clusters: add }) => {
            share(ShareSecretRequest { name, add, ..Default::default() }, context).await
        }
        SecretCommand::Unshare(UnshareArgs { name, clusters: remove, in_use }) => {
            share(ShareSecretRequest { name, remove, in_use, ..Default::default() }, context).await
        }
        SecretCommand::List(args) => get::list(Kind::Secrets, args.cluster.unwrap_or_default(), context).await,
        SecretCommand::Delete(DeleteArgs { name, cluster, in_use }) => {
            let coordinator = context.coordinator().await?;
            let (cluster, name) = named(cluster, name);
            let id = cluster.as_ref().map_or_else(|| name.clone(), |cluster| format!("{cluster}/{name}"));
            let request = DeleteSecretRequest { name, cluster: cluster.unwrap_or_default(), in_use };
            show(&coordinator.call_on(Kind::Secrets, &id, coordinator.fleet().delete_secret(request)).await?)
        }
    }
}

async fn share(request: ShareSecretRequest, context: &Context) -> Result<(), Failure> {
    let coordinator = context.coordinator().await?;
    let name = request.name.clone();
    show(&coordinator.call_on(Kind::Secrets, &name, coordinator.fleet().share_secret(request)).await?)
}

/// Accept a cluster's secret as lists show it: `edge-7/db`.
fn named(cluster: Option<String>, name: String) -> (Option<String>, String) {
    match name.split_once('/') {
        Some((of, name)) if cluster.is_none() => (Some(of.to_owned()), name.to_owned()),
        Some(_) | None => (cluster, name),
    }
}

async fn create(args: CreateArgs, context: &Context) -> Result<(), Failure> {
    let shown = args.from_file.display().to_string();
    let cannot = |source| {
        let next = "--from-file names the file that holds the value, or is - for standard input.";
        Failure::bad_input(format!("cannot read {shown}")).because(source).next(next)
    };
    let most = u64::try_from(INPUT_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    let mut value = Vec::new();
    if shown == "-" {
        io::stdin().lock().take(most).read_to_end(&mut value).map_err(cannot)?;
    } else {
        File::open(&args.from_file).map_err(cannot)?.take(most).read_to_end(&mut value).map_err(cannot)?;
    }
    if value.is_empty() || value.len() > INPUT_BYTES_MAX {
        let problem = if value.is_empty() { "it is empty" } else { "it is larger than 64 KiB" };
        return Err(Failure::bad_input(format!("{shown} holds no secret: {problem}")));
    }
    let coordinator = context.coordinator().await?;
    let cluster = args.cluster.unwrap_or_default();
    let request = CreateSecretRequest { name: args.name, cluster: cluster.clone(), value, clusters: args.clusters };
    show(&coordinator.call_on(Kind::Clusters, &cluster, coordinator.fleet().create_secret(request)).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_named_as_lists_show_it() {
        for (cluster, name, expected) in [
            (None, "db", (None, "db")),
            (None, "edge-7/db", (Some("edge-7"), "db")),
            (Some("edge-7"), "db", (Some("edge-7"), "db")),
            (Some("edge-7"), "edge-8/db", (Some("edge-7"), "edge-8/db")), // refused by the coordinator, as a name
        ] {
            let (of, known) = named(cluster.map(str::to_owned), name.to_owned());
            assert_eq!((of.as_deref(), known.as_str()), expected);
        }
    }
}
