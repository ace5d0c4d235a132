//! How often somebody may show a wrong token. What is over the limit is refused unread, with the same words.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Mutex, PoisonError},
};

/// Wrong tokens are counted over so long.
const WINDOW_MS: u64 = 60_000;
/// Wrong tokens of one address in that time. Many machines may stand behind one.
const WRONG_PER_ADDRESS_MAX: u32 = 30;
/// Addresses we remember in that time. Those that come after are not counted: nobody guesses 256 bits, and many
/// strangers must not keep a fleet from enrolling.
const ADDRESSES_MAX: usize = 3000;

/// Counts wrong tokens.
#[derive(Default)]
pub(super) struct Guesses(Mutex<Window>);

/// The network's half of an IPv6 address.
const NETWORK: u128 = u128::MAX << 64;

#[derive(Default)]
struct Window {
    began_mono_ms: u64,
    by_address: BTreeMap<IpAddr, u32>,
}

impl Guesses {
    fn window(&self, now_mono_ms: u64) -> std::sync::MutexGuard<'_, Window> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if now_mono_ms.saturating_sub(window.began_mono_ms) >= WINDOW_MS {
            *window = Window { began_mono_ms: now_mono_ms, ..Window::default() };
        }
        window
    }

    /// May this address show a token now?
    pub(super) fn may_try(&self, address: IpAddr, now_mono_ms: u64) -> bool {
        let window = self.window(now_mono_ms);
        window.by_address.get(&origin(address)).is_none_or(|wrong| *wrong < WRONG_PER_ADDRESS_MAX)
    }

    /// This address showed a wrong one.
    pub(super) fn was_wrong(&self, address: IpAddr, now_mono_ms: u64) {
        let mut window = self.window(now_mono_ms);
        let address = origin(address);
        if window.by_address.len() < ADDRESSES_MAX || window.by_address.contains_key(&address) {
            *window.by_address.entry(address).or_default() += 1;
        }
    }
}

/// Who is behind an address: of IPv6 the network, for one host has as many addresses of it as it likes.
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
    fn wrong_tokens_are_limited_by_address() {
        let guesses = Guesses::default();
        let address = |n: u32| IpAddr::V4(Ipv4Addr::from_bits(n));
        let wrong = |n: u32, times: u32, at_ms: u64| (0..times).for_each(|_| guesses.was_wrong(address(n), at_ms));
        assert!(guesses.may_try(address(1), 0));
        wrong(1, WRONG_PER_ADDRESS_MAX - 1, 0);
        assert!(guesses.may_try(address(1), 0));
        wrong(1, 1, 59_000);
        assert!(!guesses.may_try(address(1), 59_999));
        assert!(guesses.may_try(address(2), 59_999), "another address is not meant");
        assert!(guesses.may_try(address(1), 60_000), "a minute later");
        (10..4_000).for_each(|n| wrong(n, WRONG_PER_ADDRESS_MAX, 61_000));
        assert!(guesses.may_try(address(2), 61_000), "whoever comes from elsewhere is not kept out");
        assert_eq!(guesses.window(61_000).by_address.len(), ADDRESSES_MAX);
        let host = |text: &str| origin(text.parse().expect("an address"));
        assert_eq!(host("2001:db8::1"), host("2001:db8::2:1"), "one host, many addresses");
        assert_ne!(host("2001:db8::1"), host("2001:db8:0:1::1"));
        assert_eq!(host("::ffff:10.0.0.1"), host("10.0.0.1"));
    }
}
