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
