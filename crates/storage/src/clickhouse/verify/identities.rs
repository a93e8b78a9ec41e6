//! Identities that are stored twice, and records that lie in a wrong partition.

use super::{CHUNK_ROWS, Tables, Tenants, chunks, records_in_range, tenants};
use crate::StorageError;
use crate::clickhouse::client::Client;
use crate::clickhouse::ids::partition_expression;
use crate::clickhouse::rowbinary::RowReader;
use crate::maintenance::{Difference, Scope, Verified};

pub(super) async fn verify(
    client: &Client,
    scope: &Scope,
    verified: &mut Verified,
    sink: &mut (dyn FnMut(Difference) + Send),
) -> Result<(), StorageError> {
    // Over all months at once: an identity has no time.
    for tenants in chunks(&tenants(client, scope, Tables::Records).await?) {
        verified.identities += tenants.rows;
        stored_twice(client, scope, &tenants, sink).await?;
        wrong_partitions(client, scope, &tenants, sink).await?;
    }
    Ok(())
}

/// A tenant with many records is looked at in slices of its ids, so that the server's groups stay bounded.
async fn stored_twice(
    client: &Client,
    scope: &Scope,
    tenants: &Tenants,
    sink: &mut (dyn FnMut(Difference) + Send),
) -> Result<(), StorageError> {
    let slices = tenants.rows / (4 * CHUNK_ROWS) + 1;
    for slice in 0..slices {
        let sql = format!(
            "SELECT tenant_id, record_id, count() AS copies FROM usage_records WHERE tenant_id IN ({}){} \
             AND sipHash64(record_id) % {slices} = {slice} GROUP BY tenant_id, record_id HAVING copies > 1 \
             ORDER BY tenant_id, record_id",
            tenants.list(),
            records_in_range(scope),
        );
        let bytes = client.fetch(&sql).await?;
        let mut rows = RowReader::new(&bytes);
        while !rows.is_empty() {
            let (tenant_id, record_id, copies) = (rows.uuid()?, rows.uuid()?, rows.u64()?);
            sink(Difference::StoredTwice { tenant_id, record_id, copies });
        }
    }
    Ok(())
}

async fn wrong_partitions(
    client: &Client,
    scope: &Scope,
    tenants: &Tenants,
    sink: &mut (dyn FnMut(Difference) + Send),
) -> Result<(), StorageError> {
    let counts = &scope.partition_counts;
    let wrong: Vec<String> = counts
        .known
        .iter()
        .chain([&counts.current])
        .filter(|count| **count > 0)
        .map(|count| format!("kafka_partition != {}", partition_expression(*count)))
        .collect();
    if wrong.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "SELECT tenant_id, kafka_partition, n, first, last FROM (\
         SELECT tenant_id, kafka_partition, count() AS n, min(kafka_offset) AS first, max(kafka_offset) AS last \
         FROM usage_records WHERE tenant_id IN ({}){} GROUP BY tenant_id, kafka_partition) \
         WHERE {} ORDER BY tenant_id, kafka_partition",
        tenants.list(),
        records_in_range(scope),
        wrong.join(" AND "),
    );
    let bytes = client.fetch(&sql).await?;
    let mut rows = RowReader::new(&bytes);
    while !rows.is_empty() {
        sink(Difference::WrongPartition {
            tenant_id: rows.uuid()?,
            partition: rows.i32()?,
            records: rows.u64()?,
            first_offset: rows.i64()?,
            last_offset: rows.i64()?,
        });
    }
    Ok(())
}
