//! What librdkafka calls on the owner's thread while it polls: rebalances and statistics.
//!
//! The callback hands partitions out and takes them in pause; what must be finished before a partition is given back is finished by
//! the owner's loop, which calls `incremental_unassign` when it is, or after [`crate::worker::RELEASE_WITHIN`]. Until
//! then the group waits and the member stays the owner; polling goes on.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, Offset, Statistics, TopicPartitionList};
use usage_service::fail_point;

/// What the group decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rebalance {
    Assigned(Vec<i32>),
    /// To be given back by `incremental_unassign`.
    Revoked(Vec<i32>),
    /// Gone already: no commit, no write.
    Lost(Vec<i32>),
}

/// End of a partition as a reader of committed data sees it, from librdkafka's statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    pub partition: i32,
    pub offset: i64,
}

#[derive(Default)]
pub struct Context {
    rebalances: Mutex<Vec<Rebalance>>,
    ends: Mutex<Vec<End>>,
    closing: AtomicBool,
}

impl Context {
    /// What happened since the last call.
    pub fn take_rebalances(&self) -> Vec<Rebalance> {
        std::mem::take(&mut *self.rebalances.lock().expect("not poisoned"))
    }

    pub fn take_ends(&self) -> Vec<End> {
        std::mem::take(&mut *self.ends.lock().expect("not poisoned"))
    }

    /// From now on revocations are answered at once: the consumer is being closed, nobody runs the loop.
    pub fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }

    fn push(&self, rebalance: Rebalance) {
        self.rebalances.lock().expect("not poisoned").push(rebalance);
    }
}

fn partitions(list: &TopicPartitionList) -> Vec<i32> {
    list.elements().iter().map(|element| element.partition()).collect()
}

/// Gives partitions back to the group.
pub fn unassign<C: ConsumerContext>(consumer: &BaseConsumer<C>, list: &TopicPartitionList) {
    let result = match consumer.rebalance_protocol() {
        RebalanceProtocol::Cooperative => consumer.incremental_unassign(list),
        _ => consumer.unassign(),
    };
    if let Err(error) = result {
        tracing::error!(error = %error, partitions = ?partitions(list), "can't give partitions back");
    }
}

/// Starts fetching a held partition at `offset`, whatever state its fetcher is in: one that met an offset that the log does not
/// have takes no seek any more. A pause stays. Never while a revocation waits for its answer: this would be taken for it.
pub fn restart_at<C: ConsumerContext>(
    consumer: &BaseConsumer<C>,
    topic: &str,
    partition: i32,
    offset: i64,
) -> Result<(), KafkaError> {
    let mut list = TopicPartitionList::with_capacity(1);
    list.add_partition_offset(topic, partition, Offset::Offset(offset))?;
    consumer.incremental_unassign(&list)?;
    consumer.incremental_assign(&list)
}

fn assign(consumer: &BaseConsumer<Context>, list: &TopicPartitionList) -> Result<(), KafkaError> {
    // No offset is right before the takeover has found it. One that is asked of the broker (beginning, end) can arrive after the
    // takeover's seek and undo it, so it is a number. If the log does not have it and the fetcher is faster than the pause, the
    // fetcher gives up, and `restart_at` helps.
    let mut paused = TopicPartitionList::with_capacity(list.count());
    for element in list.elements() {
        paused.add_partition_offset(element.topic(), element.partition(), Offset::Offset(0))?;
    }
    consumer.incremental_assign(&paused)?;
    consumer.pause(&paused)
}

impl ConsumerContext for Context {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, err: RDKafkaRespErr, tpl: &mut TopicPartitionList) {
        let held = partitions(tpl);
        match err {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => {
                if let Err(error) = assign(consumer, tpl) {
                    tracing::error!(error = %error, partitions = ?held, "can't take partitions");
                    return;
                }
                fail_point!("consumer.assigned");
                self.push(Rebalance::Assigned(held));
            }
            _ if self.closing.load(Ordering::SeqCst) || consumer.assignment_lost() => {
                fail_point!("consumer.lost");
                unassign(consumer, tpl);
                self.push(Rebalance::Lost(held));
            }
            _ => {
                fail_point!("consumer.revoked");
                if let Err(error) = consumer.pause(tpl) {
                    tracing::warn!(error = %error, partitions = ?held, "can't pause partitions");
                }
                self.push(Rebalance::Revoked(held));
            }
        }
    }
}

impl ClientContext for Context {
    fn stats(&self, statistics: Statistics) {
        let partitions = statistics.topics.values().flat_map(|topic| topic.partitions.values());
        let ends = partitions.filter(|partition| partition.partition >= 0).map(|partition| {
            let offset = if partition.ls_offset >= 0 { partition.ls_offset } else { partition.hi_offset };
            End { partition: partition.partition, offset }
        });
        *self.ends.lock().expect("not poisoned") = ends.filter(|end| end.offset >= 0).collect();
    }

    fn error(&self, error: KafkaError, reason: &str) {
        log_error(&error, reason);
    }
}

/// For clients that are no members of the group: logs what is one.
#[derive(Clone, Default)]
pub struct PlainContext;

impl ConsumerContext for PlainContext {}

impl ClientContext for PlainContext {
    fn error(&self, error: KafkaError, reason: &str) {
        log_error(&error, reason);
    }
}

fn log_error(error: &KafkaError, reason: &str) {
    match error.rdkafka_error_code() {
        // The end of a partition is reported as an error.
        Some(RDKafkaErrorCode::PartitionEOF) => {}
        // The worker finds out whether it means anything: see `assign` above.
        Some(RDKafkaErrorCode::AutoOffsetReset) => tracing::debug!(error = %error, reason, "kafka client"),
        _ => tracing::warn!(error = %error, reason, "kafka client"),
    }
}
