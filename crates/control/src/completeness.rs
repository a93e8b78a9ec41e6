//! Until when the usage of each source is complete (protocol 8).

mod moves;
mod seed;

use sqlx::FromRow;
use time::OffsetDateTime;
use usage_service::clock;

use crate::{Control, ControlError};

pub use moves::Forward;
pub(crate) use moves::note;

/// What is known of all sources, as of one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Completeness {
    /// Offsets were skipped and nobody has accepted it: nothing is known.
    pub gap: bool,
    /// Every source that has a key or ever sent a marker, ascending.
    pub sources: Vec<SourceComplete>,
}

/// What is known of one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceComplete {
    pub source: String,
    /// Nobody waits for it any more.
    pub retired: bool,
    /// Microseconds since the Unix epoch on the source's clock: what was emitted before is stored or dead-lettered. `None` when
    /// that is not known. Skipped offsets are not taken into account here.
    pub complete_until: Option<i64>,
}

impl Completeness {
    /// The time (microseconds since the Unix epoch) until which these sources are complete, or all if none is named. Retired ones
    /// do not count. `None` when it is not known for one of them, or when none is left.
    pub fn complete_until<S: AsRef<str>>(&self, sources: &[S]) -> Option<i64> {
        if self.gap || sources.iter().any(|name| self.find(name.as_ref()).is_none()) {
            return None;
        }
        let wanted = |found: &&SourceComplete| {
            sources.is_empty() || sources.iter().any(|name| name.as_ref() == found.source)
        };
        let active = self.sources.iter().filter(wanted).filter(|found| !found.retired);
        // The least of options: unknown is less than everything known.
        active.map(|found| found.complete_until).min().flatten()
    }

    fn find(&self, source: &str) -> Option<&SourceComplete> {
        self.sources.iter().find(|found| found.source == source)
    }
}

#[derive(FromRow)]
struct Row {
    source: String,
    retired: bool,
    complete_until: Option<OffsetDateTime>,
    gap: bool,
}

/// The minimum over a source's outboxes that are not retired and over all known partitions, and over what it has under way from
/// one partition to another. An outbox that lacks a partition has never been heard there: nothing is known.
const COMPLETENESS: &str = "
    WITH known AS (SELECT max(count) AS partitions FROM partition_counts),
    outboxes AS (
      SELECT p.source, CASE WHEN count(*) = k.partitions THEN min(p.complete_until) ELSE '-infinity' END AS least
      FROM source_progress AS p, known AS k
      WHERE p.kafka_partition < k.partitions
        AND NOT EXISTS (SELECT FROM retired_sources AS r WHERE r.source = p.source AND r.outbox = p.outbox)
      GROUP BY p.source, p.outbox, k.partitions),
    sent AS (SELECT source, min(least) AS least FROM outboxes GROUP BY source),
    forwarded AS (SELECT source, min(complete_until) AS least FROM source_forwards GROUP BY source)
    SELECT s.source,
      EXISTS (SELECT FROM retired_sources AS r WHERE r.source = s.source AND r.outbox IS NULL) AS retired,
      CASE WHEN sent.least IS NOT NULL THEN nullif(least(sent.least, f.least), '-infinity') END AS complete_until,
      EXISTS (SELECT FROM gaps WHERE accepted_at IS NULL) AS gap
    FROM (SELECT source FROM source_keys UNION SELECT source FROM source_progress) AS s
    LEFT JOIN sent USING (source) LEFT JOIN forwarded AS f USING (source)
    ORDER BY s.source";

impl Control {
    /// Until when each source is complete. Whoever shows it beside an answer reads it first: what is stored only grows.
    ///
    /// # Errors
    /// What the database says.
    pub async fn completeness(&self) -> Result<Completeness, ControlError> {
        self.within(async {
            let rows: Vec<Row> = sqlx::query_as(COMPLETENESS).fetch_all(&self.pool).await?;
            let gap = rows.iter().any(|row| row.gap);
            let source = |row: Row| SourceComplete {
                source: row.source,
                retired: row.retired,
                complete_until: row.complete_until.map(clock::to_micros),
            };
            Ok(Completeness { gap, sources: rows.into_iter().map(source).collect() })
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(source: &str, retired: bool, complete_until: Option<i64>) -> SourceComplete {
        SourceComplete { source: source.into(), retired, complete_until }
    }

    fn known() -> Completeness {
        let sources = vec![
            source("batch", false, Some(30)),
            source("gateway", false, Some(20)),
            source("mail", false, None),
            source("old", true, Some(1)),
        ];
        Completeness { gap: false, sources }
    }

    #[test]
    fn the_least_of_the_sources_in_question_counts() {
        let known = known();
        assert_eq!(known.complete_until(&["batch"]), Some(30));
        assert_eq!(known.complete_until(&["gateway", "batch"]), Some(20));
        assert_eq!(known.complete_until::<&str>(&[]), None, "mail never sent one");
        assert_eq!(known.complete_until(&["mail", "batch"]), None);
        assert_eq!(known.complete_until(&["batch", "nobody"]), None, "it never sent one either");
    }

    #[test]
    fn nobody_waits_for_a_retired_source_nor_vouches_for_it() {
        let mut known = known();
        assert_eq!(known.complete_until(&["old", "batch"]), Some(30));
        assert_eq!(known.complete_until(&["old"]), None);
        known.sources.retain(|found| found.source != "mail");
        assert_eq!(known.complete_until::<&str>(&[]), Some(20));
        assert_eq!(Completeness::default().complete_until::<&str>(&[]), None);
    }

    #[test]
    fn a_gap_leaves_nothing_known() {
        let known = Completeness { gap: true, ..known() };
        assert_eq!(known.complete_until(&["batch"]), None);
    }
}
