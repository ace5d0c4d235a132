//! `musterctl describe`: everything about one thing, on one page.

use clap::ValueEnum;
use jiff::Timestamp;
use muster_coordinator::view::{self, Kind};

use crate::{
    config::Context,
    failure::Failure,
    get::not_this_version,
    name::{What, WhatParser},
    terminal,
};

/// Show one cluster, machine or rollout in full
///
/// What is wrong, since when and what clears it; items with their outcomes; the last output; stages; the host.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  musterctl describe machine worker-3\n  musterctl describe cluster edge-7")]
pub(crate) struct Args {
    /// What to describe; KIND/NAME is its name as well
    #[arg(value_name = "KIND", value_parser = WhatParser::<Described>::new())]
    kind: What<Described>,
    /// Its name
    name: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Described {
    #[value(alias = "clusters", alias = "lcmcluster", alias = "lcmclusters")]
    Cluster,
    #[value(aliases = ["machines", "lcmmachine", "lcmmachines", "node", "nodes", "no"])]
    Machine,
    #[value(alias = "rollouts")]
    Rollout,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let Some(name) = args.kind.name(args.name)?.filter(|name| !name.is_empty()) else {
        return Err(Failure::bad_input("describe whom?").next("Its name is missing: musterctl describe KIND NAME"));
    };
    let coordinator = context.coordinator().await?;
    let now = Timestamp::now();
    let lines = match args.kind.kind {
        Described::Machine => {
            let machine = coordinator.get_one(Kind::Machines, &name).await?;
            view::describe_machine(&serde_json::from_slice(&machine.json).map_err(not_this_version)?, now)
        }
        Described::Rollout => {
            let rollout = coordinator.get_one(Kind::Rollouts, &name).await?;
            view::describe_rollout(&serde_json::from_slice(&rollout.json).map_err(not_this_version)?, now)
        }
        Described::Cluster => {
            let cluster = coordinator.get_one(Kind::Clusters, &name).await?;
            let machines = coordinator.get(Kind::Machines, "", &name).await?;
            let machines = machines.iter().map(|machine| serde_json::from_slice(&machine.json));
            let machines = machines.collect::<Result<Vec<_>, _>>().map_err(not_this_version)?;
            view::describe_cluster(&serde_json::from_slice(&cluster.json).map_err(not_this_version)?, &machines, now)
        }
    };
    terminal::print_all(&lines)
}
