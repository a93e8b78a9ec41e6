//! Avro's primitive encodings, read from a slice that borrows out.

use uuid::Uuid;

use super::DecodeError;
use crate::{Kind, Quantity, Timestamp};

type Result<T> = std::result::Result<T, DecodeError>;

/// What is left of a value.
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    /// Bytes that are left.
    pub(super) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Nothing may follow a record.
    pub(super) fn finish(self) -> Result<()> {
        match self.rest.len() {
            0 => Ok(()),
            more => Err(DecodeError::Trailing(more)),
        }
    }

    /// A zigzag varint of at most 10 bytes whose value fits 64 bits.
    #[inline]
    pub(super) fn long(&mut self, field: &'static str) -> Result<i64> {
        let zigzag = match self.rest {
            [byte, rest @ ..] if *byte < 0x80 => {
                self.rest = rest;
                u64::from(*byte)
            }
            _ => self.long_varint(field)?,
        };
        Ok((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64))
    }

    fn long_varint(&mut self, field: &'static str) -> Result<u64> {
        let mut varint = 0u64;
        for (position, byte) in self.rest.iter().take(10).enumerate() {
            varint |= u64::from(byte & 0x7f) << (7 * position);
            if *byte < 0x80 {
                // Of the tenth byte only one bit fits.
                if position == 9 && *byte > 1 {
                    break;
                }
                self.rest = &self.rest[position + 1..];
                return Ok(varint);
            }
        }
        if self.rest.len() < 10 {
            return Err(DecodeError::Truncated);
        }
        Err(DecodeError::Field { field, detail: "integer of more than 64 bits" })
    }

    pub(super) fn int(&mut self, field: &'static str) -> Result<i32> {
        let long = self.long(field)?;
        i32::try_from(long).map_err(|_| DecodeError::Field { field, detail: "integer of more than 32 bits" })
    }

    #[inline]
    pub(super) fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(length).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    /// Bytes after their length.
    #[inline]
    pub(super) fn bytes(&mut self, field: &'static str) -> Result<&'a [u8]> {
        let length = self.long(field)?;
        let length =
            u64::try_from(length).map_err(|_| DecodeError::Field { field, detail: "negative length" })?;
        // A length that usize cannot hold is longer than any buffer.
        self.take(usize::try_from(length).unwrap_or(usize::MAX))
    }

    #[inline]
    pub(super) fn text(&mut self, field: &'static str) -> Result<&'a str> {
        std::str::from_utf8(self.bytes(field)?).map_err(|_| DecodeError::Field { field, detail: "not UTF-8" })
    }

    #[inline]
    pub(super) fn uuid(&mut self) -> Result<Uuid> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(Uuid::from_bytes(*bytes))
    }

    /// Two's complement of 1 to 16 bytes, not necessarily as few as possible.
    #[inline]
    pub(super) fn quantity(&mut self, field: &'static str) -> Result<Quantity> {
        let bytes = self.bytes(field)?;
        if !(1..=16).contains(&bytes.len()) {
            return Err(DecodeError::Field { field, detail: "a decimal has 1 to 16 bytes" });
        }
        let fill = if bytes[0] < 0x80 { 0 } else { 0xff };
        let mut wide = [fill; 16];
        wide[16 - bytes.len()..].copy_from_slice(bytes);
        Quantity::from_unscaled(i128::from_be_bytes(wide))
            .map_err(|_| DecodeError::Field { field, detail: "a decimal of more than 38 digits" })
    }

    #[inline]
    pub(super) fn kind(&mut self, field: &'static str) -> Result<Kind> {
        match self.int(field)? {
            0 => Ok(Kind::Counter),
            1 => Ok(Kind::Gauge),
            _ => Err(DecodeError::Field { field, detail: "no such kind" }),
        }
    }

    #[inline]
    pub(super) fn timestamp(&mut self, field: &'static str) -> Result<Timestamp> {
        Ok(Timestamp::from_micros(self.long(field)?))
    }

    /// A union of null and something.
    #[inline]
    pub(super) fn optional<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<Option<T>> {
        match self.long(field)? {
            0 => Ok(None),
            1 => Ok(Some(read(self)?)),
            _ => Err(DecodeError::Field { field, detail: "no such union branch" }),
        }
    }
}
