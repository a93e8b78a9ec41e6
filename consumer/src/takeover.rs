//! Taking a partition over, off the polling thread while it is paused (protocol 5.2): fence, partition count, committed plan, carry it
//! out to the letter, rebuild the aggregate, load the ids.

pub mod start;

use std::sync::Arc;
use std::time::Duration;

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tokio::task::JoinHandle;
use usage_control::{Advance, ControlError, Partitions, Quotas};
use usage_service::error_chain::error_chain;
use usage_service::{clock, fail_point};
use usage_storage::{PlannedBatch, StorageError, Writer};
use uuid::Uuid;

use crate::batch::select;
use crate::commit::{CommitItem, CommitOutcome};
use crate::counts::{OtherCount, announce_added};
use crate::filter::IdFilter;
use crate::judge::Place;
use crate::link::{Event, Link};
use crate::plan::{Plan, done_text};
use crate::quota::spent_by_plan;
use crate::rebuild::{RebuildError, Rebuilt, rebuild};
use crate::services::Services;
use crate::ship::refused_letters;
use crate::side_reader::SideReadError;
use crate::ticket::Ticket;
use start::{Found, Start, Stop, start};

/// How often a partition that waits looks at the topic's count again.
const COUNT_AGAIN: Duration = Duration::from_secs(1);

/// A partition that is ready to run.
pub struct Taken {
    pub place: Place,
    pub done_seq: i64,
    /// The first offset that is not done.
    pub next: i64,
    pub filter: IdFilter,
    /// Of the topic whose offsets these are.
    pub topic_id: Option<Uuid>,
    /// Offsets below were held to quotas and counted before a restore.
    pub quotas_from: i64,
}

