//! What an agent costs its machine when there is nothing to do.

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use muster_tests::fleet::{
    Fleet, PATIENCE,
    manifest::{bash, cluster, download},
    programs::complain,
    wait_for,
};

/// Promised: resident memory of an idle agent.
const RSS_KIB_MAX: u64 = 12 * 1024;
/// How long it is watched. Heartbeats come in between.
const WATCHED: Duration = Duration::from_secs(8);
/// Promised: 0.1 % of a core; allowed here, where other tests press on the caches: 0.5 %.
const CPU_SHARE_MAX: f64 = 0.005;

#[test]
fn an_idle_agent_is_small() -> Result<()> {
    let mut fleet = Fleet::start("idle", &["--heartbeat", "2s"])?;
    let (url, sum) = crate::happy::serve_artifact(&fleet)?;
    let effects = fleet.effects_log();
    let target = fleet.path("machines/${machine.name}/artifact.bin");
    let items = [download("artifact", &url, &sum, &target), bash("work", "deploy", &effects, ":", &[])];
    fleet.apply(&cluster(1, 0, &items, &[], &[]))?;
    fleet.add_machines(1, 0)?;
    fleet.wait_ready(1)?;
    let pid = fleet.agent_pid("control-1")?;
    let (began, cpu_before) = (Instant::now(), cpu(pid)?);
    wait_for("the time of measuring", PATIENCE, || Ok((began.elapsed() >= WATCHED).then_some(())))?;
    let share = (cpu(pid)? - cpu_before).as_secs_f64() / began.elapsed().as_secs_f64();
    let rss_kib = rss_kib(pid)?;
    let states = socket_states(pid)?;
    complain(&format!("idle agent: VmRSS {rss_kib} KiB, {:.3} % of a core, TCP sockets {states:?}", share * 100.0));
    assert!(rss_kib < RSS_KIB_MAX, "{rss_kib} KiB");
    assert!(share < CPU_SHARE_MAX, "{share}");
    assert_eq!(states, ["01"], "one established connection and no listening socket");
    fleet.done()
}

/// Of all its threads.
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

/// States of its TCP sockets, as the kernel numbers them: 01 established, 0A listening.
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
