//! `musterctl describe`: everything about one thing, on one page.

use jiff::Timestamp;
use muster_proto::resource::Kind;

use crate::{
    config::Context,
    errors::{Failure, not_this_version},
    name::{What, WhatParser},
    terminal, view,
};

/// Show one cluster, machine or rollout in full
///
/// What is wrong, since when and what clears it; items with their outcomes; the last output; stages; the host.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  musterctl describe machine worker-3\n  musterctl describe cluster edge-7")]
pub(crate) struct Args {
    /// What to describe; KIND/NAME is its name as well
    #[arg(value_name = "KIND", value_parser = WhatParser { kinds: KINDS, shown: Kind::singular })]
    kind: What,
    /// Its name
    name: Option<String>,
}

/// Kinds that can be described.
const KINDS: &[(Kind, &str)] = &[(Kind::Clusters, ""), (Kind::Machines, ""), (Kind::Rollouts, "")];

pub(crate) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let Some(name) = args.kind.name(args.name)?.filter(|name| !name.is_empty()) else {
        return Err(Failure::bad_input("describe whom?").next("Its name is missing: musterctl describe KIND NAME"));
    };
    let coordinator = context.coordinator().await?;
    let now = Timestamp::now();
    let lines = match args.kind.kind {
        Kind::Machines => {
            let machine = coordinator.get_one(Kind::Machines, &name).await?;
            view::describe_machine(&serde_json::from_slice(&machine.json).map_err(not_this_version)?, now)
        }
        Kind::Rollouts => {
            let rollout = coordinator.get_one(Kind::Rollouts, &name).await?;
            view::describe_rollout(&serde_json::from_slice(&rollout.json).map_err(not_this_version)?, now)
        }
        // A cluster: the only other kind in KINDS.
        _ => {
            let cluster = coordinator.get_one(Kind::Clusters, &name).await?;
            let machines = coordinator.get(Kind::Machines, "", &name).await?;
            let machines = machines.iter().map(|machine| serde_json::from_slice(&machine.json));
            let machines = machines.collect::<Result<Vec<_>, _>>().map_err(not_this_version)?;
            view::describe_cluster(&serde_json::from_slice(&cluster.json).map_err(not_this_version)?, &machines, now)
        }
    };
    terminal::print_all(&lines)
}
