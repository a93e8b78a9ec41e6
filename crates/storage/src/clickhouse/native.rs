//! Encodes one block in ClickHouse's Native format and compresses it piece by piece, so that only the compressed form is kept.

use ::clickhouse::Compression;
use ::clickhouse::insert_formatted::CompressedData;
use ethnum::I256;
use uuid::Uuid;

use crate::StorageError;
use crate::batch::Texts;

/// Bytes that are compressed as one frame.
const FRAME: usize = 1 << 20;

/// The pieces of an encoded block, in order.
pub(crate) type Body = Vec<CompressedData>;

/// Rows of a batch that go into one block: all, or those with the given indexes.
#[derive(Debug, Clone)]
pub(crate) enum Selection {
    All(usize),
    Some(Vec<u32>),
}

impl Selection {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::All(len) => *len,
            Self::Some(indexes) => indexes.len(),
        }
    }

    pub(crate) fn for_each(&self, mut f: impl FnMut(usize)) {
        match self {
            Self::All(len) => (0..*len).for_each(f),
            Self::Some(indexes) => indexes.iter().for_each(|&i| f(i as usize)),
        }
    }
}

/// A value of fixed width as its column holds it.
pub(crate) trait Fixed<const N: usize> {
    fn encode(&self) -> [u8; N];
}

impl Fixed<1> for u8 {
    fn encode(&self) -> [u8; 1] {
        [*self]
    }
}

impl Fixed<4> for u32 {
    fn encode(&self) -> [u8; 4] {
        self.to_le_bytes()
    }
}

impl Fixed<4> for i32 {
    fn encode(&self) -> [u8; 4] {
        self.to_le_bytes()
    }
}

impl Fixed<8> for i64 {
    fn encode(&self) -> [u8; 8] {
        self.to_le_bytes()
    }
}

impl Fixed<8> for u64 {
    fn encode(&self) -> [u8; 8] {
        self.to_le_bytes()
    }
}

impl Fixed<16> for i128 {
    fn encode(&self) -> [u8; 16] {
        self.to_le_bytes()
    }
}

impl Fixed<16> for [u8; 16] {
    fn encode(&self) -> [u8; 16] {
        *self
    }
}

impl Fixed<32> for I256 {
    fn encode(&self) -> [u8; 32] {
        self.to_le_bytes()
    }
}

impl Fixed<16> for Uuid {
    /// Two little-endian halves.
    fn encode(&self) -> [u8; 16] {
        let (high, low) = self.as_u64_pair();
        (u128::from(low) << 64 | u128::from(high)).to_le_bytes()
    }
}

/// Writes one block; every column must get `rows` values.
pub(crate) struct BlockWriter {
    buffer: Vec<u8>,
    body: Body,
    error: Option<::clickhouse::error::Error>,
}

impl BlockWriter {
    pub(crate) fn new(columns: usize, rows: usize) -> Self {
        let mut writer =
            Self { buffer: Vec::with_capacity(FRAME + FRAME / 4), body: Vec::new(), error: None };
        writer.varint(columns);
        writer.varint(rows);
        writer
    }

    /// Starts a column; the values follow.
    pub(crate) fn column(&mut self, name: &str, kind: &str) {
        self.text(name);
        self.text(kind);
    }

    #[inline]
    pub(crate) fn fixed<const N: usize>(&mut self, value: &impl Fixed<N>) {
        self.buffer.extend_from_slice(&value.encode());
        self.cut();
    }

    #[inline]
    pub(crate) fn text(&mut self, text: &str) {
        self.varint(text.len());
        self.buffer.extend_from_slice(text.as_bytes());
        self.cut();
    }

    /// A column in which every row has the same value.
    pub(crate) fn repeated<const N: usize>(&mut self, value: &impl Fixed<N>, rows: usize) {
        for _ in 0..rows {
            self.fixed(value);
        }
    }

    pub(crate) fn finish(mut self) -> Result<Body, StorageError> {
        self.compress();
        match self.error {
            None => Ok(self.body),
            Some(error) => Err(StorageError::Unavailable(Box::new(error))),
        }
    }

    fn varint(&mut self, mut value: usize) {
        while value >= 0x80 {
            self.buffer.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.buffer.push(value as u8);
    }

    #[inline]
    fn cut(&mut self) {
        if self.buffer.len() >= FRAME {
            self.compress();
        }
    }

    fn compress(&mut self) {
        if self.buffer.is_empty() || self.error.is_some() {
            return;
        }
        match CompressedData::new(&self.buffer, Compression::Lz4) {
            Ok(frame) => self.body.push(frame),
            Err(error) => self.error = Some(error),
        }
        self.buffer.clear();
    }
}

/// Texts of several selections as one `String` column.
pub(crate) fn texts<'a>(
    writer: &mut BlockWriter,
    name: &str,
    columns: impl Iterator<Item = (&'a Texts, &'a Selection)>,
) {
    writer.column(name, "String");
    for (texts, selection) in columns {
        selection.for_each(|i| writer.text(texts.get(i).unwrap_or_default()));
    }
}

/// Texts of several selections as one `Nullable(String)` column: all flags, then all values.
pub(crate) fn optional_texts<'a>(
    writer: &mut BlockWriter,
    name: &str,
    columns: impl Iterator<Item = (&'a Texts, &'a Selection)> + Clone,
) {
    writer.column(name, "Nullable(String)");
    for (texts, selection) in columns.clone() {
        selection.for_each(|i| writer.fixed(&u8::from(texts.get(i).is_none())));
    }
    for (texts, selection) in columns {
        selection.for_each(|i| writer.text(texts.get(i).unwrap_or_default()));
    }
}

/// Ids of several selections as one `Nullable(UUID)` column.
pub(crate) fn optional_ids<'a>(
    writer: &mut BlockWriter,
    name: &str,
    columns: impl Iterator<Item = (&'a [Option<Uuid>], &'a Selection)> + Clone,
) {
    writer.column(name, "Nullable(UUID)");
    for (ids, selection) in columns.clone() {
        selection.for_each(|i| writer.fixed(&u8::from(ids[i].is_none())));
    }
    for (ids, selection) in columns {
        selection.for_each(|i| writer.fixed(&ids[i].unwrap_or_default()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_two_little_endian_halves() {
        let id = Uuid::parse_str("61f0c404-5cb3-11e7-907b-a6006ad3dba0").unwrap();
        let bytes: [u8; 16] = id.encode();
        assert_eq!(
            bytes,
            [0xe7, 0x11, 0xb3, 0x5c, 0x04, 0xc4, 0xf0, 0x61, 0xa0, 0xdb, 0xd3, 0x6a, 0x00, 0xa6, 0x7b, 0x90]
        );
    }

    #[test]
    fn lengths_are_varints() {
        let mut writer = BlockWriter::new(1, 300);
        assert_eq!(writer.buffer, [1, 0xac, 2]);
        writer.buffer.clear();
        writer.text(&"x".repeat(200));
        assert_eq!(writer.buffer[..3], [0xc8, 1, b'x']);
    }

    #[test]
    fn a_large_block_is_cut_into_frames() {
        let mut writer = BlockWriter::new(1, 400_000);
        writer.column("a", "Int64");
        writer.repeated(&7i64, 400_000);
        assert_eq!(writer.finish().unwrap().len(), 4, "3.2 MB in frames of 1 MiB");
    }
}
