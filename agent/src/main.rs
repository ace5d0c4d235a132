//! `muster-agent`: the daemon on every machine. Reads the command line, reports errors, sets the exit code.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context;
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use muster_agent::{
    attempt::Attempts,
    config::{STATE_DIR_DEFAULT, Settings, StateDir},
    core::LedgerState,
    engine::Engine,
    exec_item,
    host::{self, Host},
    identity::{self, EnrolmentKey, Identity, IdentityError, JoinToken},
    ledger::{self, FileDisk, Ledger, MarkFile},
    link::{ENGINE_QUEUE_MAX, FACTS_EVERY_MS, Link},
    proxy::{Proxies, ProxyError},
    status::AgentStatus,
    systemd::{AfterEnrolment, run_from_now_on},
};
use muster_proto::{
    address::Addresses,
    daemon::{config_file::ConfigFileError, logging, signals::Signals},
    model::{LedgerId, MachineName, own_label},
    printable::printable_lines,
    process::abort_on_panic,
};
use tokio::sync::mpsc;
use tracing::{info, warn};
use uuid::Uuid;

const FAILED: u8 = 1;
const BAD_INPUT: u8 = 2;
const UNREACHABLE: u8 = 5;
/// Error of `enroll` if the coordinator is unknown.
const NO_COORDINATOR: &str =
    "name the coordinator: --coordinator HOST:PORT, or `coordinator` in /etc/muster/agent.toml";

/// Muster's daemon on every machine: brings about the machine's StateItems and reports.
#[derive(Parser)]
#[command(name = "muster-agent", version)]
struct Cli {
    /// Settings in TOML; an option on the command line wins [default: /etc/muster/agent.toml, if it is there]
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Get this machine its identity with a join token
    #[command(alias = "join")]
    Enroll(EnrollArgs),
    /// Say where the coordinator is reached, if it has moved where the agent does not find it; it may run meanwhile
    SetCoordinator(SetCoordinatorArgs),
    /// Run the agent; systemd does this
    Run(RunArgs),
    /// Print what the agent has recorded; needs no network
    Status(StatusArgs),
    /// Repair the record
    #[command(subcommand)]
    Ledger(LedgerCommand),
    /// Host one program; the agent does this
    #[command(hide = true)]
    ExecItem {
        /// The attempt's directory
        dir: PathBuf,
    },
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
struct StateArgs {
    /// Where the agent keeps its identity and its record [default: /var/lib/muster/agent]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl StateArgs {
    fn dir(&self, settings: &Settings) -> StateDir {
        let given = self.state_dir.as_deref().or(settings.state_dir.as_deref());
        StateDir::new(given.unwrap_or(Path::new(STATE_DIR_DEFAULT)))
    }
}

#[derive(Args)]
struct RunArgs {
    #[command(flatten)]
    state: StateArgs,
    /// How often it looks at what the machine is; tests do not wait a minute
    #[arg(long, hide = true, default_value_t = FACTS_EVERY_MS, value_parser = clap::value_parser!(u64).range(1..))]
    facts_every_ms: u64,
}

#[derive(Args)]
struct EnrollArgs {
    #[command(flatten)]
    state: StateArgs,
    /// Where the coordinator is reached; several with commas between them are tried in turn [default: the
    /// configuration's]
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    coordinator: Vec<String>,
    /// File with the join token, "-" for standard input
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// Name of this machine [default: the first label of its hostname; with --force, the name it had]
    #[arg(long)]
    name: Option<String>,
    /// Enrol anew, as another machine, though this one is enrolled already
    #[arg(long)]
    force: bool,
}

#[derive(Args)]
struct SetCoordinatorArgs {
    #[command(flatten)]
    state: StateArgs,
    /// Addresses, tried in this order, in place of those that the agent knows
    #[arg(value_name = "HOST:PORT", value_delimiter = ',', required = true)]
    addresses: Vec<String>,
}

#[derive(Args)]
struct StatusArgs {
    #[command(flatten)]
    state: StateArgs,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Table,
    Json,
}

#[derive(Subcommand)]
enum LedgerCommand {
    /// Begin a new ledger from what can be read of the old one; what cannot is Indeterminate
    Reset {
        #[command(flatten)]
        state: StateArgs,
        /// The machine stays enrolled as what it is
        #[arg(long, required = true)]
        keep_identity: bool,
    },
}

fn main() -> ExitCode {
    abort_on_panic();
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(code) = exec_item::stage(&args) {
        return code;
    }
    match perform(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("muster-agent: {error:#}"));
            let identity = error.downcast_ref::<IdentityError>();
            if let Some(next) = identity.and_then(IdentityError::next_step) {
                complain(&format!("  {next}"));
            }
            let bad_input = error.is::<BadInput>()
                || error.is::<ConfigFileError>()
                || identity.is_some_and(IdentityError::is_bad_input);
            ExitCode::from(match identity {
                _ if bad_input => BAD_INPUT,
                Some(identity) if identity.is_unreachable() => UNREACHABLE,
                _ => FAILED,
            })
        }
    }
}

