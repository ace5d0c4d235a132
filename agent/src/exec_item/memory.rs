//! Whether the kernel killed for want of memory in our cgroup, which on a systemd machine holds this attempt alone.

use std::{fs, path::PathBuf};

/// Where cgroups are mounted, of either version.
const CGROUPS: &str = "/sys/fs/cgroup";

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
