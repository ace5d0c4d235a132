//! What becomes of an attempt for want of memory: whether the kernel killed in our cgroup, which on a systemd machine
//! holds this attempt alone; and whom it kills last, for somebody has to tell.

use std::{fs, io, path::PathBuf};

/// Where cgroups are mounted, of either version.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Says how soon the kernel ends this process for want of memory: from -1000, never, to 1000, first.
const SCORE: &str = "/proc/self/oom_score_adj";
/// More the kernel refuses.
const SCORE_MAX: i32 = 1000;
/// exec-item's own: it is small, waits, and records the outcome. Not -1000: were it to leak, it must
/// be possible to end it.
const SCORE_OF_HOST: i32 = -900;
/// What it hosts comes before it by so much at least, in thousandths of the memory: more than it will ever have.
const DISTANCE: i32 = 500;

/// Makes this process the last of its attempt that the kernel ends, and says which score the program is to have: its
/// own as before. Only where exec-item may not lower its score (no `CAP_SYS_RESOURCE`) the program's is raised instead.
pub(super) fn outlive_program() -> i32 {
    let inherited = score().unwrap_or_default();
    // Refused without the capability.
    let _ = set_score(inherited.min(SCORE_OF_HOST));
    score_of_program(inherited, score().unwrap_or(inherited))
}

fn score_of_program(inherited: i32, host: i32) -> i32 {
    inherited.max(host + DISTANCE).min(SCORE_MAX)
}

fn score() -> Option<i32> {
    fs::read_to_string(SCORE).ok()?.trim().parse().ok()
}

/// Of this process, and of what it becomes.
pub(super) fn set_score(score: i32) -> io::Result<()> {
    fs::write(SCORE, score.to_string())
}

/// Processes killed so far. Where the kernel does not count, there are none.
pub(super) fn oom_kills() -> u64 {
    let counted = || kills(&fs::read_to_string(events_file(&fs::read_to_string("/proc/self/cgroup").ok()?)?).ok()?);
    counted().unwrap_or(0)
}

/// The file that counts them, from the text of /proc/self/cgroup.
fn events_file(cgroups: &str) -> Option<PathBuf> {
    let of = |controller: &str| {
        cgroups.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            controllers.split(',').any(|name| name == controller).then(|| path.trim_start_matches('/').to_owned())
        })
    };
    // Version 1 where it holds the memory controller; then the unified hierarchy counts nothing.
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
            // As a drop-in for all items has it.
            (-500, SCORE_OF_HOST, -400),
            (300, SCORE_OF_HOST, 300),
            (-1000, -1000, -500),
            // It could not be lowered.
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