/// Invalid input from the operator.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct BadInput(String);

/// Prints an error. If stderr is closed, the exit code remains.
fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{}", printable_lines(text));
}

/// Prints what was done. A failure to print is ignored, because the work is done.
fn say(text: &str) {
    let _ = writeln!(io::stdout(), "{}", text.trim_end());
}

/// Prints requested output. The reader may close the pipe early, as `head` does.
fn answer(text: &str) -> anyhow::Result<()> {
    match writeln!(io::stdout(), "{}", text.trim_end()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("cannot write to stdout"),
        _ => Ok(()),
    }
}

fn perform(cli: Cli) -> anyhow::Result<()> {
    let settings = || Settings::read(cli.config.as_deref());
    match cli.command {
        Command::Enroll(args) => enroll(&args, settings()?),
        Command::SetCoordinator(args) => set_coordinator(&args, &settings()?),
        Command::Run(args) => {
            let settings = settings()?;
            run(&args.state.dir(&settings), proxies(&settings)?, Duration::from_millis(args.facts_every_ms))
        }
        Command::Status(args) => {
            let dir = args.state.dir(&settings()?);
            let status = AgentStatus::read(&dir)?;
            answer(&match args.output {
                Output::Table => printable_lines(&status.text(&dir)),
                Output::Json => serde_json::to_string_pretty(&status)?,
            })
        }
        Command::Ledger(LedgerCommand::Reset { state, keep_identity: _ }) => reset(&state.dir(&settings()?)),
        // `stage` handles the hidden process itself.
        Command::ExecItem { dir } => Err(BadInput(format!("{} is no attempt's directory", dir.display())).into()),
        Command::Version => answer(&format!("muster-agent {}", muster_proto::VERSION)),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "muster-agent", &mut script);
            answer(&String::from_utf8_lossy(&script))
        }
        Command::Man { dir } => Ok(clap_mangen::generate_to(Cli::command(), dir)?),
    }
}

/// Runs a future to its end on one thread: the agent mostly waits and should be small.
fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the runtime")?;
    let outcome = runtime.block_on(work);
    // Ends the process even if a thread hangs in the resolver or on a dead file system.
    runtime.shutdown_background();
    outcome
}

fn create(dir: &StateDir) -> anyhow::Result<()> {
    let shown = dir.path().display();
    let root = if nix::unistd::geteuid().is_root() { "" } else { "run as root, or " };
    dir.create().with_context(|| format!("cannot create {shown}; {root}choose another --state-dir"))
}

