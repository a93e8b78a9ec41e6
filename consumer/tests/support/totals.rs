//! What is stored, and how the reader sums it up.

use usage_storage::Storage;
use usage_storage::query::{
    AggregateQuery, GroupBy, Measure, PartitionCounts, RawQuery, StatusFilter, StoredRecord, Windows,
};
use uuid::Uuid;

use super::Pipeline;
use super::workload::REFUSED;

/// What is stored of a tenant: by the records, and as the reader sums it up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Totals {
    pub records: u64,
    pub identities: u64,
    pub sum: String,
    pub answer_count: u64,
    pub answer_sum: String,
}

impl Totals {
    /// Of `records` different records with values that sum up to `sum` units.
    pub fn exactly(records: u64, sum: i64) -> Self {
        let unscaled = i128::from(sum) * 1_000_000_000_000_000_000;
        Self {
            records,
            identities: records,
            sum: sum.to_string(),
            answer_count: records,
            answer_sum: unscaled.to_string(),
        }
    }
}

impl Pipeline {
    /// All stored records of a tenant, in the reader's order.
    pub async fn stored(&self, tenant: Uuid) -> Vec<StoredRecord> {
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let query = RawQuery {
                tenant_id: tenant,
                metrics: vec![],
                from: 0,
                to: i64::MAX / 2,
                status: StatusFilter::All,
                sources: vec![],
                subject_ids: vec![],
                subject_types: vec![],
                resource_ids: vec![],
                resource_types: vec![],
                after,
                limit: 1_000,
            };
            let page = self.storage.reader().raw(&query).await.expect("storage answers");
            after = page.last().map(|last| (last.timestamp, last.record_id));
            if page.is_empty() {
                return all;
            }
            all.extend(page);
        }
    }

    pub async fn totals(&self, tenant: Uuid) -> Totals {
        let query = "SELECT count(), uniqExact(record_id), toString(sum(toDecimal256(value, 18))) FROM usage_records \
                     WHERE tenant_id = toUUID(?)";
        let (records, identities, sum): (u64, u64, String) = self
            .maintenance()
            .query(query)
            .bind(tenant.to_string())
            .fetch_one()
            .await
            .expect("clickhouse answers");
        let counts = self.control.partition_counts().await.expect("the control database answers");
        let query = AggregateQuery {
            tenant_id: tenant,
            metrics: vec![],
            from: 0,
            to: i64::MAX / 2,
            windows: Windows::Total,
            group_by: GroupBy::default(),
            measure: Measure::default(),
            sources: vec![],
            subject_ids: vec![],
            subject_types: vec![],
            resource_ids: vec![],
            resource_types: vec![],
            partition_counts: PartitionCounts { current: counts.current, known: counts.known },
            after: None,
            limit: 10,
        };
        let rows = self.storage.reader().aggregate(&query).await.expect("the reader answers");
        let (answer_count, answer_sum) =
            rows.first().map_or((0, "0".into()), |row| (row.count, row.sum.to_string()));
        Totals { records, identities, sum, answer_count, answer_sum }
    }

    /// Keys of rollups that differ from the records, when every record is behind a horizon: after all workers have stopped.
    pub async fn rollup_differences(&self) -> u64 {
        let query = "
            SELECT count() FROM (
                SELECT tenant_id, metric, source, kind, bucket, kafka_partition, c, s FROM (
                    SELECT tenant_id, metric, source, kind, toStartOfFifteenMinutes(timestamp) AS bucket, kafka_partition,
                        count() AS c, sum(toDecimal256(value, 18)) AS s
                    FROM usage_records GROUP BY tenant_id, metric, source, kind, bucket, kafka_partition
                    UNION ALL
                    SELECT tenant_id, metric, source, kind, bucket, kafka_partition, sum(record_count) AS c, sum(value_sum) AS s
                    FROM usage_rollups WHERE tenant_id != toUUID('00000000-0000-0000-0000-000000000000')
                    GROUP BY tenant_id, metric, source, kind, bucket, kafka_partition)
                GROUP BY tenant_id, metric, source, kind, bucket, kafka_partition, c, s HAVING count() != 2)";
        self.maintenance().query(query).fetch_one().await.expect("clickhouse answers")
    }

    /// Storage refuses for good, from now on, rows whose key begins with [`REFUSED`].
    pub async fn refuse_rows(&self) {
        let constraint = format!(
            "ALTER TABLE usage_records ADD CONSTRAINT picky CHECK NOT startsWith(ifNull(idempotency_key, ''), '{REFUSED}')"
        );
        self.maintenance().query(&constraint).execute().await.expect("the constraint is added");
    }

    pub fn maintenance(&self) -> clickhouse::Client {
        clickhouse::Client::default()
            .with_url(&self.clickhouse.url)
            .with_database(&self.clickhouse.database)
            .with_user("usage_maintenance")
            .with_password("usage")
    }

    /// Months that have rows.
    pub async fn stored_months(&self) -> u64 {
        let query = "SELECT uniqExact(toYYYYMM(timestamp)) FROM usage_records";
        self.maintenance().query(query).fetch_one().await.expect("clickhouse answers")
    }

    /// Rows of all tenants.
    pub async fn stored_rows(&self) -> u64 {
        let query = "SELECT count() FROM usage_records";
        self.maintenance().query(query).fetch_one().await.expect("clickhouse answers")
    }

    /// Rows of these tenants.
    pub async fn rows(&self, tenants: &[Uuid]) -> u64 {
        let mut rows = 0;
        for tenant in tenants {
            rows += self.totals(*tenant).await.records;
        }
        rows
    }
}
