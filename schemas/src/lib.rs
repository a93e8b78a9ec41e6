//! The contract between usage sources, the consumer and the readers: record types, ids, exact quantities, times, the Avro
//! codec, signatures, partitioning and the names on the wire. No runtime, no Kafka.

pub mod codec;
pub mod frame;
pub mod ids;
pub mod json;
pub mod marker;
pub mod names;
pub mod partition;
pub mod quantity;
pub mod reason;
pub mod record;
pub mod schema;
mod serde_text;
pub mod signature;
pub mod time;
pub mod validate;

pub use marker::Marker;
pub use quantity::{Quantity, QuantityError};
pub use reason::{Reason, Severity};
pub use record::{Kind, RecordRef, UsageRecord};
pub use time::{Timestamp, TimestampError};
pub use validate::{Bounds, Invalid};
