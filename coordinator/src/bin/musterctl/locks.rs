//! `musterctl locks`: what operators do with the locks of application controllers.

use muster_proto::wire::ReleaseLocksRequest;

use crate::{actions::show, config::Context, failure::Failure, update::ask};

/// Remove locks of an application controller that is gone for good; to see them: musterctl get locks
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: LocksCommand,
}

#[derive(clap::Subcommand)]
enum LocksCommand {
    Release(ReleaseArgs),
}

/// Remove the locks of an application controller that is gone for good
///
/// As long as it holds a lock in the cluster, no machine is disturbed before it has answered, and one that is not
/// connected cannot. Without any it is not known any more, unless spec.workloadControllers has it. Refused while it is
/// connected: it would make them again. Workloads that it left on a machine are cut off when the machine is disturbed.
/// Recorded in the audit.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  musterctl locks release nova --cluster edge-7
  musterctl locks release nova --cluster edge-7 --machine worker-3 --yes")]
struct ReleaseArgs {
    /// Name of the controller, as in its certificate (HOLDER in musterctl get locks)
    controller: String,
    /// The cluster
    #[arg(long, value_name = "NAME")]
    cluster: String,
    /// Only its lock of this machine
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let LocksCommand::Release(ReleaseArgs { controller, cluster, machine, yes }) = args.command;
    let what = machine.as_ref().map_or_else(|| "every lock".to_owned(), |machine| format!("the lock of {machine}"));
    let question = format!("Is {controller} gone for good? Remove {what} that it holds in cluster {cluster}?");
    if !yes && !ask(&question, "the removal of its locks")? {
        return Ok(());
    }
    let request = ReleaseLocksRequest { cluster, controller, machine: machine.unwrap_or_default() };
    let coordinator = context.coordinator().await?;
    show(&coordinator.call(coordinator.fleet().release_locks(request)).await?)
}
