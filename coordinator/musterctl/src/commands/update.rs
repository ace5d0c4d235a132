//! `musterctl update` brings a deployed cluster to its newest manifest; `pause`, `resume`, `abort` control a running
//! update.

use muster_proto::{
    model::Scope,
    resource::{Cluster, Kind, Machine, Plan, Rollout},
    suggestions::nearest,
    wire::{PlanRequest, RolloutRequest, UpdateRequest},
};

use crate::{
    client::Coordinator,
    commands::{actions::show, plan, watch},
    config::Context,
    errors::{Exit, Failure, not_this_version},
    name,
    prompt::ask,
    terminal, view,
};

/// Bring a deployed cluster to its newest manifest
///
/// Shows the plan, freezes it, starts, and follows to the end. The Swarm and MKE are backed up first. Control machines
/// go one by one, then the workers, each only when its application controllers have moved its workloads away. Ctrl-C
/// detaches, it never aborts.
/// Ends with status 0 when every machine is updated, 4 when a person must decide (it says what).
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  musterctl plan edge-7                  what it would do
  musterctl update edge-7
  musterctl update edge-7 --yes --detach && musterctl watch edge-7")]
pub(crate) struct Args {
    /// Name of the cluster
    #[arg(value_parser = name::cluster)]
    cluster: String,
    /// What may be done to machines: `drain` (services may restart) or `os` (they may reboot as well)
    #[arg(long, default_value = "drain")]
    scope: Scope,
    /// Make no backups of the Swarm and of MKE before it (recorded: musterctl get audit)
    #[arg(long)]
    skip_backup: bool,
    #[command(flatten)]
    start: Start,
}

/// How something that disturbs workloads is started: the same for an update and for reboots.
#[derive(clap::Args)]
pub(crate) struct Start {
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Start it, and do not follow
    #[arg(long)]
    pub(crate) detach: bool,
    /// The control plane may be down for a while: needed with one or two control machines; with more it skips the count
    /// of them and of the Swarm's managers
    #[arg(long)]
    pub(crate) accept_control_plane_downtime: bool,
}

impl Start {
    /// Whether to start it: `--yes`, or the answer of the person at the terminal.
    ///
    /// # Errors
    ///
    /// There is no terminal to ask at.
    pub(crate) fn agreed(&self, question: &str) -> Result<bool, Failure> {
        if self.yes { Ok(true) } else { ask(question) }
    }

    /// Follow the operation to its end, unless `--detach` was given.
    ///
    /// # Errors
    ///
    /// As [`watch::to_the_end`].
    pub(crate) async fn follow(&self, cluster: &str, context: &Context) -> Result<(), Failure> {
        if self.detach { Ok(()) } else { watch::to_the_end(cluster, context).await }
    }
}

/// Let nothing new start in an update
///
/// Machines whose workloads were disturbed come to their end; those that wait for their locks go on waiting.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  musterctl pause edge-7               what is under way there
  musterctl pause edge-7-update-2")]
pub(crate) struct PauseArgs {
    /// Name of the rollout (musterctl get rollouts), or of its cluster
    #[arg(value_name = "ROLLOUT|CLUSTER", value_parser = name::rollout)]
    rollout: String,
}

/// Let a paused update go on
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  musterctl resume edge-7\n  musterctl resume edge-7-update-2")]
pub(crate) struct ResumeArgs {
    /// Name of the rollout (musterctl get rollouts), or of its cluster
    #[arg(value_name = "ROLLOUT|CLUSTER", value_parser = name::rollout)]
    rollout: String,
}

/// End an update early
///
/// Machines whose workloads were disturbed come to their end; the others are given back as they were, and keep the
/// version they had. Of a maintenance it brings back every machine that is out of service, and asks first.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  musterctl abort edge-7\n  musterctl abort edge-7-update-2")]
pub(crate) struct AbortArgs {
    /// Name of the rollout (musterctl get rollouts), or of its cluster
    #[arg(value_name = "ROLLOUT|CLUSTER", value_parser = name::rollout)]
    rollout: String,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

/// Replaces a plan's digest when no plan was shown. It differs from every digest, so the coordinator refuses to start.
const NOTHING_SHOWN: &str = "nothing was shown";

pub(crate) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let coordinator = context.coordinator().await?;
    let Args { cluster, scope, skip_backup, start } = args;
    let (name, scope, accept_control_plane_downtime) =
        (cluster.clone(), scope.to_string(), start.accept_control_plane_downtime);
    let mut request =
        UpdateRequest { cluster: name, scope, accept_control_plane_downtime, skip_backup, ..Default::default() };
    let mut asks = !start.yes;
    if asks {
        let (name, scope) = (cluster.clone(), request.scope.clone());
        let asked = PlanRequest { cluster: name, scope, accept_control_plane_downtime, skip_backup };
        let downtime = plan::with_downtime(&asked);
        let answer = coordinator.call_on(Kind::Clusters, &cluster, coordinator.fleet().plan(asked)).await?;
        let plan: Plan = serde_json::from_slice(&answer.json).map_err(not_this_version)?;
        terminal::print_all(&view::plan_lines(&plan))?;
        // If there is no update to start, skip the question: the coordinator says why.
        asks = plan.update.is_some();
        if let Some(refused) = plan.update.as_ref().and_then(|update| update.refused.as_deref()) {
            plan::lead_on(refused, &downtime)?;
            return Err(Failure::silent(Exit::Refused)); // the plan says why it cannot start
        }
        // Start exactly what was shown.
        let shown = plan.update.and_then(|update| update.digest);
        request.plan_digest = shown.unwrap_or_else(|| NOTHING_SHOWN.to_owned());
    }
    if asks && !ask("Start it?")? {
        return Ok(());
    }
    show(&coordinator.call_on(Kind::Clusters, &cluster, coordinator.fleet().update(request)).await?)?;
    start.follow(&cluster, context).await
}

