use std::net::IpAddr;

use crate::{
    convert::{WireError, as_line, line},
    model::{Disk, HostFacts, NetworkInterface},
    wire,
};

/// Most network interfaces and disks a machine reports; it drops the rest.
const DEVICES_MAX: usize = 512;

/// Most containers a machine names; it drops the rest.
pub const CONTAINERS_MAX: usize = 64;

/// Makes all names of disks and machines valid for the wire.
impl From<&HostFacts> for wire::HostFacts {
    fn from(facts: &HostFacts) -> Self {
        let interface = |nic: &NetworkInterface| wire::NetworkInterface {
            name: as_line(&nic.name),
            mac: as_line(&nic.mac),
            addresses: nic.addresses.iter().take(DEVICES_MAX).map(|address| as_line(address)).collect(),
        };
        let disk = |disk: &Disk| wire::Disk {
            name: as_line(&disk.name),
            size_bytes: disk.size_bytes,
            mount_point: as_line(&disk.mount_point),
        };
        Self {
            hostname: as_line(&facts.hostname),
            internal_ip: facts.internal_ip.clone().unwrap_or_default(),
            interfaces: facts.interfaces.iter().take(DEVICES_MAX).map(interface).collect(),
            os: as_line(&facts.os),
            kernel_version: as_line(&facts.kernel_version),
            architecture: as_line(&facts.architecture),
            boot_time_ms: facts.boot_time_ms,
            boot_id: as_line(&facts.boot_id),
            timezone: as_line(&facts.timezone),
            cpu_model: as_line(&facts.cpu_model),
            cpu_count: facts.cpu_count,
            memory_bytes: facts.memory_bytes,
            disks: facts.disks.iter().take(DEVICES_MAX).map(disk).collect(),
            reboot_required: facts.reboot_required,
            reboot_reason: as_line(&facts.reboot_reason),
            containers: facts.containers.iter().take(CONTAINERS_MAX).map(|name| as_line(name)).collect(),
        }
    }
}

impl TryFrom<wire::HostFacts> for HostFacts {
    type Error = WireError;

