//! How far each source of a tenant has come.

use super::{session::Session, sql::Sql};
use crate::{
    StorageError,
    query::{SourceWatermark, WatermarkQuery},
};

/// Counts every stored record in question, inactive ones too: the figures are about what has arrived.
pub(super) async fn watermarks(
    session: &Session,
    query: &WatermarkQuery,
) -> Result<Vec<SourceWatermark>, StorageError> {
    let mut sql = Sql::new();
    sql.push(
        "SELECT source, count(), max(timestamp), max(ingested_at) FROM usage_records WHERE tenant_id = ",
    );
    sql.uuid(query.tenant_id).and_texts("metric", &query.metrics).and_texts("source", &query.sources);
    sql.push(" GROUP BY source ORDER BY source");
    session
        .ask(&sql, |row| {
            Ok(SourceWatermark {
                source: row.str()?.into(),
                records: row.u64()?,
                latest_timestamp: row.i64()?,
                latest_ingested_at: row.i64()?,
            })
        })
        .await
}
