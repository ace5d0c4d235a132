//! Block devices: the mounted ones, and unused whole disks. Other file systems are skipped: asking a dead network file
//! system for its size would hang the agent.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError, mpsc::channel},
    thread,
    time::{Duration, Instant},
};

use muster_proto::model::Disk;
use nix::sys::statvfs::statvfs;

/// Maximum of reported disks, the mounted ones first.
const DISKS_MAX: usize = 64;
/// Mount points of pod volumes, which come and go and may be dead network devices.
const OF_PODS: &str = "/var/lib/kubelet/";
/// Timeout for a file system that hangs (FUSE, or one below a dead network mount).
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Mount points of file systems that are being queried, or hang in the query.
static ASKED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
/// Maximum of concurrent queries; each hanging one blocks a thread.
const ASKED_MAX: usize = 4;
/// The kernel's list of block devices.
const BLOCK_DEVICES: &str = "/sys/block";
/// Unit of device sizes in the kernel's list, independent of the device's own sectors.
const SECTOR_BYTES: u64 = 512;

/// Disks by name: mounted block devices, each once with the mount nearest to the root, and whole disks that are unused.
pub(super) fn read() -> Vec<Disk> {
    let of_us = |name: &str| fs::read_to_string(Path::new("/proc/self").join(name)).unwrap_or_default();
    let mounts = of_us("mounts");
    let mut disks = in_time(&ASKED, ANSWER_MAX, mounted(&mounts), size_of);
    disks.extend(not_in_use(Path::new(BLOCK_DEVICES), &Mounted::of(&mounts, &of_us("mountinfo"))));
    disks.truncate(DISKS_MAX);
    disks.sort_by(|a, b| a.name.cmp(&b.name));
    disks
}

fn size_of(mount_point: &str) -> Option<u64> {
    let file_system = statvfs(Path::new(mount_point)).ok()?;
    Some(file_system.blocks().saturating_mul(file_system.fragment_size()))
}

/// Candidates whose file systems answer in time. A separate thread queries them and may hang as long as one of them
/// does; that one is skipped meanwhile.
fn in_time(
    asked: &'static Mutex<BTreeSet<String>>,
    most: Duration,
    mut candidates: BTreeMap<String, String>,
    size_of: impl Fn(&str) -> Option<u64> + Send + 'static,
) -> Vec<Disk> {
    let asked_now = || asked.lock().unwrap_or_else(PoisonError::into_inner);
    let hang = asked_now().clone();
    candidates.retain(|_, mount_point| !hang.contains(mount_point));
    if hang.len() >= ASKED_MAX {
        return Vec::new();
    }
    let (tell, told) = channel();
    let ask = move || {
        for (name, mount_point) in candidates.into_iter().take(DISKS_MAX) {
            asked_now().insert(mount_point.clone());
            let size = size_of(&mount_point);
            asked_now().remove(&mount_point);
            let disk = size.map(|size_bytes| Disk { name, size_bytes, mount_point });
            if disk.is_some_and(|disk| tell.send(disk).is_err()) {
                return; // nobody waits any more
            }
        }
    };
    let until = Instant::now() + most;
    let asks = thread::Builder::new().name("disks".to_owned()).spawn(ask);
    let in_time = || told.recv_timeout(until.saturating_duration_since(Instant::now())).ok();
    if asks.is_ok() { std::iter::from_fn(in_time).collect() } else { Vec::new() }
}

/// Map of device to mount point, from the lines of /proc/mounts.
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

/// Decodes `\040`, the kernel's escape of a blank. Its other escapes are absent from common names.
fn unescaped(field: &str) -> String {
    field.replace("\\040", " ")
}

/// All mounts, pod volumes included, by number and by name: btrfs lacks a device number, and `/dev/root` is an alias.
struct Mounted {
    /// Such as `/dev/sda1`.
    names: BTreeSet<String>,
    /// Such as `8:1`.
    numbers: BTreeSet<String>,
}

