//! The topic's partition count: what Kafka has and what is recorded (protocol 5.4).

use usage_control::{Control, ControlError, Partitions};

use crate::side_reader::{SideReadError, SideReader};

/// Kafka has another count than the one that is recorded. Neither can shrink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "kafka has {kafka} partitions, the control database says {recorded}: run `usagectl topics grow --partitions {}`",
    kafka.max(recorded)
)]
pub struct OtherCount {
    pub kafka: i32,
    pub recorded: i32,
}

/// Why the counts can't be looked at.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    #[error("control database")]
    Control(#[from] ControlError),
    #[error("kafka")]
    Kafka(#[from] SideReadError),
}

/// Looks whether Kafka has partitions that nobody has announced.
///
/// # Errors
/// What Kafka or the control database says.
pub async fn look(control: &Control, reader: &SideReader) -> Result<(), LookError> {
    let in_kafka = reader.partition_count().await?;
    announce_added(control, &control.partition_counts().await?, in_kafka).await?;
    Ok(())
}

/// Somebody added partitions by hand. Producers use them already and nobody reads them yet: completeness must not go on without
/// them. This is how growing begins, and to grow is all that can be done about it.
///
/// # Errors
/// What the control database says.
pub async fn announce_added(
    control: &Control,
    counts: &Partitions,
    in_kafka: i32,
) -> Result<(), ControlError> {
    if counts.exceeded_by(in_kafka) {
        tracing::error!(in_kafka, known = ?counts.known, "kafka has partitions that nobody announced");
        control.announce_partitions(in_kafka, in_kafka).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alarm_names_a_count_that_both_can_reach() {
        for (kafka, recorded) in [(6, 4), (4, 6)] {
            let text = OtherCount { kafka, recorded }.to_string();
            assert!(text.contains(&format!("kafka has {kafka} partitions")), "{text}");
            assert!(text.ends_with("`usagectl topics grow --partitions 6`"), "{text}");
        }
    }
}
