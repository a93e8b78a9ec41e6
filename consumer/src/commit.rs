//! Synchronous commits on the owner's thread, only with a valid ticket, one call for all partitions that have one ready.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::oneshot;
use usage_service::{fail_point, metric_names};

use crate::ticket::Ticket;

/// Pause before the same commit is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// The offset of the first row that is not done, and the plan or the mark that nothing is in hand.
#[derive(Debug, Clone)]
pub struct CommitItem {
    pub ticket: Ticket,
    pub offset: i64,
    pub metadata: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitOutcome {
    Committed,
    /// The partition is no longer this worker's: no further write for it.
    Refused,
    /// The broker takes no metadata of this length.
    TooLong,
}

pub struct CommitRequest {
    pub items: Vec<CommitItem>,
    /// Nobody waits if there is none.
    pub reply: Option<oneshot::Sender<Vec<CommitOutcome>>>,
}

/// What to do about a failed commit (facts on zombies: `outbox-and-plan.md` 1b).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// The group is being rebalanced: poll, then again if the ticket is still valid.
    AfterPoll,
    /// The member is fenced: the partition is gone without another write.
    Fenced,
    TooLong,
    /// The outcome is unknown or the coordinator away: the same commit again.
    Again,
}

fn classify(code: Option<RDKafkaErrorCode>) -> Failure {
    use RDKafkaErrorCode::*;
    match code {
        Some(IllegalGeneration | RebalanceInProgress | StaleMemberEpoch) => Failure::AfterPoll,
        Some(UnknownMemberId | FencedInstanceId | FencedMemberEpoch) => Failure::Fenced,
        Some(OffsetMetadataTooLarge) => Failure::TooLong,
        _ => Failure::Again,
    }
}

/// True if the error is about one partition: what a joint call names may then be another's, and who is meant answers at once.
/// Everything else is true for all, and asking one by one would wait as often as there are partitions, without a poll.
fn is_of_one(code: Option<RDKafkaErrorCode>) -> bool {
    use RDKafkaErrorCode::*;
    matches!(
        code,
        Some(
            OffsetMetadataTooLarge
                | InvalidCommitOffsetSize
                | UnknownTopicOrPartition
                | TopicAuthorizationFailed
        )
    )
}

/// One synchronous commit.
pub trait Committer {
    fn commit(&self, items: &[&CommitItem]) -> Result<(), Option<RDKafkaErrorCode>>;
}

/// Commits as a member of the group.
pub struct MemberCommitter<'a, C: ConsumerContext> {
    pub consumer: &'a BaseConsumer<C>,
    pub topic: &'a str,
}

impl<C: ConsumerContext> Committer for MemberCommitter<'_, C> {
    fn commit(&self, items: &[&CommitItem]) -> Result<(), Option<RDKafkaErrorCode>> {
        let mut list = TopicPartitionList::with_capacity(items.len());
        for item in items {
            let mut element = list.add_partition(self.topic, item.ticket.partition);
            element.set_offset(Offset::Offset(item.offset)).map_err(|_| None)?;
            // Once per element: a second call would leak the first text. An empty text would read as "cleared".
            element.set_metadata(&item.metadata);
        }
        self.consumer.commit(&list, CommitMode::Sync).map_err(|error| match error {
            KafkaError::ConsumerCommit(code) => Some(code),
            _ => None,
        })
    }
}

/// A request whose outcomes are not all known.
struct Pending {
    outcomes: Vec<Option<CommitOutcome>>,
    reply: Option<oneshot::Sender<Vec<CommitOutcome>>>,
}

/// An item that waits, and its place in its request.
struct Waiting {
    item: CommitItem,
    request: u64,
    index: usize,
}

/// The commits that are wanted.
#[derive(Default)]
pub struct Commits {
    requests: HashMap<u64, Pending>,
    waiting: Vec<Waiting>,
    last_request: u64,
    /// Not before; after a failure.
    not_before: Option<Instant>,
}

impl Commits {
    pub fn push(&mut self, CommitRequest { items, reply }: CommitRequest) {
        self.last_request += 1;
        let request = self.last_request;
        self.requests.insert(request, Pending { outcomes: vec![None; items.len()], reply });
        let waiting = |(index, item)| Waiting { item, request, index };
        self.waiting.extend(items.into_iter().enumerate().map(waiting));
    }

