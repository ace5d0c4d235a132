use serde::{Deserialize, Serialize};

/// What a machine says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostFacts {
    /// As the kernel has it.
    pub hostname: String,
    /// The address the cluster uses. None = none found: the machine stays `Uninitialized`.
    pub internal_ip: Option<String>,
    /// All but loopback, by name.
    pub interfaces: Vec<NetworkInterface>,
    /// `PRETTY_NAME` of os-release.
    pub os: String,
    /// `uname -r`.
    pub kernel_version: String,
    /// `uname -m`.
    pub architecture: String,
    /// Unix milliseconds.
    pub boot_time_ms: u64,
    /// Of this boot: `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// IANA name where known.
    pub timezone: String,
    /// Model name of the first processor.
    pub cpu_model: String,
    /// Logical processors.
    pub cpu_count: u32,
    /// Of main memory.
    pub memory_bytes: u64,
    /// Block devices, by name: those that are mounted, and whole disks of which nothing is.
    pub disks: Vec<Disk>,
    /// Does the machine say that it wants a reboot? Unknown means no.
    pub reboot_required: bool,
    /// Why, as far as the machine tells.
    pub reboot_reason: String,
    /// Names of running containers that no Swarm drain moves: of no service, not MKE's, not Muster's. The first ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<String>,
}

/// One network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkInterface {
    /// `eth0`.
    pub name: String,
    /// Hardware address.
    pub mac: String,
    /// With prefix length, `10.0.0.7/24`.
    pub addresses: Vec<String>,
}

/// One block device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Disk {
    /// `/dev/sda1`.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Where it is mounted. Empty = it is not, nor is any part of it.
    pub mount_point: String,
}

/// The first label of a hostname, in lower case. None: it is one that any machine may have, `localhost` or an address.
#[must_use]
pub fn own_label(hostname: &str) -> Option<String> {
    let label = hostname.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let of_any = label == "localhost" || hostname.parse::<core::net::IpAddr>().is_ok();
    (!of_any && !label.is_empty()).then_some(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostname_of_any_machine_names_none() {
        for (hostname, label) in [
            ("Worker-3.example.org", Some("worker-3")),
            ("worker-3", Some("worker-3")),
            ("localhost", None),
            ("localhost.localdomain", None),
            ("10.0.0.5", None),
            ("fe80::1", None),
            ("", None),
        ] {
            assert_eq!(own_label(hostname).as_deref(), label, "{hostname}");
        }
    }
}
