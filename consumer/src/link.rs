//! How the work beside the owner's thread reports to it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Thread;

use tokio::sync::oneshot;
use usage_control::{QuotaCounts, QuotaKey, Quotas};
use usage_storage::StoredId;
use uuid::Uuid;

use crate::attribution::Permission;
use crate::commit::{CommitItem, CommitOutcome, CommitRequest};
use crate::filter::IdFilter;
use crate::judge::Registry;
use crate::takeover::Taken;
use crate::ticket::Ticket;

/// What happened beside the owner's thread.
pub enum Event {
    /// A commit is wanted; only the owner's thread commits.
    Commit(CommitRequest),
    /// A partition is ready to run.
    TakenOver {
        ticket: Ticket,
        taken: Box<Taken>,
    },
    /// A partition waits for an operator, under an alarm.
    Waits {
        ticket: Ticket,
        why: String,
    },
    /// A partition stopped under an alarm.
    Stopped {
        ticket: Ticket,
        why: String,
    },
    /// What a closed batch wanted to know.
    Answered {
        ticket: Ticket,
        question: u64,
        registry: Option<Arc<Registry>>,
        permissions: Vec<Permission>,
        found: Vec<StoredId>,
        /// Counters of quotas.
        counters: Vec<QuotaKey>,
        counts: QuotaCounts,
    },
    /// How the shipping of a batch ended.
    Shipped {
        ticket: Ticket,
        fate: Fate,
    },
    /// The joint write ended; single batches of it may still be cared for.
    WriteFree,
    /// A partition's storage was given up.
    Closed {
        ticket: Ticket,
    },
    Registry(Arc<Registry>),
    /// A reading of the quotas ended; `None` if they could not be read.
    Quotas(Option<Arc<Quotas>>),
    /// What the policy point said when it was asked again.
    Permissions(Vec<Permission>),
    FilterLoaded {
        ticket: Ticket,
        load: u64,
        filter: Box<IdFilter>,
    },
    /// The rolling up ended; other owners have fenced these partitions.
    TickDone {
        fenced: Vec<Ticket>,
    },
    /// First offset of a partition's log and the one behind its last.
    LogBounds {
        ticket: Ticket,
        low: i64,
        high: i64,
    },
    /// The topic's id, as it is now.
    TopicId(Option<Uuid>),
}

/// How the shipping of a batch ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// Stored, dead-lettered and noted in the control database; storage refused the rows at these offsets.
    Done { refused: Vec<i64> },
    /// The ticket was revoked or the commit refused.
    Abandoned,
    /// Another owner fenced the partition.
    Fenced,
    /// The topic has grown or is growing: the batch was decided by a count that holds no more.
    Grown,
    /// The broker takes no plan of this length.
    PlanTooLong(usize),
    /// A person must look.
    Stopped(String),
}

/// Sends events to the owner's thread and wakes it.
#[derive(Clone)]
pub struct Link {
    events: Sender<Event>,
    owner: Thread,
}

impl Link {
    /// The link to the calling thread.
    pub fn to_this_thread() -> (Self, Receiver<Event>) {
        let (events, receiver) = channel();
        (Self { events, owner: std::thread::current() }, receiver)
    }

    /// Reports; after the owner has ended nobody listens, which is no error.
    pub fn report(&self, event: Event) {
        if self.events.send(event).is_ok() {
            self.owner.unpark();
        }
    }

    pub fn owner(&self) -> Thread {
        self.owner.clone()
    }

    /// Has the owner commit, and waits until each item's outcome is known for good.
    pub async fn commit(&self, items: Vec<CommitItem>) -> Vec<CommitOutcome> {
        let count = items.len();
        let (reply, outcomes) = oneshot::channel();
        self.report(Event::Commit(CommitRequest { items, reply: Some(reply) }));
        outcomes.await.unwrap_or_else(|_| vec![CommitOutcome::Refused; count])
    }
}
