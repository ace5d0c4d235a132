//! Actions of an operator on a machine: `retry`, `skip`, `accept`, `rerun`, `revoke`, `replace`. Each is one audited
//! call. `revoke` also works on credentials of people and programs.

use muster_proto::{
    model::MachineType,
    printable::printable,
    resource::{Kind, Machine},
    wire::{ActionResponse, CredentialsRequest, ItemRequest, MachineRequest},
};

use crate::{
    client::Coordinator,
    config::Context,
    errors::{Exit, Failure, not_this_version},
    name,
    prompt::ask,
    terminal,
};

/// Let a failed item be tried again
///
/// A machine is Failed when an item has used up its retries. Mend the cause, then retry: the item gets a full set of
/// attempts again. Items that are done are not run again: that is `musterctl rerun`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  musterctl retry worker-3 images
  musterctl retry worker-3          every failed item of the machine")]
pub(crate) struct RetryArgs {
    /// Name of the machine
    #[arg(value_parser = name::machine)]
    machine: String,
    /// Name of the item [default: every item that needs it]
    #[arg(value_parser = name::any)]
    item: Option<String>,
}

/// Leave an item out on one machine
///
/// The machine goes on without the item, which then counts as `skipped`. Recorded in the audit.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  musterctl skip worker-3 tuning")]
pub(crate) struct SkipArgs {
    /// Name of the machine
    #[arg(value_parser = name::machine)]
    machine: String,
    /// Name of the item
    #[arg(value_parser = name::any)]
    item: String,
}

/// Declare an interrupted item done
///
/// An item is Indeterminate when its process was lost and nobody knows what became of it. Look on the machine; if the
/// item came about, accept it, and the machine goes on. Otherwise: `musterctl retry`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  musterctl accept worker-3 swarm")]
pub(crate) struct AcceptArgs {
    /// Name of the machine
    #[arg(value_parser = name::machine)]
    machine: String,
    /// Name of the item
    #[arg(value_parser = name::any)]
    item: String,
}

/// Run a done item again
///
/// On a machine that is Ready it runs in the next update, which moves workloads away first where the item disturbs
/// them. Recorded in the audit.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  musterctl rerun worker-3 hardening
  musterctl update edge-7")]
pub(crate) struct RerunArgs {
    /// Name of the machine
    #[arg(value_parser = name::machine)]
    machine: String,
    /// Name of the item
    #[arg(value_parser = name::any)]
    item: String,
}

/// Shut out a machine, a person or a program
///
/// Its certificate is worthless from now on: its connections are cut within 10 s and it cannot renew. Of a machine that
/// is connected it asks first.
/// To bring a machine's name back: `musterctl replace`, then enrol again with a new token. To give a person new
/// credentials under the same name: `muster-coordinator credentials`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  musterctl revoke worker-3
  musterctl revoke operator/anna       every certificate she has so far; see: musterctl get credentials")]
