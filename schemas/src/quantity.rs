//! Exact decimal quantities: 20 digits before the point, 18 after it.

use std::str::FromStr;

use crate::serde_text::Text;

/// A decimal in units of 10^-18, |value| < 10^20.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Quantity(i128);

/// Why a text is no quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("not a number")]
    NotANumber,
    #[error("more than 18 decimal places")]
    TooPrecise,
    #[error("out of range")]
    OutOfRange,
    /// JSON `null` where a value is required.
    #[error("missing")]
    Missing,
}

/// Digits before the point.
const INTEGER_DIGITS: i64 = 20;
/// Beyond any position that a text in memory can have, and far from overflow when positions are added.
const EXPONENT_LIMIT: i64 = 1 << 60;

impl Quantity {
    /// Digits after the point.
    pub const SCALE: u32 = 18;
    pub const ZERO: Quantity = Quantity(0);
    /// Greatest unscaled magnitude: 38 nines.
    pub const MAX_UNSCALED: i128 = 99_999_999_999_999_999_999_999_999_999_999_999_999;
    /// 10^18.
    const ONE: u128 = 10u128.pow(Self::SCALE);

    /// A quantity from units of 10^-18; refuses magnitudes of 10^38 and more.
    pub const fn from_unscaled(unscaled: i128) -> Result<Self, QuantityError> {
        if unscaled.unsigned_abs() > Self::MAX_UNSCALED.unsigned_abs() {
            return Err(QuantityError::OutOfRange);
        }
        Ok(Self(unscaled))
    }

    /// Units of 10^-18.
    pub const fn unscaled(self) -> i128 {
        self.0
    }

    /// Whether it lies below zero. There is no negative zero.
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// Parses JSON's number grammar (no plus, no leading zeros, exponent allowed). Takes time linear in the text and no
    /// memory, whatever the exponent.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let number = Number::scan(text.as_bytes())?;
        let Some((first, last)) = number.digits else {
            return Ok(Self::ZERO);
        };
        // Powers of ten of the first and the last digit that is not zero.
        let highest = number.point - 1 - first + number.exponent;
        let lowest = number.point - 1 - last + number.exponent;
        if highest >= INTEGER_DIGITS {
            return Err(QuantityError::OutOfRange);
        }
        let shift = lowest + i64::from(Self::SCALE);
        if shift < 0 {
            return Err(QuantityError::TooPrecise);
        }
        // At most 38 digits lie between the two, so that neither the sum nor the shift overflows.
        let mut unscaled = 0u128;
        for digit in number.mantissa_digits().skip(first as usize).take((last - first) as usize + 1) {
            unscaled = unscaled * 10 + u128::from(digit);
        }
        unscaled *= 10u128.pow(shift as u32);
        let unscaled = unscaled as i128;
        Ok(Self(if number.negative { -unscaled } else { unscaled }))
    }

    /// Parses a JSON value: a number, or a string that holds one. Works on the text as it was sent, so that no float comes in
    /// between.
    pub fn from_json(json: &str) -> Result<Self, QuantityError> {
        match json.as_bytes() {
            b"null" => Err(QuantityError::Missing),
            [b'"', ..] => {
                let text: Text<'_> = serde_json::from_str(json).map_err(|_| QuantityError::NotANumber)?;
                Self::parse(&text.0)
            }
            _ => Self::parse(json),
        }
    }

    /// Parses the text of a JSON value as serde_json kept it.
    pub fn from_raw_json(json: &serde_json::value::RawValue) -> Result<Self, QuantityError> {
        Self::from_json(json.get())
    }

    /// Appends plain notation without trailing zeros.
    pub fn write(self, out: &mut String) {
        let mut buffer = [0u8; Plain::LENGTH];
        out.push_str(self.plain(&mut buffer));
    }

    /// Plain notation, written backwards from the end of the buffer.
    fn plain(self, buffer: &mut [u8; Plain::LENGTH]) -> &str {
        let magnitude = self.0.unsigned_abs();
        // Both halves fit u64 and u128 division is slow: divide once, then work on the halves.
        let integer = magnitude / Self::ONE;
        let fraction = (magnitude % Self::ONE) as u64;
        let mut plain = Plain { buffer, start: Plain::LENGTH };
        if fraction != 0 {
            plain.fraction(fraction);
        }
        plain.integer(integer);
        if self.is_negative() {
            plain.push(b'-');
        }
        plain.finish()
    }
}