fn enroll(args: &EnrollArgs, settings: Settings) -> anyhow::Result<()> {
    let dir = args.state.dir(&settings);
    let given = Some(args.coordinator.join(",")).filter(|given| !given.is_empty());
    let coordinators = given.or(settings.coordinator).ok_or_else(|| BadInput(NO_COORDINATOR.to_owned()))?;
    let coordinators = addresses("--coordinator", &coordinators)?;
    let former = Identity::load(&dir.identity()).ok().filter(|_| args.force).map(|identity| identity.name);
    let name = match (&args.name, former) {
        (None, Some(former)) => former,
        (given, _) => machine_name(given.as_deref())?,
    };
    let token = JoinToken::read(&args.token_file)?;
    if dir.is_coordinators() {
        let problem = format!(
            "{} is the state directory of a muster-coordinator; name another with --state-dir",
            dir.path().display()
        );
        return Err(BadInput(problem).into());
    }
    dir.check()?;
    create(&dir)?;
    let lock = ledger::lock(dir.path())?;
    match Identity::load(&dir.identity()) {
        Ok(Identity { name, coordinators: coordinator, .. }) if !args.force => {
            return Err(IdentityError::AlreadyEnrolled { name, coordinator }.into());
        }
        Err(error @ (IdentityError::File { .. } | IdentityError::Damaged { .. })) if !args.force => {
            return Err(error.into());
        }
        _ => {}
    }
    let key = EnrolmentKey::kept_at(&dir.enrolment_key())?;
    let identity = block_on(async {
        identity::enroll(&coordinators, &token, name.clone(), &key).await.map_err(|error| match error {
            IdentityError::Refused { .. } => anyhow::Error::from(error).context(asked_as(&name, &token)),
            error => error.into(),
        })
    })?;
    identity.save(&dir.identity())?;
    key.remove()?;
    // The service needs the lock.
    drop(lock);
    let is_own = dir.path() == Path::new(STATE_DIR_DEFAULT);
    let service = if is_own { block_on(async { Ok(run_from_now_on().await) })? } else { AfterEnrolment::NoService };
    let Identity { name, machine_type, cluster, .. } = identity;
    say(&format!("enrolled as {name} ({machine_type}) in cluster {cluster}\n{}", next_step(dir.path(), service)));
    Ok(())
}

fn addresses(what: &str, text: &str) -> Result<Addresses, BadInput> {
    Addresses::parse(text).map_err(|fault| BadInput(format!("{what}: {fault}")))
}

fn set_coordinator(args: &SetCoordinatorArgs, settings: &Settings) -> anyhow::Result<()> {
    let dir = args.state.dir(settings);
    dir.check()?;
    let coordinators = addresses("set-coordinator", &args.addresses.join(","))?;
    let Identity { name, .. } = Identity::change(&dir.identity(), |kept| kept.coordinators = coordinators.clone())?;
    let when = match ledger::in_use(dir.path()) {
        true => "when it dials next: within half a minute, if it has no session",
        false => "when it is started",
    };
    say(&format!("{name} turns to {coordinators}: the agent tries them in this order, {when}"));
    Ok(())
}

/// The refused name and token id. The id is public: operators identify tokens by it.
fn asked_as(name: &MachineName, token: &JoinToken) -> String {
    format!("asked as {name}, with token {0} (`musterctl get token {0}` says what it is for)", token.id())
}

/// Next step after the enrolment.
fn next_step(state_dir: &Path, service: AfterEnrolment) -> String {
    match service {
        AfterEnrolment::Starts => {
            "The agent starts by itself now, and at every boot: systemctl status muster-agent".to_owned()
        }
        AfterEnrolment::Refused(error) => format!(
            "The agent does not start by itself: {:#}\nNext: systemctl enable --now muster-agent",
            anyhow::Error::from(error)
        ),
        AfterEnrolment::NoService if state_dir == Path::new(STATE_DIR_DEFAULT) => {
            "Next: systemctl enable --now muster-agent; without systemd: muster-agent run".to_owned()
        }
        AfterEnrolment::NoService => format!("Next: muster-agent run --state-dir {}", state_dir.display()),
    }
}

fn machine_name(given: Option<&str>) -> anyhow::Result<MachineName> {
    let name = match given {
        Some(name) => name.to_owned(),
        None => {
            let hostname = nix::unistd::gethostname().context("cannot read the hostname; give --name")?;
            let hostname = hostname.to_string_lossy();
            own_label(&hostname).ok_or_else(|| {
                BadInput(format!("the hostname {hostname:?} says nothing of this machine: name it with --name NAME"))
            })?
        }
    };
    MachineName::new(name.as_str()).map_err(|error| BadInput(format!("--name {name:?}: {error}")).into())
}

