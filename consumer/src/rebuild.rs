//! A planned batch made again from the log, to the letter: what the plan keeps is kept, what it lists is not, and nothing is decided
//! anew, since types, keys and filter may have changed.

use usage_schemas::codec::Decoder;
use usage_schemas::partition::partition_of;
use usage_schemas::{Reason, ids};
use usage_service::clock;
use usage_storage::{PlannedBatch, Rows};

use crate::dead_letter::{Action, Outgoing};
use crate::message::OwnedMessage;
use crate::plan::{IdHash, NotKept, Plan};

/// What the rows of a plan give.
#[derive(Debug)]
pub struct Rebuilt {
    pub batch: PlannedBatch,
    pub outgoing: Vec<Outgoing>,
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
    let mut outgoing = Vec::new();
    let ingested_at = clock::now_micros();
    for message in rows {
        match plan.not_kept.get(message.offset) {
            None => {
                let undecodable = RebuildError::Undecodable(message.offset);
                let value = message.value.as_deref().ok_or(undecodable.clone())?;
                let record = decoder.decode(value).map_err(|_| undecodable)?;
                kept.push(&record, ids::content_hash(&record), message.offset, ingested_at);
            }
            Some(NotKept::Duplicate | NotKept::Marker) => {}
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
    Ok(Rebuilt { batch, outgoing })
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
