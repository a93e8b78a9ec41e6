//! Shipping decided batches: commit the plans, write dead letters and forwards, write the rows, note it in the control database
//! (protocol 5.1 steps 2 and 3, 5.5). A joint write serves all partitions; whatever goes wrong for one is cared for alone.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use futures::future::join_all;
use rdkafka::error::KafkaError;
use usage_control::{Advance, ControlError, Forward};
use usage_schemas::Reason;
use usage_service::error_chain::error_chain;
use usage_service::fail_point;
use usage_service::metric_names;
use usage_storage::{PlannedBatch, RefusedRow, StorageError};

use crate::batch::Decided;
use crate::commit::{CommitItem, CommitOutcome};
use crate::dead_letter::{Action, Outgoing};
use crate::link::{Event, Fate};
use crate::message::OwnedMessage;
use crate::plan::{NotKept, Plan};
use crate::services::Services;
use crate::side_reader::{SideReadError, SideReader};
use crate::takeover::refuse_rows;
use crate::telemetry;
use crate::ticket::Ticket;

/// One batch on its way.
#[derive(Clone)]
pub struct Shipment {
    pub ticket: Ticket,
    /// The first offset that is not done: what is committed with the plan.
    pub offset: i64,
    pub plan: Plan,
    pub decided: Arc<Decided>,
    /// Where the batch's forwarded records lie, once they are sent.
    pub forwards: Vec<Forward>,
}

impl Shipment {
    fn commit_item(&self) -> CommitItem {
        CommitItem { ticket: self.ticket.clone(), offset: self.offset, metadata: self.plan.to_text() }
    }

    fn advance(&self, refused: &[i64]) -> Advance {
        Advance {
            partition: self.ticket.partition,
            batch_seq: self.plan.batch_seq,
            next_offset: self.plan.last + 1,
            markers: self.decided.markers.clone(),
            forwards: self.forwards.clone(),
            quota_counts: self.decided.spent.counts(refused),
        }
    }

    fn report(&self, services: &Services, fate: Fate) {
        services.link.report(Event::Shipped { ticket: self.ticket.clone(), fate });
    }

    fn done(&self, services: &Services, refused: Vec<i64>) {
        telemetry::shipped(&self.decided, &refused);
        tracing::debug!(
            partition = self.ticket.partition,
            batch_seq = self.plan.batch_seq,
            first = self.plan.first,
            last = self.plan.last,
            rows = self.decided.batch.rows.len(),
            dedup = self
                .decided
                .tally
                .iter()
                .filter(|((_, why), _)| *why == NotKept::Duplicate)
                .map(|(_, n)| n)
                .sum::<u64>(),
            latency_ms = u64::try_from(self.decided.opened.elapsed().as_millis()).unwrap_or(u64::MAX),
            "batch is done"
        );
        self.report(services, Fate::Done { refused });
    }
}

/// Ships batches of different partitions together.
pub async fn ship(services: Arc<Services>, shipments: Vec<Shipment>) {
    let joint = commit_plans(&services, shipments).await;
    // Dead letters and forwards are acknowledged before the offset can pass.
    let results = join_all(joint.iter().map(|shipment| send(&services, shipment))).await;
    let mut sent = Vec::with_capacity(joint.len());
    for (mut shipment, result) in joint.into_iter().zip(results) {
        match result {
            Ok(forwards) => {
                shipment.forwards = forwards;
                sent.push(shipment);
            }
            Err(Fail::Grown) => shipment.report(&services, Fate::Grown),
            Err(error) => care(&services, shipment, Stage::Send, Box::new(error)),
        }
    }
    fail_point!("consumer.sent");
    let joint = write_jointly(&services, sent).await;
    fail_point!("consumer.written");
    if !joint.is_empty() {
        advance_jointly(&services, joint).await;
    }
    services.link.report(Event::WriteFree);
}

