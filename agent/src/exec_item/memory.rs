//! Memory shortage of an attempt: detects kernel OOM kills in our cgroup, which on a systemd machine holds this attempt
//! alone. It also makes exec-item the last victim, so that it can report the kill.

use std::{fs, io, path::PathBuf};

/// Mount point of cgroups, version 1 and 2.
const CGROUPS: &str = "/sys/fs/cgroup";

/// File with the OOM score of this process: from -1000 (never killed) to 1000 (killed first).
const SCORE: &str = "/proc/self/oom_score_adj";
/// The kernel's maximum.
const SCORE_MAX: i32 = 1000;
/// Score of exec-item: it is small, waits, and records the outcome. It is above -1000, so that a leaking exec-item can
/// still be killed.
const SCORE_OF_HOST: i32 = -900;
/// Minimum distance to the hosted program's score, in thousandths of the memory: more than exec-item will ever use.
const DISTANCE: i32 = 500;

/// Makes exec-item the last OOM victim of its attempt and returns the program's score, which is the inherited one. If
/// lowering a score is refused (it needs `CAP_SYS_RESOURCE`), the program's score is raised instead.
pub(super) fn outlive_program() -> i32 {
    let inherited = score().unwrap_or_default();
    // It needs the capability; a failure is acceptable.
    let _ = set_score(inherited.min(SCORE_OF_HOST));
    score_of_program(inherited, score().unwrap_or(inherited))
}

fn score_of_program(inherited: i32, host: i32) -> i32 {
    inherited.max(host + DISTANCE).min(SCORE_MAX)
}

fn score() -> Option<i32> {
    fs::read_to_string(SCORE).ok()?.trim().parse().ok()
}

/// Sets the score of this process, which survives exec.
pub(super) fn set_score(score: i32) -> io::Result<()> {
    fs::write(SCORE, score.to_string())
}

/// Number of OOM kills so far; 0 if the kernel lacks the counter.
pub(super) fn oom_kills() -> u64 {
    let counted = || kills(&fs::read_to_string(events_file(&fs::read_to_string("/proc/self/cgroup").ok()?)?).ok()?);
    counted().unwrap_or(0)
}

/// File of the kill counter, from the text of /proc/self/cgroup.
fn events_file(cgroups: &str) -> Option<PathBuf> {
    let of = |controller: &str| {
        cgroups.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            controllers.split(',').any(|name| name == controller).then(|| path.trim_start_matches('/').to_owned())
        })
    };
    // Version 1 if it has the memory controller; the unified hierarchy then lacks the counter.
    if let Some(path) = of("memory") {
        return Some(PathBuf::from(CGROUPS).join("memory").join(path).join("memory.oom_control"));
    }
    Some(PathBuf::from(CGROUPS).join(of("")?).join("memory.events"))
}

fn kills(events: &str) -> Option<u64> {
    events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_comes_first_and_keeps_its_own_score_if_it_can() {
        for (inherited, host, program) in [
            (0, SCORE_OF_HOST, 0),
            // Set by a drop-in for all items.
            (-500, SCORE_OF_HOST, -400),
            (300, SCORE_OF_HOST, 300),
            (-1000, -1000, -500),
            // Lowering the host's score failed.
            (0, 0, 500),
            (300, 300, 800),
            (900, 900, SCORE_MAX),
            (1000, 1000, SCORE_MAX),
        ] {
            assert_eq!(score_of_program(inherited, host), program, "{inherited} {host}");
        }
    }

    #[test]
    fn the_count_is_found_in_both_versions_of_cgroups() {
        let unit = "system.slice/muster-item-a-1-1.service";
        let v2 = format!("0::/{unit}\n");
        assert_eq!(events_file(&v2), Some(format!("{CGROUPS}/{unit}/memory.events").into()));
        let v1 = format!("12:pids:/{unit}\n4:cpu,memory:/{unit}\n1:name=systemd:/{unit}\n0::/{unit}\n");
        assert_eq!(events_file(&v1), Some(format!("{CGROUPS}/memory/{unit}/memory.oom_control").into()));
        assert_eq!(events_file(""), None);
        assert_eq!(kills("low 0\noom 3\noom_kill 2\noom_group_kill 1\n"), Some(2));
        assert_eq!(kills("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"), Some(7));
        assert_eq!(kills("oom_kill_disable 0\nunder_oom 0\n"), None);
    }
}
