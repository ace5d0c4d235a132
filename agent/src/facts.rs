//! Facts about the machine, read from the kernel and /etc whenever the link asks. Read-only; it avoids network file
//! systems and keeps no state. Unreadable facts stay empty: a machine with a broken /etc still reports.

mod addresses;
pub mod containers;
mod disks;

use std::{fs, io::Read, net::IpAddr, path::Path};

use muster_proto::model::HostFacts;
use nix::sys::utsname::uname;
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, System};

use crate::host;

/// Maximum length of a reboot reason; a machine that is left alone for a year lists hundreds of packages.
const REASON_BYTES_MAX: usize = 1024;
/// Bytes read of a marker file: many times more than is shown.
const MARK_BYTES_MAX: u64 = 64 * 1024;

/// Selection of the InternalIP among the machine's addresses, IPv4 first. If both `interface` and `cidr` are set, both
/// must match. By default it is the local address of the connection to the coordinator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressChoice {
    /// Name of the address's interface.
    pub interface: Option<String>,
    /// Network of the address, such as `10.0.0.0/16`.
    pub cidr: Option<String>,
    /// Local address of the connection to the coordinator.
    pub reaches_coordinator: Option<IpAddr>,
}

/// Every address of this machine.
#[must_use]
pub fn own_addresses() -> Vec<IpAddr> {
    addresses::own()
}

/// Collects the current facts.
#[must_use]
pub fn collect(choice: &AddressChoice) -> HostFacts {
    let found = addresses::read();
    let (reboot_required, reboot_reason) = reboot_required(Path::new("/"));
    let kernel = uname().ok();
    let of_kernel = |text: fn(&nix::sys::utsname::UtsName) -> &std::ffi::OsStr| {
        kernel.as_ref().map(|kernel| text(kernel).to_string_lossy().into_owned()).unwrap_or_default()
    };
    let (cpu_model, cpu_count, memory_bytes) = hardware();
    HostFacts {
        hostname: of_kernel(|kernel| kernel.nodename()),
        internal_ip: addresses::choose(&found, choice).map(|address| address.to_string()),
        interfaces: addresses::to_report(&found),
        os: fs::read_to_string("/etc/os-release").map(|text| pretty_name(&text)).unwrap_or_default(),
        kernel_version: of_kernel(|kernel| kernel.release()),
        architecture: of_kernel(|kernel| kernel.machine()),
        boot_time_ms: System::boot_time().unwrap_or(0).saturating_mul(1000),
        // Empty = unknown.
        boot_id: host::boot_id().unwrap_or_default(),
        timezone: jiff::tz::TimeZone::system().iana_name().unwrap_or_default().to_owned(),
        cpu_model,
        cpu_count,
        memory_bytes,
        disks: disks::read(),
        reboot_required,
        reboot_reason,
        containers: Vec::new(),
    }
}

fn hardware() -> (String, u32, u64) {
    let Ok(mut system) = System::new() else { return Default::default() };
    system.refresh_cpu_list(CpuRefreshKind::nothing());
    system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
    let model = system.cpus().first().map(|cpu| cpu.brand().trim().to_owned()).unwrap_or_default();
    (model, u32::try_from(system.cpus().len()).unwrap_or(u32::MAX), system.total_memory())
}

/// `PRETTY_NAME` of an os-release, whose values are quoted as for a shell.
fn pretty_name(os_release: &str) -> String {
    let value = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or_default().trim();
    let unquoted = ['"', '\''].iter().find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
    unquoted.unwrap_or(value).to_owned()
}

/// Checks the reboot markers. Debian's lists the packages that require it in a separate file; the marker of the day-two
/// modules contains its reason itself.
pub(crate) fn reboot_required(root: &Path) -> (bool, String) {
    let (debian, day2) = (root.join("run/reboot-required"), root.join("run/day2/reboot-required"));
    if !debian.exists() && !day2.exists() {
        return (false, String::new());
    }
    let mut packages = if debian.exists() { lines_of(&root.join("run/reboot-required.pkgs")) } else { Vec::new() };
    packages.sort_unstable();
    packages.dedup();
    let mut reason = packages.into_iter().chain(lines_of(&day2)).collect::<Vec<_>>().join(", ");
    if reason.len() > REASON_BYTES_MAX {
        let end = reason.floor_char_boundary(REASON_BYTES_MAX - '…'.len_utf8());
        reason.truncate(end);
        reason.push('…');
    }
    (true, if reason.is_empty() { "the system says so".to_owned() } else { reason })
}

