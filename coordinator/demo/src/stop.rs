//! Ends a demo: every process that works in its directory, and their children.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::OsStrExt as _,
    path::Path,
    process,
    time::Duration,
};

use musterctl::{errors::Failure, terminal};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sysinfo::{Process, ProcessRefreshKind, ProcessStatus, ProcessesToUpdate, System, UpdateKind};
use tokio::time::{Instant, sleep};

use super::mark::Mark;

/// Timeouts after SIGTERM and after SIGKILL.
const TERM_TIME_LIMIT: Duration = Duration::from_secs(5);
const KILL_TIME_LIMIT: Duration = Duration::from_secs(5);
/// Polling interval of the processes.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Programs that a demo starts.
const PROGRAMS: [&str; 4] = ["muster-coordinator", "muster-agent", "musterctl", "muster-demo"];

/// `musterctl demo --stop --dir DIR`.
pub(super) async fn run(dir: &Path) -> Result<(), Failure> {
    const WHICH: &str = "--dir is the directory of a demo, as it said when it began; it has a file demo.mark.";
    let absolute = fs::canonicalize(dir)
        .map_err(|source| Failure::bad_input(format!("no demo in {}", dir.display())).because(source).next(WHICH))?;
    let mark = Mark::read(&absolute)?
        .ok_or_else(|| Failure::bad_input(format!("no demo was started in {}", absolute.display())).next(WHICH))?;
    let ended = end_all(&absolute, &mark).await?;
    match ended {
        0 => terminal::print(&format!("No process of a demo in {} was running.", absolute.display()))?,
        1 => terminal::print("Ended 1 process.")?,
        count => terminal::print(&format!("Ended {count} processes."))?,
    }
    say_strangers(&absolute)
}

/// List programs of ours that work in the directory but lack the demo's mark: only their user knows their purpose.
fn say_strangers(dir: &Path) -> Result<(), Failure> {
    let system = look()?;
    let ours = ourselves(&system);
    let left = system.processes().values().filter(|process| !ours.contains(&process.pid()) && names_dir(process, dir));
    let left: BTreeSet<i32> = left.filter_map(Id::of).map(|id| id.pid).collect();
    if left.is_empty() {
        return Ok(());
    }
    let pids = left.iter().map(i32::to_string).collect::<Vec<_>>().join(" ");
    terminal::say(&format!(
        "Left alone: programs of Muster that name this directory and were started without {}. To end them: kill {pids}",
        super::mark::VARIABLE
    ));
    Ok(())
}

/// End every process of the demo with this mark in this (absolute) directory; return their number.
pub(super) async fn end_all(dir: &Path, mark: &Mark) -> Result<usize, Failure> {
    let assignment = OsString::from(mark.assignment());
    let mut told: BTreeSet<Id> = BTreeSet::new();
    for (signal, time_limit) in [(Signal::SIGTERM, TERM_TIME_LIMIT), (Signal::SIGKILL, KILL_TIME_LIMIT)] {
        let deadline = Instant::now() + time_limit;
        let mut signalled: BTreeSet<Id> = BTreeSet::new();
        loop {
            // Look them up again each time: a dying agent may just have started an item.
            let mut left = processes_of(dir, &assignment)?;
            left.extend(alive(&told)?);
            if left.is_empty() {
                return Ok(told.len());
            }
            for id in &left {
                if signalled.insert(*id) {
                    let _ = kill(Pid::from_raw(id.pid), signal); // it may have ended in the meantime
                }
            }
            told.extend(left);
            if Instant::now() > deadline {
                break;
            }
            sleep(LOOK_EVERY).await;
        }
    }
    let left: Vec<String> = alive(&told)?.iter().map(|id| id.pid.to_string()).collect();
    Err(Failure::failed(format!("processes that do not end: {}", left.join(" ")))
        .next("Are they another user's? Look: ps -fp PID"))
}

/// Identity of a process: the number alone may be reused a moment later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Id {
    pid: i32,
    started_at_s: u64,
}

impl Id {
    fn of(process: &Process) -> Option<Self> {
        let pid = i32::try_from(process.pid().as_u32()).ok()?;
        let gone = matches!(process.status(), ProcessStatus::Zombie | ProcessStatus::Dead);
        (!gone).then_some(Self { pid, started_at_s: process.start_time() })
    }
}

fn look() -> Result<System, Failure> {
    let mut system = System::new().map_err(|source| Failure::failed("cannot look at the processes").because(source))?;
    let wanted = ProcessRefreshKind::nothing()
        .with_cmd(UpdateKind::Always)
        .with_environ(UpdateKind::Always)
        .with_exe(UpdateKind::Always)
        .without_tasks();
    system.refresh_processes_specifics(ProcessesToUpdate::All, true, wanted);
    Ok(system)
}

fn alive(known: &BTreeSet<Id>) -> Result<BTreeSet<Id>, Failure> {
    if known.is_empty() {
        return Ok(BTreeSet::new());
    }
    Ok(look()?.processes().values().filter_map(Id::of).filter(|id| known.contains(id)).collect())
}

/// Our programs that name the directory and carry the mark, with all their descendants, except ourselves and our
/// ancestors.
fn processes_of(dir: &Path, assignment: &OsStr) -> Result<BTreeSet<Id>, Failure> {
    let system = look()?;
    let mut children: BTreeMap<sysinfo::Pid, Vec<&Process>> = BTreeMap::new();
    for process in system.processes().values() {
        if let Some(parent) = process.parent() {
            children.entry(parent).or_default().push(process);
        }
    }
    let ours = ourselves(&system);
    let mut found = BTreeSet::new();
    let mut open: Vec<&Process> =
        system.processes().values().filter(|process| is_of(process, dir, assignment)).collect();
    while let Some(process) = open.pop() {
        if ours.contains(&process.pid()) {
            continue;
        }
        if let Some(id) = Id::of(process)
            && found.insert(id)
        {
            open.extend(children.get(&process.pid()).into_iter().flatten());
        }
    }
    Ok(found)
}

fn ourselves(system: &System) -> BTreeSet<sysinfo::Pid> {
    let mut line = BTreeSet::new();
    let mut next = Some(sysinfo::Pid::from_u32(process::id()));
    while let Some(pid) = next.filter(|pid| line.insert(*pid)) {
        next = system.process(pid).and_then(Process::parent);
    }
    line
}

fn is_of(process: &Process, dir: &Path, assignment: &OsStr) -> bool {
    // The host of an item has an empty environment and outlives its agent.
    let hosts_item = process.cmd().get(1).is_some_and(|word| word == "exec-item");
    names_dir(process, dir) && (hosts_item || process.environ().iter().any(|variable| variable == assignment))
}

/// Is it a program of ours that names the directory?
fn names_dir(process: &Process, dir: &Path) -> bool {
    let program = process.exe().and_then(Path::file_name).map_or(&b""[..], OsStr::as_bytes);
    let called = process.cmd().first().and_then(|word| Path::new(word).file_name()).map_or(&b""[..], OsStr::as_bytes);
    let is_ours = |name: &[u8]| {
        // A program that was rebuilt while it ran is "muster-agent (deleted)".
        PROGRAMS.iter().any(|program| name.strip_suffix(b" (deleted)").unwrap_or(name) == program.as_bytes())
    };
    (is_ours(program) || is_ours(called)) && process.cmd().iter().any(|word| Path::new(word).starts_with(dir))
}
