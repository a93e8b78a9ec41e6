//! All fail points between a record's delivery and its commit, in the one place that every crash test draws them from.

/// A point, and at which of its visits the worker ends or freezes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visit {
    pub point: &'static str,
    pub at: u32,
}

impl Visit {
    /// What arms a process.
    pub fn armed(&self, action: &str) -> String {
        format!("{}={action}@{}", self.point, self.at)
    }
}

const fn visit(point: &'static str, at: u32) -> Visit {
    Visit { point, at }
}

/// While messages are decided and plans committed. The second commit carries the next plan.
pub const DECIDING: &[Visit] = &[
    visit("consumer.close", 2),
    visit("consumer.closed", 2),
    visit("consumer.answered", 1),
    visit("consumer.plan", 1),
    visit("consumer.commit", 1),
    visit("consumer.committed", 1),
    visit("consumer.planned", 2),
    visit("consumer.commit", 2),
    visit("consumer.committed", 2),
    visit("consumer.finish", 1),
    visit("consumer.finished", 1),
    visit("consumer.mark", 1),
    visit("consumer.marked", 1),
];

/// While a batch is on its way: dead letters, each month's insert, the control database, rolling up. The first inserts are one for
/// each of two months.
pub const SHIPPING: &[Visit] = &[
    visit("consumer.send", 1),
    visit("consumer.acked", 1),
    visit("consumer.sent", 1),
    visit("storage.insert", 1),
    visit("storage.half_sent", 1),
    visit("storage.inserted", 1),
    visit("storage.insert", 2),
    visit("storage.inserted", 2),
    visit("consumer.written", 1),
    visit("consumer.advance", 1),
    visit("control.advance", 1),
    visit("consumer.advanced", 1),
    visit("storage.roll_up", 1),
    visit("storage.rolled_up", 1),
];

/// While a partition is taken over from a worker that died with a plan in hand.
pub const TAKING_OVER: &[Visit] = &[
    visit("consumer.assigned", 1),
    visit("storage.fence", 1),
    visit("storage.fenced", 1),
    visit("takeover.fenced", 1),
    visit("takeover.topic", 1),
    visit("takeover.planned", 1),
    visit("storage.raised", 1),
    visit("storage.looked", 1),
    visit("takeover.settled", 1),
    visit("takeover.sent", 1),
    visit("takeover.carried_out", 1),
    visit("takeover.recovered", 1),
    visit("takeover.loaded", 1),
];

/// While partitions are given back because the process was asked to stop.
pub const STOPPING: &[Visit] = &[
    visit("consumer.release", 1),
    visit("consumer.drained", 1),
    visit("consumer.give_up", 1),
    visit("consumer.given_up", 1),
];

/// While storage refuses rows for good.
pub const REFUSING: &[Visit] =
    &[visit("consumer.bisected", 1), visit("consumer.listed", 1), visit("consumer.listed_sent", 1)];

/// While storage refuses rows of a plan that a takeover carries out.
pub const REFUSING_A_PLAN: &[Visit] = &[visit("takeover.listed", 1)];

/// In the callback that takes partitions away because another worker has come.
pub const REVOKED: &[Visit] = &[visit("consumer.revoked", 1)];

/// In the callback that says that partitions are gone already.
pub const LOST: &[Visit] = &[visit("consumer.lost", 1)];

/// While a takeover begins the log of a topic that was made anew.
pub const ANEW: &[Visit] = &[visit("takeover.anew", 1)];

/// While counters of quotas are read and written.
pub const QUOTAS: &[Visit] = &[
    visit("consumer.count", 1),
    visit("consumer.counted", 1),
    visit("control.count", 1),
    visit("control.counted", 1),
    visit("control.count", 2),
    visit("control.counted", 2),
];

pub fn all() -> impl Iterator<Item = &'static Visit> {
    [DECIDING, SHIPPING, TAKING_OVER, STOPPING, REFUSING, REFUSING_A_PLAN, REVOKED, LOST, ANEW, QUOTAS]
        .into_iter()
        .flatten()
}
