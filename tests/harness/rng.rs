//! The simulator's random numbers: SplitMix64 (Steele, Lea, Flood 2014). One seed gives one run.

/// A reproducible source of numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Starts the sequence of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `low..=high`.
    pub const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// True with this probability, in permille.
    pub const fn permille(&mut self, permille: u64) -> bool {
        self.next() % 1000 < permille
    }

    /// One element at random; None of an empty slice.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        let len = u64::try_from(of.len()).ok().filter(|len| *len > 0)?;
        of.get(usize::try_from(self.next() % len).ok()?)
    }

    /// 16 random bytes, for identities.
    pub const fn bytes16(&mut self) -> u128 {
        ((self.next() as u128) << 64) | self.next() as u128
    }
}
