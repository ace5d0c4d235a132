//! `musterctl logs`: an item's output, read from the machine itself.

use std::io::{self, IsTerminal as _};

use futures_util::StreamExt as _;
use muster_proto::{printable::printable_lines, resource::Kind, wire::LogsRequest};
use tokio::time::timeout;

use crate::{
    client::CALL_DEADLINE,
    config::Context,
    errors::{Exit, Failure},
    name, terminal,
};

/// Show the output of an item on a machine
///
/// Read from the machine's own disk over the agent's connection: the whole output of up to 8 MiB, of a longer one the
/// newest 8 to 16 MiB. To a terminal, control characters are shown as `^[`; through a pipe the bytes are as the item
/// wrote them.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  musterctl logs worker-3              the item that runs, or ran last
  musterctl logs worker-3 images -f    follow it")]
pub(crate) struct Args {
    /// Name of the machine
    #[arg(value_parser = name::machine)]
    machine: String,
    /// Name of the item [default: the one that runs, or ran last]
    item: Option<String>,
    /// Go on as it grows, until the item ends
    #[arg(short, long)]
    follow: bool,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let coordinator = context.coordinator().await?;
    let item = args.item.unwrap_or_default();
    if !item.is_empty() {
        coordinator.has_item(&args.machine, &item).await?;
    }
    let request = LogsRequest { machine: args.machine.clone(), item, follow: args.follow };
    let asked = coordinator.call_on(Kind::Machines, &args.machine, coordinator.fleet().logs(request)).await;
    let mut chunks = asked.map_err(|failure| match failure.exit {
        Exit::Refused => {
            failure.next(format!("What the coordinator knows of it: musterctl describe machine {}", args.machine))
        }
        _ => failure,
    })?;
    let visible = io::stdout().is_terminal();
    let mut silent = true;
    loop {
        // A followed item may be silent for hours; otherwise the output already exists.
        let next = if args.follow {
            chunks.next().await
        } else {
            timeout(CALL_DEADLINE, chunks.next()).await.map_err(|_| {
                Failure::new(Exit::Unreachable, format!("{} sends no more of the output", args.machine))
                    .next(format!("Is it connected? musterctl describe machine {}", args.machine))
            })?
        };
        let Some(chunk) = next else { break };
        let chunk = chunk.map_err(|status| {
            let next = format!("What it does, and what it waits for: musterctl describe machine {}", args.machine);
            let failure = Failure::status(coordinator.address(), &status);
            match failure.exit {
                Exit::BadInput | Exit::Refused => failure.next(next),
                _ => failure,
            }
        })?;
        silent &= chunk.data.is_empty();
        if visible {
            terminal::write(printable_lines(&String::from_utf8_lossy(&chunk.data)).as_bytes())?;
        } else {
            terminal::write(&chunk.data)?;
        }
    }
    if silent {
        terminal::say("(no output)");
    }
    Ok(())
}
