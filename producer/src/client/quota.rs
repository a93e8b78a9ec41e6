//! The source's quota: how many records of a module all its processes together may emit in a window.
//!
//! No row is touched in the callers' transactions. Each process counts in memory what it admits and tells a shared counter of
//! `usage-limits` in the source's database about it, from a connection of its own and after the fact; the answer is what all processes
//! have told by then. So the limit can be passed: when the shared count reaches it, each process still admits until it hears of that. With
//! n processes of r records a second each and a flush every f seconds that is n × r × f records in a window; one process alone never
//! passes it.

mod count;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use sqlx::PgPool;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use usage_limits::{InvalidName, InvalidRule, OnError, Quota, RateLimits, Tally, TallyError};
use usage_service::error_chain;
use usage_service::metric_names::EMIT_QUOTA_FLUSH_FAILURES_TOTAL;

use super::EmitError;
use count::{Count, Refused, Staleness};

/// The table of the counters, made by the outbox migrations.
pub const QUOTA_TABLE: &str = "usage_rate_limits";
/// Scope of the counters' names.
const SCOPE: &str = "usage.emit";
const FLUSH_EVERY: Duration = Duration::from_millis(200);
const STALE_AFTER: Duration = Duration::from_secs(5);
/// For so long after a flush failed nobody but the task that flushes tries again: callers would queue for one time limit each.
const FAILURE_SERVES: Duration = Duration::from_secs(1);
/// How often counters of windows that are over are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(300);

/// How many records the processes of a source may emit in a window, and how they share the count.
#[derive(Debug, Clone)]
pub struct SourceQuota {
    pool: PgPool,
    quota: Quota,
    flush_every: Duration,
    stale_after: Duration,
    on_stale: OnError,
    schema: Option<String>,
}

/// A quota that can't be meant.
#[derive(Debug, thiserror::Error)]
pub enum InvalidQuota {
    #[error(transparent)]
    Rule(#[from] InvalidRule),
    #[error(transparent)]
    Schema(#[from] InvalidName),
    #[error("a count must be flushed at least every second, and after more than no time, not every {0:?}")]
    FlushEvery(Duration),
    #[error("a count may not be stale before it is flushed twice: {0:?} is too short")]
    StaleAfter(Duration),
}

impl SourceQuota {
    /// At most `limit` records in each window of whole seconds (they lie at multiples of their length since 1970 on the database's
    /// clock), counted in the database of `pool`: the source's own. One connection is used now and then, never a caller's.
    pub fn new(pool: PgPool, limit: i32, window: Duration) -> Self {
        Self {
            pool,
            quota: Quota::new(limit, window),
            flush_every: FLUSH_EVERY,
            stale_after: STALE_AFTER,
            on_stale: OnError::Closed,
            schema: None,
        }
    }

    /// How often a process tells what it admitted; 200 ms by default, 1 s at most. The shorter, the less the limit can be passed.
    #[must_use]
    pub fn flush_every(mut self, interval: Duration) -> Self {
        self.flush_every = interval;
        self
    }

    /// How old the shared count may be before [`SourceQuota::on_stale`] decides; 5 s by default.
    #[must_use]
    pub fn stale_after(mut self, age: Duration) -> Self {
        self.stale_after = age;
        self
    }

    /// What happens to emits while the shared count is too old, since its database can't be reached. [`OnError::Closed`], the default,
    /// refuses them; [`OnError::Open`] lets each process emit up to the limit on its own.
    #[must_use]
    pub fn on_stale(mut self, on_stale: OnError) -> Self {
        self.on_stale = on_stale;
        self
    }

    /// The schema of the counters' table: that of the outbox, if it is not in the search path of the pool's connections.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }
}

/// The state of a source's quota in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaStatus {
    /// Records that a window lets through.
    pub limit: i32,
    pub window: Duration,
    /// Records of all processes in the window, as far as is known here.
    pub counted: u64,
    /// How many of them this process has not told the others yet.
    pub unconfirmed: u64,
    /// The most records that this process ever had unconfirmed: by so much it may have made all of them together pass the limit in a window.
    pub largest_unconfirmed: u64,
    /// How old the shared count is; `None` before the first one.
    pub age: Option<Duration>,
}

/// The counters of a collector, one per module.
pub(crate) struct Quotas {
    tally: Tally,
    limits: RateLimits,
    settings: SourceQuota,
    /// How long after the last authorization the counts are kept fresh.
    linger: Duration,
    counters: Mutex<HashMap<Arc<str>, Arc<SourceCounter>>>,
}

impl Quotas {
    pub fn new(settings: SourceQuota, linger: Duration) -> Result<Self, InvalidQuota> {
        if settings.flush_every.is_zero() || settings.flush_every > Duration::from_secs(1) {
            return Err(InvalidQuota::FlushEvery(settings.flush_every));
        }
        if settings.stale_after < 2 * settings.flush_every {
            return Err(InvalidQuota::StaleAfter(settings.stale_after));
        }
        let table = match &settings.schema {
            Some(schema) => format!("{schema}.{QUOTA_TABLE}"),
            None => QUOTA_TABLE.to_owned(),
        };
        let limits = RateLimits::new(settings.pool.clone(), &table)?;
        let tally = limits.tally(SCOPE, settings.quota)?;
        Ok(Self { tally, limits, settings, linger, counters: Mutex::default() })
    }

