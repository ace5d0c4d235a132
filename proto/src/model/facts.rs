use serde::{Deserialize, Serialize};

/// Facts that a machine reports about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostFacts {
    /// As the kernel reports it.
    pub hostname: String,
    /// The address that the cluster uses. None = unknown: the machine stays `Uninitialized`.
    pub internal_ip: Option<String>,
    /// All interfaces but loopback, by name.
    pub interfaces: Vec<NetworkInterface>,
    /// `PRETTY_NAME` of os-release.
    pub os: String,
    /// `uname -r`.
    pub kernel_version: String,
    /// `uname -m`.
    pub architecture: String,
    /// Unix milliseconds.
    pub boot_time_ms: u64,
    /// Id of this boot: `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// IANA name where known.
    pub timezone: String,
    /// Model name of the first processor.
    pub cpu_model: String,
    /// Logical processors.
    pub cpu_count: u32,
    /// Size of main memory.
    pub memory_bytes: u64,
    /// Block devices, by name: the mounted ones, and entirely unmounted disks.
    pub disks: Vec<Disk>,
    /// Does the machine say that it needs a reboot? Unknown means no.
    pub reboot_required: bool,
    /// Reason for the reboot, as far as the machine tells.
    pub reboot_reason: String,
    /// Names of running containers that a Swarm drain leaves, up to the limit: outside services, MKE and Muster.
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
    /// Mount point of the device or of a part of it; empty if unmounted.
    pub mount_point: String,
}

/// The first label of a hostname, in lower case. None: many machines may have the name, as `localhost` or an address.
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
