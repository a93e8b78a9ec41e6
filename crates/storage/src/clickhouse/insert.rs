//! One insert = one month = one Native block = one part, all or nothing (rule 4).

use std::sync::Arc;
use std::time::Duration;

use usage_service::fail_point;

use super::client::{CallError, Client, within};
use super::codes;
use super::fence::{Held, guard, query_id};
use super::months::{Month, MonthFinder, TIMESTAMPS};
use super::native::{BlockWriter, Body, Selection, optional_ids, optional_texts, texts};
use crate::{PlannedBatch, Rows, StorageError};

/// Columns of an insert into `usage_records`, with the types in which they are sent.
const COLUMNS: &[(&str, &str)] = &[
    ("record_id", "UUID"),
    ("tenant_id", "UUID"),
    ("source", "String"),
    ("metric", "String"),
    ("kind", KIND),
    ("value", "Decimal(38, 18)"),
    ("timestamp", TIME),
    ("idempotency_key", "Nullable(String)"),
    ("resource_id", "Nullable(UUID)"),
    ("resource_type", "Nullable(String)"),
    ("subject_id", "Nullable(UUID)"),
    ("subject_type", "Nullable(String)"),
    ("metadata", "Nullable(String)"),
    ("ingested_at", TIME),
    ("content_hash", "FixedString(16)"),
    ("kafka_partition", "Int32"),
    ("kafka_offset", "Int64"),
    ("batch_seq", "Int64"),
];

pub(crate) const KIND: &str = "Enum8('counter' = 1, 'gauge' = 2)";
pub(crate) const TIME: &str = "DateTime64(6, 'UTC')";

/// With these one block becomes one part, whatever the server's profile says (section 2 of the proof). Insert deduplication
/// is off: it records a token just before it publishes the part, and so can swallow the second send.
pub(crate) const SETTINGS: &[(&str, &str)] = &[
    ("async_insert", "0"),
    ("insert_deduplicate", "0"),
    ("max_insert_threads", "1"),
    ("input_format_parallel_parsing", "0"),
    ("min_insert_block_size_rows", "10000000"),
    ("min_insert_block_size_bytes", "10000000000"),
    ("max_insert_block_size", "10000000"),
    ("max_partitions_per_insert_block", "1"),
    ("throw_on_max_partitions_per_insert_block", "1"),
    // Flushes hold one row per key already.
    ("optimize_on_insert", "0"),
    // 200 must come after the part is there.
    ("wait_end_of_query", "1"),
];

/// The rows of one batch that go into one insert.
pub(crate) struct Piece {
    pub(crate) batch: Arc<PlannedBatch>,
    pub(crate) selection: Selection,
}

/// All rows of several batches that lie in one month.
pub(crate) struct MonthOfBatches {
    pub(crate) month: Month,
    pub(crate) pieces: Vec<Piece>,
}

/// The indexes of each month's rows; most batches lie in one.
pub(crate) fn by_month(rows: &Rows) -> Vec<(Month, Selection)> {
    let mut finder = MonthFinder::default();
    let Some(&first) = rows.timestamp.first() else { return Vec::new() };
    let month = finder.of_micros(first);
    if rows.timestamp.iter().all(|&timestamp| finder.of_micros(timestamp) == month) {
        return vec![(month, Selection::All(rows.len()))];
    }
    let mut months: Vec<(Month, Vec<u32>)> = Vec::new();
    for (i, &timestamp) in rows.timestamp.iter().enumerate() {
        let month = finder.of_micros(timestamp);
        let index = u32::try_from(i).expect("a batch is cut long before 2^32 rows");
        match months.iter_mut().find(|(known, _)| *known == month) {
            Some((_, indexes)) => indexes.push(index),
            None => months.push((month, vec![index])),
        }
    }
    months.sort_unstable_by_key(|(month, _)| *month);
    months.into_iter().map(|(month, indexes)| (month, Selection::Some(indexes))).collect()
}

