//! Allowances and rate limits in the caller's own Postgres.
//!
//! Two jobs that must not be confused:
//!
//! * An [`Allowance`] counts **work** that somebody pays for: "this account may send 1,000 mails this month". It is spent in
//!   the transaction that does the work, so both stand or neither does.
//! * A [`RateLimiter`] counts **tries** in short windows and keeps bursts out. It may let callers through while the database is
//!   away, it forgets, and a request that fails has been counted all the same. A [`Tally`] is its counter without the decision, for
//!   callers that decide in memory and tell afterwards what they let through.
//!
//! Every decision is one statement in the database; nothing is kept in this process, and its clock decides nothing about rates.

mod allowance;
mod identifier;
mod period;
mod rate;
mod retry;
mod zone;

#[cfg(feature = "http")]
pub mod http;

pub use allowance::{
    Allowance, AllowanceError, Consumed, Consumption, Counter, Exhausted, InvalidField, PeriodUse,
};
pub use identifier::InvalidName;
pub use period::{OutOfCalendar, Period, Window, ZeroMonths};
pub use rate::{
    Algorithm, Decision, InvalidRequest, InvalidRule, OnError, Policy, Quota, RateLimiter, RateLimits,
    Reason, Rule, Tallied, Tally, TallyError,
};
pub use zone::{UnknownZone, Zone};