async fn commit_plans(services: &Arc<Services>, shipments: Vec<Shipment>) -> Vec<Shipment> {
    let items: Vec<CommitItem> = shipments.iter().map(Shipment::commit_item).collect();
    for item in &items {
        metrics::histogram!(metric_names::CONSUMER_PLAN_CHARACTERS)
            .record(telemetry::count(item.metadata.len()));
    }
    let lengths: Vec<usize> = items.iter().map(|item| item.metadata.len()).collect();
    fail_point!("consumer.plan");
    let outcomes = services.link.commit(items).await;
    fail_point!("consumer.planned");
    let mut committed = Vec::with_capacity(shipments.len());
    for ((shipment, outcome), length) in shipments.into_iter().zip(outcomes).zip(lengths) {
        match outcome {
            CommitOutcome::Committed => committed.push(shipment),
            CommitOutcome::Refused => shipment.report(services, Fate::Abandoned),
            CommitOutcome::TooLong => shipment.report(services, Fate::PlanTooLong(length)),
        }
    }
    committed
}

/// Sends what leaves the batch for Kafka. That meets no fence: a worker that has slept through a growth of the topic would send records
/// back and forth by the old count until they may be forwarded no more, and dead letters of what is decided elsewhere now. So the
/// count is looked at first.
async fn send(services: &Services, shipment: &Shipment) -> Result<Vec<Forward>, Fail> {
    let outgoing = &shipment.decided.outgoing;
    if !outgoing.is_empty() {
        let counts = services.control.partition_counts().await?;
        if !counts.decides(shipment.plan.count) {
            return Err(Fail::Grown);
        }
    }
    services.sender.send_all(shipment.ticket.partition, outgoing).await.map_err(Fail::Send)
}

/// Returns the shipments whose rows are stored; the others are cared for.
async fn write_jointly(services: &Arc<Services>, shipments: Vec<Shipment>) -> Vec<Shipment> {
    let (mut joint, revoked): (Vec<_>, Vec<_>) =
        shipments.into_iter().partition(|shipment| shipment.ticket.is_valid());
    revoked.iter().for_each(|shipment| shipment.report(services, Fate::Abandoned));
    let batches: Vec<Arc<PlannedBatch>> = joint
        .iter()
        .map(|shipment| shipment.decided.batch.clone())
        .filter(|batch| !batch.rows.is_empty())
        .collect();
    if batches.is_empty() {
        return joint;
    }
    let result = tokio::select! {
        result = services.writer.write(&batches) => result,
        () = all_revoked(&joint) => {
            joint.iter().for_each(|shipment| shipment.report(services, Fate::Abandoned));
            return Vec::new();
        }
    };
    let Err(error) = result else { return joint };
    let fenced: HashSet<i32> = match &error {
        StorageError::Fenced { partitions } => partitions.iter().copied().collect(),
        _ => HashSet::new(),
    };
    // Of a joint write that failed some months may be stored: each partition settles for itself, which also splits what
    // storage refuses for good.
    let error: Arc<str> = error_chain(&error).into();
    let mut stored = Vec::new();
    for shipment in joint.drain(..) {
        if fenced.contains(&shipment.ticket.partition) {
            shipment.report(services, Fate::Fenced);
        } else if shipment.decided.batch.rows.is_empty() {
            stored.push(shipment);
        } else {
            care(services, shipment, Stage::Settle, error.to_string().into());
        }
    }
    stored
}

async fn all_revoked(shipments: &[Shipment]) {
    for shipment in shipments {
        shipment.ticket.revoked().await;
    }
}

async fn advance_jointly(services: &Arc<Services>, shipments: Vec<Shipment>) {
    let advances: Vec<Advance> = shipments.iter().map(|shipment| shipment.advance(&[])).collect();
    match advance(services, &advances).await {
        Ok(()) => shipments.iter().for_each(|shipment| shipment.done(services, Vec::new())),
        Err(error) => {
            let error: Arc<str> = error_chain(&error).into();
            for shipment in shipments {
                care(services, shipment, Stage::Advance, error.to_string().into());
            }
        }
    }
}

async fn advance(services: &Services, advances: &[Advance]) -> Result<(), ControlError> {
    let started = Instant::now();
    fail_point!("consumer.advance");
    let moved = services.control.advance(advances).await?;
    fail_point!("consumer.advanced");
    metrics::histogram!(metric_names::CONSUMER_CONTROL_SECONDS).record(started.elapsed());
    for (advance, moved) in advances.iter().zip(moved) {
        if !moved {
            tracing::debug!(
                partition = advance.partition,
                batch_seq = advance.batch_seq,
                "batch was done before"
            );
        }
    }
    Ok(())
}

