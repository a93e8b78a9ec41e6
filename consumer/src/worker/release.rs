//! Giving partitions back: what is in flight is finished and committed, what is not begun is dropped, storage rolls up.

use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::consumer::BaseConsumer;
use tokio::sync::oneshot;
use usage_service::fail_point;

use super::Worker;
use super::held::{Drain, Held, State};
use crate::commit::{CommitItem, CommitOutcome, CommitRequest};
use crate::context::{Context, unassign};
use crate::plan::done_text;
use crate::ticket::Ticket;

/// How long a running write is waited for; then it is abandoned, and the next owner finishes it.
pub const RELEASE_WITHIN: Duration = Duration::from_secs(5);

/// Partitions that are given back together.
pub struct Release {
    partitions: Vec<i32>,
    deadline: Instant,
    /// The group waits for `incremental_unassign`; false at the end of the process, when closing the consumer does it.
    unassign: bool,
}

impl Release {
    /// A partition was lost meanwhile and is given back already.
    pub fn forget(&mut self, partition: i32) {
        self.partitions.retain(|own| *own != partition);
    }
}

impl Worker {
    pub(super) fn begin_release(&mut self, partitions: Vec<i32>, unassign: bool) {
        fail_point!("consumer.release");
        for partition in &partitions {
            let Some(held) = self.held.get_mut(partition) else { continue };
            match &mut held.state {
                State::Running(running) if running.drain.is_none() => {
                    let (_, charge) = running.ledger.rewind();
                    self.budget.refund(charge);
                    running.drain = Some(Drain::Finishing);
                }
                State::Running(_) => {}
                // Nothing of its own is durable; the next owner begins where this one did.
                State::TakingOver | State::Waiting(_) | State::Stopped(_) => held.ticket.revoke(),
            }
        }
        match &mut self.release {
            Some(release) => {
                release.partitions.extend(partitions);
                release.unassign |= unassign;
            }
            None => {
                let deadline = Instant::now() + RELEASE_WITHIN;
                self.release = Some(Release { partitions, deadline, unassign });
            }
        }
    }

    pub(super) fn step_release(&mut self, consumer: &BaseConsumer<Context>) {
        let Some(release) = &self.release else { return };
        let late = Instant::now() >= release.deadline;
        let partitions = release.partitions.clone();
        let mut done = true;
        for partition in &partitions {
            done &= self.drain(*partition);
        }
        if !done && !late {
            return;
        }
        let Some(release) = self.release.take() else { return };
        if !done {
            tracing::warn!(partitions = ?release.partitions, "a running write is abandoned");
        }
        fail_point!("consumer.given_up");
        for partition in &release.partitions {
            let flushed = self
                .held
                .get(partition)
                .and_then(Held::running)
                .is_some_and(|running| matches!(running.drain, Some(Drain::Done | Drain::Flushing)));
            if flushed {
                let Some(held) = self.held.remove(partition) else { continue };
                held.ticket.revoke();
                self.budget.refund(held.charge());
            } else {
                self.forget(*partition);
            }
        }
        if release.unassign && !release.partitions.is_empty() {
            let mut list = TopicPartitionList::with_capacity(release.partitions.len());
            for partition in &release.partitions {
                list.add_partition(&self.settings.topic, *partition);
            }
            unassign(consumer, &list);
        }
    }

    /// One step of giving a partition back; true when nothing is left to do.
    fn drain(&mut self, partition: i32) -> bool {
        let Some(held) = self.held.get_mut(&partition) else { return true };
        let ticket = held.ticket.clone();
        let Some(running) = held.running_mut() else { return true };
        match &mut running.drain {
            None | Some(Drain::Done) => return running.drain.is_some(),
            Some(Drain::Finishing) if running.ledger.in_flight().is_some() => return false,
            Some(Drain::Finishing) if running.planned => {
                fail_point!("consumer.drained");
                let (request, outcome) = mark(&ticket, running.ledger.done());
                running.drain = Some(Drain::Committing(outcome));
                self.commits.push(request);
                return false;
            }
            Some(Drain::Committing(outcome)) => match outcome.try_recv() {
                Err(oneshot::error::TryRecvError::Empty) => return false,
                Ok(outcomes) if outcomes == [CommitOutcome::Committed] => running.planned = false,
                // The plan stays where it is; the next owner carries it out again, which changes nothing.
                Ok(_) | Err(oneshot::error::TryRecvError::Closed) => {}
            },
            Some(Drain::Finishing) => {}
            Some(Drain::Flushing) => return false,
        }
        fail_point!("consumer.give_up");
        running.drain = Some(Drain::Flushing);
        self.close_storage(ticket, true);
        false
    }
}

/// The commit that says that nothing is in hand.
pub(super) fn mark(
    ticket: &Ticket,
    (offset, batch_seq): (i64, i64),
) -> (CommitRequest, oneshot::Receiver<Vec<CommitOutcome>>) {
    let (reply, outcome) = oneshot::channel();
    let item = CommitItem { ticket: ticket.clone(), offset, metadata: done_text(batch_seq) };
    (CommitRequest { items: vec![item], reply: Some(reply) }, outcome)
}
