//! The machine's clocks and boot id. Read here and nowhere else; the core gets them as values.

use std::{
    io,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use muster_proto::model::Now;
use tokio::time::Instant;

/// Changes with every boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The machine's clocks.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Default for Clock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock {
    /// Both clocks, read now. The monotonic one counts from when this was made.
    #[must_use]
    pub fn now(&self) -> Now {
        Now { wall_ms: unix_ms(), mono_ms: millis(self.start.elapsed()) }
    }

    /// A moment of [`Now::mono_ms`] as the runtime counts it.
    #[must_use]
    pub fn instant(&self, mono_ms: u64) -> Instant {
        self.start + Duration::from_millis(mono_ms)
    }
}

/// Unix time in milliseconds.
#[must_use]
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Names this boot of the machine.
///
/// # Errors
/// What the kernel says.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string(BOOT_ID)?.trim().to_owned())
}