impl Mounted {
    fn of(mounts: &str, mount_info: &str) -> Self {
        Self {
            names: mounts.lines().filter_map(|line| line.split(' ').next()).map(unescaped).collect(),
            numbers: mount_info.lines().filter_map(|line| line.split(' ').nth(2)).map(str::to_owned).collect(),
        }
    }

    /// Is this device mounted, or a partition of it, or a device built on it (LVM, RAID, encryption)?
    fn has(&self, device: &Path) -> bool {
        let name = name_of(device);
        let alias = format!("/dev/mapper/{}", line(device, "dm/name"));
        let parts = entries(device).into_iter().filter(|entry| entry.join("partition").exists());
        self.numbers.contains(&line(device, "dev"))
            || self.names.contains(&name)
            || self.names.contains(&alias)
            || parts.chain(entries(&device.join("holders"))).any(|inner| self.has(&inner))
    }
}

/// Unmounted disks, from the kernel's list in `block`.
fn not_in_use(block: &Path, mounted: &Mounted) -> Vec<Disk> {
    let mut found = Vec::new();
    for device in entries(block) {
        let name = name_of(&device);
        // Skip virtual devices (loop, RAM, devices built on disks) and removable drives.
        let is_disk = device.join("device").exists() && line(&device, "hidden") != "1";
        let is_slot = ["/dev/sr", "/dev/fd"].iter().any(|of| name.starts_with(of));
        let sectors = line(&device, "size").parse::<u64>().unwrap_or_default();
        if is_disk && !is_slot && sectors > 0 && !mounted.has(&device) {
            let size_bytes = sectors.saturating_mul(SECTOR_BYTES);
            found.push(Disk { name, size_bytes, mount_point: String::new() });
        }
    }
    found
}

/// Directory entries, sorted so that a truncated list is stable.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        fs::read_dir(dir).map(|entries| entries.flatten().map(|entry| entry.path()).collect()).unwrap_or_default();
    found.sort();
    found
}

/// Value of a device attribute; empty if it is missing.
fn line(device: &Path, attribute: &str) -> String {
    fs::read_to_string(device.join(attribute)).unwrap_or_default().trim().to_owned()
}

