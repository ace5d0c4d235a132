//! `muster-coordinator`: the daemon, and the commands before and beside it. Parses the command line, prints errors,
//! sets the exit code.

mod run;

use std::{
    env, fs,
    io::{self, IsTerminal as _, Write as _},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use muster_coordinator::{
    admin::{AdminClient, Wanted, outgoing_copy},
    config::{Config, ConfigError, Given, KEY_FILE_DEFAULT, LISTEN_DEFAULT, STATE_DIR_DEFAULT, StateDir, new_file},
    health::{Listening, probe},
    pki::{Ca, StateKey, TrustDomain},
    setup::{CredentialsFile, Init, SetupError, issue, recover, set_address as record_address},
    store::{EmbeddedStore, Store},
};
use muster_proto::{
    address::{Addresses, host_and_port, ip_of},
    printable::printable_lines,
};

const FAILED: u8 = 1;
const BAD_INPUT: u8 = 2;
/// Default realm of a new CA.
const TRUST_DOMAIN_DEFAULT: &str = "muster.internal";
/// Default address for operators.
const ADDRESS_DEFAULT: &str = "localhost:7443";
/// Systemd unit whose journal has the audit record.
const UNIT: &str = "muster-coordinator.service";
/// Default path of musterctl's configuration, below the home directory.
const MUSTERCTL_CONFIG: &str = ".config/muster/config.toml";

/// Muster's coordinator: decides who may go when, and holds the record.
#[derive(Parser)]
#[command(name = "muster-coordinator", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a new coordinator: its record, its CA, the first operator's credentials
    Init(InitArgs),
    /// Run the coordinator; systemd does this
    Run(RunArgs),
    /// Write credentials for a person or a program, whether the coordinator runs or not
    Credentials(CredentialsArgs),
    /// Say where the coordinator is reached, whether it runs or not: agents are told, new credentials name it
    ///
    /// Its certificate is good at any address.
    SetAddress(SetAddressArgs),
    /// Copy the record to a new file, whether the coordinator runs or not
    Backup(BackupArgs),
    /// After an old copy of the record was put in place: take over what the agents know better
    ///
    /// Run as root, it also gives the copy to the owner of the state directory.
    Recover(RecoverArgs),
    /// Knock at a coordinator that runs here; exit status 0: it answers and its key is there, 1: not so
    Health(HealthArgs),
    /// Print the version
    Version,
    /// Print a completion script for a shell
    Completion {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages; packaging does this
    #[command(hide = true)]
    Man {
        /// Where to
        dir: PathBuf,
    },
}

#[derive(Args)]
struct Place {
    /// Where the coordinator keeps its record
    #[arg(long, default_value = STATE_DIR_DEFAULT, value_name = "DIR")]
    state_dir: PathBuf,
}

#[derive(Args)]
struct Key {
    /// File with the key that opens the CA's key
    #[arg(long, default_value = muster_coordinator::config::KEY_FILE_DEFAULT, value_name = "FILE")]
    key_file: PathBuf,
}

#[derive(Args)]
struct LookedForKey {
    /// The key file to look for [default: the one that the coordinator was started with, or
    /// /etc/muster/coordinator.key]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

#[derive(Args)]
struct HealthArgs {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    key: LookedForKey,
}

#[derive(Args)]
struct InitArgs {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    key: Key,
    /// Realm of the CA, a DNS name: credentials of two realms never mix
    #[arg(long, default_value = TRUST_DOMAIN_DEFAULT, value_name = "NAME")]
    trust_domain: String,
    /// Where operators reach the coordinator; stands in the credentials [default: localhost:7443, this machine only]
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// Name of the first operator
    #[arg(long, default_value = "admin", value_name = "NAME")]
    operator: String,
    /// File for the first operator's credentials [default: ~/.config/muster/config.toml, where musterctl looks]
    #[arg(long, value_name = "FILE", value_parser = new_file)]
    out: Option<PathBuf>,
    /// Nothing depends on this coordinator: the key file may lie in the state directory
    #[arg(long)]
    demo: bool,
}

#[derive(Args)]
struct RunArgs {
    #[command(flatten)]
    given: Given,
    /// Settings in TOML, named as the options are; an option on the command line wins
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Write the port that is listened on to this file, once it is
    #[arg(long, value_name = "FILE")]
    port_file: Option<PathBuf>,
}

#[derive(Args)]
struct CredentialsArgs {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    key: Key,
    /// operator: may act; viewer: may read; controller: a program that guards workloads
    #[arg(long)]
    role: String,
    /// Of the person or program
    #[arg(long)]
    name: String,
    /// Only this cluster, which need not exist yet; for several, give it several times
    #[arg(long = "cluster", value_name = "NAME")]
    clusters: Vec<String>,
    /// Where they reach the coordinator [default: what `init` was told]
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// How long they are good: 10s to 365d. A controller renews its own before that, for as long again
    #[arg(long, default_value = "365d", value_name = "TIME")]
    lifetime: String,
    /// File for the credentials
    #[arg(long, value_name = "FILE", value_parser = new_file)]
    out: PathBuf,
}

#[derive(Args)]
struct SetAddressArgs {
    #[command(flatten)]
    place: Place,
    /// Addresses, the first to be tried first; agents keep those that they knew behind them
    #[arg(value_name = "HOST:PORT", value_delimiter = ',', required = true)]
    addresses: Vec<String>,
}

#[derive(Args)]
struct BackupArgs {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    key: LookedForKey,
    /// Where to; must not exist; `-`: to standard output
    file: PathBuf,
}

#[derive(Args)]
struct RecoverArgs {
    #[command(flatten)]
    place: Place,
    /// An epoch that some agent has seen, if one is known (`musterctl get machines` names it beside
    /// StoreOlderThanFleet)
    #[arg(long, value_name = "EPOCH")]
    seen_epoch: Option<u64>,
}

fn main() -> ExitCode {
    muster_proto::process::abort_on_panic();
    match dispatch(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            let setup = error.downcast_ref::<SetupError>().is_some_and(SetupError::is_bad_input);
            let bad_input = setup || error.is::<ConfigError>() || error.is::<BadInput>();
            ExitCode::from(if bad_input { BAD_INPUT } else { FAILED })
        }
    }
}

/// An invalid word on the command line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct BadInput(String);

fn dispatch(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Init(args) => init(args),
        Command::Run(args) => run_daemon(args),
        Command::Credentials(args) => block_on(credentials(args)),
        Command::SetAddress(args) => block_on(set_address(args)),
        Command::Backup(args) => block_on(backup(args)),
        Command::Recover(args) => recover_record(&args),
        Command::Health(args) => block_on(async {
            let address = probe(&StateDir::new(args.place.state_dir), args.key.key_file.as_deref()).await?;
            answer(&format!("muster-coordinator answers on {address}"))
        }),
        Command::Version => answer(&format!("muster-coordinator {}", muster_proto::VERSION)),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "muster-coordinator", &mut script);
            answer(&String::from_utf8_lossy(&script))
        }
        Command::Man { dir } => Ok(clap_mangen::generate_to(Cli::command(), dir)?),
    }
}

