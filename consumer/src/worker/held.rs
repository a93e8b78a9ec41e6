//! A partition from its assignment to its revocation.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use uuid::Uuid;

use crate::batch::Limits;
use crate::budget::{Charge, Share};
use crate::commit::CommitOutcome;
use crate::filter::IdFilter;
use crate::ledger::Ledger;
use crate::ticket::Ticket;

/// A takeover that takes longer is named.
const LONG_TAKEOVER: Duration = Duration::from_secs(300);

pub struct Held {
    pub ticket: Ticket,
    pub since: Instant,
    /// As librdkafka has it; partitions are paused in the callback that assigns them, and a pause outlives an assignment.
    pub paused: bool,
    /// Of the topic that the partition was taken over of.
    pub topic_id: Option<Uuid>,
    pub state: State,
}

pub enum State {
    TakingOver,
    /// Taking over, but for what an operator has to do first: under an alarm that names it.
    Waiting(String),
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

/// A look at a partition's log that is under way: an error about an offset does not say whose it is, and a fetcher that gave up
/// says nothing.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// The partition's position when the look began.
    pub position: i64,
    /// The client has said that it fetches some partition no more.
    pub failed: bool,
}

/// What a look at a log has shown.
#[derive(Debug, PartialEq, Eq)]
pub enum Sight {
    /// The log does not have the position.
    Gone,
    /// Perhaps nothing is fetched.
    FetchAnew,
    Fine,
}

impl Look {
    /// The log had `low..high` after the look began; `position` is the present one. While the bounds were read the partition may
    /// have gone beyond them, or the log's beginning may have moved.
    pub fn sight(self, position: i64, low: i64, high: i64, silent: bool) -> Sight {
        let outside = |position: i64| position < low || position > high;
        if outside(self.position) && outside(position) {
            Sight::Gone
        } else if self.failed || (silent && position < high) {
            Sight::FetchAnew
        } else {
            Sight::Fine
        }
    }
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
    pub look: Option<Look>,
    /// When the last message came, or the partition was last looked after.
    pub heard: Instant,
    /// The broker's time of the first row of the last batch that is done, milliseconds since the Unix epoch.
    pub done_time: Option<i64>,
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
            look: None,
            heard: Instant::now(),
            done_time: None,
            loading: None,
            drain: None,
        }
    }

    pub fn draining(&self) -> bool {
        self.drain.is_some()
    }

    /// True if messages of the partition are welcome.
    pub fn takes_in(&self, share: &Share, paused: bool) -> bool {
        let within = share.admits(self.ledger.charge(), paused) || self.ledger.is_idle();
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
        Self { ticket, since: Instant::now(), paused: true, topic_id: None, state: State::TakingOver }
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

    /// True if it has been taken over for so long that a person should look at what is tried again.
    pub fn takes_long(&self, now: Instant) -> bool {
        matches!(self.state, State::TakingOver) && now.duration_since(self.since) >= LONG_TAKEOVER
    }

    /// What it has taken from the budget.
    pub fn charge(&self) -> Charge {
        self.running().map_or_else(Charge::default, |running| running.ledger.charge())
    }

    /// The label of the metric.
    pub fn state_name(&self) -> &'static str {
        match self.state {
            State::TakingOver => "taking_over",
            State::Waiting(_) => "waiting",
            State::Running(_) => "running",
            State::Stopped(_) => "stopped",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_takeover_that_takes_long_is_named() {
        let mut held = Held::new(Ticket::new(3, 1));
        let later = held.since + LONG_TAKEOVER;
        assert!(held.takes_long(later) && !held.takes_long(held.since));
        held.state = State::Stopped("named already".into());
        assert!(!held.takes_long(later));
    }

    #[test]
    fn a_partition_that_went_on_while_its_log_was_looked_at_is_not_stopped() {
        let look = Look { position: 100, failed: true };
        // At the log's end when the bounds were read, and beyond it when they arrive.
        assert_eq!(look.sight(150, 0, 100, false), Sight::FetchAnew);
        // The log's beginning passed the first position, the partition was faster.
        assert_eq!(look.sight(150, 120, 200, false), Sight::FetchAnew);
        assert_eq!(look.sight(100, 120, 200, false), Sight::Gone);
        assert_eq!(look.sight(100, 0, 99, false), Sight::Gone);
    }

    #[test]
    fn a_partition_is_fetched_anew_if_its_fetcher_may_have_given_up() {
        let failed = Look { position: 100, failed: true };
        assert_eq!(failed.sight(100, 0, 100, false), Sight::FetchAnew, "more may come");
        let asked = Look { position: 100, failed: false };
        assert_eq!(asked.sight(100, 0, 100, true), Sight::Fine, "there is nothing");
        assert_eq!(asked.sight(100, 0, 101, true), Sight::FetchAnew);
        assert_eq!(asked.sight(100, 0, 101, false), Sight::Fine);
    }
}
