//! `musterctl version`.

use jiff::Timestamp;
use muster_coordinator::view::printable;
use muster_proto::{VERSION, wire::VersionRequest};

use crate::{config::Context, failure::Failure, terminal};

/// A difference of clocks worth telling, in milliseconds.
const CLOCK_SKEW_MS: u64 = 5_000;

/// Show the versions of musterctl and of the coordinator
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only our own; asks nobody
    #[arg(long)]
    client: bool,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    terminal::print(&format!("musterctl    {VERSION}"))?;
    if args.client {
        return Ok(());
    }
    let coordinator = context.coordinator().await?;
    let answer = coordinator.call(coordinator.fleet().version(VersionRequest {})).await?;
    terminal::print(&printable(&format!(
        "coordinator  {} at {}, trust domain {}, epoch {}",
        answer.version,
        coordinator.address(),
        answer.trust_domain,
        answer.epoch
    )))?;
    let ours = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0);
    let skew_ms = ours.abs_diff(answer.server_time_ms);
    if skew_ms > CLOCK_SKEW_MS {
        terminal::say(&format!("warning: the coordinator's clock differs from ours by {} s", skew_ms / 1000));
    }
    Ok(())
}
