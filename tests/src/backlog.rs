//! A backlog of signed records in Kafka, written past the outbox, and how much of it storage has.

use std::time::Duration;

use anyhow::{Context as _, bail};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer as _, ThreadedProducer};
use usage_devstack::testing;
use usage_schemas::codec::Encoder;
use usage_schemas::signature::SigningKey;
use usage_schemas::{Kind, Quantity, Timestamp, UsageRecord, ids, names, partition};
use usage_service::clock;
use uuid::Uuid;

use crate::pipeline::{Pipeline, SOURCE_KEY};
use crate::workload::{SOURCE, tenants};

/// How the backlog looks.
#[derive(Debug, Clone, Copy)]
pub struct Backlog {
    pub records: u64,
    pub tenants: usize,
}

const METRICS: [&str; 3] = ["llm.requests", "llm.input_tokens", "llm.output_tokens"];
/// Event times lie in the last six hours, in order.
const SPAN_MICROS: i64 = 6 * 3_600 * 1_000_000;

/// Produces all records, acknowledged by the broker; `progress` hears how many were handed over.
pub fn produce(topic: &str, backlog: &Backlog, progress: impl Fn(u64)) -> anyhow::Result<()> {
    let producer: ThreadedProducer<DefaultProducerContext> = ClientConfig::new()
        .set("bootstrap.servers", testing::kafka_brokers())
        .set("acks", "all")
        .set("enable.idempotence", "true")
        // More than one lets librdkafka report a refused batch as delivered (docs/adr/0002): the backlog would be short.
        .set("max.in.flight", "1")
        .set("linger.ms", "20")
        .set("batch.num.messages", "20000")
        .set("batch.size", "1000000")
        .set("compression.type", "lz4")
        .create()?;
    let (encoder, key) = (Encoder::new(), SigningKey::new(SOURCE_KEY.0, &unhex(SOURCE_KEY.1)?));
    let tenants = tenants(3, backlog.tenants);
    let mut random = StdRng::seed_from_u64(3);
    let start = clock::now_micros() - SPAN_MICROS;
    let step = SPAN_MICROS / i64::try_from(backlog.records)?.max(1);
    for number in 0..backlog.records {
        let tenant = tenants[random.random_range(0..tenants.len())];
        let at = start + step * i64::try_from(number)?;
        let record = record(tenant, number, at, &mut random)?;
        send(&producer, topic, names::DEFAULT_PARTITIONS, &encoder, &key, &record)?;
        if number % 10_000 == 0 {
            progress(number);
        }
    }
    producer.flush(Duration::from_secs(60)).context("the backlog was not acknowledged")?;
    progress(backlog.records);
    Ok(())
}

fn record(tenant_id: Uuid, number: u64, at: i64, random: &mut StdRng) -> anyhow::Result<UsageRecord> {
    let idempotency_key = format!("bench-{number:012}-{:08x}", random.random::<u32>());
    Ok(UsageRecord {
        record_id: ids::record_id(tenant_id, &idempotency_key),
        tenant_id,
        source: SOURCE.into(),
        metric: METRICS[random.random_range(0..METRICS.len())].into(),
        kind: Kind::Counter,
        value: Quantity::from_unscaled(i128::from(random.random_range(1..1_000_000_u32)) * 10_i128.pow(15))?,
        timestamp: Timestamp::from_micros(at),
        idempotency_key: Some(idempotency_key),
        resource_id: Some(Uuid::from_u128(u128::from(number % 1_000))),
        resource_type: Some("model".into()),
        subject_id: Some(Uuid::from_u128(u128::from(number % 5_000))),
        subject_type: Some("user".into()),
        metadata: Some(format!("{{\"region\":\"r{}\"}}", number % 7)),
    })
}

