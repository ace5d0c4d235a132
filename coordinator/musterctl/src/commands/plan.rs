//! `musterctl plan`: the order in which machines go, and why they wait.

use clap::ValueEnum;
use muster_proto::{
    printable::printable,
    resource::{Cluster, Kind, Plan},
    wire::PlanRequest,
};

use crate::{
    client::Coordinator,
    config::Context,
    errors::{Failure, not_this_version},
    name, terminal, view,
};

/// Show who goes when, and why not now; on a deployed cluster, what an update would do
///
/// While an update, a reboot, maintenance or a removal is under way: how far it is on each machine, and what it waits
/// for.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  musterctl plan edge-7\n  musterctl plan edge-7 -o json")]
pub(crate) struct Args {
    /// Name of the cluster
    #[arg(value_parser = name::cluster)]
    cluster: String,
    /// For an update: what may be done to machines, `drain` or `os` (they may reboot) [default: drain]
    #[arg(long)]
    scope: Option<String>,
    /// For an update: the control plane may be down for a while; however many control machines there are, neither they
    /// nor the Swarm's managers are counted
    #[arg(long)]
    accept_control_plane_downtime: bool,
    /// For an update: without backups of the Swarm and of MKE
    #[arg(long)]
    skip_backup: bool,
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
    let request = PlanRequest {
        cluster: args.cluster.clone(),
        scope: args.scope.unwrap_or_default(),
        accept_control_plane_downtime: args.accept_control_plane_downtime,
        skip_backup: args.skip_backup,
    };
    let (start, downtime) = (command_line("update", &request), with_downtime(&request));
    let answer = coordinator.call_on(Kind::Clusters, &args.cluster, coordinator.fleet().plan(request)).await?;
    match args.output {
        Some(Format::Json) => terminal::print(&crate::get::pretty_json(&crate::get::value(&answer.json)?)?),
        Some(Format::Yaml) => terminal::print(crate::get::yaml(&crate::get::value(&answer.json)?)?.trim_end()),
        None => {
            let plan: Plan = serde_json::from_slice(&answer.json).map_err(not_this_version)?;
            terminal::print_all(&view::plan_lines(&plan))?;
            if plan.rollout.is_none() && plan.update.is_none() {
                return say_who_is_missing(&coordinator, &args.cluster).await;
            }
            match plan.update.and_then(|update| update.refused) {
                _ if plan.rollout.is_some() => Ok(()),
                Some(refused) => lead_on(&refused, &downtime),
                None => terminal::print(&format!("Start it: {start}")),
            }
        }
    }
}

/// Report missing machines: a plan contains only machines that can be planned.
async fn say_who_is_missing(coordinator: &Coordinator, name: &str) -> Result<(), Failure> {
    let cluster = coordinator.get_one(Kind::Clusters, name).await?;
    let cluster: Cluster = serde_json::from_slice(&cluster.json).map_err(not_this_version)?;
    let whole = cluster.status.ready_nodes == cluster.status.requested_nodes && cluster.status.revoked_nodes.is_empty();
    if whole {
        return Ok(());
    }
    let known = coordinator.get(Kind::Machines, "", name).await?.len();
    let missing = usize::try_from(cluster.status.requested_nodes).unwrap_or(usize::MAX).saturating_sub(known);
    let next = match missing {
        0 => what_helps(&cluster),
        missing => format!(
            "spec.machines wants {missing} more: they enrol (musterctl token create --cluster {name} --type …), or the \
             manifest says fewer"
        ),
    };
    terminal::print(&printable(&format!("{}; {next}", view::ready_line(&cluster))))
}

/// What helps: the description of a machine in trouble says so.
fn what_helps(cluster: &Cluster) -> String {
    let status = &cluster.status;
    let troubled = [&status.failed_nodes, &status.indeterminate_nodes, &status.lost_nodes, &status.revoked_nodes];
    match troubled.into_iter().flatten().next() {
        Some(first) => format!("what helps {first}: musterctl describe machine {first}"),
        None => format!("why: musterctl get machines --cluster {} -o wide", cluster.metadata.name),
    }
}

/// Print the next command to look at if the quorum is the reason of the refusal.
pub(crate) fn lead_on(refused: &str, downtime: &str) -> Result<(), Failure> {
    match refused.starts_with("Quorum") {
        true => terminal::print(&format!("What it would do: {downtime}")),
        false => Ok(()),
    }
}

/// The command that shows the plan if the control plane may be down.
pub(crate) fn with_downtime(asked: &PlanRequest) -> String {
    command_line("plan", &PlanRequest { accept_control_plane_downtime: true, ..asked.clone() })
}

/// The command line, of `update` or `plan`, for the update that is shown.
fn command_line(command: &str, asked: &PlanRequest) -> String {
    let mut line = format!("musterctl {command} {}", asked.cluster);
    if !asked.scope.is_empty() {
        line.push_str(&format!(" --scope {}", asked.scope));
    }
    for (given, option) in [
        (asked.accept_control_plane_downtime, " --accept-control-plane-downtime"),
        (asked.skip_backup, " --skip-backup"),
    ] {
        line.push_str(if given { option } else { "" });
    }
    printable(&line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pasted_starts_what_was_shown() {
        let mut asked = PlanRequest { cluster: "edge-7".to_owned(), ..Default::default() };
        assert_eq!(command_line("update", &asked), "musterctl update edge-7");
        asked.scope = "os".to_owned();
        asked.skip_backup = true;
        assert_eq!(command_line("update", &asked), "musterctl update edge-7 --scope os --skip-backup");
        let all = "musterctl plan edge-7 --scope os --accept-control-plane-downtime --skip-backup";
        assert_eq!(with_downtime(&asked), all);
        asked.accept_control_plane_downtime = true;
        let all = "musterctl update edge-7 --scope os --accept-control-plane-downtime --skip-backup";
        assert_eq!(command_line("update", &asked), all);
    }
}
