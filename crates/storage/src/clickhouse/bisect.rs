//! Finds the rows of a batch that ClickHouse refuses, by sending halves to a table that keeps nothing.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::client::Client;
use super::codes;
use super::insert::{Piece, encode, probe, refusal};
use super::native::Selection;
use crate::{PlannedBatch, RefusedRow, StorageError};

/// A batch with more refused rows than this is not worth going on: the caller stops the partition long before.
const MOST_REFUSED: usize = 1_000;

pub(crate) async fn bisect(
    client: &Client,
    maintenance: &Client,
    batch: &PlannedBatch,
    timeout: Duration,
) -> Result<Vec<RefusedRow>, StorageError> {
    let (refused, kept): (Vec<_>, Vec<_>) =
        (0..batch.rows.len()).map(|i| (i, refusal(&batch.rows, i))).partition(|(_, why)| why.is_some());
    let mut refused: Vec<RefusedRow> = refused
        .into_iter()
        .map(|(i, why)| RefusedRow {
            offset: batch.rows.offset[i],
            error: why.unwrap_or_default().to_owned(),
        })
        .collect();
    let kept =
        kept.into_iter().map(|(i, _)| u32::try_from(i).expect("a batch is cut before 2^32 rows")).collect();
    // Constraints and column types are those of the records, also ones that an operator added.
    let table = format!("usage_bisect_{}", Uuid::new_v4().simple());
    maintenance.execute(&format!("CREATE TABLE {table} AS usage_records ENGINE = Null")).await?;
    let result = halves(client, &table, batch, kept, timeout, &mut refused).await;
    if let Err(error) = maintenance.execute(&format!("DROP TABLE IF EXISTS {table} SYNC")).await {
        tracing::warn!(%table, %error, "a table of a bisection is left over");
    }
    result?;
    refused.sort_unstable_by_key(|row| row.offset);
    Ok(refused)
}

async fn halves(
    client: &Client,
    table: &str,
    batch: &PlannedBatch,
    rows: Vec<u32>,
    timeout: Duration,
    refused: &mut Vec<RefusedRow>,
) -> Result<(), StorageError> {
    let shared = Arc::new(batch.clone());
    let mut open = vec![rows];
    while let Some(rows) = open.pop() {
        if rows.is_empty() || refused.len() >= MOST_REFUSED {
            continue;
        }
        let selection = Selection::Some(rows.clone());
        let body = encode(&[Piece { batch: Arc::clone(&shared), selection }])?;
        match probe(client, table, body, timeout).await.map_err(|error| error.of_write()) {
            Ok(()) => {}
            Err(StorageError::Final { code, message }) if rows.len() == 1 => {
                let offset = batch.rows.offset[rows[0] as usize];
                debug_assert!(codes::is_final(code));
                refused.push(RefusedRow { offset, error: message });
            }
            Err(StorageError::Final { .. }) => {
                let (left, right) = rows.split_at(rows.len() / 2);
                open.push(right.to_vec());
                open.push(left.to_vec());
            }
            // Nothing is kept by that table, so whatever happened may be tried again.
            Err(StorageError::Unknown(source)) => return Err(StorageError::Unavailable(source)),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
