//! A planned batch made again from the log, to the letter: what the plan keeps is kept, what it lists is not, and nothing is decided
//! anew, since types, keys and filter may have changed.

use usage_schemas::codec::Decoder;
use usage_schemas::partition::partition_of;
use usage_schemas::{Marker, Reason, ids};
use usage_service::clock;
use usage_storage::{PlannedBatch, Rows};

use crate::dead_letter::{Action, Outgoing};
use crate::marker;
use crate::message::OwnedMessage;
use crate::plan::{IdHash, NotKept, Plan};

/// What the rows of a plan give.
#[derive(Debug)]
pub struct Rebuilt {
    pub batch: PlannedBatch,
    pub outgoing: Vec<Outgoing>,
    /// What the batch's markers move.
    pub markers: Vec<Marker>,
}

/// Why a plan can't be carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RebuildError {
    #[error("the row at offset {0}, which the plan keeps, can't be decoded")]
    Undecodable(i64),
    #[error("the plan keeps {planned} rows, the log gives {found}")]
    Count { planned: u64, found: u64 },
    #[error("the ids of the rows give hash {found}, the plan says {planned}")]
    Hash { planned: IdHash, found: IdHash },
}

/// Applies `plan` to the delivered rows of its range.
pub fn rebuild(
    plan: &Plan,
    partition: i32,
    rows: Vec<OwnedMessage>,
    decoder: &Decoder,
) -> Result<Rebuilt, RebuildError> {
    let mut kept = Rows::default();
    let (mut outgoing, mut heard) = (Vec::new(), Vec::new());
    let ingested_at = clock::now_micros();
    for message in rows {
        match plan.not_kept.get(message.offset) {
            None => {
                let undecodable = RebuildError::Undecodable(message.offset);
                let value = message.value.as_deref().ok_or(undecodable.clone())?;
                let record = decoder.decode(value).map_err(|_| undecodable)?;
                kept.push(&record, ids::content_hash(&record), message.offset, ingested_at);
            }
            Some(NotKept::Duplicate) => {}
            // It was authenticated when it was decided.
            Some(NotKept::Marker) => heard.extend(marker::read(&message.envelope())),
            Some(NotKept::Forwarded) => {
                let action = forward(&message, plan.count, decoder);
                outgoing.push(Outgoing { message, action });
            }
            Some(NotKept::Refused(reason)) => {
                let error = "refused before a restart".to_string();
                outgoing.push(Outgoing { message, action: Action::DeadLetter { reason, error } });
            }
        }
    }
    let (planned, found) = (plan.kept, kept.len() as u64);
    if planned != found {
        return Err(RebuildError::Count { planned, found });
    }
    let (planned, found) = (plan.hash, IdHash::of(&kept.record_id));
    if planned != found {
        return Err(RebuildError::Hash { planned, found });
    }
    let batch = PlannedBatch { partition, batch_seq: plan.batch_seq, rows: kept };
    let (markers, _) = marker::fold(heard, plan.last);
    Ok(Rebuilt { batch, outgoing, markers })
}

