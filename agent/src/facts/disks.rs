//! Mounted block devices. Only those: asking a dead network file system for its size would hang the agent.

use std::{collections::BTreeMap, fs, path::Path};

use muster_proto::model::Disk;
use nix::sys::statvfs::statvfs;

/// Most disks that are reported, by name.
const DISKS_MAX: usize = 64;
/// Volumes of pods come and go, and may be dead network devices.
const OF_PODS: &str = "/var/lib/kubelet/";

/// Mounted block devices, each once, at the mount nearest to the root.
pub(super) fn read() -> Vec<Disk> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounted(&mounts)
        .into_iter()
        .take(DISKS_MAX)
        .filter_map(|(name, mount_point)| {
            let file_system = statvfs(Path::new(&mount_point)).ok()?;
            let size_bytes = file_system.blocks().saturating_mul(file_system.fragment_size());
            Some(Disk { name, size_bytes, mount_point })
        })
        .collect()
}

/// Device to mount point, from the lines of /proc/mounts.
fn mounted(mounts: &str) -> BTreeMap<String, String> {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for line in mounts.lines() {
        let mut fields = line.split(' ').map(unescaped);
        let (Some(device), Some(mount_point)) = (fields.next(), fields.next()) else { continue };
        if !device.starts_with("/dev/") || mount_point.starts_with(OF_PODS) {
            continue;
        }
        let known = found.entry(device).or_insert_with(|| mount_point.clone());
        if mount_point.len() < known.len() {
            *known = mount_point;
        }
    }
    found
}

/// The kernel writes a blank in a name as `\040`; no other of its escapes occurs in names people use.
fn unescaped(field: &str) -> String {
    field.replace("\\040", " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_devices_are_listed_once_and_nothing_else() {
        let mounts = "/dev/sda1 /var/lib/docker ext4 rw 0 0\n/dev/sda1 / ext4 rw 0 0\n/dev/sda1 /snap/x ext4 rw 0 0\n\
                      proc /proc proc rw 0 0\nnas:/srv /srv nfs4 rw 0 0\noverlay /merged overlay rw 0 0\n\
                      /dev/mapper/vg-a\\040b /mnt/a\\040b xfs rw 0 0\n\
                      /dev/rbd0 /var/lib/kubelet/pods/x ext4 rw 0 0\nbroken\n";
        let found: Vec<_> = mounted(mounts).into_iter().collect();
        let expected = [("/dev/mapper/vg-a b", "/mnt/a b"), ("/dev/sda1", "/")];
        assert_eq!(found, expected.map(|(device, at)| (device.to_owned(), at.to_owned())));
    }
}
