//! Quotas of source and tenant (protocol 5.1): what a record is counted under, and what batches have used.
//!
//! Only kept records count, each in the window of its own broker's timestamp. A record over its quota claims no identity: replayed, it
//! has a new timestamp and is judged anew.

use std::collections::HashMap;

use usage_control::{Quota, QuotaKey, QuotaRule, Quotas};
use usage_schemas::{Reason, RecordRef, Timestamp};

use crate::judge::Refusal;
use crate::message::OwnedMessage;
use crate::plan::Plan;

/// What a record is counted under, and the quota that holds for it; `None` if none does. The time is the broker's, in milliseconds.
pub fn bound(quotas: &Quotas, record: &RecordRef<'_>, timestamp: i64) -> Option<(QuotaKey, Quota)> {
    // The whole price where no quota is set.
    if quotas.is_empty() {
        return None;
    }
    let QuotaRule { quota, .. } = quotas.rule_of(record.source, record.tenant_id)?;
    let quota = (*quota)?;
    let key = QuotaKey {
        source: record.source.to_owned(),
        tenant_id: record.tenant_id,
        window_seconds: quota.window_seconds,
        window_start: quota.window_start(timestamp),
    };
    Some((key, quota))
}

/// The refusal of a record for which there is no room.
pub fn refusal(key: &QuotaKey, quota: Quota) -> Refusal {
    let until = Timestamp::from_micros(key.window_end().saturating_mul(1_000_000));
    let Quota { max_records, window_seconds } = quota;
    let error = format!("the quota of {max_records} records in {window_seconds} s is used up until {until}");
    Refusal { reason: Reason::QuotaExceeded, error, by_registry: false }
}

/// The offsets of a batch's kept records that are counted, by what they are counted under.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Spent(HashMap<QuotaKey, Vec<i64>>);

impl Spent {
    pub fn add(&mut self, key: QuotaKey, offset: i64) {
        self.0.entry(key).or_default().push(offset);
    }

    pub fn join(&mut self, other: Self) {
        for (key, offsets) in other.0 {
            self.0.entry(key).or_default().extend(offsets);
        }
    }

    /// The batch ends at offset `last`.
    pub fn cut(&mut self, last: i64) {
        self.0.retain(|_, offsets| {
            offsets.retain(|offset| *offset <= last);
            !offsets.is_empty()
        });
    }

    pub fn of(&self, key: &QuotaKey) -> i64 {
        self.0.get(key).map_or(0, |offsets| count(offsets.len()))
    }

    /// What is to be counted, but for the rows at `refused`, which storage does not take.
    pub fn counts(&self, refused: &[i64]) -> Vec<(QuotaKey, i64)> {
        let kept = |offsets: &Vec<i64>| offsets.iter().filter(|offset| !refused.contains(offset)).count();
        self.0.iter().map(|(key, offsets)| (key.clone(), count(kept(offsets)))).collect()
    }
}

fn count(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// What a plan that is carried out counts: what it keeps, by the quotas of today, since who made it has counted nothing. Offsets below
/// `from` were counted when they were read the first time.
pub fn spent_by_plan(
    plan: &Plan,
    rows: &[OwnedMessage],
    decoder: &usage_schemas::codec::Decoder,
    quotas: &Quotas,
    from: i64,
) -> Spent {
    let mut spent = Spent::default();
    if quotas.is_empty() {
        return spent;
    }
    for message in rows.iter().filter(|message| message.offset >= from) {
        if plan.not_kept.get(message.offset).is_some() {
            continue;
        }
        let Some(record) = message.value.as_deref().and_then(|value| decoder.decode(value).ok()) else {
            continue;
        };
        if let Some((key, _)) = bound(quotas, &record, message.timestamp) {
            spent.add(key, message.offset);
        }
    }
    spent
}

#[cfg(test)]
mod tests {
    use usage_control::QuotaScope;
    use usage_schemas::codec::Decoder;
    use uuid::Uuid;

    use super::*;
    use crate::plan::{IdHash, NotKept, Runs};
    use crate::testing::{NOW, SOURCE, record, signed};

    fn tenant() -> Uuid {
        Uuid::from_u128(1)
    }

    fn quotas(max_records: i64, window_seconds: i32) -> Quotas {
        let quota = Some(Quota { max_records, window_seconds });
        Quotas::new([QuotaRule { scope: QuotaScope::Source(SOURCE.into()), quota, updated_at: 0 }])
    }

    #[test]
    fn a_record_is_counted_in_the_window_of_the_brokers_time() {
        let mut early = record(tenant(), "a", 1);
        early.timestamp = Timestamp::from_micros(1_000_000);
        let (key, quota) = bound(&quotas(5, 60), &early.borrowed(), NOW + 61_000).unwrap();
        let start = (NOW / 1_000 + 61) / 60 * 60;
        assert_eq!((key.window_start, key.window_end(), quota.max_records), (start, start + 60, 5));
        assert_eq!(bound(&Quotas::default(), &early.borrowed(), NOW), None);
        let error = refusal(&key, quota);
        let text = "the quota of 5 records in 60 s is used up until ";
        assert!(error.error.starts_with(text) && error.reason == Reason::QuotaExceeded, "{error:?}");
    }

    #[test]
    fn what_storage_refuses_or_lies_behind_the_batchs_end_is_not_counted() {
        let (key, _) = bound(&quotas(5, 60), &record(tenant(), "a", 1).borrowed(), NOW).unwrap();
        let mut spent = Spent::default();
        // Those that had to wait come last.
        [3, 7, 9, 5].into_iter().for_each(|offset| spent.add(key.clone(), offset));
        assert_eq!((spent.of(&key), spent.counts(&[7, 8])), (4, vec![(key.clone(), 3)]));
        spent.cut(5);
        assert_eq!(spent.counts(&[]), [(key.clone(), 2)]);
        spent.cut(2);
        assert_eq!(spent, Spent::default());
    }

    #[test]
    fn a_plan_counts_what_it_keeps_by_the_quotas_of_today() {
        let rows: Vec<_> = (0..6).map(|i| signed(i, &record(tenant(), &format!("{i}"), 1))).collect();
        let plan = Plan {
            count: 1,
            batch_seq: 4,
            first: 0,
            last: 5,
            kept: 4,
            hash: IdHash::of([]),
            not_kept: Runs::join(
                [(1, NotKept::Refused(Reason::QuotaExceeded)), (4, NotKept::Duplicate)],
                &[0, 2, 3, 5],
            ),
        };
        let counts = |quotas: &Quotas, from| {
            let spent = spent_by_plan(&plan, &rows, &Decoder::new(), quotas, from);
            spent.counts(&[]).into_iter().map(|(_, records)| records).collect::<Vec<_>>()
        };
        // The quota is smaller than what was kept: that is not decided again.
        assert_eq!(counts(&quotas(1, 3_600), 0), [4]);
        assert_eq!(counts(&quotas(1, 3_600), 3), [2], "the others were counted before a restore");
        assert_eq!(counts(&Quotas::default(), 0), Vec::<i64>::new());
    }
}