    /// When `run` should be called again, if a commit waits.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        (!self.waiting.is_empty()).then(|| self.not_before.unwrap_or(now))
    }

    /// Tries what is pending once and answers what is known for good. Called between polls, so that a rebalance that is under way
    /// moves on between two attempts. Returns the tickets that the broker says are lost; they are revoked.
    pub fn run(&mut self, committer: &impl Committer, now: Instant) -> Vec<Ticket> {
        if self.waiting.is_empty() || self.not_before.is_some_and(|at| now < at) {
            return Vec::new();
        }
        self.not_before = None;
        // One item a partition and call, in the order they came.
        let mut seen = Vec::new();
        let (chosen, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|waiting| {
                let partition = waiting.item.ticket.partition;
                let first = !seen.contains(&partition);
                seen.push(partition);
                first
            });
        let (valid, revoked): (Vec<_>, Vec<_>) =
            chosen.into_iter().partition(|waiting| waiting.item.ticket.is_valid());
        for waiting in revoked {
            self.settle(&waiting, CommitOutcome::Refused);
        }
        let items: Vec<&CommitItem> = valid.iter().map(|waiting| &waiting.item).collect();
        let joint = if items.is_empty() { Ok(()) } else { commit(committer, &items) };
        let alone = items.len() == 1;
        let mut lost = Vec::new();
        for waiting in valid {
            // The joint call names one error and not whose it is. A repetition of what was committed changes nothing.
            let result = match &joint {
                Err(code) if !alone && is_of_one(*code) => commit(committer, &[&waiting.item]),
                result => *result,
            };
            match result.map_err(classify) {
                Ok(()) => self.settle(&waiting, CommitOutcome::Committed),
                Err(Failure::TooLong) => self.settle(&waiting, CommitOutcome::TooLong),
                Err(Failure::Fenced) => {
                    waiting.item.ticket.revoke();
                    lost.push(waiting.item.ticket.clone());
                    self.settle(&waiting, CommitOutcome::Refused);
                }
                Err(Failure::AfterPoll | Failure::Again) => {
                    self.not_before = Some(now + AGAIN_AFTER);
                    self.waiting.push(waiting);
                }
            }
        }
        self.waiting.extend(later);
        lost
    }

    fn settle(&mut self, waiting: &Waiting, outcome: CommitOutcome) {
        let Some(pending) = self.requests.get_mut(&waiting.request) else { return };
        pending.outcomes[waiting.index] = Some(outcome);
        let Some(outcomes) = pending.outcomes.iter().copied().collect::<Option<Vec<_>>>() else { return };
        if let Some(reply) = self.requests.remove(&waiting.request).and_then(|pending| pending.reply) {
            // Who asked may have given up; the commit stands.
            let _ = reply.send(outcomes);
        }
    }
}