fn init(args: InitArgs) -> anyhow::Result<()> {
    let trust_domain = TrustDomain::new(&args.trust_domain)
        .ok_or_else(|| BadInput("--trust-domain: expected a DNS name in lower case".to_owned()))?;
    let wanted = Wanted { role: "operator".to_owned(), name: args.operator, clusters: Vec::new(), lifetime_ms: None };
    let operator = wanted.peer().map_err(|text| BadInput(text.replace("--name", "--operator")))?;
    let address = args.address.as_deref().unwrap_or(ADDRESS_DEFAULT);
    let (host, port) = reachable(address)?;
    let home = env::var_os("HOME").filter(|home| !home.is_empty());
    let default_out = || home.map(|home| Path::new(&home).join(MUSTERCTL_CONFIG));
    let no_home = || BadInput("--out: there is no $HOME, where musterctl looks; name a file".to_owned());
    let out = args.out.or_else(default_out).ok_or_else(no_home)?;
    let state_dir = StateDir::new(args.place.state_dir);
    let key_was_there = args.key.key_file.exists();
    Init {
        state_dir: &state_dir,
        key_file: &args.key.key_file,
        trust_domain: &trust_domain,
        address,
        operator: &operator,
        out: &out,
        demo: args.demo,
    }
    .run(now_ms())?;
    let whose = if key_was_there {
        "it was there; if it is another coordinator's, begin again with one of its own, --key-file FILE; "
    } else {
        ""
    };
    say(&format!(
        "A new coordinator in {}\nIts key: {} ({whose}keep a copy; without it no backup can be opened)\n\
         Credentials of {operator} for {address}: {}\nNext: muster-coordinator run --state-dir {} --key-file {}{}",
        state_dir.path().display(),
        args.key.key_file.display(),
        out.display(),
        state_dir.path().display(),
        args.key.key_file.display(),
        listen_option(host, port)
    ));
    if args.address.is_none() {
        say(&format!(
            "No --address was given: these credentials reach the coordinator from this machine only. For people \
             elsewhere: muster-coordinator credentials --address HOST:{port} …"
        ));
    }
    Ok(())
}

