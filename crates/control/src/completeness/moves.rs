//! What the workers' transaction moves besides the offsets: the sources' progress, and records that are under way from one
//! partition to another.

use std::collections::BTreeMap;

use sqlx::PgConnection;
use time::OffsetDateTime;
use usage_schemas::Timestamp;
use usage_service::clock;
use uuid::Uuid;

use crate::Advance;

/// A record that was produced again onto another partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    pub source: String,
    /// Where the batch read it.
    pub from_offset: i64,
    /// Where it lies now.
    pub to_partition: i32,
    pub to_offset: i64,
    /// True if it had been forwarded to where the batch read it.
    pub again: bool,
}

/// Notes everything of the batches `done`, whose offsets the same transaction has just moved.
///
/// Forwards come first: their bound is the source's progress before this batch, which is what `complete_until` has been held
/// down to so far, and a record that is forwarded again must be found before its target has passed it.
pub(crate) async fn note(connection: &mut PgConnection, done: &[&Advance]) -> Result<(), sqlx::Error> {
    hand_on(connection, done).await?;
    forward(connection, done).await?;
    pass(connection, done).await?;
    progress(connection, done).await
}

/// Columns of forwarded records, for `unnest`.
#[derive(Default)]
struct Columns {
    source: Vec<String>,
    from_partition: Vec<i32>,
    from_offset: Vec<i64>,
    to_partition: Vec<i32>,
    to_offset: Vec<i64>,
}

impl Columns {
    fn of(done: &[&Advance], again: bool) -> Option<Self> {
        let mut columns = Self::default();
        for advance in done {
            for forward in advance.forwards.iter().filter(|forward| forward.again == again) {
                columns.source.push(forward.source.clone());
                columns.from_partition.push(advance.partition);
                columns.from_offset.push(forward.from_offset);
                columns.to_partition.push(forward.to_partition);
                columns.to_offset.push(forward.to_offset);
            }
        }
        (!columns.source.is_empty()).then_some(columns)
    }
}

/// A record that is forwarded again keeps its bound. The row moves and is not made anew, so that a transaction that lowers the
/// bound meanwhile finds it. Its first worker may not have noted it yet: then nothing is known until it is stored.
async fn hand_on(connection: &mut PgConnection, done: &[&Advance]) -> Result<(), sqlx::Error> {
    let Some(columns) = Columns::of(done, true) else { return Ok(()) };
    sqlx::query(
        "UPDATE source_forwards AS f SET to_partition = a.to_partition, to_offset = a.to_offset
         FROM unnest($1::text[], $2::integer[], $3::bigint[], $4::integer[], $5::bigint[])
           AS a (source, from_partition, from_offset, to_partition, to_offset)
         WHERE f.to_partition = a.from_partition AND f.to_offset = a.from_offset AND f.source = a.source",
    )
    .bind(&columns.source)
    .bind(&columns.from_partition)
    .bind(&columns.from_offset)
    .bind(&columns.to_partition)
    .bind(&columns.to_offset)
    .execute(&mut *connection)
    .await?;
    sqlx::query(
        "INSERT INTO source_forwards (source, from_partition, to_partition, to_offset, complete_until)
         SELECT source, from_partition, to_partition, to_offset, '-infinity'
         FROM unnest($1::text[], $2::integer[], $3::integer[], $4::bigint[])
           AS a (source, from_partition, to_partition, to_offset)
         ON CONFLICT DO NOTHING",
    )
    .bind(&columns.source)
    .bind(&columns.from_partition)
    .bind(&columns.to_partition)
    .bind(&columns.to_offset)
    .execute(connection)
    .await?;
    Ok(())
}

