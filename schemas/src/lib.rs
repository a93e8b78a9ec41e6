//! The contract between usage sources, the consumer and the readers: record types, ids, exact quantities, times, the Avro
//! codec, signatures, partitioning, usage types with their rules, and the names on the wire. No runtime, no Kafka.

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
pub mod strict_json;
pub mod time;
pub mod types_registry;
pub mod usage_type;
pub mod validate;

pub use marker::Marker;
pub use quantity::{Quantity, QuantityError};
pub use reason::{Reason, Severity};
pub use record::{Kind, RecordRef, UsageRecord};
pub use time::{Timestamp, TimestampError};
pub use types_registry::{RegistryError, TypesRegistry};
pub use usage_type::{CompiledType, Rules, TypeVersion, UsageType, Violation};
pub use validate::{Bounds, Invalid};