fn commit(committer: &impl Committer, items: &[&CommitItem]) -> Result<(), Option<RDKafkaErrorCode>> {
    let started = Instant::now();
    fail_point!("consumer.commit");
    let result = committer.commit(items);
    fail_point!("consumer.committed");
    metrics::histogram!(metric_names::CONSUMER_COMMIT_SECONDS).record(started.elapsed());
    if let Err(code) = result {
        metrics::counter!(metric_names::RETRIES_TOTAL, "operation" => "commit").increment(1);
        let partitions: Vec<i32> = items.iter().map(|item| item.ticket.partition).collect();
        tracing::warn!(?partitions, ?code, "commit failed");
    }
    result
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use RDKafkaErrorCode::*;

    /// Answers by script per partition; a joint call fails with the last error in it, as librdkafka's does.
    #[derive(Default)]
    struct Broker {
        script: RefCell<HashMap<i32, Vec<RDKafkaErrorCode>>>,
        committed: RefCell<HashMap<i32, (i64, String)>>,
        calls: RefCell<Vec<Vec<i32>>>,
    }

    impl Committer for Broker {
        fn commit(&self, items: &[&CommitItem]) -> Result<(), Option<RDKafkaErrorCode>> {
            self.calls.borrow_mut().push(items.iter().map(|item| item.ticket.partition).collect());
            let mut result = Ok(());
            for item in items {
                let partition = item.ticket.partition;
                let error = self.script.borrow_mut().get_mut(&partition).and_then(Vec::pop);
                match error {
                    Some(code) => result = Err(Some(code)),
                    None => {
                        self.committed.borrow_mut().insert(partition, (item.offset, item.metadata.clone()));
                    }
                }
            }
            result
        }
    }

    fn item(ticket: &Ticket, offset: i64) -> CommitItem {
        CommitItem { ticket: ticket.clone(), offset, metadata: format!("d1;{offset}") }
    }

    fn request(items: Vec<CommitItem>) -> (CommitRequest, oneshot::Receiver<Vec<CommitOutcome>>) {
        let (reply, outcomes) = oneshot::channel();
        (CommitRequest { items, reply: Some(reply) }, outcomes)
    }

    #[test]
    fn one_call_serves_all_and_an_error_is_found_out_one_by_one() {
        let broker = Broker::default();
        // Twice: the joint call and the single one.
        broker.script.borrow_mut().insert(1, vec![OffsetMetadataTooLarge, OffsetMetadataTooLarge]);
        let tickets: Vec<Ticket> = (0..3).map(|p| Ticket::new(p, 1)).collect();
        let mut commits = Commits::default();
        let (request, mut outcomes) = request(tickets.iter().map(|ticket| item(ticket, 7)).collect());
        commits.push(request);
        assert!(commits.run(&broker, Instant::now()).is_empty());
        use CommitOutcome::*;
        assert_eq!(outcomes.try_recv(), Ok(vec![Committed, TooLong, Committed]));
        assert_eq!(*broker.calls.borrow(), vec![vec![0, 1, 2], vec![0], vec![1], vec![2]]);
        assert!(broker.committed.borrow().contains_key(&2) && !broker.committed.borrow().contains_key(&1));
    }

    #[test]
    fn a_rebalance_is_waited_for_while_the_ticket_is_valid() {
        for code in
            [IllegalGeneration, RebalanceInProgress, StaleMemberEpoch, OperationTimedOut, RequestTimedOut]
        {
            let broker = Broker::default();
            broker.script.borrow_mut().insert(0, vec![code]);
            let ticket = Ticket::new(0, 1);
            let mut commits = Commits::default();
            let (request, mut outcomes) = request(vec![item(&ticket, 7)]);
            commits.push(request);
            let now = Instant::now();
            commits.run(&broker, now);
            assert!(outcomes.try_recv().is_err(), "{code:?}");
            assert_eq!(commits.due(now), Some(now + AGAIN_AFTER));
            commits.run(&broker, now);
            assert_eq!(broker.calls.borrow().len(), 1, "not before the pause is over");
            commits.run(&broker, now + AGAIN_AFTER);
            assert_eq!(outcomes.try_recv(), Ok(vec![CommitOutcome::Committed]), "{code:?}");
        }
    }

    #[test]
    fn an_error_of_the_whole_group_is_asked_for_once() {
        for (code, lost) in [
            (RequestTimedOut, false),
            (NotCoordinator, false),
            (RebalanceInProgress, false),
            (UnknownMemberId, true),
        ] {
            let broker = Broker::default();
            broker.script.borrow_mut().insert(1, vec![code; 2]);
            let tickets: Vec<Ticket> = (0..3).map(|p| Ticket::new(p, 1)).collect();
            let mut commits = Commits::default();
            let (request, mut outcomes) = request(tickets.iter().map(|ticket| item(ticket, 7)).collect());
            commits.push(request);
            let now = Instant::now();
            let gone = commits.run(&broker, now);
            assert_eq!(*broker.calls.borrow(), vec![vec![0, 1, 2]], "{code:?}");
            assert_eq!(gone, if lost { tickets } else { vec![] }, "{code:?}");
            assert_eq!(outcomes.try_recv().is_ok(), lost, "{code:?}");
            broker.script.borrow_mut().clear();
            commits.run(&broker, now + AGAIN_AFTER);
            let calls = if lost { 1 } else { 2 };
            assert_eq!(broker.calls.borrow().len(), calls, "{code:?}: all together again");
            assert_eq!(broker.committed.borrow().len(), if lost { 2 } else { 3 }, "{code:?}");
        }
    }

    #[test]
    fn a_revoked_ticket_commits_nothing() {
        let broker = Broker::default();
        broker.script.borrow_mut().insert(0, vec![IllegalGeneration]);
        let ticket = Ticket::new(0, 1);
        let mut commits = Commits::default();
        let (request, mut outcomes) = request(vec![item(&ticket, 7)]);
        commits.push(request);
        let now = Instant::now();
        commits.run(&broker, now);
        ticket.revoke();
        commits.run(&broker, now + AGAIN_AFTER);
        assert_eq!(outcomes.try_recv(), Ok(vec![CommitOutcome::Refused]));
        assert!(broker.committed.borrow().is_empty());
        assert_eq!(broker.calls.borrow().len(), 1);
    }

    #[test]
    fn a_fenced_member_loses_the_partition() {
        let broker = Broker::default();
        broker.script.borrow_mut().insert(0, vec![UnknownMemberId]);
        let ticket = Ticket::new(0, 1);
        let mut commits = Commits::default();
        let (request, mut outcomes) = request(vec![item(&ticket, 7)]);
        commits.push(request);
        assert_eq!(commits.run(&broker, Instant::now()), vec![ticket.clone()]);
        assert_eq!(outcomes.try_recv(), Ok(vec![CommitOutcome::Refused]));
        assert!(!ticket.is_valid());
    }

    #[test]
    fn two_commits_of_a_partition_keep_their_order() {
        let broker = Broker::default();
        let ticket = Ticket::new(0, 1);
        let mut commits = Commits::default();
        commits.push(request(vec![item(&ticket, 7)]).0);
        commits.push(request(vec![item(&ticket, 9)]).0);
        let now = Instant::now();
        commits.run(&broker, now);
        assert_eq!(broker.committed.borrow()[&0].0, 7);
        commits.run(&broker, now);
        assert_eq!(broker.committed.borrow()[&0].0, 9);
        assert_eq!(commits.due(now), None);
    }
}
