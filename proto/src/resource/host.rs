use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::model::{Disk, HostFacts, NetworkInterface};

/// Facts that a machine reports about itself. Its hostname and InternalIP are among the addresses of its status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostInfo {
    /// Time of its boot, by its own clock.
    pub boot_time: Timestamp,
    /// Id of this boot: `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// `uname -m`.
    pub architecture: String,
    /// `uname -r`.
    pub kernel_version: String,
    /// `PRETTY_NAME` of os-release.
    pub os: String,
    /// IANA name where known.
    pub timezone: String,
    /// Its hardware.
    pub hardware: Hardware,
    /// Does it say that it needs a reboot?
    pub reboot_required: bool,
    /// Reason for the reboot, as far as the machine tells.
    pub reboot_reason: String,
}

/// Hardware of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hardware {
    /// Its processors.
    pub cpu: Cpu,
    /// Its main memory.
    pub memory: Memory,
    /// Mounted block devices, by name.
    pub storage: Vec<Disk>,
    /// Interfaces except loopback, by name.
    pub network: Vec<NetworkInterface>,
}

/// A machine's processors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    /// Model name of the first processor.
    pub model: String,
    /// Number of logical processors.
    pub count: u32,
}

/// A machine's main memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    /// Total size.
    pub size_bytes: u64,
}

impl From<&HostFacts> for HostInfo {
    /// A clock beyond the year 9999 shows as the epoch.
    fn from(facts: &HostFacts) -> Self {
        let boot_time = i64::try_from(facts.boot_time_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        Self {
            boot_time: boot_time.unwrap_or(Timestamp::UNIX_EPOCH),
            boot_id: facts.boot_id.clone(),
            architecture: facts.architecture.clone(),
            kernel_version: facts.kernel_version.clone(),
            os: facts.os.clone(),
            timezone: facts.timezone.clone(),
            hardware: Hardware {
                cpu: Cpu { model: facts.cpu_model.clone(), count: facts.cpu_count },
                memory: Memory { size_bytes: facts.memory_bytes },
                storage: facts.disks.clone(),
                network: facts.interfaces.clone(),
            },
            reboot_required: facts.reboot_required,
            reboot_reason: facts.reboot_reason.clone(),
        }
    }
}