pub(crate) async fn pause(args: PauseArgs, context: &Context) -> Result<(), Failure> {
    let coordinator = context.coordinator().await?;
    let rollout = meant(&coordinator, args.rollout).await?;
    let request = RolloutRequest { rollout: rollout.clone() };
    show(&coordinator.call_on(Kind::Rollouts, &rollout, coordinator.fleet().pause(request)).await?)
}

pub(crate) async fn resume(args: ResumeArgs, context: &Context) -> Result<(), Failure> {
    let coordinator = context.coordinator().await?;
    let rollout = meant(&coordinator, args.rollout).await?;
    let request = RolloutRequest { rollout: rollout.clone() };
    show(&coordinator.call_on(Kind::Rollouts, &rollout, coordinator.fleet().resume(request)).await?)
}

pub(crate) async fn abort(args: AbortArgs, context: &Context) -> Result<(), Failure> {
    let coordinator = context.coordinator().await?;
    let rollout = meant(&coordinator, args.rollout).await?;
    let out = if args.yes { Vec::new() } else { out_of_service(&coordinator, &rollout).await? };
    // A person may be working on such a machine and must agree to its return.
    if !out.is_empty() && !ask(&format!("Bring back into service: {}?", out.join(", ")))? {
        return Ok(());
    }
    let request = RolloutRequest { rollout: rollout.clone() };
    show(&coordinator.call_on(Kind::Rollouts, &rollout, coordinator.fleet().abort(request)).await?)
}

/// Machines that are out of service for this rollout, for as long as their operator needs.
async fn out_of_service(coordinator: &Coordinator, rollout: &str) -> Result<Vec<String>, Failure> {
    let found = coordinator.get_one(Kind::Rollouts, rollout).await?;
    let found: Rollout = serde_json::from_slice(&found.json).map_err(not_this_version)?;
    if found.spec.kind != "maintenance" || found.status.finished_at.is_some() {
        return Ok(Vec::new());
    }
    let machines = coordinator.get(Kind::Machines, "", &found.spec.cluster_name).await?;
    let machines =
        machines.iter().map(|found| serde_json::from_slice(&found.json)).collect::<Result<Vec<Machine>, _>>();
    let is_out = |machine: &Machine| machine.status.maintenance.is_some_and(|known| !known.leaving);
    let out = machines.map_err(not_this_version)?.into_iter().filter(is_out);
    Ok(out.map(|machine| machine.metadata.name).collect())
}

/// The failure for a name that is unknown among rollouts and clusters.
async fn neither(coordinator: &Coordinator, name: &str) -> Failure {
    let failure = Failure::bad_input(format!("there is no rollout and no cluster named \"{name}\""));
    let mut known = coordinator.names(Kind::Clusters).await;
    known.extend(coordinator.names(Kind::Rollouts).await);
    match nearest(name, known.iter().map(String::as_str)) {
        Some(near) => failure.next(format!("Did you mean \"{near}\"?")),
        None => failure.next("See: musterctl get rollouts, musterctl get clusters"),
    }
}

/// The rollout of this name, or the open rollout of the cluster of this name.
async fn meant(coordinator: &Coordinator, name: String) -> Result<String, Failure> {
    match coordinator.get_one(Kind::Rollouts, &name).await {
        Err(failure) if failure.exit == Exit::BadInput => {}
        answer => return answer.map(|_| name),
    }
    let cluster = match coordinator.get_one(Kind::Clusters, &name).await {
        Err(failure) if failure.exit == Exit::BadInput => return Err(neither(coordinator, &name).await),
        answer => answer?,
    };
    let cluster: Cluster = serde_json::from_slice(&cluster.json).map_err(not_this_version)?;
    cluster.status.rollout.ok_or_else(|| {
        let next = format!("What has been: musterctl get rollouts --cluster {name}");
        Failure::new(Exit::Refused, format!("nothing is under way in cluster {name}")).next(next)
    })
}