/// The site's proxies: from the configuration, or else from the environment; and the environment variables with invalid
/// values.
fn proxies(settings: &Settings) -> Result<(Proxies, BTreeSet<String>), BadInput> {
    let except = settings.no_proxy.as_deref();
    if let Some(proxy) = &settings.proxy {
        return Proxies::of(proxy, except.unwrap_or_default())
            .map(|proxies| (proxies, BTreeSet::new()))
            .map_err(|error| BadInput(format!("`proxy` in the configuration: {error}")));
    }
    let (proxies, unusable) = Proxies::of_environment(|name| std::env::var(name).ok());
    let proxies = match except {
        Some(except) => proxies.but_for(except),
        None => proxies,
    };
    Ok((proxies, unusable))
}

fn run(dir: &StateDir, (proxies, unusable): (Proxies, BTreeSet<String>), facts_every: Duration) -> anyhow::Result<()> {
    dir.check()?;
    let identity = Identity::load(&dir.identity())?;
    logging::init(Some(&identity.name));
    for name in unusable {
        warn!("{name} in the environment is ignored: {ProxyError}; `proxy` in agent.toml says what downloads take");
    }
    let _lock = ledger::lock(dir.path())?;
    let fresh = LedgerState::new(LedgerId(Uuid::new_v4()), identity.machine_id);
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let boot_id = host::boot_id().context("cannot read the machine's boot id")?;
    block_on(async {
        let mut signals = Signals::new().context("cannot wait for signals")?;
        let (ledger, state) = Ledger::open(FileDisk::new(dir.path()), fresh)?;
        let mut attempts = Attempts::open(dir.path(), program, Host::detect().await?)?.with_proxies(proxies);
        if let Some(runtime_dir) = runtime_dir() {
            attempts = attempts.with_runtime_dir(&runtime_dir)?;
        }
        let (to_engine, from_link) = mpsc::channel(ENGINE_QUEUE_MAX);
        let engine = Engine::new(identity.name.clone(), dir.clone(), (ledger, state), attempts);
        let link = tokio::spawn(Link::new(identity, dir.clone(), facts_every, to_engine).run());
        let stop = async {
            let signal = signals.wait_for_end().await;
            info!("{signal}: ends; what items run goes on");
        };
        engine.run(boot_id, from_link, stop).await?;
        link.abort();
        Ok(())
    })
}

/// The directory that systemd created for `RuntimeDirectory=`, on tmpfs: secrets lie there while their program runs.
fn runtime_dir() -> Option<PathBuf> {
    let all = std::env::var("RUNTIME_DIRECTORY").ok()?;
    all.split(':').next().filter(|first| !first.is_empty()).map(PathBuf::from)
}

fn reset(dir: &StateDir) -> anyhow::Result<()> {
    dir.check()?;
    let identity = Identity::load(&dir.identity())?;
    let _lock = ledger::lock(dir.path())?;
    let ids = (LedgerId(Uuid::new_v4()), identity.machine_id);
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let attempts = Attempts::open(dir.path(), program, Host::Processes)?; // only looked at
    let of_machine = attempts.list()?.into_iter().filter(|key| attempts.is_of(key, identity.machine_id));
    let traces = of_machine.map(|key| attempts.trace(key)).collect::<Result<Vec<_>, _>>()?;
    MarkFile::new(dir.path()).remove().context("cannot remove the mark of the old ledger")?;
    let outcome = ledger::reset(&mut FileDisk::new(dir.path()), ids, &traces, host::unix_ms())?;
    if let Some(old) = &outcome.old_log {
        say(&format!("the old ledger is kept as {}", old.display()));
    }
    for item in &outcome.indeterminate {
        say(&format!(
            "item {item} is Indeterminate: decide with musterctl retry, skip or accept {} {item}",
            identity.name
        ));
    }
    say("a new ledger begins; start the agent again");
    Ok(())
}