/// A number text taken apart.
struct Number<'a> {
    negative: bool,
    /// Integer digits, perhaps the point and fraction digits.
    mantissa: &'a [u8],
    /// Digits before the point.
    point: i64,
    /// Positions of the first and last digit that is not zero, counted without the point.
    digits: Option<(i64, i64)>,
    /// Clamped to ±2^60.
    exponent: i64,
}

impl<'a> Number<'a> {
    fn scan(text: &'a [u8]) -> Result<Self, QuantityError> {
        let (negative, rest) = match text {
            [b'-', rest @ ..] => (true, rest),
            _ => (false, text),
        };
        let point = digits(rest);
        if point == 0 || (point > 1 && rest[0] == b'0') {
            return Err(QuantityError::NotANumber);
        }
        let mut end = point;
        if rest.get(end) == Some(&b'.') {
            let places = digits(&rest[end + 1..]);
            if places == 0 {
                return Err(QuantityError::NotANumber);
            }
            end += 1 + places;
        }
        let mut number = Number {
            negative,
            mantissa: &rest[..end],
            point: point as i64,
            digits: None,
            exponent: exponent(&rest[end..])?,
        };
        let mut ends = None;
        for (position, digit) in number.mantissa_digits().enumerate() {
            if digit != 0 {
                let position = position as i64;
                ends = Some((ends.map_or(position, |(first, _)| first), position));
            }
        }
        number.digits = ends;
        Ok(number)
    }

    fn mantissa_digits(&self) -> impl Iterator<Item = u8> + 'a {
        self.mantissa.iter().filter(|byte| **byte != b'.').map(|byte| byte - b'0')
    }
}

/// Number of leading digits.
fn digits(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// The exponent that makes up the rest of a number; none = 0.
fn exponent(text: &[u8]) -> Result<i64, QuantityError> {
    let (negative, rest) = match text {
        [] => return Ok(0),
        [b'e' | b'E', b'-', rest @ ..] => (true, rest),
        [b'e' | b'E', b'+', rest @ ..] => (false, rest),
        [b'e' | b'E', rest @ ..] => (false, rest),
        _ => return Err(QuantityError::NotANumber),
    };
    if rest.is_empty() || digits(rest) != rest.len() {
        return Err(QuantityError::NotANumber);
    }
    let mut magnitude = 0i64;
    for byte in rest {
        magnitude = magnitude.saturating_mul(10).saturating_add(i64::from(byte - b'0'));
    }
    let magnitude = magnitude.min(EXPONENT_LIMIT);
    Ok(if negative { -magnitude } else { magnitude })
}

/// Writes a number from its end.
struct Plain<'a> {
    buffer: &'a mut [u8; Plain::LENGTH],
    start: usize,
}

impl<'a> Plain<'a> {
    /// Sign, 20 digits, point, 18 digits.
    const LENGTH: usize = 40;

    fn push(&mut self, byte: u8) {
        self.start -= 1;
        self.buffer[self.start] = byte;
    }

    fn fraction(&mut self, mut fraction: u64) {
        let mut places = Quantity::SCALE;
        while fraction.is_multiple_of(10) {
            fraction /= 10;
            places -= 1;
        }
        for _ in 0..places {
            self.push(b'0' + (fraction % 10) as u8);
            fraction /= 10;
        }
        self.push(b'.');
    }

    /// Below 10^20: at most one step on u128 until the rest fits u64.
    fn integer(&mut self, integer: u128) {
        let mut rest = match u64::try_from(integer) {
            Ok(rest) => rest,
            Err(_) => {
                self.push(b'0' + (integer % 10) as u8);
                (integer / 10) as u64
            }
        };
        loop {
            self.push(b'0' + (rest % 10) as u8);
            rest /= 10;
            if rest == 0 {
                return;
            }
        }
    }

    fn finish(self) -> &'a str {
        std::str::from_utf8(&self.buffer[self.start..]).expect("digits are ASCII")
    }
}

impl std::fmt::Display for Quantity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.plain(&mut [0; Plain::LENGTH]))
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests;
