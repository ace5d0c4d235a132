//! The command line: what `musterctl --help` shows.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::commands::{
    actions, annotate, apply, artifacts, audit, completion, delete, demo, deploy, describe, drain_force, get,
    kubernetes, locks, logs, maintenance, plan, reboot, remove, secret, token, update, version, watch,
};

/// Brings fleets of bare-metal machines through deployment and updates: the operator's CLI of Muster.
#[derive(Parser)]
#[command(
    name = "musterctl",
    version,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "\
Try it, without root and without network:
  musterctl demo

A first fleet:
  musterctl apply -f fleet.yaml
  musterctl token create --cluster edge-7 --type worker --out worker.token
  musterctl watch edge-7

Exit status: 0 done, 1 failed, 2 bad input, 3 not allowed, 4 refused by the state of things, 5 coordinator unreachable.
Credentials: --config, $MUSTER_CONFIG, ~/.config/muster/config.toml; `muster-coordinator init` makes the first ones."
)]
pub(crate) struct Cli {
    /// Where the coordinator is and who we are [default: $MUSTER_CONFIG, then ~/.config/muster/config.toml]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// kubectl's option: accepted and ignored, for names are unique in the whole fleet
    #[arg(short, long, global = true, hide = true)]
    pub(crate) namespace: Option<String>,
    /// kubectl's option: ignored
    #[arg(short = 'A', long, global = true, hide = true)]
    pub(crate) all_namespaces: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    Apply(apply::Args),
    Get(get::Args),
    Describe(describe::Args),
    Plan(plan::Args),
    Deploy(deploy::Args),
    Update(update::Args),
    Reboot(reboot::Args),
    Maintenance(maintenance::Args),
    Remove(remove::Args),
    Delete(delete::Args),
    Pause(update::PauseArgs),
    Resume(update::ResumeArgs),
    Abort(update::AbortArgs),
    Watch(watch::Args),
    Logs(logs::Args),
    Retry(actions::RetryArgs),
    Skip(actions::SkipArgs),
    Accept(actions::AcceptArgs),
    Rerun(actions::RerunArgs),
    Revoke(actions::RevokeArgs),
    Replace(actions::ReplaceArgs),
    Token(token::Args),
    Secret(secret::Args),
    Kubernetes(kubernetes::Args),
    DrainForce(drain_force::Args),
    Locks(locks::Args),
    Annotate(annotate::Args),
    Audit(audit::Args),
    Artifacts(artifacts::Args),
    Demo(demo::Args),
    Version(version::Args),
    Completion(completion::Args),
    /// Write the manual pages; packaging does this
    #[command(hide = true)]
    Man {
        /// Where to
        dir: PathBuf,
    },
}
