//! A partition from its assignment to its revocation.

use std::time::Instant;

use tokio::sync::oneshot;
use uuid::Uuid;

use crate::batch::Limits;
use crate::budget::Charge;
use crate::commit::CommitOutcome;
use crate::filter::IdFilter;
use crate::ledger::Ledger;
use crate::ticket::Ticket;

pub struct Held {
    pub ticket: Ticket,
    pub since: Instant,
    /// As librdkafka has it; partitions are paused in the callback that assigns them, and a pause outlives an assignment.
    pub paused: bool,
    pub state: State,
}

pub enum State {
    TakingOver,
    Running(Box<Running>),
    /// Under an alarm until a person has acted and the partition is assigned anew.
    Stopped(String),
}

/// How far a partition is that is being given back.
#[derive(Debug)]
pub enum Drain {
    /// The batch in flight runs.
    Finishing,
    /// The last commit runs.
    Committing(oneshot::Receiver<Vec<CommitOutcome>>),
    /// Storage rolls up.
    Flushing,
    Done,
}

pub struct Running {
    pub ledger: Ledger,
    pub filter: IdFilter,
    pub limits: Limits,
    /// True while the committed metadata holds a plan, not the mark that nothing is in hand.
    pub planned: bool,
    /// Since when nothing is in hand.
    pub idle_since: Option<Instant>,
    /// The commit that says that nothing is in hand, while it runs.
    pub marking: Option<oneshot::Receiver<Vec<CommitOutcome>>>,
    /// Position to be set before anything is taken in, and how often that failed.
    pub seek: Option<i64>,
    pub seek_failures: u32,
    /// When the last message came, or the partition was last looked after.
    pub heard: Instant,
    /// While the filter is loaded anew: the load's number, and the ids that became durable since.
    pub loading: Option<(u64, Vec<Uuid>)>,
    pub drain: Option<Drain>,
}

impl Running {
    pub fn new(ledger: Ledger, filter: IdFilter, limits: Limits) -> Self {
        let seek = Some(ledger.position());
        Self {
            ledger,
            filter,
            limits,
            planned: true,
            idle_since: None,
            marking: None,
            seek,
            seek_failures: 0,
            heard: Instant::now(),
            loading: None,
            drain: None,
        }
    }

    pub fn draining(&self) -> bool {
        self.drain.is_some()
    }

    /// True if messages of the partition are welcome. `share` is what one partition may hold, so that one that is stuck leaves
    /// room for the others; a paused one waits until it has half of it free.
    pub fn takes_in(&self, share: usize, paused: bool) -> bool {
        let share = if paused { share / 2 } else { share };
        let within = self.ledger.charge().records < share || self.ledger.is_idle();
        within && self.seek.is_none() && !self.draining() && !self.ledger.is_full(&self.limits)
    }

    /// The ids of a durable batch, but for refused rows, are what is stored now.
    pub fn stored<'a>(&mut self, ids: impl Iterator<Item = &'a Uuid>) {
        for id in ids {
            self.filter.insert(id);
            if let Some((_, since)) = &mut self.loading {
                since.push(*id);
            }
        }
    }
}

impl Held {
    pub fn new(ticket: Ticket) -> Self {
        Self { ticket, since: Instant::now(), paused: true, state: State::TakingOver }
    }

    pub fn running(&self) -> Option<&Running> {
        match &self.state {
            State::Running(running) => Some(running),
            _ => None,
        }
    }

    pub fn running_mut(&mut self) -> Option<&mut Running> {
        match &mut self.state {
            State::Running(running) => Some(running),
            _ => None,
        }
    }

    /// What it has taken from the budget.
    pub fn charge(&self) -> Charge {
        self.running().map_or_else(Charge::default, |running| running.ledger.charge())
    }

    /// The label of the metric.
    pub fn state_name(&self) -> &'static str {
        match self.state {
            State::TakingOver => "taking_over",
            State::Running(_) => "running",
            State::Stopped(_) => "stopped",
        }
    }
}