/// Device name: the kernel writes `/dev/cciss/c0d0` as `cciss!c0d0`.
fn name_of(device: &Path) -> String {
    format!("/dev/{}", device.file_name().unwrap_or_default().to_string_lossy().replace('!', "/"))
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::fs::symlink,
        sync::{Arc, mpsc::sync_channel},
    };

    use super::*;

    #[test]
    fn what_hangs_is_not_asked_again_and_the_others_are() {
        static ASKED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        let (end, ended) = sync_channel::<()>(0);
        let ended = Arc::new(Mutex::new(ended));
        let disks_in = |most: Duration, names: &[&str]| {
            let ended = Arc::clone(&ended);
            let size_of = move |mount_point: &str| match mount_point.starts_with("/dead") {
                true => ended.lock().ok()?.recv().ok().map(|()| 1),
                false => Some(2),
            };
            let candidates = names.iter().map(|name| (format!("/dev{name}"), (*name).to_owned())).collect();
            let answered = in_time(&ASKED, most, candidates, size_of);
            answered.into_iter().map(|disk| disk.mount_point).collect::<Vec<_>>()
        };
        let disks = |names: &[&str]| disks_in(ANSWER_MAX, names);
        assert_eq!(disks(&["/a", "/dead1", "/z"]), ["/a"], "in order, as far as they answer");
        assert_eq!(disks(&["/a", "/dead1", "/z"]), ["/a", "/z"], "it is not asked again");
        (2..=ASKED_MAX).for_each(|n| drop(disks_in(Duration::from_millis(1), &[&format!("/dead{n}")])));
        while ASKED.lock().expect("no panic").len() < ASKED_MAX {
            thread::yield_now();
        }
        assert!(disks(&["/a"]).is_empty(), "enough of them hang");
        (0..ASKED_MAX).for_each(|_| end.send(()).expect("one that hangs"));
        while !ASKED.lock().expect("no panic").is_empty() {
            thread::yield_now();
        }
        assert_eq!(disks(&["/a"]), ["/a"]);
    }

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

    #[test]
    fn whole_disks_of_which_nothing_is_mounted_are_listed() {
        let sys = tempfile::tempdir().expect("a directory");
        let path = |name: &str| sys.path().join(name);
        let device = |name: &str, number: &str, attributes: &[(&str, &str)]| {
            fs::create_dir_all(path(name).join("holders")).expect("a device");
            for (attribute, text) in [&[("dev", number), ("size", "2048")], attributes].concat() {
                fs::create_dir_all(path(name).join(attribute).parent().expect("one")).expect("a directory");
                fs::write(path(name).join(attribute), format!("{text}\n")).expect("an attribute");
            }
        };
        let disk = |name: &str, number: &str, attributes: &[(&str, &str)]| {
            device(name, number, attributes);
            fs::create_dir(path(name).join("device")).expect("hardware");
        };
        let holds = |of: &str, name: &str| symlink(path(name), path(of).join("holders").join(name)).expect("a link");
        disk("sda", "8:0", &[]);
        device("sda/sda1", "8:1", &[("partition", "1")]); // mounted
        disk("sdb", "8:16", &[("size", "7814037168")]);
        device("sdb/sdb1", "8:17", &[("partition", "1")]); // not mounted
        disk("sdc", "8:32", &[]);
        device("sdc/sdc1", "8:33", &[("partition", "1")]); // RAID, on it LVM, on it what is mounted
        device("md0", "9:0", &[]);
        device("dm-0", "253:0", &[("dm/name", "vg-a")]);
        holds("sdc/sdc1", "md0");
        holds("md0", "dm-0");
        disk("sdd", "8:48", &[]); // mounted as a whole, by btrfs
        disk("vda", "254:0", &[]); // mounted as /dev/root
        disk("cciss!c0d0", "104:0", &[]);
        disk("nvme0c0n1", "259:0", &[("hidden", "1")]);
        disk("sde", "8:64", &[("size", "0")]); // a reader without a card
        disk("sr0", "11:0", &[]);
        for name in ["loop0", "ram0", "zram0", "nbd0"] {
            device(name, "7:0", &[]);
        }
        let mounts = "/dev/sda1 / ext4 rw 0 0\n/dev/sdd /data btrfs rw 0 0\n/dev/root /old ext4 rw 0 0\n";
        let info = "36 35 8:1 / / rw - ext4 /dev/sda1 rw\n37 36 0:44 / /data rw - btrfs /dev/sdd rw\n\
                    38 36 254:0 / /old rw - ext4 /dev/root rw\n39 36 253:0 / /srv rw - xfs /dev/mapper/vg-a rw\n";
        let listed = |mounts: &str, info: &str| -> Vec<(String, u64)> {
            let disks = not_in_use(sys.path(), &Mounted::of(mounts, info));
            assert!(disks.iter().all(|disk| disk.mount_point.is_empty()), "{disks:?}");
            disks.into_iter().map(|disk| (disk.name, disk.size_bytes)).collect()
        };
        let (small, large) = (("/dev/cciss/c0d0".to_owned(), 1 << 20), ("/dev/sdb".to_owned(), 7_814_037_168 * 512));
        assert_eq!(listed(mounts, info), [small.clone(), large]);
        let by_name = format!("{mounts}/dev/mapper/vg-a /srv btrfs rw 0 0\n/dev/sdb1 /b btrfs rw 0 0\n");
        assert_eq!(listed(&by_name, &info.replace("253:0", "0:45")), [small]);
    }
}