/// The option for a non-default port: an operator who names one expects the coordinator to listen on it.
fn listen_option(host: &str, port: u16) -> String {
    let only_here = ip_of(host).is_some_and(|ip| ip.is_loopback());
    match host {
        _ if LISTEN_DEFAULT.ends_with(&format!(":{port}")) => String::new(),
        "localhost" => format!(" --listen 127.0.0.1:{port}"),
        host if only_here => format!(" --listen {host}:{port}"),
        _ => format!(" --listen [::]:{port}"),
    }
}

/// The two parts of an address that others can connect to.
fn reachable(address: &str) -> Result<(&str, u16), BadInput> {
    let (host, port) = host_and_port(address).map_err(|fault| BadInput(format!("address {address}: {fault}")))?;
    if ip_of(host).is_some_and(|ip| ip.is_unspecified()) {
        return Err(BadInput(format!(
            "address {address}: agents and operators connect to it, so name this machine; {host} is for run --listen"
        )));
    }
    Ok((host, port))
}

fn run_daemon(args: RunArgs) -> anyhow::Result<()> {
    muster_proto::daemon::logging::init(None);
    let file = args.config.as_deref().map(Given::read).transpose()?.unwrap_or_default();
    let config: Config = args.given.or(file).check()?;
    let ready = |address: std::net::SocketAddr, epoch| {
        say(&format!("muster-coordinator {} ready on {address}, epoch {epoch}", muster_proto::VERSION));
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(run::run(&config, args.port_file.as_deref(), ready));
    runtime.shutdown_timeout(RUNTIME_SHUTDOWN_TIMEOUT);
    outcome
}

/// Timeout for remaining tasks at the end.
const RUNTIME_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

async fn credentials(args: CredentialsArgs) -> anyhow::Result<()> {
    let lifetime_ms = muster_proto::model::duration_ms(&args.lifetime)
        .ok_or_else(|| BadInput(format!("--lifetime {}: expected a time such as 30d", args.lifetime)))?;
    let (role, name, clusters) = (args.role, args.name, args.clusters);
    let wanted = Wanted { role, name, clusters, lifetime_ms: Some(lifetime_ms) };
    let (peer, lifetime) = (wanted.peer().map_err(BadInput)?, wanted.lifetime().map_err(BadInput)?);
    args.address.as_deref().map(reachable).transpose()?;
    let state_dir = StateDir::new(args.place.state_dir);
    state_dir.check()?;
    let mut out = CredentialsFile::create(&args.out)?;
    let mut issued = if let Some(running) = AdminClient::connect(&state_dir)? {
        running.credentials(wanted).await?
    } else {
        audit_to_journal();
        let mut store = EmbeddedStore::open(&state_dir.store())?;
        issue(&mut store, &StateKey::read(&args.key.key_file)?, (&peer, lifetime), now_ms())?
    };
    if let Some(address) = args.address {
        issued.credentials.coordinator = address;
    }
    out.write(&issued.credentials).map_err(|problem| {
        let problem = anyhow::Error::from(problem);
        anyhow::anyhow!("{problem:#}\n  The credentials are lost: `musterctl revoke {peer}`, and make others.")
    })?;
    out.keep();
    say(&format!(
        "Credentials of {peer}: {}\nTry: musterctl --config {} version\nTo take them back: musterctl revoke {peer}",
        args.out.display(),
        args.out.display()
    ));
    for name in &issued.unknown_clusters {
        complain(&anyhow::anyhow!(
            "warning: there is no cluster {name} yet; if that is mistyped, take the credentials back and make new ones"
        ));
    }
    Ok(())
}

async fn set_address(args: SetAddressArgs) -> anyhow::Result<()> {
    for address in &args.addresses {
        reachable(address)?;
    }
    let addresses = Addresses::try_from(args.addresses).map_err(|fault| BadInput(fault.to_string()))?;
    let state_dir = StateDir::new(args.place.state_dir);
    state_dir.check()?;
    let told = if let Some(running) = AdminClient::connect(&state_dir)? {
        running.set_address(addresses.clone()).await?;
        "Agents that are connected are told now, others when they connect"
    } else {
        audit_to_journal();
        record_address(&mut EmbeddedStore::open(&state_dir.store())?, addresses.clone(), now_ms())?;
        "Agents are told when the coordinator runs and they connect"
    };
    say(&format!(
        "The coordinator is reached at {addresses}\n{told}; an agent that no longer finds it: muster-agent \
         set-coordinator {first}\nNew credentials name {first}; in those that people have, change the line \
         `coordinator`.",
        first = addresses.first()
    ));
    Ok(())
}

async fn backup(args: BackupArgs) -> anyhow::Result<()> {
    let state_dir = StateDir::new(args.place.state_dir);
    state_dir.check()?;
    let to_stdout = args.file == Path::new("-");
    if to_stdout && io::stdout().is_terminal() {
        return Err(BadInput("-: standard output is a terminal; redirect it to a file".to_owned()).into());
    }
    let dir = args.file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !dir.is_dir() {
        return Err(BadInput(format!("{} is no directory; name a new file in one that is there", dir.display())).into());
    }
    // A copy is useless if its key is lost.
    let key_file = args.key.key_file.as_deref();
    if let Some(running) = AdminClient::connect(&state_dir)? {
        Listening::read(&state_dir)?.check_key(key_file)?;
        if to_stdout {
            let stdout = fs::File::from(io::stdout().as_fd().try_clone_to_owned()?);
            running.backup_to(&mut tokio::fs::File::from_std(stdout)).await?;
        } else {
            running.backup(&args.file).await?;
        }
    } else {
        let store = EmbeddedStore::open(&state_dir.store())?;
        Ca::load(&store.load()?, &StateKey::read(key_file.unwrap_or(Path::new(KEY_FILE_DEFAULT)))?)?;
        if to_stdout {
            // We hold the store's lock, so this is the only process that makes a copy now.
            let mut copy = outgoing_copy(&state_dir, &store)?;
            io::copy(&mut copy, &mut io::stdout()).context("cannot write to stdout")?;
        } else {
            store.backup(&args.file)?;
        }
    }
    // Standard output contains only the copy.
    if !to_stdout {
        say(&format!(
            "The record is copied to {}\nIt opens only with the key file.\nTo restore: stop the coordinator, copy it \
             to {}, run `muster-coordinator recover --state-dir {}`",
            args.file.display(),
            state_dir.store().display(),
            state_dir.path().display()
        ));
    }
    Ok(())
}

fn recover_record(args: &RecoverArgs) -> anyhow::Result<()> {
    let state_dir = StateDir::new(args.place.state_dir.clone());
    state_dir.check()?;
    state_dir.give_record()?;
    audit_to_journal();
    let mut store = EmbeddedStore::open_copy(&state_dir.store())?;
    let epoch = recover(&mut store, args.seen_epoch, now_ms())?;
    say(&format!(
        "The next start has epoch {epoch} and takes over what the agents' ledgers know better.\n\
         Start the coordinator; nothing new begins before every enrolled machine has reported.\n\
         Did an update or a maintenance go on since this copy was made? `musterctl get machines` names who may be in \
         the middle of it (RecoveredInDoubt); `docker node ls` on a manager shows which nodes it had drained."
    ));
    Ok(())
}

/// Send audit lines to the journal also while the coordinator is stopped.
fn audit_to_journal() {
    muster_proto::daemon::logging::init_beside(UNIT);
}

fn block_on(future: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future)
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Report a completed action, which counts even if the report fails.
fn say(text: &str) {
    let _ = writeln!(io::stdout(), "{}", text.trim_end());
}

/// Print the requested output. Its reader may close the pipe early, as `head` does.
fn answer(text: &str) -> anyhow::Result<()> {
    match writeln!(io::stdout(), "{}", text.trim_end()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("cannot write to stdout"),
        _ => Ok(()),
    }
}

/// Print an error. If that fails, the exit code remains.
fn complain(error: &anyhow::Error) {
    let _ = writeln!(io::stderr(), "muster-coordinator: {}", printable_lines(&format!("{error:#}")));
}
