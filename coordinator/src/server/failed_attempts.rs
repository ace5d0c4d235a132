//! Rate limit on failed authentication and authorization, per address. Attempts over the limit get the same answer, but
//! late, and only some are logged. Valid callers always pass, whatever the failures of others: many machines share one
//! address.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// Window in which failed attempts are counted.
const WINDOW_MS: u64 = 60_000;
/// Failed attempts of one address in a window that are answered at once.
const WRONG_PER_ADDRESS_MAX: u32 = 30;
/// Most addresses remembered in a window. Later ones go uncounted: guessing 256 bits is infeasible anyway.
const ADDRESSES_MAX: usize = 3000;
/// Delay of the answer to an attempt over the limit.
const PAUSE: Duration = Duration::from_secs(1);

/// Counter of failed attempts.
#[derive(Default)]
pub(super) struct FailedAttempts(Mutex<Window>);

/// Network part of an IPv6 address.
const NETWORK: u128 = u128::MAX << 64;

#[derive(Default)]
struct Window {
    began_mono_ms: u64,
    by_address: BTreeMap<IpAddr, u32>,
}

impl FailedAttempts {
    fn window(&self, now_mono_ms: u64) -> std::sync::MutexGuard<'_, Window> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if now_mono_ms.saturating_sub(window.began_mono_ms) >= WINDOW_MS {
            *window = Window { began_mono_ms: now_mono_ms, ..Window::default() };
        }
        window
    }

    /// Count a failed attempt of this address; return their number in this window.
    fn count(&self, address: IpAddr, now_mono_ms: u64) -> u32 {
        let mut window = self.window(now_mono_ms);
        let address = origin(address);
        if window.by_address.len() >= ADDRESSES_MAX && !window.by_address.contains_key(&address) {
            return 1;
        }
        let times = window.by_address.entry(address).or_default();
        *times = times.saturating_add(1);
        *times
    }

    /// Count and log a failed attempt of this address; `detail` says at what. True: it is over the limit.
    pub(super) fn note(&self, address: IpAddr, now_mono_ms: u64, detail: &str) -> bool {
        let times = self.count(address, now_mono_ms);
        match times {
            times if times < WRONG_PER_ADDRESS_MAX => tracing::warn!(%address, detail, "refused"),
            WRONG_PER_ADDRESS_MAX => {
                tracing::warn!(%address, detail, "refused, as often before; for a minute not all of it is logged");
            }
            _ => tracing::debug!(%address, detail, "refused"),
        }
        times > WRONG_PER_ADDRESS_MAX
    }

    /// As [`Self::note`], and delay the answer if the address is over the limit.
    pub(super) async fn was_wrong(&self, address: IpAddr, now_mono_ms: u64, detail: &str) {
        if self.note(address, now_mono_ms, detail) {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Origin of an address: for IPv6 its network, because one host can use any of its addresses.
pub(super) fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & NETWORK)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn only_so_many_are_noted_at_once() {
        let (failed_attempts, address) = (FailedAttempts::default(), IpAddr::V4(Ipv4Addr::LOCALHOST));
        let often = (0..40).filter(|_| failed_attempts.note(address, 1, "a certificate")).count();
        assert_eq!(often, 10);
    }

    #[test]
    fn wrong_tries_are_counted_by_address() {
        let failed_attempts = FailedAttempts::default();
        let address = |n: u32| IpAddr::V4(Ipv4Addr::from_bits(n));
        assert_eq!([0, 10, 59_999].map(|at_ms| failed_attempts.count(address(1), at_ms)), [1, 2, 3]);
        assert_eq!(failed_attempts.count(address(2), 59_999), 1, "another address is not meant");
        assert_eq!(failed_attempts.count(address(1), 60_000), 1, "a minute later");
        assert!((10..4_000).all(|n| failed_attempts.count(address(n), 61_000) == 1));
        assert_eq!(failed_attempts.window(61_000).by_address.len(), ADDRESSES_MAX);
        assert_eq!(failed_attempts.count(address(1), 61_000), 2, "who is known stays so");
        assert_eq!([1, 1], [0; 2].map(|_| failed_attempts.count(address(9_999), 61_000)), "who is not is not counted");
        let host = |text: &str| origin(text.parse().expect("an address"));
        assert_eq!(host("2001:db8::1"), host("2001:db8::2:1"), "one host, many addresses");
        assert_ne!(host("2001:db8::1"), host("2001:db8:0:1::1"));
        assert_eq!(host("::ffff:10.0.0.1"), host("10.0.0.1"));
    }
}