    /// The counter of a module: one for all its clients in this process.
    pub fn counter(&self, module: &Arc<str>) -> Arc<SourceCounter> {
        let make = || {
            let stale =
                Staleness { after: self.settings.stale_after, open: self.settings.on_stale == OnError::Open };
            let quota = self.settings.quota;
            let limit = u64::try_from(quota.limit).unwrap_or(0);
            Arc::new(SourceCounter {
                module: module.clone(),
                tally: self.tally.clone(),
                limits: self.limits.clone(),
                every: self.settings.flush_every,
                linger: self.linger,
                count: Mutex::new(Count::new(limit, quota.length, stale, Instant::now())),
                used: Mutex::new(None),
                flushing: tokio::sync::Mutex::new(()),
                failed: Mutex::new(None),
                wanted: Arc::default(),
                task: Mutex::new(None),
            })
        };
        lock(&self.counters).entry(module.clone()).or_insert_with(make).clone()
    }
}

/// What one module's quota has left, as this process knows it.
pub(crate) struct SourceCounter {
    module: Arc<str>,
    tally: Tally,
    limits: RateLimits,
    every: Duration,
    linger: Duration,
    count: Mutex<Count>,
    /// When somebody last asked for an authorization.
    used: Mutex<Option<Instant>>,
    /// One flush at a time.
    flushing: tokio::sync::Mutex<()>,
    /// When the last flush ended, if it failed.
    failed: Mutex<Option<Instant>>,
    wanted: Arc<Notify>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl SourceCounter {
    /// Whether `units` more fit. Takes nothing.
    pub fn room(&self, units: usize) -> Result<(), EmitError> {
        self.judge(|count, now| count.room(units as u64, now))
    }

    /// Takes `units`, or none of them.
    pub fn admit(&self, units: usize) -> Result<(), EmitError> {
        match units {
            0 => Ok(()),
            _ => self.judge(|count, now| count.admit(units as u64, now)),
        }
    }

    fn judge(&self, ask: impl FnOnce(&mut Count, Instant) -> Result<(), Refused>) -> Result<(), EmitError> {
        ask(&mut lock(&self.count), Instant::now()).map_err(|refused| match refused {
            Refused::Full { retry_after } => {
                let Quota { limit, length } = self.tally.quota();
                EmitError::RateLimitExceeded { limit, window: length, retry_after }
            }
            Refused::Unknown { age } => EmitError::QuotaUnknown { age },
        })
    }

    pub fn status(&self) -> QuotaStatus {
        let Quota { limit, length } = self.tally.quota();
        let (count, now) = (lock(&self.count), Instant::now());
        QuotaStatus {
            limit,
            window: length,
            counted: count.counted(),
            unconfirmed: count.unconfirmed(),
            largest_unconfirmed: count.largest_unconfirmed(),
            age: count.age(now),
        }
    }

    /// Sees to it that somebody keeps the count fresh, and asks for it here if it is too old to go by.
    pub async fn prepare(self: &Arc<Self>) {
        let before = lock(&self.used).replace(Instant::now());
        if before.is_none_or(|before| before.elapsed() > self.linger) {
            self.wanted.notify_one();
        }
        self.keep_fresh();
        if self.has_to_ask() {
            // Whoever waited for another's flush has its answer, or its failure.
            let _one = self.flushing.lock().await;
            if self.has_to_ask()
                && let Err(error) = self.flush_now().await
            {
                self.warn(&error);
            }
        }
    }

    fn has_to_ask(&self) -> bool {
        let failed = lock(&self.failed).is_some_and(|failed| failed.elapsed() < FAILURE_SERVES);
        !failed && lock(&self.count).is_stale(Instant::now())
    }

    /// Tells the others what was admitted here, and hears of them.
    pub async fn flush(&self) -> Result<(), TallyError> {
        let _one = self.flushing.lock().await;
        self.flush_now().await
    }

    async fn flush_now(&self) -> Result<(), TallyError> {
        let asked = Instant::now();
        let units = lock(&self.count).begin_flush(asked);
        let seen = match i32::try_from(units) {
            Ok(0) => self.tally.read(&self.module).await,
            Ok(units) => self.tally.add(&self.module, units).await,
            Err(_) => self.tally.add(&self.module, i32::MAX).await,
        };
        *lock(&self.failed) = seen.is_err().then(Instant::now);
        lock(&self.count).flushed(seen?, asked, Instant::now());
        Ok(())
    }

    fn warn(&self, error: &TallyError) {
        tracing::warn!(
            source = &*self.module,
            error = %error_chain(error),
            "the count of the source's quota can't be shared"
        );
    }

    /// Starts the task that flushes, unless it runs; one of a runtime that has ended does not.
    fn keep_fresh(self: &Arc<Self>) {
        let mut task = lock(&self.task);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            *task = Some(tokio::spawn(flush_for_ever(Arc::downgrade(self), self.every, self.wanted.clone())));
        }
    }