/// The bound of a record that is forwarded the first time: it came behind the last marker of its outbox, which may be any of the
/// source's.
async fn forward(connection: &mut PgConnection, done: &[&Advance]) -> Result<(), sqlx::Error> {
    let Some(columns) = Columns::of(done, false) else { return Ok(()) };
    sqlx::query(
        "INSERT INTO source_forwards AS f (source, from_partition, to_partition, to_offset, complete_until)
         SELECT a.source, a.from_partition, a.to_partition, a.to_offset, coalesce(
           (SELECT min(p.complete_until) FROM source_progress AS p
            WHERE p.source = a.source AND p.kafka_partition = a.from_partition
              AND NOT EXISTS (SELECT FROM retired_sources AS r WHERE r.source = p.source AND r.outbox = p.outbox)),
           '-infinity')
         FROM unnest($1::text[], $2::integer[], $3::integer[], $4::bigint[])
           AS a (source, from_partition, to_partition, to_offset)
         ON CONFLICT (to_partition, to_offset, source)
         DO UPDATE SET complete_until = least(f.complete_until, excluded.complete_until)",
    )
    .bind(&columns.source)
    .bind(&columns.from_partition)
    .bind(&columns.to_partition)
    .bind(&columns.to_offset)
    .execute(connection)
    .await?;
    Ok(())
}

/// What was forwarded to these partitions and lies before their new offsets is done. A row whose target had passed it before it
/// was noted goes with the target's next batch.
async fn pass(connection: &mut PgConnection, done: &[&Advance]) -> Result<(), sqlx::Error> {
    let partitions: Vec<i32> = done.iter().map(|advance| advance.partition).collect();
    let offsets: Vec<i64> = done.iter().map(|advance| advance.next_offset).collect();
    sqlx::query(
        "DELETE FROM source_forwards AS f USING unnest($1::integer[], $2::bigint[]) AS a (partition, next_offset)
         WHERE f.to_partition = a.partition AND f.to_offset < a.next_offset",
    )
    .bind(partitions)
    .bind(offsets)
    .execute(connection)
    .await?;
    Ok(())
}

/// The markers. A record may have been forwarded before its outbox was heard in the partition: then its bound was another outbox's
/// and says nothing.
async fn progress(connection: &mut PgConnection, done: &[&Advance]) -> Result<(), sqlx::Error> {
    let mut greatest = BTreeMap::<(&str, Uuid, i32), Timestamp>::new();
    for advance in done {
        for marker in &advance.markers {
            let place = (marker.source.as_str(), marker.outbox, advance.partition);
            let until = greatest.entry(place).or_insert(marker.complete_until);
            *until = marker.complete_until.max(*until);
        }
    }
    if greatest.is_empty() {
        return Ok(());
    }
    let sources: Vec<&str> = greatest.keys().map(|(source, _, _)| *source).collect();
    let outboxes: Vec<Uuid> = greatest.keys().map(|(_, outbox, _)| *outbox).collect();
    let partitions: Vec<i32> = greatest.keys().map(|(_, _, partition)| *partition).collect();
    let until: Vec<OffsetDateTime> =
        greatest.values().map(|until| clock::from_micros(until.micros())).collect();
    let moved: Vec<(String, i32, bool)> = sqlx::query_as(
        "INSERT INTO source_progress AS p (source, outbox, kafka_partition, complete_until)
         SELECT * FROM unnest($1::text[], $2::uuid[], $3::integer[], $4::timestamptz[])
         ON CONFLICT (source, outbox, kafka_partition)
         DO UPDATE SET complete_until = excluded.complete_until, updated_at = now()
         WHERE p.complete_until < excluded.complete_until
         RETURNING source, kafka_partition, xmax = 0",
    )
    .bind(sources)
    .bind(outboxes)
    .bind(partitions)
    .bind(until)
    .fetch_all(&mut *connection)
    .await?;
    for (source, partition, _) in moved.iter().filter(|(_, _, is_new)| *is_new) {
        sqlx::query(
            "UPDATE source_forwards SET complete_until = '-infinity' WHERE source = $1 AND from_partition = $2",
        )
        .bind(source)
        .bind(partition)
        .execute(&mut *connection)
        .await?;
    }
    Ok(())
}