pub(crate) struct RevokeArgs {
    /// Name of the machine, or operator/NAME, viewer/NAME, controller/NAME
    #[arg(value_name = "MACHINE|ROLE/NAME")]
    subject: String,
    /// The machine is powered off: its slot in an update may be freed though it had leave to start an item
    #[arg(long)]
    machine_is_off: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

/// Let a reinstalled machine enrol again under its name
///
/// The old identity is revoked and what it reported is void: every item runs again on the new one. Of a machine that is
/// connected it asks first.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  musterctl replace worker-3
  musterctl token create --cluster edge-7 --type worker --machine worker-3 --out worker-3.token
  # on the machine: muster-agent enroll --coordinator HOST:PORT --token-file worker-3.token --name worker-3")]
pub(crate) struct ReplaceArgs {
    /// Name of the machine
    #[arg(value_parser = name::machine)]
    machine: String,
    /// The old one is powered off: its slot in an update may be freed though it had leave to start an item
    #[arg(long)]
    machine_is_off: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

pub(crate) async fn retry(args: RetryArgs, context: &Context) -> Result<(), Failure> {
    let coordinator = context.coordinator().await?;
    let item = args.item.unwrap_or_default();
    let request = ItemRequest { machine: args.machine.clone(), item: item.clone() };
    show(&coordinator.call_on_item((&args.machine, &item), coordinator.fleet().retry(request)).await?)
}

pub(crate) async fn skip(args: SkipArgs, context: &Context) -> Result<(), Failure> {
    let coordinator = context.coordinator().await?;
    let request = ItemRequest { machine: args.machine.clone(), item: args.item.clone() };
    show(&coordinator.call_on_item((&args.machine, &args.item), coordinator.fleet().skip(request)).await?)
}

pub(crate) async fn accept(args: AcceptArgs, context: &Context) -> Result<(), Failure> {
    let coordinator = context.coordinator().await?;
    let request = ItemRequest { machine: args.machine.clone(), item: args.item.clone() };
    show(&coordinator.call_on_item((&args.machine, &args.item), coordinator.fleet().accept(request)).await?)
}

pub(crate) async fn rerun(args: RerunArgs, context: &Context) -> Result<(), Failure> {
    let coordinator = context.coordinator().await?;
    let request = ItemRequest { machine: args.machine.clone(), item: args.item.clone() };
    show(&coordinator.call_on_item((&args.machine, &args.item), coordinator.fleet().rerun(request)).await?)
}

pub(crate) async fn revoke(args: RevokeArgs, context: &Context) -> Result<(), Failure> {
    let coordinator = context.coordinator().await?;
    let name = match args.subject.split_once('/') {
        Some((kind, name)) if kind == Kind::Machines.singular() => name,
        Some(_) => {
            let request = CredentialsRequest { subject: args.subject.clone() };
            let mut fleet = coordinator.fleet();
            let call = fleet.revoke_credentials(request);
            return show(&coordinator.call_on(Kind::Credentials, &args.subject, call).await?);
        }
        None => &args.subject,
    };
    if !args.yes && !may_shut_out(&coordinator, name, "Revoke it").await? {
        return Ok(());
    }
    let request = MachineRequest { machine: name.to_owned(), machine_is_off: args.machine_is_off };
    show(&coordinator.call_on(Kind::Machines, name, coordinator.fleet().revoke_machine(request)).await?)
}

pub(crate) async fn replace(args: ReplaceArgs, context: &Context) -> Result<(), Failure> {
    let coordinator = context.coordinator().await?;
    if !args.yes && !may_shut_out(&coordinator, &args.machine, "Let another take its place").await? {
        return Ok(());
    }
    let request = MachineRequest { machine: args.machine.clone(), machine_is_off: args.machine_is_off };
    show(&coordinator.call_on(Kind::Machines, &args.machine, coordinator.fleet().replace_machine(request)).await?)
}

/// Ask before shutting out a connected machine: it is at work, and then needs a new token and a person at its console.
/// For a disconnected machine skip the question: these commands are made for it.
async fn may_shut_out(coordinator: &Coordinator, name: &str, what: &str) -> Result<bool, Failure> {
    let machine = match coordinator.get_one(Kind::Machines, name).await {
        // The call itself reports an unknown name or missing permission. After any other error the machine may be
        // connected: fail.
        Err(failure) if matches!(failure.exit, Exit::BadInput | Exit::NotAllowed) => return Ok(true),
        answer => answer?,
    };
    let machine: Machine = serde_json::from_slice(&machine.json).map_err(not_this_version)?;
    if !machine.status.connected {
        return Ok(true);
    }
    let cluster = machine.spec.cluster_name.as_str();
    let mut is = format!("{name} of cluster {cluster} is connected ({})", machine.status.state);
    if machine.spec.machine_type == MachineType::Control {
        let others = coordinator.get(Kind::Machines, "", cluster).await?;
        let others =
            others.iter().map(|other| serde_json::from_slice(&other.json)).collect::<Result<Vec<Machine>, _>>();
        let stays = |other: &Machine| {
            other.spec.machine_type == MachineType::Control && other.metadata.name != name && other.status.connected
        };
        let left = others.map_err(not_this_version)?.into_iter().filter(stays).count();
        is.push_str(&match left {
            0 => ", and no other control machine is".to_owned(),
            1 => ", and so is 1 other control machine".to_owned(),
            left => format!(", and so are {left} other control machines"),
        });
    }
    let question = format!("{is}. {what}? Its agent is cut off until it is enrolled anew.");
    ask(&printable(&question))
}

/// Print what was done, as the coordinator reports it.
pub(crate) fn show(answer: &ActionResponse) -> Result<(), Failure> {
    answer.lines.iter().try_for_each(|line| terminal::done(&printable(line)))
}
