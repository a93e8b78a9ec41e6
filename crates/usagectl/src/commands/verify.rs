//! `usagectl verify`: holds the rollups against the records, and looks for identities stored twice or in a wrong partition.

mod print;

use std::collections::HashSet;

use usage_service::config::Resolved;
use usage_storage::clickhouse::{ClickHouseConfig, ClickHouseStorage};
use usage_storage::{BucketKey, Difference, Maintenance, PartitionCounts, Scope, Storage as _, Verified};

use crate::arguments::Verify;
use crate::{Differs, WrongInput};
use print::Printer;

/// Buckets that are remembered for one repair; what is beyond comes with the next pass.
const BUCKETS_PER_PASS: usize = 100_000;

/// What one pass over everything found.
#[derive(Debug, Default)]
struct Pass {
    verified: Verified,
    differences: u64,
    /// Buckets that differ, at most [`BUCKETS_PER_PASS`].
    buckets: Vec<BucketKey>,
}

/// Ends with [`Differs`] if anything differs, with `--repair` if anything still does afterwards.
pub(super) async fn run(config: &Resolved, options: Verify) -> anyhow::Result<()> {
    if let (Some(from), Some(to)) = (options.from, options.to)
        && from >= to
    {
        return Err(WrongInput { argument: "--to", detail: "must be after --from".into() }.into());
    }
    let control = super::control(config).await?;
    if let Some(metric) = &options.metric
        && control.usage_type(metric).await?.is_none()
    {
        let detail = format!("no usage type has the name {metric}; see `usagectl types list`");
        return Err(WrongInput { argument: "--metric", detail }.into());
    }
    let counts = control.partition_counts().await?;
    control.close().await;
    let clickhouse: ClickHouseConfig = config.section("clickhouse")?;
    let storage = ClickHouseStorage::connect(clickhouse).maintenance();
    let scope = Scope {
        from: options.from,
        to: options.to,
        tenant_id: options.tenant,
        metric: options.metric,
        partition_counts: PartitionCounts { current: counts.current, known: counts.known },
    };
    let printer = Printer { json: options.json };
    let mut pass = look(&*storage, &scope, printer).await?;
    let found = pass.differences;
    let mut repaired = HashSet::new();
    // A bucket that still differs after it was rolled up anew is not helped by doing it again.
    while options.repair && pass.buckets.iter().any(|key| !repaired.contains(key)) {
        storage.rebuild(&pass.buckets).await?;
        printer.repaired(pass.buckets.len());
        repaired.extend(pass.buckets);
        pass = look(&*storage, &scope, printer).await?;
    }
    printer.summary(&pass.verified, found, repaired.len(), pass.differences);
    if pass.differences == 0 { Ok(()) } else { Err(Differs(pass.differences).into()) }
}

async fn look(storage: &dyn Maintenance, scope: &Scope, printer: Printer) -> anyhow::Result<Pass> {
    let mut pass = Pass::default();
    let (differences, buckets) = (&mut pass.differences, &mut pass.buckets);
    pass.verified = storage
        .verify(scope, &mut |difference| {
            *differences += 1;
            printer.difference(&difference);
            if let Difference::Bucket { key, .. } = difference
                && buckets.len() < BUCKETS_PER_PASS
            {
                buckets.push(key);
            }
        })
        .await?;
    Ok(pass)
}
