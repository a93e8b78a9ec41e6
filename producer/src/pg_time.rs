//! Postgres times as they are, infinities included.

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueFormat, PgValueRef};
use sqlx::{Decode, Encode, Postgres, Type};
use usage_schemas::Timestamp;

/// A `timestamptz`: microseconds since 2000-01-01T00:00:00Z, whose extremes are the infinities. A row is named by (id, emitted_at), so
/// whatever somebody wrote there has to come back unchanged; a library's calendar would refuse some of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PgTime(pub i64);

/// Microseconds from the Unix epoch to that of Postgres.
const EPOCH: i64 = 946_684_800_000_000;

impl PgTime {
    pub(crate) const NEG_INFINITY: Self = Self(i64::MIN);

    /// `None`: an infinity, or further away than a timestamp goes.
    pub(crate) fn timestamp(self) -> Option<Timestamp> {
        (self.0 != i64::MIN && self.0 != i64::MAX)
            .then(|| self.0.checked_add(EPOCH))
            .flatten()
            .map(Timestamp::from_micros)
    }
}

impl std::fmt::Display for PgTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.timestamp() {
            Some(time) => time.fmt(f),
            None if self.0 < 0 => f.write_str("-infinity"),
            None => f.write_str("infinity"),
        }
    }
}

impl Type<Postgres> for PgTime {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_name("timestamptz")
    }
}

impl PgHasArrayType for PgTime {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_name("_timestamptz")
    }
}

impl Encode<'_, Postgres> for PgTime {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        <i64 as Encode<'_, Postgres>>::encode_by_ref(&self.0, buffer)
    }
}

impl<'r> Decode<'r, Postgres> for PgTime {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        match value.format() {
            PgValueFormat::Binary => Ok(Self(i64::from_be_bytes(value.as_bytes()?.try_into()?))),
            PgValueFormat::Text => Err("a time came as text".into()),
        }
    }
}