/// Why a row can't be stored as it is: ClickHouse would clamp or wrap it without a word.
pub(crate) fn refusal(rows: &Rows, i: usize) -> Option<&'static str> {
    if !TIMESTAMPS.contains(&rows.timestamp[i]) {
        return Some("timestamp is out of range (1970 to 2106)");
    }
    if rows.tenant_id[i].is_nil() {
        return Some("tenant_id is nil");
    }
    if usage_schemas::Quantity::from_unscaled(rows.value[i]).is_err() {
        return Some("value is out of range");
    }
    None
}

/// Refuses a batch with a row that the table can't hold.
pub(crate) fn check(batch: &PlannedBatch) -> Result<(), StorageError> {
    match (0..batch.rows.len()).find_map(|i| refusal(&batch.rows, i).map(|why| (i, why))) {
        None => Ok(()),
        Some((i, why)) => Err(StorageError::Final {
            code: codes::OUT_OF_BOUND,
            message: format!("{why} at offset {}", batch.rows.offset[i]),
        }),
    }
}

/// Encodes the rows of one month as one block.
pub(crate) fn encode(pieces: &[Piece]) -> Result<Body, StorageError> {
    let rows = pieces.iter().map(|piece| piece.selection.len()).sum();
    let mut w = BlockWriter::new(COLUMNS.len(), rows);
    let all = || pieces.iter().map(|piece| (&piece.batch.rows, &piece.selection));
    macro_rules! fixed {
        ($name:literal, $value:expr) => {
            w.column($name, kind_of($name));
            for (rows, selection) in all() {
                selection.for_each(|i| w.fixed(&$value(rows, i)));
            }
        };
    }
    fixed!("record_id", |rows: &Rows, i: usize| rows.record_id[i]);
    fixed!("tenant_id", |rows: &Rows, i: usize| rows.tenant_id[i]);
    texts(&mut w, "source", all().map(|(rows, selection)| (&rows.source, selection)));
    texts(&mut w, "metric", all().map(|(rows, selection)| (&rows.metric, selection)));
    fixed!("kind", |rows: &Rows, i: usize| kind_number(rows.kind[i]));
    fixed!("value", |rows: &Rows, i: usize| rows.value[i]);
    fixed!("timestamp", |rows: &Rows, i: usize| rows.timestamp[i]);
    optional_texts(
        &mut w,
        "idempotency_key",
        all().map(|(rows, selection)| (&rows.idempotency_key, selection)),
    );
    optional_ids(&mut w, "resource_id", all().map(|(rows, selection)| (&rows.resource_id[..], selection)));
    optional_texts(&mut w, "resource_type", all().map(|(rows, selection)| (&rows.resource_type, selection)));
    optional_ids(&mut w, "subject_id", all().map(|(rows, selection)| (&rows.subject_id[..], selection)));
    optional_texts(&mut w, "subject_type", all().map(|(rows, selection)| (&rows.subject_type, selection)));
    optional_texts(&mut w, "metadata", all().map(|(rows, selection)| (&rows.metadata, selection)));
    fixed!("ingested_at", |rows: &Rows, i: usize| rows.ingested_at[i]);
    fixed!("content_hash", |rows: &Rows, i: usize| rows.content_hash[i]);
    w.column("kafka_partition", kind_of("kafka_partition"));
    for piece in pieces {
        w.repeated(&piece.batch.partition, piece.selection.len());
    }
    fixed!("kafka_offset", |rows: &Rows, i: usize| rows.offset[i]);
    w.column("batch_seq", kind_of("batch_seq"));
    for piece in pieces {
        w.repeated(&piece.batch.batch_seq, piece.selection.len());
    }
    w.finish()
}

fn kind_of(column: &str) -> &'static str {
    COLUMNS.iter().find(|(name, _)| *name == column).map(|(_, kind)| *kind).expect("a column of the insert")
}

/// As the tables' `Enum8` numbers kinds.
pub(crate) fn kind_number(kind: usage_schemas::Kind) -> u8 {
    match kind {
        usage_schemas::Kind::Counter => 1,
        usage_schemas::Kind::Gauge => 2,
    }
}

