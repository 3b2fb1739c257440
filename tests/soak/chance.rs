//! Chance that can be repeated: one seed makes the whole schedule, whatever version of whatever crate is in the tree.

/// A splitmix64 sequence.
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another sequence, for a task of its own: what tasks draw does not depend on which of them runs first.
    pub(crate) fn fork(&self, tag: u64) -> Self {
        Self(mix(self.0 ^ mix(tag)))
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform in `low..high`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.draw() % (high - low)
    }

    /// True so many times in a hundred.
    pub(crate) fn percent(&mut self, share: u64) -> bool {
        self.between(0, 100) < share
    }

    /// A size between the two, small ones as likely as large ones in each order of magnitude.
    pub(crate) fn size(&mut self, low: usize, high: usize) -> usize {
        let bits = |n: usize| u64::from(usize::BITS - n.leading_zeros());
        let magnitude = self.between(bits(low), bits(high) + 1);
        let ceiling = 1_u64 << magnitude.min(40);
        usize::try_from(self.between(ceiling / 2, ceiling)).unwrap_or(high).clamp(low, high)
    }
}

/// Spreads a number over all bits.
pub(crate) fn mix(n: u64) -> u64 {
    let z = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