/// Signs and produces a record of the demo's source.
pub(crate) fn send(
    producer: &ThreadedProducer<DefaultProducerContext>,
    topic: &str,
    partitions: i32,
    encoder: &Encoder,
    key: &SigningKey,
    record: &UsageRecord,
) -> anyhow::Result<()> {
    let message_key = record.tenant_id.to_string();
    let value = encoder.encode(record);
    let signature = key.sign(message_key.as_bytes(), &value);
    loop {
        let mut headers = OwnedHeaders::new_with_capacity(4);
        for (name, value) in [
            (names::HEADER_PAYLOAD_TYPE, names::PAYLOAD_RECORD),
            (names::HEADER_SOURCE, SOURCE),
            (names::HEADER_KEY_ID, SOURCE_KEY.0),
            (names::HEADER_SIGNATURE, &signature),
        ] {
            headers = headers.insert(Header { key: name, value: Some(value) });
        }
        let message = BaseRecord::to(topic)
            .partition(partition::partition_of(record.tenant_id, partitions))
            .key(&message_key)
            .payload(&value)
            .headers(headers);
        match producer.send(message) {
            Ok(()) => return Ok(()),
            // Full: room comes when deliveries are reported, which the producer's own thread does.
            Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => {
                producer.poll(Duration::from_millis(20))
            }
            Err((error, _)) => return Err(error.into()),
        }
    }
}

/// Bytes of hex digits.
pub fn unhex(text: &str) -> anyhow::Result<Vec<u8>> {
    let digits = text
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair)?, 16).context("hex"));
    digits.collect()
}

/// What storage has of the backlog.
#[derive(Debug, Clone, Copy)]
pub struct Stored {
    pub records: u64,
    /// Records that the rollups count.
    pub rolled_up: u64,
}

/// Asks ClickHouse itself, past the API.
pub async fn stored(pipeline: &Pipeline) -> anyhow::Result<Stored> {
    let database = pipeline.clickhouse_database();
    let query = format!(
        "SELECT (SELECT count() FROM {database}.usage_records), (SELECT sum(record_count) FROM {database}.usage_rollups) FORMAT TSV"
    );
    let response = reqwest::Client::new().post(pipeline.clickhouse_url()).body(query).send().await?;
    let (status, text) = (response.status(), response.text().await?);
    if !status.is_success() {
        bail!("ClickHouse answered {status}: {text}");
    }
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    let (Some(Ok(records)), Some(Ok(rolled_up))) = (numbers.next(), numbers.next()) else {
        bail!("ClickHouse answered {text:?}");
    };
    Ok(Stored { records, rolled_up })
}

/// Name and process id of the run's servers: whoever listens on their ports.
pub fn servers() -> anyhow::Result<Vec<(&'static str, u32)>> {
    let port = |address: &str| -> anyhow::Result<u16> {
        let digits = address.rsplit_once(':').context("an address has a port")?.1;
        Ok(digits.trim_end_matches('/').parse()?)
    };
    let kafka = port(&testing::kafka_brokers())?;
    let clickhouse = port(&testing::clickhouse_url())?;
    Ok(vec![("kafka", listener(kafka)?), ("clickhouse", listener(clickhouse)?)])
}

/// The process that listens on a TCP port of this machine, found by its socket's inode.
fn listener(port: u16) -> anyhow::Result<u32> {
    const LISTEN: &str = "0A";
    let tables =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let inode = tables
        .iter()
        .flat_map(|table| table.lines().skip(1))
        .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>())
        .find(|fields| fields[3] == LISTEN && fields[1].ends_with(&format!(":{port:04X}")))
        .map(|fields| format!("socket:[{}]", fields[9]))
        .with_context(|| format!("nobody listens on port {port}"))?;
    for process in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let sockets = std::fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        if sockets
            .filter_map(|fd| std::fs::read_link(fd.path()).ok())
            .any(|link| link.to_string_lossy() == inode)
        {
            return Ok(pid);
        }
    }
    bail!("no process with the socket of port {port} was found")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listener_on_a_port_is_found() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(listener(socket.local_addr().unwrap().port()).unwrap(), std::process::id());
    }

    #[test]
    fn records_of_a_backlog_are_valid_and_distinct() {
        let mut random = StdRng::seed_from_u64(1);
        let tenant = Uuid::from_u128(9);
        let now = Timestamp::from_micros(clock::now_micros());
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..100 {
            let record = record(tenant, number, now.micros(), &mut random).unwrap();
            usage_schemas::validate::validate(&record.borrowed(), &usage_schemas::Bounds::default(), now)
                .unwrap();
            assert!(seen.insert(record.record_id));
        }
    }
}