/// Sends an encoded month of batches into the records, guarded by the fences of `held`.
pub(crate) async fn records(
    client: &Client,
    held: &[Held],
    body: Body,
    timeout: Duration,
) -> Result<(), CallError> {
    let sql = statement("usage_records", COLUMNS, &guard(held));
    send(client, &sql, &query_id(held), body, timeout).await
}

/// Sends an encoded block into a table of the records' columns that keeps nothing.
pub(crate) async fn probe(
    client: &Client,
    table: &str,
    body: Body,
    timeout: Duration,
) -> Result<(), CallError> {
    send(client, &statement(table, COLUMNS, "1"), &format!("bisect.{}", uuid::Uuid::new_v4()), body, timeout)
        .await
}

pub(crate) fn statement(table: &str, columns: &[(&str, &str)], condition: &str) -> String {
    let names = columns.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let structure =
        columns.iter().map(|(name, kind)| format!("{name} {kind}")).collect::<Vec<_>>().join(", ");
    let structure = super::client::literal(&structure);
    format!(
        "INSERT INTO {table} ({names}) SELECT {names} FROM input({structure}) WHERE {condition} FORMAT Native"
    )
}

/// Sends one insert. `Ok` is proof that all of it is stored; `NotSent` that none of it is.
pub(crate) async fn send(
    client: &Client,
    sql: &str,
    query_id: &str,
    body: Body,
    timeout: Duration,
) -> Result<(), CallError> {
    within(timeout, async {
        let mut insert = client.driver().insert_formatted_with(sql).with_setting("query_id", query_id);
        for (name, value) in SETTINGS {
            insert = insert.with_setting(*name, *value);
        }
        for frame in body {
            insert.send_compressed(frame).await?;
        }
        // The server has not begun, or waits for the rest.
        fail_point!("storage.half_sent");
        insert.end().await
    })
    .await
    .map_err(|error| client.named(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows_at(timestamps: &[i64]) -> Rows {
        let mut rows = Rows::default();
        for (i, &timestamp) in timestamps.iter().enumerate() {
            let record = usage_schemas::RecordRef {
                record_id: uuid::Uuid::from_u128(i as u128 + 1),
                tenant_id: uuid::Uuid::from_u128(7),
                source: "s",
                metric: "m",
                kind: usage_schemas::Kind::Counter,
                value: usage_schemas::Quantity::ZERO,
                timestamp: usage_schemas::Timestamp::from_micros(timestamp),
                idempotency_key: None,
                resource_id: None,
                resource_type: None,
                subject_id: None,
                subject_type: None,
                metadata: None,
            };
            rows.push(&record, [0; 16], i as i64, 0);
        }
        rows
    }

    #[test]
    fn rows_are_split_by_month() {
        let day = 86_400_000_000;
        let split = by_month(&rows_at(&[40 * day, 0, 41 * day, day]));
        let found: Vec<(u32, Vec<usize>)> = split
            .iter()
            .map(|(month, selection)| {
                let mut indexes = Vec::new();
                selection.for_each(|i| indexes.push(i));
                (month.0, indexes)
            })
            .collect();
        assert_eq!(found, [(197001, vec![1, 3]), (197002, vec![0, 2])]);
        assert!(matches!(by_month(&rows_at(&[0, day]))[..], [(Month(197001), Selection::All(2))]));
        assert!(by_month(&Rows::default()).is_empty());
    }

    #[test]
    fn what_the_table_can_not_hold_is_refused() {
        let batch = |timestamp| PlannedBatch { partition: 0, batch_seq: 1, rows: rows_at(&[0, timestamp]) };
        assert!(check(&batch(1)).is_ok());
        for timestamp in [-1, TIMESTAMPS.end, i64::MAX, i64::MIN] {
            assert!(
                matches!(check(&batch(timestamp)), Err(StorageError::Final { code: 69, .. })),
                "{timestamp}"
            );
        }
        let mut nil = batch(1);
        nil.rows.tenant_id[1] = uuid::Uuid::nil();
        assert!(check(&nil).is_err());
        let mut large = batch(1);
        large.rows.value[0] = i128::MAX;
        assert!(check(&large).is_err());
    }
}
