//! Dead letters on real servers: usagectl, Kafka's own tools, and a consumer that judges what is replayed.

mod garbage;
mod kafka_tools;
mod quotas;
mod replay;
mod settling;
mod support;
