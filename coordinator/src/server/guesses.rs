//! How often somebody may show a wrong token. What is over the limit is refused unread, with the same words.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
};

/// Wrong tokens are counted over so long.
const WINDOW_MS: u64 = 60_000;
/// Wrong tokens of one address in that time. Many machines may stand behind one.
const WRONG_PER_ADDRESS_MAX: u32 = 30;
/// Wrong tokens of all addresses in that time; also the number of addresses we remember.
const WRONG_MAX: u32 = 3000;

/// Counts wrong tokens.
#[derive(Default)]
pub(super) struct Guesses(Mutex<Window>);

#[derive(Default)]
struct Window {
    began_mono_ms: u64,
    wrong: u32,
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
        let wrong = window.by_address.get(&address).copied().unwrap_or_default();
        window.wrong < WRONG_MAX && wrong < WRONG_PER_ADDRESS_MAX
    }

    /// This address showed a wrong one.
    pub(super) fn was_wrong(&self, address: IpAddr, now_mono_ms: u64) {
        let mut window = self.window(now_mono_ms);
        window.wrong += 1;
        *window.by_address.entry(address).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn wrong_tokens_are_limited_by_address_and_in_all() {
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
        for n in 10..10 + WRONG_MAX / WRONG_PER_ADDRESS_MAX {
            wrong(n, WRONG_PER_ADDRESS_MAX, 61_000);
        }
        assert!(!guesses.may_try(address(2), 61_000), "too many in all");
        assert!(guesses.may_try(address(2), 130_000));
    }
}
