//! The random number generators of a world, all derived from its seed.

/// An arbitrary number.
const SALT: u64 = 10;

/// A SplitMix64 generator: small, fast, and the same on every platform.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x5DEE_CE66_D1CE_4E5B)
    }

    /// Creates a second generator for the same seed, for decisions that must not disturb the first.
    pub(crate) fn separate(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) ^ SALT)
    }

    /// Creates a third one, for decisions that were added after those.
    pub(crate) fn third(seed: u64) -> Self {
        Self(seed.wrapping_mul(0xD134_2543_DE82_EF95) ^ SALT)
    }

    /// Creates a fourth one, for decisions that were added after those, and later for the clocks of machines.
    pub(crate) fn fourth(seed: u64) -> Self {
        Self(seed.wrapping_mul(0xAEF1_7502_108E_F2D9) ^ SALT)
    }

    /// Creates a fifth one, for limits and budgets.
    pub(crate) fn fifth(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9FB2_1C65_1E98_DF25) ^ SALT)
    }

    /// Creates a sixth one, for rates.
    pub(crate) fn sixth(seed: u64) -> Self {
        Self(seed.wrapping_mul(0xDA94_2042_E4DD_58B5) ^ SALT)
    }

    /// Creates one for each machine that is tested alone.
    pub(crate) fn of_machine(seed: u64, machine: u64) -> Self {
        let mut mixed = Self(seed.wrapping_mul(0xC2B2_AE3D_27D4_EB4F) ^ machine);
        Self(mixed.next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// Returns true in `percent` of a hundred cases.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        let at = usize::try_from(self.next() % of.len() as u64).unwrap_or(0);
        &of[at]
    }
}
