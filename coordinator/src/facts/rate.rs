//! Rate limits, counted while the process lives. PURE: time is an argument.

/// A rate limit: a burst, then a number per second.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Number allowed at once, after a pause.
    pub burst: u64,
    /// Number allowed each second afterwards.
    pub per_second: u64,
}

/// One caller's use of a [`Rate`]: a leaky bucket.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    /// Level in thousandths of one use.
    thousandths: u64,
    /// Time of the last use, in monotonic milliseconds.
    at_mono_ms: u64,
    /// Leak rate of the bucket, per second.
    per_second: u64,
}

/// One use, in thousandths.
const ONE: u64 = 1_000;

impl Used {
    /// Counts one use.
    ///
    /// # Errors The limit is reached: milliseconds until one more fits. This use stays uncounted.
    pub fn take(&mut self, rate: Rate, now_mono_ms: u64) -> Result<(), u64> {
        self.thousandths = self.thousandths.saturating_sub(self.leaked(now_mono_ms));
        self.at_mono_ms = now_mono_ms;
        self.per_second = rate.per_second;
        let over = (self.thousandths + ONE).saturating_sub(rate.burst.saturating_mul(ONE));
        if over > 0 {
            return Err(over.div_ceil(rate.per_second.max(1)));
        }
        self.thousandths += ONE;
        Ok(())
    }

    /// Has everything leaked out by now? Then it can be forgotten.
    #[must_use]
    pub const fn is_over(&self, now_mono_ms: u64) -> bool {
        self.thousandths <= self.leaked(now_mono_ms)
    }

    const fn leaked(&self, now_mono_ms: u64) -> u64 {
        now_mono_ms.saturating_sub(self.at_mono_ms).saturating_mul(self.per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_allows_burst_then_so_many_a_second() {
        let rate = Rate { burst: 3, per_second: 2 };
        let mut used = Used::default();
        let mut take = |at_ms| used.take(rate, at_ms);
        assert_eq!([take(10_000), take(10_000), take(10_000)], [Ok(()); 3]);
        assert_eq!(take(10_000), Err(500), "when to come again");
        assert_eq!([take(10_499), take(10_500), take(10_500)], [Err(1), Ok(()), Err(500)]);
        assert_eq!([(); 3].map(|()| take(60_000)), [Ok(()); 3], "after a pause, all of it");
        assert_eq!(take(60_000), Err(500));
        assert!(!used.is_over(61_499) && used.is_over(61_500));
    }
}
