//! How far each source of a tenant has come.

use uuid::Uuid;

use super::{session::Session, sql::Sql};
use crate::{StorageError, query::SourceWatermark};

/// Counts every stored record of the tenant, inactive ones too: the figures are about what has arrived.
pub(super) async fn watermarks(
    session: &Session,
    tenant_id: Uuid,
) -> Result<Vec<SourceWatermark>, StorageError> {
    let mut sql = Sql::new();
    sql.push(
        "SELECT source, count(), max(timestamp), max(ingested_at) FROM usage_records WHERE tenant_id = ",
    );
    sql.uuid(tenant_id).push(" GROUP BY source ORDER BY source");
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
