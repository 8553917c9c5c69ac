//! Validated numbers: a policy built from them is valid by its types.

use serde::{Deserialize, Serialize};

/// The reason why a number was refused.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum InvalidValue {
    /// A share must be between 0 and 1.
    #[error("{0} is not a share: write a number from 0 to 1")]
    Ratio(f64),
    /// A growth factor must be finite and at least 1.
    #[error("{0} is not a growth factor: write a number from 1 to 1000")]
    Factor(f64),
}

/// A share between 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Ratio(f64);

impl Ratio {
    /// Returns the share, or an error if the number is out of range.
    pub fn new(value: f64) -> Result<Self, InvalidValue> {
        if (0.0..=1.0).contains(&value) { Ok(Self(value)) } else { Err(InvalidValue::Ratio(value)) }
    }

    /// Returns a share in whole percent. More than a hundred counts as a hundred.
    pub const fn percent(percent: u8) -> Self {
        Self(if percent > 100 { 1.0 } else { percent as f64 / 100.0 })
    }

    /// Returns the number.
    pub const fn get(self) -> f64 {
        self.0
    }

    /// Returns true if `part` out of `whole` reaches this share. Zero out of zero never does.
    pub fn reached_by(self, part: u32, whole: u32) -> bool {
        whole > 0 && f64::from(part) >= self.0 * f64::from(whole)
    }
}

impl TryFrom<f64> for Ratio {
    type Error = InvalidValue;
    fn try_from(value: f64) -> Result<Self, InvalidValue> {
        Self::new(value)
    }
}

impl From<Ratio> for f64 {
    fn from(ratio: Ratio) -> Self {
        ratio.0
    }
}

/// The growth of a value with each step: 1 is constant, 2 doubles.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct GrowthFactor(f64);

impl GrowthFactor {
    /// No growth.
    pub const ONE: Self = Self(1.0);
    /// Twice as much each time.
    pub const TWO: Self = Self(2.0);

    /// Returns the factor, or an error if the number is out of range.
    pub fn new(value: f64) -> Result<Self, InvalidValue> {
        if (1.0..=1000.0).contains(&value) { Ok(Self(value)) } else { Err(InvalidValue::Factor(value)) }
    }

    /// Returns the number.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for GrowthFactor {
    type Error = InvalidValue;
    fn try_from(value: f64) -> Result<Self, InvalidValue> {
        Self::new(value)
    }
}

impl From<GrowthFactor> for f64 {
    fn from(factor: GrowthFactor) -> Self {
        factor.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_factors_outside_their_range_are_refused() {
        assert!(Ratio::new(1.01).is_err() && Ratio::new(f64::NAN).is_err() && Ratio::new(-0.1).is_err());
        assert!(GrowthFactor::new(0.99).is_err() && GrowthFactor::new(f64::INFINITY).is_err());
        assert!(Ratio::percent(50).reached_by(5, 10) && !Ratio::percent(50).reached_by(4, 10));
        assert!(!Ratio::percent(0).reached_by(0, 0));
    }
}
