//! `musterctl version`.

use std::time::Duration;

use jiff::Timestamp;
use muster_proto::{
    VERSION,
    printable::printable,
    wire::{VersionRequest, VersionResponse},
};
use tokio::time::{Instant, sleep};

use crate::{
    client::Coordinator,
    config::Context,
    errors::{Exit, Failure},
    terminal,
};

/// Smallest difference of clocks that is reported, in milliseconds.
const CLOCK_SKEW_MS: u64 = 5_000;

/// Show the versions of musterctl and of the coordinator, and whose credentials these are
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  musterctl version
  musterctl version --wait 30      in a script, after the coordinator was started")]
pub(crate) struct Args {
    /// Only our own; asks nobody
    #[arg(long)]
    client: bool,
    /// Wait so long for a coordinator that is not up yet
    #[arg(
        long,
        allow_negative_numbers = true,
        value_name = "SECONDS",
        default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(0..=3600)
    )]
    wait: u32,
}

/// Wait between two attempts to reach a coordinator that is still starting.
const TRY_EVERY: Duration = Duration::from_millis(50);

pub(crate) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    terminal::print(&format!("musterctl    {VERSION}"))?;
    if args.client {
        return Ok(());
    }
    let (coordinator, answer) = ask(context, Duration::from_secs(args.wait.into())).await?;
    terminal::print(&printable(&format!(
        "coordinator  {} at {}, trust domain {}, epoch {}",
        answer.version,
        coordinator.address(),
        answer.trust_domain,
        answer.epoch
    )))?;
    let only = scope(&answer).map_or_else(String::new, |clusters| format!(", for {clusters} only"));
    terminal::print(&printable(&format!("credentials  {}{only}", answer.caller)))?;
    let ours = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0);
    let skew_ms = ours.abs_diff(answer.server_time_ms);
    if skew_ms > CLOCK_SKEW_MS {
        terminal::say(&format!("warning: the coordinator's clock differs from ours by {} s", skew_ms / 1000));
    }
    Ok(())
}

/// The only clusters that our credentials apply to. None: all.
pub(crate) fn scope(answer: &VersionResponse) -> Option<String> {
    (!answer.clusters.is_empty()).then(|| answer.clusters.join(", "))
}

async fn ask(context: &Context, wait: Duration) -> Result<(Coordinator, VersionResponse), Failure> {
    let deadline = Instant::now() + wait;
    loop {
        let asked = async {
            let coordinator = context.coordinator().await?;
            let answer = coordinator.call(coordinator.fleet().version(VersionRequest {})).await?;
            Ok::<_, Failure>((coordinator, answer))
        };
        match asked.await {
            Err(failure) if failure.exit == Exit::Unreachable && Instant::now() < deadline => sleep(TRY_EVERY).await,
            asked => return asked,
        }
    }
}
