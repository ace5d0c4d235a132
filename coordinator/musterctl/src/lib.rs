//! `musterctl`: the operator's CLI. It speaks gRPC to a coordinator and depends only on the wire (`muster_proto`). Each
//! subcommand has one file in `commands`; `view` turns documents into tables and lines. Errors become a [`Failure`];
//! only `errors` decides its exit status and next step. It is a library because the demo follows a rollout like
//! `musterctl watch`, and the coordinator's tests read what operators read.

mod cli;
pub mod client;
pub mod commands;
pub mod config;
pub mod errors;
mod feed;
mod hints;
mod name;
mod prompt;
pub mod terminal;
pub mod view;

use std::process::ExitCode;

use clap::Parser;

use self::{
    cli::{Cli, Command},
    commands::{
        actions, annotate, apply, artifacts, audit, completion, delete, demo, deploy, describe, drain_force, get,
        kubernetes, locks, logs, maintenance, plan, reboot, remove, secret, token, update, version, watch,
    },
    config::Context,
    errors::{Exit, Failure},
};

/// Run the program.
#[must_use]
pub fn main() -> ExitCode {
    muster_proto::process::abort_on_panic();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let words: Vec<String> =
                std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
            let error = hints::explain(error, &words);
            let _ = error.print(); // nowhere to say that stderr is closed
            return u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
        }
    };
    to_the_end(run(cli))
}

/// Run a command to its end and print its failure.
pub fn to_the_end(command: impl Future<Output = Result<(), Failure>>) -> ExitCode {
    let ended = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(command),
        Err(source) => Err(Failure::failed("cannot start the runtime").because(source)),
    };
    match ended {
        Ok(()) => Exit::Done.into(),
        Err(failure) => {
            failure.print();
            failure.exit.into()
        }
    }
}

async fn run(cli: Cli) -> Result<(), Failure> {
    if cli.namespace.is_some() || cli.all_namespaces {
        terminal::say("note: --namespace is ignored: names are unique in the whole fleet");
    }
    let context = Context::new(cli.config);
    match cli.command {
        Command::Apply(args) => apply::run(args, &context).await,
        Command::Get(args) => get::run(args, &context).await,
        Command::Describe(args) => describe::run(args, &context).await,
        Command::Plan(args) => plan::run(args, &context).await,
        Command::Deploy(args) => deploy::run(args, &context).await,
        Command::Update(args) => update::run(args, &context).await,
        Command::Reboot(args) => reboot::run(args, &context).await,
        Command::Maintenance(args) => maintenance::run(args, &context).await,
        Command::Remove(args) => remove::run(args, &context).await,
        Command::Delete(args) => delete::run(args, &context).await,
        Command::Pause(args) => update::pause(args, &context).await,
        Command::Resume(args) => update::resume(args, &context).await,
        Command::Abort(args) => update::abort(args, &context).await,
        Command::Watch(args) => watch::run(args, &context).await,
        Command::Logs(args) => logs::run(args, &context).await,
        Command::Retry(args) => actions::retry(args, &context).await,
        Command::Skip(args) => actions::skip(args, &context).await,
        Command::Accept(args) => actions::accept(args, &context).await,
        Command::Rerun(args) => actions::rerun(args, &context).await,
        Command::Revoke(args) => actions::revoke(args, &context).await,
        Command::Replace(args) => actions::replace(args, &context).await,
        Command::Token(args) => token::run(args, &context).await,
        Command::Secret(args) => secret::run(args, &context).await,
        Command::Kubernetes(args) => kubernetes::run(args, &context).await,
        Command::DrainForce(args) => drain_force::run(args, &context).await,
        Command::Locks(args) => locks::run(args, &context).await,
        Command::Annotate(args) => annotate::run(args, &context).await,
        Command::Audit(args) => audit::run(args, &context).await,
        Command::Artifacts(args) => artifacts::run(args).await,
        Command::Demo(args) => demo::run(&args),
        Command::Version(args) => version::run(args, &context).await,
        Command::Completion(args) => completion::run(&args),
        Command::Man { dir } => completion::man(&dir),
    }
}
