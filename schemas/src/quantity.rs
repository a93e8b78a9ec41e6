//! Exact decimal quantities: 20 digits before the point, 18 after it.

/// A decimal in units of 10^-18, |value| < 10^20.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Quantity(i128);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("not a number")]
    NotANumber,
    #[error("more than 18 decimal places")]
    TooPrecise,
    #[error("out of range")]
    OutOfRange,
}

impl Quantity {
    pub const SCALE: u32 = 18;
    pub const ZERO: Quantity = Quantity(0);
    /// Greatest unscaled magnitude: 38 nines.
    pub const MAX_UNSCALED: i128 = 99_999_999_999_999_999_999_999_999_999_999_999_999;

    pub fn from_unscaled(unscaled: i128) -> Result<Self, QuantityError> {
        if unscaled.unsigned_abs() > Self::MAX_UNSCALED.unsigned_abs() {
            return Err(QuantityError::OutOfRange);
        }
        Ok(Self(unscaled))
    }

    pub fn unscaled(self) -> i128 {
        self.0
    }

    /// Parses JSON's number grammar (no plus, no leading zeros, exponent allowed).
    pub fn parse(_text: &str) -> Result<Self, QuantityError> {
        unimplemented!()
    }

    /// Appends plain notation without trailing zeros.
    pub fn write(self, _out: &mut String) {
        unimplemented!()
    }
}

impl std::fmt::Display for Quantity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = String::new();
        self.write(&mut text);
        f.write_str(&text)
    }
}
