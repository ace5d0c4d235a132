//! `musterctl locks`: actions of operators on the locks of application controllers.

use muster_proto::{
    resource::{Kind, Lock, Of},
    wire::ReleaseLocksRequest,
};

use crate::{
    client::Coordinator,
    commands::actions::show,
    config::Context,
    errors::{Exit, Failure, not_this_version},
    prompt::ask,
};

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
    let LocksCommand::Release(args) = args.command;
    let coordinator = context.coordinator().await?;
    // If there is no lock, skip the question: the coordinator reports the error.
    let held = held(&coordinator, &args).await?;
    let ReleaseArgs { controller, cluster, machine, yes } = args;
    let what = match held {
        1 => "the lock".to_owned(),
        locks => format!("the {locks} locks"),
    };
    let of = machine.as_ref().map_or_else(|| format!("in cluster {cluster}"), |machine| format!("of {machine}"));
    let question = format!("Is {controller} gone for good? Remove {what} that it holds {of}?");
    if held > 0 && !yes && !ask(&question)? {
        return Ok(());
    }
    let request = ReleaseLocksRequest { cluster: cluster.clone(), controller, machine: machine.unwrap_or_default() };
    let answer = coordinator.call(coordinator.fleet().release_locks(request)).await;
    show(&answer.map_err(|failure| match failure.exit {
        Exit::BadInput => failure.next(format!("Who holds locks there: musterctl get locks --cluster {cluster}")),
        _ => failure,
    })?)
}

/// Number of locks that the command concerns.
async fn held(coordinator: &Coordinator, args: &ReleaseArgs) -> Result<usize, Failure> {
    let found = coordinator.get(Kind::Locks(Of::All), "", &args.cluster).await?;
    let locks = found.iter().map(|lock| serde_json::from_slice(&lock.json)).collect::<Result<Vec<Lock>, _>>();
    let is_meant = |lock: &Lock| {
        let of_machine = args.machine.is_none() || lock.spec.node_name == args.machine;
        lock.spec.controller_name == args.controller && of_machine
    };
    Ok(locks.map_err(not_this_version)?.into_iter().filter(is_meant).count())
}