/// Where a single batch goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Dead letters and forwards, then the first write.
    Send,
    /// The outcome of a write is unknown: the plan again, then settle.
    Settle,
    /// Storage refuses the data: find the rows.
    Refuse,
    /// List the refused rows in the plan, then write their dead letters.
    List,
    /// The rows are stored: the control database.
    Advance,
}

/// Goes on with one batch by itself, for as long as it takes.
fn care(
    services: &Arc<Services>,
    shipment: Shipment,
    stage: Stage,
    error: Box<dyn std::error::Error + Send + Sync>,
) {
    tracing::warn!(
        partition = shipment.ticket.partition,
        batch_seq = shipment.plan.batch_seq,
        ?stage,
        error = %error_chain(&*error),
        "batch is cared for alone"
    );
    let services = services.clone();
    tokio::spawn(async move {
        let ticket = shipment.ticket.clone();
        let mut single =
            Single { services: &services, shipment, batch: None, refused: Vec::new(), letters: Vec::new() };
        let fate = tokio::select! {
            fate = single.run(stage) => fate,
            () = ticket.revoked() => Fate::Abandoned,
        };
        match fate {
            Fate::Done { refused } => single.shipment.done(&services, refused),
            fate => single.shipment.report(&services, fate),
        }
    });
}

#[derive(Debug, thiserror::Error)]
enum Fail {
    #[error("storage")]
    Storage(#[from] StorageError),
    #[error("control database")]
    Control(#[from] ControlError),
    #[error("kafka")]
    Kafka(#[from] SideReadError),
    #[error("dead letter or forwarded record")]
    Send(#[source] KafkaError),
    #[error("storage refuses the batch, but none of its rows")]
    NoneRefused,
    #[error("the plan is too long with {0} rows that storage refuses")]
    TooManyRefused(usize),
    #[error("the commit was refused")]
    Refused,
    #[error("the topic has grown")]
    Grown,
}

struct Single<'a> {
    services: &'a Arc<Services>,
    shipment: Shipment,
    /// The batch without the rows that storage refused.
    batch: Option<Arc<PlannedBatch>>,
    refused: Vec<i64>,
    /// Dead letters of the rows that were refused last.
    letters: Vec<Outgoing>,
}

impl Single<'_> {
    fn batch(&self) -> &Arc<PlannedBatch> {
        self.batch.as_ref().unwrap_or(&self.shipment.decided.batch)
    }

    async fn run(&mut self, mut stage: Stage) -> Fate {
        let ticket = self.shipment.ticket.clone();
        let mut attempts = self.services.attempts("ship", &ticket);
        loop {
            match self.step(stage).await {
                Ok(Some(next)) => {
                    attempts.succeeded();
                    stage = next;
                }
                Ok(None) => return Fate::Done { refused: std::mem::take(&mut self.refused) },
                Err(Fail::Refused) => return Fate::Abandoned,
                Err(Fail::Grown) => return Fate::Grown,
                Err(Fail::Storage(StorageError::Fenced { .. })) => return Fate::Fenced,
                Err(Fail::Storage(error @ StorageError::Inconsistent(_))) => {
                    return Fate::Stopped(error_chain(&error));
                }
                Err(Fail::Storage(StorageError::Final { code, message })) if stage != Stage::Refuse => {
                    tracing::warn!(partition = ticket.partition, code, message, "storage refuses rows");
                    stage = Stage::Refuse;
                }
                Err(fail) => {
                    stage = after(stage, &fail);
                    if !attempts.failed(&fail).await {
                        return Fate::Abandoned;
                    }
                }
            }
        }
    }

    /// One step; the next stage, or `None` at the end.
    async fn step(&mut self, stage: Stage) -> Result<Option<Stage>, Fail> {
        let partition = self.shipment.ticket.partition;
        let services = self.services;
        match stage {
            Stage::Send => {
                self.shipment.forwards = send(services, &self.shipment).await?;
                if !self.batch().rows.is_empty() {
                    services.writer.write(std::slice::from_ref(self.batch())).await?;
                }
                Ok(Some(Stage::Advance))
            }
            Stage::Settle => {
                self.commit().await?;
                if !self.batch().rows.is_empty() {
                    services.writer.settle(std::slice::from_ref(self.batch())).await?;
                }
                Ok(Some(Stage::Advance))
            }
            Stage::Refuse => {
                let rows = services.writer.bisect(self.batch()).await?;
                fail_point!("consumer.bisected");
                if rows.is_empty() {
                    return Err(Fail::NoneRefused);
                }
                let offsets: Vec<i64> = rows.iter().map(|row| row.offset).collect();
                let (plan, batch) = refuse_rows(&self.shipment.plan, self.batch(), &offsets);
                if plan.to_text().len() > services.metadata_limit {
                    return Err(Fail::TooManyRefused(rows.len()));
                }
                let letters = refused_letters(&services.reader, partition, &rows).await?;
                self.shipment.plan = plan;
                self.batch = Some(Arc::new(batch));
                self.refused.extend(offsets);
                self.letters = letters;
                Ok(Some(Stage::List))
            }
            Stage::List => {
                // The plan that lists them comes before their dead letters and before any further write.
                self.commit().await?;
                fail_point!("consumer.listed");
                services.sender.send_all(partition, &self.letters).await.map_err(Fail::Send)?;
                fail_point!("consumer.listed_sent");
                Ok(Some(Stage::Settle))
            }
            Stage::Advance => {
                let result = advance(services, &[self.shipment.advance(&self.refused)]).await;
                if let Err(ControlError::NoProgress(_)) = result {
                    // The row of the takeover is gone: the database was restored.
                    services.control.open_progress(partition).await?;
                }
                result?;
                Ok(None)
            }
        }
    }

    async fn commit(&self) -> Result<(), Fail> {
        match self.services.link.commit(vec![self.shipment.commit_item()]).await[..] {
            [CommitOutcome::Committed] => Ok(()),
            [CommitOutcome::TooLong] => Err(Fail::TooManyRefused(self.refused.len())),
            _ => Err(Fail::Refused),
        }
    }
}

/// Where it goes on after a step that failed in a way that may pass.
fn after(stage: Stage, fail: &Fail) -> Stage {
    match (stage, fail) {
        // A write that failed may have happened all the same.
        (Stage::Send, Fail::Storage(_)) => Stage::Settle,
        // What the rows were refused for has passed, so only a write can tell more.
        (Stage::Refuse, Fail::NoneRefused) => Stage::Settle,
        _ => stage,
    }
}

/// The dead letters of rows that storage refuses, with their bytes as they lie in the log.
pub async fn refused_letters(
    reader: &SideReader,
    partition: i32,
    refused: &[RefusedRow],
) -> Result<Vec<Outgoing>, SideReadError> {
    let offsets = || refused.iter().map(|row| row.offset);
    let (Some(first), Some(last)) = (offsets().min(), offsets().max()) else { return Ok(Vec::new()) };
    let errors: HashMap<i64, &str> = refused.iter().map(|row| (row.offset, row.error.as_str())).collect();
    let messages = reader.rows(partition, first, last).await?;
    let letter = |message: OwnedMessage| {
        let error = errors.get(&message.offset)?.to_string();
        Some(Outgoing { message, action: Action::DeadLetter { reason: Reason::StorageRefused, error } })
    };
    Ok(messages.into_iter().filter_map(letter).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_of_which_no_row_is_refused_is_written_again() {
        assert_eq!(after(Stage::Refuse, &Fail::NoneRefused), Stage::Settle);
        assert_eq!(after(Stage::Refuse, &Fail::Storage(StorageError::Timeout)), Stage::Refuse);
        assert_eq!(after(Stage::Send, &Fail::Storage(StorageError::Timeout)), Stage::Settle);
        let unsent = Fail::Send(KafkaError::Canceled);
        assert_eq!(after(Stage::Send, &unsent), Stage::Send);
        assert_eq!(after(Stage::List, &Fail::TooManyRefused(3)), Stage::List);
    }
}
