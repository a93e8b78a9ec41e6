//! Decodes answers in the RowBinary format.

use ethnum::I256;
use uuid::Uuid;

use super::client::CallError;

/// Reads values one after another; each column of a row in the order of the SELECT.
pub(crate) struct RowReader<'a> {
    bytes: &'a [u8],
}

impl<'a> RowReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// True if no row is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], CallError> {
        let (head, rest) = self
            .bytes
            .split_at_checked(len)
            .ok_or_else(|| CallError::Lost("the answer ends in the middle of a row".into()))?;
        self.bytes = rest;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], CallError> {
        Ok(self.take(N)?.try_into().expect("split at N"))
    }

    /// UInt8, Enum8 with positive numbers, Bool.
    pub(crate) fn u8(&mut self) -> Result<u8, CallError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, CallError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn i32(&mut self) -> Result<i32, CallError> {
        self.array().map(i32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, CallError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Int64, DateTime64.
    pub(crate) fn i64(&mut self) -> Result<i64, CallError> {
        self.array().map(i64::from_le_bytes)
    }

    /// Int128, Decimal(38, …).
    pub(crate) fn i128(&mut self) -> Result<i128, CallError> {
        self.array().map(i128::from_le_bytes)
    }

    /// Int256, Decimal(76, …).
    pub(crate) fn i256(&mut self) -> Result<I256, CallError> {
        self.array().map(I256::from_le_bytes)
    }

    /// UUID: two little-endian halves.
    pub(crate) fn uuid(&mut self) -> Result<Uuid, CallError> {
        let high = self.u64()?;
        let low = self.u64()?;
        Ok(Uuid::from_u64_pair(high, low))
    }

    /// String, LowCardinality(String).
    pub(crate) fn str(&mut self) -> Result<&'a str, CallError> {
        let len = self.varint()?;
        let bytes = self.take(len)?;
        std::str::from_utf8(bytes).map_err(|error| CallError::Lost(Box::new(error)))
    }

    /// Nullable(T): a flag, then T if there is a value.
    pub(crate) fn nullable<T>(
        &mut self,
        value: impl FnOnce(&mut Self) -> Result<T, CallError>,
    ) -> Result<Option<T>, CallError> {
        if self.u8()? == 0 { value(self).map(Some) } else { Ok(None) }
    }

    fn varint(&mut self) -> Result<usize, CallError> {
        let mut value = 0usize;
        for shift in (0..63).step_by(7) {
            let byte = self.u8()?;
            value |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(CallError::Lost("a length in the answer is too long".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_clickhouse_writes() {
        // SELECT toUUID('61f0c404-5cb3-11e7-907b-a6006ad3dba0'), 'ab', NULL::Nullable(UInt32), 7::Nullable(UInt32)
        let bytes = [
            0xe7, 0x11, 0xb3, 0x5c, 0x04, 0xc4, 0xf0, 0x61, 0xa0, 0xdb, 0xd3, 0x6a, 0x00, 0xa6, 0x7b, 0x90,
            2, b'a', b'b', 1, 0, 7, 0, 0, 0,
        ];
        let mut row = RowReader::new(&bytes);
        assert_eq!(row.uuid().unwrap().to_string(), "61f0c404-5cb3-11e7-907b-a6006ad3dba0");
        assert_eq!(row.str().unwrap(), "ab");
        assert_eq!(row.nullable(RowReader::u32).unwrap(), None);
        assert_eq!(row.nullable(RowReader::u32).unwrap(), Some(7));
        assert!(row.is_empty());
    }

    #[test]
    fn a_cut_answer_is_an_error() {
        assert!(RowReader::new(&[1, 2, 3]).u32().is_err());
        assert!(RowReader::new(&[200, 1, b'x']).str().is_err());
        assert!(RowReader::new(&[0xff; 20]).str().is_err());
    }
}
