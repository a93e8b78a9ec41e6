//! `usagectl storage restored` (protocol 6.6): after records and rollups came back from a backup, what was stored since then is
//! stored again out of Kafka.
//!
//! Each step may be repeated, so a run that failed is run again. Nothing is changed before everything was looked at, but for the
//! fences: nobody may store anything while one looks.

mod group;
mod plan;

use std::collections::BTreeSet;

use anyhow::bail;
use usage_service::config::{KafkaConfig, Resolved};
use usage_storage::Storage as _;
use usage_storage::clickhouse::{ClickHouseConfig, ClickHouseStorage};

use crate::arguments::Restored;
use group::Group;

pub(super) async fn run(config: &Resolved, options: &Restored) -> anyhow::Result<()> {
    let control = super::control(config).await?;
    let kafka: KafkaConfig = config.section("kafka")?;
    let group = Group::connect(&kafka, &options.group)?;
    group.refuse_members().await?;
    let clickhouse: ClickHouseConfig = config.section("clickhouse")?;
    let storage = ClickHouseStorage::connect(clickhouse);
    storage.check().await?;
    let maintenance = storage.maintenance();
    match maintenance.running_questions().await? {
        0 => {}
        running => bail!("{running} questions of readers are running: stop every query-api first"),
    }

    let counts = control.partition_counts().await?;
    let partitions: BTreeSet<i32> =
        (0..counts.known.iter().copied().fold(counts.current, i32::max)).collect();
    maintenance.fence_above_all(&partitions.iter().copied().collect::<Vec<_>>()).await?;
    let stored = maintenance.last_batches().await?;
    let logs = group.log_bounds(counts.current).await?;
    let resets = plan::resets(&logs, &stored, &control.topics_made_anew().await?)?;

    maintenance.empty_rollups().await?;
    control.forget_source_progress().await?;
    control.spare_quotas().await?;
    // Before the offsets: whoever dies here is repeated and finds the same gaps.
    for reset in &resets {
        for (from, to) in &reset.gaps {
            control.record_gap_anew(reset.partition, *from, *to).await?;
        }
    }
    group.reset(&resets).await?;
    control.close().await;
    for reset in &resets {
        println!("{reset}");
    }
    if resets.iter().any(|reset| !reset.gaps.is_empty()) {
        println!("the gaps are recorded: `complete_until` is null until `usagectl gaps accept`.");
    }
    println!(
        "rollups and the sources' progress are empty, fences are raised. Start the consumers, then the readers when the lag is \
         gone; then run `usagectl verify`. `complete_until` is null until the sources' markers have been read again.\n\
         Messages that were refused before and are read again are decided anew by today's types, keys and policies: some may be kept \
         now, and the others get a second letter, also where the first was discarded.\n\
         What is read again is neither held to quotas nor counted: records that were refused for their quota may be kept now.\n\
         Corrections made since the backup are not in Kafka; this version keeps no journal of them, and has none to apply."
    );
    Ok(())
}