/// Why a takeover did not end.
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
    #[error(
        "the topic is growing; if `usagectl topics grow` does not run any more, run it again: it goes on where it was"
    )]
    Growing,
    #[error(transparent)]
    Count(#[from] OtherCount),
    #[error("the topic has grown since the partition was fenced")]
    Grown,
    #[error("the topic was made anew while the partition was taken over")]
    MadeAnew,
    #[error("the plan is too long with {0} rows that storage refuses")]
    TooManyRefused(usize),
    #[error("the partition was revoked")]
    Revoked,
    #[error(transparent)]
    Stop(#[from] Stop),
    #[error("the committed plan can't be carried out")]
    Rebuild(#[from] RebuildError),
}

impl Fail {
    /// The alarm, if trying again can't help.
    fn stops(&self) -> bool {
        match self {
            Self::Storage(error) => matches!(error, StorageError::Inconsistent(_)),
            Self::Kafka(SideReadError::Kafka(KafkaError::MessageConsumption(code))) => {
                *code == RDKafkaErrorCode::AutoOffsetReset
            }
            Self::Stop(_) | Self::Rebuild(_) => true,
            _ => false,
        }
    }

    /// Whether the partition waits for an operator to grow the topic, or to end that.
    fn waits(&self) -> bool {
        matches!(self, Self::Growing | Self::Count(_))
    }
}

/// Takes the partition over and reports; ends early when the ticket is revoked. `after` is the end of an earlier hold of the
/// same partition by this worker.
pub async fn take_over(services: Arc<Services>, ticket: Ticket, after: Option<JoinHandle<()>>) {
    let revoked = ticket.clone();
    tokio::select! {
        () = run(&services, &ticket, after) => {}
        () = revoked.revoked() => {}
    }
}

async fn run(services: &Services, ticket: &Ticket, after: Option<JoinHandle<()>>) {
    if let Some(after) = after {
        // However it ended: the fence comes next.
        let _ = after.await;
    }
    let mut takeover = Takeover { services, ticket, planned: None };
    let mut attempts = services.attempts("takeover", ticket);
    loop {
        // After a write with an unknown outcome nothing more is sent before the group has confirmed the owner.
        let confirmed = match &takeover.planned {
            Some(item) => confirm(&services.link, item).await,
            None => Ok(()),
        };
        let taken = match confirmed {
            Ok(()) => takeover.once().await,
            Err(fail) => Err(fail),
        };
        match taken {
            Ok(taken) => {
                attempts.succeeded();
                services.link.report(Event::TakenOver { ticket: ticket.clone(), taken: Box::new(taken) });
                return;
            }
            Err(Fail::Revoked) => return,
            Err(fail) if fail.waits() => {
                services.link.report(Event::Waits { ticket: ticket.clone(), why: error_chain(&fail) });
                tokio::time::sleep(COUNT_AGAIN).await;
            }
            Err(fail) if fail.stops() => {
                services.link.report(Event::Stopped { ticket: ticket.clone(), why: error_chain(&fail) });
                return;
            }
            Err(fail) => {
                if !attempts.failed(&fail).await {
                    return;
                }
            }
        }
    }
}

/// Commits the plan once more.
async fn confirm(link: &Link, item: &CommitItem) -> Result<(), Fail> {
    match link.commit(vec![item.clone()]).await[..] {
        [CommitOutcome::Committed] => Ok(()),
        [CommitOutcome::TooLong] => Err(Stop::PlanTooLong { length: item.metadata.len() }.into()),
        _ => Err(Fail::Revoked),
    }
}

struct Takeover<'a> {
    services: &'a Services,
    ticket: &'a Ticket,
    /// The plan that is being carried out, as it is committed.
    planned: Option<CommitItem>,
}

impl Takeover<'_> {
    async fn once(&mut self) -> Result<Taken, Fail> {
        let partition = self.ticket.partition;
        // Who waits raises no fence, however long it takes.
        self.counts().await?;
        let opened = self.services.writer.open(partition).await?;
        fail_point!("takeover.fenced");
        // Only what is read after one's own fence binds: who grows the topic says so first and fences everybody then. Either it is
        // seen here, or that fence is above this one.
        let counts = self.counts().await?;
        let topic_id = self.services.reader.topic_id().await?;
        fail_point!("takeover.topic");
        let progress = self.services.control.open_progress(partition).await?;
        let recorded = self.services.control.topic_id(partition).await?;
        let found = Found {
            partition,
            made_anew: recorded.zip(topic_id).is_some_and(|(then, now)| then != now),
            count: counts.current,
            first_count: counts.known.iter().copied().min().unwrap_or(counts.current),
            stored_seq: opened.last_batch_seq,
            progress,
            committed: self.services.reader.committed(partition).await?,
            log: self.services.reader.log_bounds(partition).await?,
            now: clock::now_millis(),
        };
        // Bounds of one topic judged by the id of another would stop the partition, or skip records.
        if self.services.reader.topic_id().await? != topic_id {
            return Err(Fail::MadeAnew);
        }
        let started = start(&found);
        if let Err(Stop::BeyondEnd { end, .. } | Stop::PlanBeyondEnd { end, .. }) = &started {
            // Other records will have these offsets.
            self.services.control.lower_progress(partition, *end).await?;
        }
        let Start { offset, done_seq, plan, gap } = started?;
        if let Some((from, to)) = gap {
            tracing::error!(
                partition,
                from,
                to,
                "offsets were skipped: completeness waits for `usagectl gaps accept`"
            );
            self.services.control.record_gap(partition, from, to, topic_id).await?;
        }
        if found.made_anew {
            self.begin_anew(offset, done_seq).await?;
        }
        match topic_id.filter(|id| recorded != Some(*id)) {
            Some(id) if found.made_anew => {
                self.services.control.begin_topic(partition, id, done_seq, found.log).await?;
            }
            Some(id) => self.services.control.set_topic_id(partition, id).await?,
            None => {}
        }
        // Of a topic made anew the offsets mean other rows.
        let quotas_from = progress.quotas_from.filter(|_| !found.made_anew).unwrap_or(0);
        let next = match plan {
            None => offset,
            Some(plan) => {
                self.carry_out(offset, &plan, quotas_from).await?;
                plan.last + 1
            }
        };
        self.planned = None;
        self.services.writer.recover(partition).await?;
        fail_point!("takeover.recovered");
        let filter = load_filter(self.services, partition, counts.current).await?;
        fail_point!("takeover.loaded");
        tracing::info!(
            partition,
            epoch = opened.epoch,
            batch_seq = done_seq,
            offset = next,
            ids = filter.len(),
            "partition taken over"
        );
        let place = Place { partition, count: counts.current };
        Ok(Taken { place, done_seq, next, filter, topic_id, quotas_from })
    }

    /// The topic was deleted and made again: what is committed speaks of rows that are gone. The new commit comes before the new id
    /// is recorded, so that whoever dies between them finds the topic new once more.
    async fn begin_anew(&mut self, offset: i64, done_seq: i64) -> Result<(), Fail> {
        let partition = self.ticket.partition;
        tracing::error!(partition, offset, "the topic was made anew: its log is read from the beginning");
        self.planned = None;
        let item = CommitItem { ticket: self.ticket.clone(), offset, metadata: done_text(done_seq) };
        if self.services.link.commit(vec![item]).await != [CommitOutcome::Committed] {
            return Err(Fail::Revoked);
        }
        fail_point!("takeover.anew");
        Ok(())
    }

    /// The recorded counts, if the topic is as they say.
    async fn counts(&self) -> Result<Partitions, Fail> {
        let counts = self.services.control.partition_counts().await?;
        if counts.growing {
            return Err(Fail::Growing);
        }
        let kafka = self.services.reader.partition_count().await?;
        if kafka == counts.current {
            return Ok(counts);
        }
        announce_added(&self.services.control, &counts, kafka).await?;
        Err(OtherCount { kafka, recorded: counts.current }.into())
    }

    /// Same rows, same number, no decision again.
    async fn carry_out(&mut self, offset: i64, plan: &Plan, quotas_from: i64) -> Result<(), Fail> {
        let partition = self.ticket.partition;
        let rows = self.services.reader.rows(partition, plan.first, plan.last).await?;
        fail_point!("takeover.planned");
        let quotas = Quotas::new(self.services.control.quotas().await?);
        let spent = spent_by_plan(plan, &rows, &self.services.decoder, &quotas, quotas_from);
        let mut refused = Vec::new();
        let Rebuilt { batch, mut outgoing, markers } =
            rebuild(plan, partition, rows, &self.services.decoder)?;
        tracing::info!(
            partition,
            batch_seq = plan.batch_seq,
            first = plan.first,
            last = plan.last,
            rows = batch.rows.len(),
            "carrying out the plan"
        );
        self.planned = Some(CommitItem { ticket: self.ticket.clone(), offset, metadata: plan.to_text() });
        let mut batch = Arc::new(batch);
        if !batch.rows.is_empty() {
            match self.services.writer.settle(&[batch.clone()]).await {
                Ok(()) => {}
                Err(StorageError::Final { code, message }) => {
                    tracing::warn!(partition, code, message, "storage refuses rows of the plan");
                    let (reduced, letters) = self.refuse(offset, plan, &batch).await?;
                    batch = Arc::new(reduced);
                    refused.extend(letters.iter().map(|letter| letter.message.offset));
                    outgoing.extend(letters);
                    if !batch.rows.is_empty() {
                        self.services.writer.settle(&[batch.clone()]).await?;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        fail_point!("takeover.settled");
        // As when shipping: what is sent meets no fence.
        if !outgoing.is_empty() && !self.services.control.partition_counts().await?.decides(plan.count) {
            return Err(Fail::Grown);
        }
        let forwards = self.services.sender.send_all(partition, &outgoing).await.map_err(Fail::Send)?;
        fail_point!("takeover.sent");
        let (batch_seq, next_offset) = (plan.batch_seq, plan.last + 1);
        let quota_counts = spent.counts(&refused);
        let advance = Advance { partition, batch_seq, next_offset, markers, forwards, quota_counts };
        self.services.control.advance(&[advance]).await?;
        fail_point!("takeover.carried_out");
        Ok(())
    }

    /// Finds the rows that storage refuses and commits the plan again, with the same number and bounds, before anything more is sent.
    async fn refuse(
        &mut self,
        offset: i64,
        plan: &Plan,
        batch: &PlannedBatch,
    ) -> Result<(PlannedBatch, Vec<crate::dead_letter::Outgoing>), Fail> {
        let refused = self.services.writer.bisect(batch).await?;
        let (plan, reduced) =
            refuse_rows(plan, batch, &refused.iter().map(|row| row.offset).collect::<Vec<_>>());
        let item = CommitItem { ticket: self.ticket.clone(), offset, metadata: plan.to_text() };
        if item.metadata.len() > self.services.metadata_limit {
            return Err(Fail::TooManyRefused(refused.len()));
        }
        match self.services.link.commit(vec![item.clone()]).await[..] {
            [CommitOutcome::Committed] => self.planned = Some(item),
            [CommitOutcome::TooLong] => return Err(Fail::TooManyRefused(refused.len())),
            _ => return Err(Fail::Revoked),
        }
        fail_point!("takeover.listed");
        let letters = refused_letters(&self.services.reader, self.ticket.partition, &refused).await?;
        Ok((reduced, letters))
    }
}

/// The plan and its batch without the rows at `offsets`.
pub fn refuse_rows(plan: &Plan, batch: &PlannedBatch, offsets: &[i64]) -> (Plan, PlannedBatch) {
    let rows = select(&batch.rows, |offset| !offsets.contains(&offset));
    let plan = plan.refuse(offsets, rows.record_id.iter().copied());
    (plan, PlannedBatch { partition: batch.partition, batch_seq: batch.batch_seq, rows })
}

/// Ids that a load holds as such; beyond, it counts first and fills the filter by a second reading.
const HELD_IDS: usize = 1_000_000;

/// Loads the ids of the partition's tenants.
pub async fn load_filter(services: &Services, partition: i32, count: i32) -> Result<IdFilter, StorageError> {
    let _permit = services.loads.acquire().await;
    let writer: &dyn Writer = &*services.writer;
    let (mut held, mut seen): (Vec<Uuid>, usize) = (Vec::new(), 0);
    let mut collect = |ids: &[Uuid]| {
        seen += ids.len();
        if seen <= HELD_IDS {
            held.extend_from_slice(ids);
        } else {
            held = Vec::new();
        }
    };
    writer.ids(partition, count, &mut collect).await?;
    let mut filter = IdFilter::with_capacity(seen);
    if seen <= HELD_IDS {
        held.iter().for_each(|id| filter.insert(id));
    } else {
        writer.ids(partition, count, &mut |ids: &[Uuid]| ids.iter().for_each(|id| filter.insert(id))).await?;
    }
    Ok(filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_plan_that_the_broker_takes_no_more_stops_the_partition() {
        let item = CommitItem { ticket: Ticket::new(3, 1), offset: 7, metadata: "p1;".into() };
        for (outcome, stops) in [(CommitOutcome::TooLong, true), (CommitOutcome::Refused, false)] {
            let (link, events) = Link::to_this_thread();
            let owner = tokio::task::spawn_blocking(move || {
                let Event::Commit(request) = events.recv().unwrap() else { panic!("a commit is wanted") };
                request.reply.unwrap().send(vec![outcome]).unwrap();
            });
            let fail = confirm(&link, &item).await.unwrap_err();
            owner.await.unwrap();
            assert_eq!((fail.stops(), matches!(fail, Fail::Revoked)), (stops, !stops), "{fail}");
            assert_eq!(fail.to_string().contains("whose length is 3"), stops, "{fail}");
        }
    }
}
