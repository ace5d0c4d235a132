//! `musterctl plan`: who goes when, and why not now.

use clap::ValueEnum;
use muster_coordinator::view::{self, Kind};
use muster_proto::wire::PlanRequest;

use crate::{config::Context, failure::Failure, get::not_this_version, terminal};

/// Show who goes when, and why not now
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  musterctl plan edge-7\n  musterctl plan edge-7 -o json")]
pub(crate) struct Args {
    /// Name of the cluster
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

pub(crate) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let coordinator = context.coordinator().await?;
    let request = PlanRequest { cluster: args.cluster.clone() };
    let answer = coordinator.call_on(Kind::Clusters, &args.cluster, coordinator.fleet().plan(request)).await?;
    match args.output {
        Some(Format::Json) => terminal::print(&crate::get::pretty_json(&crate::get::value(&answer.json)?)?),
        Some(Format::Yaml) => terminal::print(crate::get::yaml(&crate::get::value(&answer.json)?)?.trim_end()),
        None => {
            let plan = serde_json::from_slice(&answer.json).map_err(not_this_version)?;
            terminal::print_all(&view::plan_lines(&plan))
        }
    }
}