fn forward(message: &OwnedMessage, count: i32, decoder: &Decoder) -> Action {
    let hops = message
        .envelope()
        .headers
        .and_then(|headers| headers.forwarded)
        .and_then(|hops| std::str::from_utf8(hops).ok()?.parse::<u32>().ok());
    match message.value.as_deref().and_then(|value| decoder.decode(value).ok()) {
        Some(record) => {
            Action::Forward { partition: partition_of(record.tenant_id, count), hops: hops.unwrap_or(0) + 1 }
        }
        // Only decodable records are forwarded; one that is not any more must not get lost.
        None => Action::DeadLetter {
            reason: Reason::Undecodable,
            error: "can't be decoded to be forwarded".into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use usage_schemas::names;
    use uuid::Uuid;

    use super::*;
    use crate::plan::Runs;
    use crate::testing::{NOW, marker, record, signed};

    fn tenant() -> Uuid {
        Uuid::from_u128(0x0188_4b5e_0000_4000_8000_0000_0000_0001)
    }

    /// Rows at 10, 12, 14, 16 and 18, and the plan that keeps all but those in `not_kept`.
    fn planned(not_kept: &[(i64, NotKept)]) -> (Plan, Vec<OwnedMessage>) {
        let offsets = [10, 12, 14, 16, 18];
        let records: Vec<_> =
            offsets.iter().map(|offset| (*offset, record(tenant(), &format!("{offset}"), 1))).collect();
        let kept: Vec<_> =
            records.iter().filter(|(offset, _)| not_kept.iter().all(|(other, _)| other != offset)).collect();
        let kept_offsets: Vec<i64> = kept.iter().map(|(offset, _)| *offset).collect();
        let plan = Plan {
            count: 12,
            batch_seq: 9,
            first: 10,
            last: 18,
            kept: kept.len() as u64,
            hash: IdHash::of(kept.iter().map(|(_, record)| &record.record_id)),
            not_kept: Runs::join(not_kept.iter().copied(), &kept_offsets),
        };
        (plan, records.iter().map(|(offset, record)| signed(*offset, record)).collect())
    }

    #[test]
    fn what_was_decided_is_done_again_without_a_decision() {
        let refused = NotKept::Refused(Reason::UnknownUsageType);
        let (plan, rows) = planned(&[(12, NotKept::Duplicate), (14, refused), (16, NotKept::Forwarded)]);
        let rebuilt = rebuild(&plan, 3, rows, &Decoder::new()).unwrap();
        assert_eq!((rebuilt.batch.partition, rebuilt.batch.batch_seq), (3, 9));
        assert_eq!(rebuilt.batch.rows.offset, [10, 18]);
        let hash = ids::content_hash(&record(tenant(), "18", 1).borrowed());
        assert_eq!(rebuilt.batch.rows.content_hash[1], hash);
        let outgoing: Vec<_> =
            rebuilt.outgoing.iter().map(|out| (out.message.offset, out.action.clone())).collect();
        let letter =
            Action::DeadLetter { reason: Reason::UnknownUsageType, error: "refused before a restart".into() };
        let forward = Action::Forward { partition: partition_of(tenant(), 12), hops: 1 };
        assert_eq!(outgoing, [(14, letter), (16, forward)]);
    }

    #[test]
    fn its_markers_move_what_they_did_when_they_were_decided() {
        let (plan, mut rows) =
            planned(&[(10, NotKept::Marker), (14, NotKept::Marker), (18, NotKept::Marker)]);
        rows[0] = marker(10, 1, 500);
        rows[2] = marker(14, 1, 400);
        rows[4] = marker(18, 2, (NOW + 400_000) * 1_000);
        let rebuilt = rebuild(&plan, 3, rows, &Decoder::new()).unwrap();
        let moved: Vec<_> =
            rebuilt.markers.iter().map(|m| (m.outbox.as_u128(), m.complete_until.micros())).collect();
        assert_eq!(moved, [(1, 500)], "the other outbox is ahead of the broker's clock");
    }

    #[test]
    fn a_forwarded_record_is_counted_on() {
        let (plan, mut rows) = planned(&[(16, NotKept::Forwarded)]);
        let header = rdkafka::message::Header { key: names::HEADER_FORWARDED, value: Some("1") };
        rows[3].headers = rows[3].headers.take().map(|headers| headers.insert(header));
        let rebuilt = rebuild(&plan, 3, rows, &Decoder::new()).unwrap();
        assert!(matches!(rebuilt.outgoing[0].action, Action::Forward { hops: 2, .. }));
    }

    #[test]
    fn rows_that_are_not_those_of_the_plan_are_refused() {
        let decoder = Decoder::new();
        let (plan, mut rows) = planned(&[]);
        rows.remove(2);
        let error = rebuild(&plan, 3, rows, &decoder).unwrap_err();
        assert_eq!(error, RebuildError::Count { planned: 5, found: 4 });

        let (plan, mut rows) = planned(&[]);
        rows.swap(0, 1);
        assert!(matches!(rebuild(&plan, 3, rows, &decoder), Err(RebuildError::Hash { .. })));

        let (plan, mut rows) = planned(&[]);
        rows[4].value = None;
        assert_eq!(rebuild(&plan, 3, rows, &decoder).unwrap_err(), RebuildError::Undecodable(18));
    }
}
