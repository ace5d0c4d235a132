//! `musterctl token`: join tokens.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Subcommand, ValueEnum};
use jiff::Timestamp;
use muster_proto::{
    model::{TOKEN_TTL_MAX_MS, duration_ms},
    resource::Kind,
    wire::{CreateTokenRequest, RevokeTokenRequest},
};

use crate::{
    commands::{actions::show, get},
    config::Context,
    errors::Failure,
    name, terminal,
    view::age,
};

/// Make, list and revoke join tokens
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Subcommand)]
enum TokenCommand {
    Create(CreateArgs),
    /// List the tokens; secrets are never shown
    #[command(alias = "ls")]
    List(ListArgs),
    Revoke(RevokeArgs),
}

/// Make a token with which machines join a cluster
///
/// The token is shown this once: with --out it goes to a new file that only you may read, else, and nothing else, to
/// stdout. Bring it to the machine as a file.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  musterctl token create --cluster edge-7 --type worker --out worker.token
  musterctl token create --cluster edge-7 --type control --uses 3 --ttl 1h --out control.token
On the machine:
  muster-agent enroll --coordinator HOST:PORT --token-file worker.token")]
struct CreateArgs {
    /// The cluster to join
    #[arg(long, value_parser = name::cluster)]
    cluster: String,
    /// What the machines become
    #[arg(long = "type")]
    machine_type: JoinType,
    /// Only for the machine of this name
    #[arg(long, value_name = "NAME", value_parser = name::machine)]
    machine: Option<String>,
    /// How long it is good, e.g. 90m, 24h, 7d [default: the cluster's tokenTTL]
    #[arg(long, allow_negative_numbers = true, value_parser = duration)]
    ttl: Option<Duration>,
    /// How many machines may join with it [default: as many as the manifest still lacks, and one to spare; with
    /// --machine once]
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    uses: Option<u32>,
    /// A new file for the token, for your eyes only [default: stdout]
    #[arg(long, value_name = "FILE", value_parser = new_file)]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum JoinType {
    Control,
    Worker,
}

#[derive(clap::Args)]
struct ListArgs {
    /// Of this cluster only
    #[arg(long)]
    cluster: Option<String>,
}

/// Make a token worthless; machines that joined with it stay
///
/// A token that has leaked may have let in machines that are none of yours: --machines takes back, all at once, the
/// enrolments of those that never reported. Machines that have reported stay, and are named; `musterctl revoke` shuts
/// one of them out.
#[derive(clap::Args)]
struct RevokeArgs {
    /// Its id, as `musterctl token list` shows it
    id: String,
    /// Take back the enrolments made with it of machines that never reported
    #[arg(long)]
    machines: bool,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args.command {
        TokenCommand::Create(args) => create(args, context).await,
        TokenCommand::List(args) => get::list(Kind::Tokens, args.cluster.unwrap_or_default(), context).await,
        TokenCommand::Revoke(args) => {
            let parts: Vec<&str> = args.id.split('.').collect();
            if let [id, _, _] = parts[..]
                && !args.id.contains('/')
            {
                let next = format!("Its ID is what comes before the first dot: musterctl token revoke {id}");
                return Err(Failure::bad_input("that is a whole token, secret and all".to_owned()).next(next));
            }
            let coordinator = context.coordinator().await?;
            let request = RevokeTokenRequest { id: args.id.clone(), machines: args.machines };
            show(&coordinator.call_on(Kind::Tokens, &args.id, coordinator.fleet().revoke_token(request)).await?)
        }
    }
}

async fn create(args: CreateArgs, context: &Context) -> Result<(), Failure> {
    let machine_type = match args.machine_type {
        JoinType::Control => "control",
        JoinType::Worker => "worker",
    };
    // Create the file first: if writing failed later, the token would be lost.
    let file = args.out.as_deref().map(NewFile::make).transpose()?;
    let coordinator = context.coordinator().await?;
    let request = CreateTokenRequest {
        cluster: args.cluster.clone(),
        machine_type: machine_type.to_owned(),
        machine: args.machine.clone().unwrap_or_default(),
        ttl_ms: args.ttl.map_or(0, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
        uses: args.uses.unwrap_or(0),
    };
    let answer = coordinator.call_on(Kind::Clusters, &args.cluster, coordinator.fleet().create_token(request)).await?;
    let (place, once) = match file {
        Some(file) => {
            let place = file.path.display().to_string();
            file.keep(&answer.token, &answer.id)?;
            let once = format!("It is in {place}, and nowhere else.");
            (place, once)
        }
        None => {
            terminal::print(&answer.token).map_err(|failure| failure.next(lost(&answer.id)))?;
            ("FILE".to_owned(), "It is shown this once.".to_owned())
        }
    };
    let name = args.machine.as_ref().map_or_else(String::new, |machine| format!(" --name {machine}"));
    let uses = match (args.machine, answer.uses) {
        (Some(machine), _) => format!("machine {machine}"),
        (None, 1) => format!("one {machine_type} machine"),
        (None, uses) => format!("{uses} {machine_type} machines"),
    };
    let end = i64::try_from(answer.expires_at_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let left = end.map_or_else(|| "a long time".to_owned(), |end| age(Timestamp::now(), end));
    terminal::say(&format!(
        "Token {} lets {uses} join cluster {}, for {left}. {once} On the machine:\n  \
         muster-agent enroll --coordinator {} --token-file {place}{name}",
        answer.id,
        args.cluster,
        coordinator.address()
    ));
    Ok(())
}

fn lost(id: &str) -> String {
    format!("The token is lost: `musterctl token revoke {id}`, and make another.")
}

/// A new file that only its owner may read. Removed again unless it is kept.
struct NewFile<'a> {
    path: &'a Path,
    file: File,
    kept: bool,
}

impl<'a> NewFile<'a> {
    fn make(path: &'a Path) -> Result<Self, Failure> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(|source| {
            let failure = Failure::bad_input(format!("cannot make {}", path.display()));
            match source.kind() {
                io::ErrorKind::AlreadyExists => {
                    failure.because(source).next("It is not overwritten: name another, or remove it.")
                }
                _ => failure.because(source).next("--out names a new file, in a directory that you may write to."),
            }
        })?;
        Ok(Self { path, file, kept: false })
    }

    fn keep(mut self, line: &str, id: &str) -> Result<(), Failure> {
        let written = writeln!(self.file, "{line}").and_then(|()| self.file.sync_all());
        written.map_err(|source| {
            Failure::failed(format!("cannot write {}", self.path.display())).because(source).next(lost(id))
        })?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if !self.kept {
            let _ = fs::remove_file(self.path); // an empty file is no secret
        }
    }
}

/// Reject `-`: by default the token goes to stdout.
fn new_file(text: &str) -> Result<PathBuf, String> {
    match text {
        "-" => Err("it names a new file; without it the token goes to stdout".to_owned()),
        path => Ok(PathBuf::from(path)),
    }
}

/// `90s`, `15m`, `1h30m`, `24h`, `7d`.
fn duration(text: &str) -> Result<Duration, String> {
    match duration_ms(text) {
        Some(ms @ 1..=TOKEN_TTL_MAX_MS) => Ok(Duration::from_millis(ms)),
        Some(_) => Err("expected something between 1s and 365d".to_owned()),
        None => Err("expected a number and a unit, e.g. 90m, 1h30m, 24h or 7d".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        for (text, seconds) in [("90s", 90), ("15m", 900), ("1h30m", 5400), ("24h", 86_400), ("7d", 604_800)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)));
        }
        for bad in ["", "7", "d", "0h", "-1h", "1w", "1.5h", "999999999999999999999d", "366d"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
