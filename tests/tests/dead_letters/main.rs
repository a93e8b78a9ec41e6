//! Dead letters on real servers: usagectl, Kafka's own tools, and a consumer that judges what is replayed.

mod garbage;
mod kafka_tools;
mod replay;
mod settling;
mod support;