    /// Nothing to tell, and no authorization that could still be emitted by.
    fn is_idle(&self) -> bool {
        let used = lock(&self.used).is_some_and(|used| used.elapsed() <= self.linger);
        !used && lock(&self.count).unconfirmed() == 0
    }
}

impl Drop for SourceCounter {
    fn drop(&mut self) {
        if let Some(task) = lock(&self.task).take() {
            task.abort();
        }
    }
}

/// Until the counter is dropped. While nobody emits it asks the database nothing.
async fn flush_for_ever(counter: Weak<SourceCounter>, every: Duration, wanted: Arc<Notify>) {
    let mut pace = interval(every);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut swept, mut failing) = (Instant::now(), false);
    loop {
        pace.tick().await;
        let Some(counter) = counter.upgrade() else { return };
        if counter.is_idle() {
            drop(counter);
            wanted.notified().await;
            continue;
        }
        match counter.flush().await {
            Ok(()) if failing => {
                tracing::info!(source = &*counter.module, "the count of the source's quota is shared again");
                failing = false;
            }
            Ok(()) => {}
            Err(error) => {
                let module = counter.module.to_string();
                metrics::counter!(EMIT_QUOTA_FLUSH_FAILURES_TOTAL, "source_module" => module).increment(1);
                if !std::mem::replace(&mut failing, true) {
                    counter.warn(&error);
                }
            }
        }
        if swept.elapsed() > SWEEP_EVERY {
            swept = Instant::now();
            if let Err(error) = counter.limits.sweep().await {
                tracing::warn!(
                    error = %error_chain(&error),
                    "old counts of quotas can't be removed"
                );
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
