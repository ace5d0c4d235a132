//! Cost of an idle agent for its machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result};
use muster_tests::fleet::{
    Fleet, TIME_LIMIT, alone,
    manifest::{bash, cluster, download},
    programs::complain,
    wait_for,
};

/// Documented limit: resident memory of an idle agent.
const RSS_KIB_MAX: u64 = 12 * 1024;
/// Duration of the measurement. It includes ten heartbeats.
const WATCHED: Duration = Duration::from_secs(20);
/// Documented limit: 0.1 % of a core.
const CPU_SHARE_MAX: f64 = 0.001;
/// Beside other tests, each operation costs more.
const CPU_SHARE_MAX_IN_COMPANY: f64 = 0.005;

#[test]
fn an_idle_agent_is_small_and_writes_nothing() -> Result<()> {
    let mut fleet = Fleet::start("idle", &["--heartbeat", "2s"])?;
    let (url, sum) = crate::happy::serve_artifact(&fleet)?;
    let effects = fleet.effects_log();
    let target = fleet.path("machines/${machine.name}/artifact.bin");
    let items = [download("artifact", &url, &sum, &target), bash("work", "deploy", &effects, ":", &[])];
    fleet.apply(&cluster(1, 0, &items, &[], &[]))?;
    fleet.add_machines(1, 0)?;
    fleet.wait_ready(1)?;
    let pid = fleet.agent_pid("control-1")?;
    // The last acknowledgement is recorded lazily, up to a second after its arrival. The coordinator looks at its store
    // every 5 s, and the first look after a change is noted in the file's time of access, which is a write too.
    let written = wait_for("the last of what becoming Ready brought about", TIME_LIMIT, || {
        let before = Written::of(&fleet)?;
        let looked = Instant::now();
        wait_for("six seconds", TIME_LIMIT, || Ok((looked.elapsed() >= Duration::from_secs(6)).then_some(())))?;
        Ok((Written::of(&fleet)? == before).then_some(before))
    })?;
    let last_seen = |fleet: &Fleet| -> Result<_> { Ok(fleet.machines()?["control-1"].status.last_seen) };
    let (began, cpu_before, seen_before) = (Instant::now(), cpu(pid)?, last_seen(&fleet)?);
    wait_for("the time of measuring", TIME_LIMIT, || Ok((began.elapsed() >= WATCHED).then_some(())))?;
    let share = (cpu(pid)? - cpu_before).as_secs_f64() / began.elapsed().as_secs_f64();
    let (rss_kib, states, seen) = (rss_kib(pid)?, socket_states(pid)?, last_seen(&fleet)?);
    complain(&format!("idle agent: VmRSS {rss_kib} KiB, {:.3} % of a core, TCP sockets {states:?}", share * 100.0));
    assert!(rss_kib < RSS_KIB_MAX, "{rss_kib} KiB");
    assert!(share < if alone() { CPU_SHARE_MAX } else { CPU_SHARE_MAX_IN_COMPANY }, "{share}");
    assert_eq!(states, ["01"], "one established connection and no listening socket");
    let heard_of = seen.context("heard")?.as_second() - seen_before.context("heard")?.as_second();
    assert!(heard_of >= 10, "heartbeats came meanwhile, for {heard_of} s");
    assert_eq!(Written::of(&fleet)?, written, "heartbeats are written to no disk");
    fleet.done()
}

/// Disk writes of agent and coordinator so far.
#[derive(Debug, PartialEq)]
struct Written {
    /// By the kernel's count, in bytes: agent, coordinator.
    bytes: [u64; 2],
    /// Size and modification time of every file in their state directories.
    files: BTreeMap<PathBuf, (u64, SystemTime)>,
}

impl Written {
    fn of(fleet: &Fleet) -> Result<Self> {
        let bytes = [written_bytes(fleet.agent_pid("control-1")?)?, written_bytes(fleet.coordinator_pid()?)?];
        let mut files = BTreeMap::new();
        for dir in [fleet.agent_dir("control-1"), fleet.path("coordinator").into()] {
            for entry in fs::read_dir(dir)? {
                let entry = entry?;
                let about = entry.metadata()?;
                files.insert(entry.path(), (about.len(), about.modified()?));
            }
        }
        Ok(Self { bytes, files })
    }
}

fn written_bytes(pid: i32) -> Result<u64> {
    let io = fs::read_to_string(format!("/proc/{pid}/io"))?;
    let count = io.lines().find_map(|line| line.strip_prefix("write_bytes: ")).context("write_bytes")?;
    Ok(count.parse()?)
}

/// CPU time of all its threads.
fn cpu(pid: i32) -> Result<Duration> {
    let mut all = Duration::ZERO;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        all += Duration::from_nanos(text.split(' ').next().context("a number")?.parse()?);
    }
    Ok(all)
}

fn rss_kib(pid: i32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// States of its TCP sockets, with the kernel's codes: 01 established, 0A listening.
fn socket_states(pid: i32) -> Result<Vec<String>> {
    let mut own = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let link = fs::read_link(entry?.path())?.display().to_string();
        own.extend(link.strip_prefix("socket:[").map(|inode| inode.trim_end_matches(']').to_owned()));
    }
    let mut states = Vec::new();
    for table in ["tcp", "tcp6"] {
        for line in fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default().lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words.get(9).is_some_and(|inode| own.contains(*inode)) {
                states.push(words[3].to_owned());
            }
        }
    }
    Ok(states)
}