    fn try_from(wire: wire::HostFacts) -> Result<Self, WireError> {
        if wire.interfaces.len() > DEVICES_MAX {
            return Err(WireError::new("facts.interfaces", "too many"));
        }
        if wire.disks.len() > DEVICES_MAX {
            return Err(WireError::new("facts.disks", "too many"));
        }
        if !wire.internal_ip.is_empty() && wire.internal_ip.parse::<IpAddr>().is_err() {
            return Err(WireError::new("facts.internal_ip", "not an IP address"));
        }
        if wire.containers.len() > CONTAINERS_MAX {
            return Err(WireError::new("facts.containers", "too many"));
        }
        let interface = |nic: wire::NetworkInterface| {
            if nic.addresses.len() > DEVICES_MAX {
                return Err(WireError::new("facts.interfaces.addresses", "too many"));
            }
            Ok(NetworkInterface {
                name: line("facts.interfaces.name", nic.name)?,
                mac: line("facts.interfaces.mac", nic.mac)?,
                addresses: nic
                    .addresses
                    .into_iter()
                    .map(|address| line("facts.interfaces.addresses", address))
                    .collect::<Result<_, _>>()?,
            })
        };
        let disk = |disk: wire::Disk| {
            Ok(Disk {
                name: line("facts.disks.name", disk.name)?,
                size_bytes: disk.size_bytes,
                mount_point: line("facts.disks.mount_point", disk.mount_point)?,
            })
        };
        Ok(Self {
            hostname: line("facts.hostname", wire.hostname)?,
            internal_ip: Some(wire.internal_ip).filter(|ip| !ip.is_empty()),
            interfaces: wire.interfaces.into_iter().map(interface).collect::<Result<_, _>>()?,
            os: line("facts.os", wire.os)?,
            kernel_version: line("facts.kernel_version", wire.kernel_version)?,
            architecture: line("facts.architecture", wire.architecture)?,
            boot_time_ms: wire.boot_time_ms,
            boot_id: line("facts.boot_id", wire.boot_id)?,
            timezone: line("facts.timezone", wire.timezone)?,
            cpu_model: line("facts.cpu_model", wire.cpu_model)?,
            cpu_count: wire.cpu_count,
            memory_bytes: wire.memory_bytes,
            disks: wire.disks.into_iter().map(disk).collect::<Result<_, WireError>>()?,
            reboot_required: wire.reboot_required,
            reboot_reason: line("facts.reboot_reason", wire.reboot_reason)?,
            containers: wire
                .containers
                .into_iter()
                .map(|name| line("facts.containers", name))
                .collect::<Result<_, WireError>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::LINE_BYTES_MAX;

    /// Makes valid facts invalid.
    type Change = fn(&mut wire::HostFacts);

    #[test]
    fn facts_of_a_machine_with_odd_names_pass() {
        let odd = "a\u{1b}[31m\u{7f}b".to_owned();
        let facts = HostFacts {
            hostname: odd.clone(),
            os: "x".repeat(9_000),
            disks: vec![Disk { name: odd.clone(), size_bytes: 1, mount_point: odd }],
            ..HostFacts::default()
        };
        let read = HostFacts::try_from(wire::HostFacts::from(&facts)).expect("taken");
        assert_eq!(read.disks.first().map(|disk| disk.mount_point.as_str()), Some("a [31m b"));
    }

    fn interface() -> wire::NetworkInterface {
        wire::NetworkInterface {
            name: "eth0".to_owned(),
            mac: String::new(),
            addresses: vec!["10.0.0.1/24".to_owned()],
        }
    }

    fn disk() -> wire::Disk {
        wire::Disk { name: "/dev/sda1".to_owned(), size_bytes: u64::MAX, mount_point: "/".to_owned() }
    }

    fn read(change: Change) -> Result<HostFacts, String> {
        let mut wire = wire::HostFacts { interfaces: vec![interface()], disks: vec![disk()], ..Default::default() };
        change(&mut wire);
        wire.try_into().map_err(|error: WireError| error.to_string())
    }

    #[test]
    fn facts_at_their_limits() {
        for change in [
            (|_| {}) as Change,
            |wire| *wire = wire::HostFacts::default(),
            |wire| wire.interfaces = vec![interface(); DEVICES_MAX],
            |wire| wire.disks = vec![disk(); DEVICES_MAX],
            |wire| wire.interfaces[0].addresses = vec![String::new(); DEVICES_MAX],
            |wire| wire.internal_ip = "fd00::7".to_owned(),
            |wire| wire.hostname = "x".repeat(LINE_BYTES_MAX),
            |wire| (wire.boot_time_ms, wire.cpu_count, wire.memory_bytes) = (u64::MAX, u32::MAX, u64::MAX),
        ] {
            read(change).expect("taken");
        }
    }

    #[test]
    fn facts_that_are_none() {
        let table: &[(Change, &str)] = &[
            (|wire| wire.hostname = "x".repeat(LINE_BYTES_MAX + 1), "facts.hostname: too long"),
            (|wire| wire.internal_ip = "nowhere".to_owned(), "facts.internal_ip: not an IP address"),
            (|wire| wire.internal_ip = "10.0.0.1/24".to_owned(), "facts.internal_ip: not an IP address"),
            (|wire| wire.os = "a\nb".to_owned(), "facts.os: has a control character"),
            (|wire| wire.kernel_version = "a\0".to_owned(), "facts.kernel_version: has a NUL"),
            (|wire| wire.architecture = "\u{7f}".to_owned(), "facts.architecture: has a control character"),
            (|wire| wire.boot_id = "\t".to_owned(), "facts.boot_id: has a control character"),
            (|wire| wire.timezone = "\t".to_owned(), "facts.timezone: has a control character"),
            (|wire| wire.cpu_model = "\t".to_owned(), "facts.cpu_model: has a control character"),
            (|wire| wire.reboot_reason = "\t".to_owned(), "facts.reboot_reason: has a control character"),
            (|wire| wire.interfaces = vec![interface(); DEVICES_MAX + 1], "facts.interfaces: too many"),
            (|wire| wire.interfaces[0].name = "\t".to_owned(), "facts.interfaces.name: has a control character"),
            (|wire| wire.interfaces[0].mac = "\t".to_owned(), "facts.interfaces.mac: has a control character"),
            (
                |wire| wire.interfaces[0].addresses[0] = "x".repeat(LINE_BYTES_MAX + 1),
                "facts.interfaces.addresses: too long",
            ),
            (
                |wire| wire.interfaces[0].addresses = vec![String::new(); DEVICES_MAX + 1],
                "facts.interfaces.addresses: too many",
            ),
            (|wire| wire.disks = vec![disk(); DEVICES_MAX + 1], "facts.disks: too many"),
            (|wire| wire.containers = vec![String::new(); CONTAINERS_MAX + 1], "facts.containers: too many"),
            (|wire| wire.containers = vec!["\t".to_owned()], "facts.containers: has a control character"),
            (|wire| wire.disks[0].name = "\t".to_owned(), "facts.disks.name: has a control character"),
            (|wire| wire.disks[0].mount_point = "\t".to_owned(), "facts.disks.mount_point: has a control character"),
        ];
        for (change, expected) in table {
            assert_eq!(read(*change).expect_err(expected), *expected);
        }
    }
}