/// Non-empty lines of a file; empty if it is missing or unreadable.
fn lines_of(path: &Path) -> Vec<String> {
    let mut bytes = Vec::new();
    // After an error, keep the part that was read.
    let _ = fs::File::open(path).map(|file| file.take(MARK_BYTES_MAX).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    let plain = |line: &str| line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
    text.lines().map(|line| plain(line).trim().to_owned()).filter(|line| !line.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pretty_names() {
        for (text, expected) in [
            ("ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n", "Debian GNU/Linux 12 (bookworm)"),
            ("PRETTY_NAME='Red Hat'", "Red Hat"),
            ("PRETTY_NAME=Alpine", "Alpine"),
            ("NAME=x", ""),
            ("", ""),
        ] {
            assert_eq!(pretty_name(text), expected, "{text}");
        }
    }

    #[test]
    fn a_wanted_reboot_says_why() {
        let root = tempfile::tempdir().expect("a directory");
        let run = root.path().join("run");
        assert_eq!(reboot_required(root.path()), (false, String::new()));
        fs::create_dir(&run).expect("run");
        fs::write(run.join("reboot-required.pkgs"), "left from before").expect("write");
        assert_eq!(reboot_required(root.path()), (false, String::new()));
        fs::write(run.join("reboot-required"), "*** System restart required ***\n").expect("write");
        fs::write(run.join("reboot-required.pkgs"), "linux-image\ndbus\n\nlinux-image\n").expect("write");
        assert_eq!(reboot_required(root.path()), (true, "dbus, linux-image".to_owned()));
        fs::write(run.join("reboot-required.pkgs"), "ö".repeat(4000)).expect("write");
        let (_, reason) = reboot_required(root.path());
        assert!(reason.len() <= REASON_BYTES_MAX && reason.ends_with("ö…"), "{}", reason.len());
        fs::remove_file(run.join("reboot-required.pkgs")).expect("remove");
        assert_eq!(reboot_required(root.path()), (true, "the system says so".to_owned()));
        fs::create_dir(run.join("day2")).expect("a directory");
        let day2 = run.join("day2/reboot-required");
        fs::write(&day2, "sysctl: needs a boot\n\n grub\t\n").expect("write");
        assert_eq!(reboot_required(root.path()), (true, "sysctl: needs a boot, grub".to_owned()));
        fs::write(run.join("reboot-required.pkgs"), "dbus").expect("write");
        assert_eq!(reboot_required(root.path()), (true, "dbus, sysctl: needs a boot, grub".to_owned()));
        fs::remove_file(run.join("reboot-required")).expect("remove");
        assert_eq!(reboot_required(root.path()), (true, "sysctl: needs a boot, grub".to_owned()));
        fs::write(&day2, "").expect("write");
        assert_eq!(reboot_required(root.path()), (true, "the system says so".to_owned()));
    }

    #[test]
    fn this_machine_has_facts() {
        let here = "127.0.0.1".parse().expect("an address");
        let facts = collect(&AddressChoice { reaches_coordinator: Some(here), ..AddressChoice::default() });
        assert_eq!(facts.internal_ip.as_deref(), Some("127.0.0.1"));
        assert_eq!(facts.hostname, fs::read_to_string("/proc/sys/kernel/hostname").expect("hostname").trim());
        assert_eq!(facts.kernel_version, fs::read_to_string("/proc/sys/kernel/osrelease").expect("release").trim());
        assert_eq!(facts.boot_id.len(), 36);
        assert!(facts.boot_time_ms > 1_500_000_000_000 && facts.memory_bytes > 64 << 20 && facts.cpu_count > 0);
        assert!(!facts.architecture.is_empty() && !facts.os.is_empty());
        assert!(facts.interfaces.iter().all(|interface| interface.name != "lo"));
        assert_eq!(facts, collect(&AddressChoice { reaches_coordinator: Some(here), ..AddressChoice::default() }));
    }
}
