//! `usagectl gaps list` and `gaps accept`.

use usage_control::{Gap, Gaps};
use usage_service::config::Resolved;

use crate::arguments::{GapsAccept, List};
use crate::output;

pub(super) async fn list(config: &Resolved, options: &List) -> anyhow::Result<()> {
    let gaps = super::control(config).await?.gaps().await?;
    if options.json {
        let rows = gaps.iter().map(|gap| {
            serde_json::json!({
                "partition": gap.kafka_partition,
                "from_offset": gap.from_offset,
                "to_offset": gap.to_offset,
                "noticed_at": output::time(gap.noticed_at),
                "accepted": gap.accepted,
            })
        });
        return output::json(&rows.collect::<Vec<_>>());
    }
    print(gaps);
    Ok(())
}

/// Accepts; fails if there is nothing of the kind, since a mistyped offset would else pass for a gap that is accepted.
pub(super) async fn accept(config: &Resolved, options: &GapsAccept) -> anyhow::Result<()> {
    let which = match (options.partition, options.from) {
        (None, _) => Gaps::All,
        (Some(kafka_partition), None) => Gaps::Of { kafka_partition },
        (Some(kafka_partition), Some(from_offset)) => Gaps::At { kafka_partition, from_offset },
    };
    let accepted = super::control(config).await?.accept_gaps(which).await?;
    anyhow::ensure!(!accepted.is_empty(), "no such gap waits for being accepted; see usagectl gaps list");
    print(accepted);
    Ok(())
}

fn print(gaps: Vec<Gap>) {
    let rows = gaps.into_iter().map(|gap| {
        vec![
            gap.kafka_partition.to_string(),
            gap.from_offset.to_string(),
            gap.to_offset.to_string(),
            output::time(gap.noticed_at),
            if gap.accepted { "yes" } else { "no" }.to_owned(),
        ]
    });
    output::table(&["PARTITION", "FROM OFFSET", "TO OFFSET", "NOTICED AT", "ACCEPTED"], rows);
}
