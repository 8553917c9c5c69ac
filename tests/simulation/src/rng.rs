//! One seed decides everything.

/// Any number would do.
const SALT: u64 = 10;

/// SplitMix64: small, fast, and the same everywhere.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x5DEE_CE66_D1CE_4E5B)
    }

    /// A second generator of the same seed, for what must not disturb the first.
    pub(crate) fn beside(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) ^ SALT)
    }

    /// A third one, for what was added after that.
    pub(crate) fn third(seed: u64) -> Self {
        Self(seed.wrapping_mul(0xD134_2543_DE82_EF95) ^ SALT)
    }

    /// A fourth one, for what was added after that, and then for the clocks of machines.
    pub(crate) fn fourth(seed: u64) -> Self {
        Self(seed.wrapping_mul(0xAEF1_7502_108E_F2D9) ^ SALT)
    }

    /// A fifth one, for limits and budgets.
    pub(crate) fn fifth(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9FB2_1C65_1E98_DF25) ^ SALT)
    }

    /// A sixth one, for rates.
    pub(crate) fn sixth(seed: u64) -> Self {
        Self(seed.wrapping_mul(0xDA94_2042_E4DD_58B5) ^ SALT)
    }

    /// One for each machine that is looked at alone.
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

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// True in `percent` of a hundred cases.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        let at = usize::try_from(self.next() % of.len() as u64).unwrap_or(0);
        &of[at]
    }
}
