//! How a value says which schema wrote it: the one place that looks at a value's first bytes.

use crate::codec::DecodeError;

/// Marks an Avro single-object frame, version 1.
pub const SINGLE_OBJECT: [u8; 2] = [0xc3, 0x01];

/// A value taken apart. Confluent's frame (00 and the schema id as u32 big-endian) can become a variant of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Avro single-object encoding: CRC-64-AVRO of the writer schema's canonical form.
    SingleObject { fingerprint: u64, body: &'a [u8] },
}

/// Takes a value apart.
pub fn split(value: &[u8]) -> Result<Frame<'_>, DecodeError> {
    match value {
        [0xc3, 0x01, rest @ ..] => {
            let (fingerprint, body) = rest.split_first_chunk().ok_or(DecodeError::Frame)?;
            Ok(Frame::SingleObject { fingerprint: u64::from_le_bytes(*fingerprint), body })
        }
        _ => Err(DecodeError::Frame),
    }
}

/// Begins a single-object frame; the body follows.
pub fn start_single_object(fingerprint: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(&SINGLE_OBJECT);
    out.extend_from_slice(&fingerprint.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_started_can_be_split() {
        let mut value = Vec::new();
        start_single_object(0x8c0b_d347_2ec5_8875, &mut value);
        assert_eq!(value, [0xc3, 0x01, 0x75, 0x88, 0xc5, 0x2e, 0x47, 0xd3, 0x0b, 0x8c]);
        value.push(7);
        let frame = Frame::SingleObject { fingerprint: 0x8c0b_d347_2ec5_8875, body: &[7] };
        assert_eq!(split(&value), Ok(frame));
    }

    #[test]
    fn other_beginnings_are_refused() {
        let confluent = [0, 0, 0, 0, 1, 2];
        let cases: [&[u8]; 7] = [
            b"",
            b"\xc3",
            b"\xc3\x01",
            b"\xc3\x01\x75\x88\xc5\x2e\x47\xd3\x0b",
            b"\xc3\x02\x75\x88\xc5\x2e\x47\xd3\x0b\x8c",
            b"{}",
            &confluent,
        ];
        for value in cases {
            assert_eq!(split(value), Err(DecodeError::Frame), "{value:x?}");
        }
    }
}
