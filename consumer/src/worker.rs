//! The owner's thread: it polls, decides and commits, and owns all state. Everything slow runs beside it and reports back.
//!
//! Polling never rests: over budget, during takeovers and outages partitions are paused and the poll goes on, so that the group
//! never takes a healthy worker for a dead one.

mod beside;
mod flow;
mod held;
mod permitted;
mod release;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use usage_service::health::Flag;
use usage_service::{clock, metric_names};

use crate::batch::Limits;
use crate::budget::{Budget, Charge};
use crate::commit::{Commits, MemberCommitter};
use crate::context::{Context, Rebalance, restart_at};
use crate::judge::Judge;
use crate::link::Event;
use crate::message::{Envelope, OwnedMessage};
use crate::services::Services;
use crate::takeover::take_over;
use crate::telemetry::count;
use crate::ticket::Ticket;
use held::{Held, Look, Running};
use release::Release;

pub use release::RELEASE_WITHIN;

/// Messages taken between two looks at everything else.
const BURST: usize = 2_000;
/// How long the thread sleeps when nothing happens; whatever happens wakes it.
const NAP: Duration = Duration::from_millis(50);
/// Seeks that may fail before the partition's fetcher is started anew.
const SEEK_TRIES: u32 = 3;
const TICK: Duration = Duration::from_secs(1);

/// How a worker works.
#[derive(Debug, Clone)]
pub struct WorkerSettings {
    pub topic: String,
    pub limits: Limits,
    pub budget: Charge,
    /// Age at which the registry is read again.
    pub registry_refresh: Duration,
    /// Age at which the quotas are read again.
    pub quota_refresh: Duration,
    /// How long counters of quotas stay after their window's end.
    pub quota_keep: Duration,
    /// Age at which a permission of the policy point ends.
    pub policy_refresh: Duration,
}

/// What a worker shows to the health checks.
#[derive(Clone)]
pub struct Signs {
    /// Passes once the group has given this worker its first assignment, which may be empty.
    pub assigned: Flag,
    /// Milliseconds since the Unix epoch of the loop's last turn.
    pub heartbeat: Arc<AtomicI64>,
}

/// Why a worker ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error("the kafka client can't go on")]
    Fatal(#[source] KafkaError),
    #[error("can't subscribe")]
    Subscribe(#[source] KafkaError),
}

pub struct Worker {
    settings: WorkerSettings,
    services: Arc<Services>,
    runtime: Handle,
    events: Receiver<Event>,
    signs: Signs,
    judge: Judge,
    held: BTreeMap<i32, Held>,
    budget: Budget,
    commits: Commits,
    /// Partitions that are being given back.
    release: Option<Release>,
    /// Ends of earlier holds that a takeover of the same partition waits for.
    closing: HashMap<i32, JoinHandle<()>>,
    last_ticket: u64,
    /// Joint writes that run, and when the last one began.
    writes: usize,
    write_began: Instant,
    tick_runs: bool,
    /// Permissions are being asked for again.
    permissions_run: bool,
    /// Of the policies that gave the permissions.
    policy_generation: u64,
    ticked: Instant,
    registry_asked: Instant,
    registry_read: Instant,
    /// One reading at a time: an older one must not come last.
    quotas_run: bool,
    quotas_asked: Instant,
    quotas_swept: Instant,
    completeness_asked: Instant,
    /// When stopped partitions were named last, and silent ones looked after.
    alarmed: Instant,
    listened: Instant,
    topic_asked: Instant,
    /// Number of the last load of a filter, and of the last question that a batch asked: they go on over takeovers, so that
    /// nothing late is taken for an answer.
    last_load: u64,
    last_question: u64,
    stopping: bool,
}

impl Worker {
    /// A worker whose events come from `services.link`; `judge` has registry and quotas as they were read at the start.
    pub fn new(
        settings: WorkerSettings,
        services: Arc<Services>,
        events: Receiver<Event>,
        runtime: Handle,
        judge: Judge,
        signs: Signs,
    ) -> Self {
        let now = Instant::now();
        let policy_generation = services.policy.generation();
        Self {
            budget: Budget::new(settings.budget),
            settings,
            services,
            runtime,
            events,
            signs,
            judge,
            held: BTreeMap::new(),
            commits: Commits::default(),
            release: None,
            closing: HashMap::new(),
            last_ticket: 0,
            writes: 0,
            write_began: now,
            tick_runs: false,
            permissions_run: false,
            policy_generation,
            ticked: now,
            registry_asked: now,
            registry_read: now,
            quotas_run: false,
            quotas_asked: now,
            quotas_swept: now,
            completeness_asked: now,
            alarmed: now,
            listened: now,
            topic_asked: now,
            last_load: 0,
            last_question: 0,
            stopping: false,
        }
    }

    /// Runs on the calling thread until `shutdown` and a graceful end.
    pub fn run(
        &mut self,
        consumer: &BaseConsumer<Context>,
        shutdown: &CancellationToken,
    ) -> Result<(), WorkerError> {
        consumer.subscribe(&[&self.settings.topic]).map_err(WorkerError::Subscribe)?;
        loop {
            if shutdown.is_cancelled() && !self.stopping {
                self.stopping = true;
                let held = self.held.keys().copied().collect();
                self.begin_release(held, false);
            }
            let busy = self.turn(consumer)?;
            if self.stopping && self.release.is_none() {
                return Ok(());
            }
            if !busy {
                std::thread::park_timeout(self.nap());
            }
        }
    }

    /// One turn; false if there was nothing to do.
    fn turn(&mut self, consumer: &BaseConsumer<Context>) -> Result<bool, WorkerError> {
        let now = Instant::now();
        self.signs.heartbeat.store(clock::now_millis(), Ordering::Relaxed);
        let mut busy = self.serve_events();
        busy |= self.poll(consumer, now)?;
        self.serve_rebalances(consumer);
        self.run_commits(consumer);
        self.close_batches();
        self.start_write();
        self.mark_idle();
        self.step_release(consumer);
        self.steer(consumer);
        self.tick();
        Ok(busy)
    }

    /// Until when nothing is due by time.
    fn nap(&self) -> Duration {
        let now = Instant::now();
        let batches = self.held.values().filter_map(|held| self.batch_due(held.running()?, now));
        let due = batches.chain(self.commits.due(now)).min();
        due.map_or(NAP, |due| due.saturating_duration_since(now).clamp(Duration::from_millis(1), NAP))
    }

    fn poll(&mut self, consumer: &BaseConsumer<Context>, now: Instant) -> Result<bool, WorkerError> {
        let mut taken = 0;
        while taken < BURST {
            match consumer.poll(Duration::ZERO) {
                None => break,
                Some(Ok(message)) => {
                    let envelope = Envelope::of(&message);
                    let partition = rdkafka::Message::partition(&message);
                    self.deliver(partition, &envelope, || OwnedMessage::of(&message), now);
                }
                Some(Err(error)) => self.poll_failed(error)?,
            }
            taken += 1;
        }
        Ok(taken > 0)
    }

    fn deliver(
        &mut self,
        partition: i32,
        envelope: &Envelope<'_>,
        copy: impl FnOnce() -> OwnedMessage,
        now: Instant,
    ) {
        // What comes while a partition does not run was fetched before it was paused; it comes again after the seek.
        let Some(running) = self.held.get_mut(&partition).and_then(Held::running_mut) else { return };
        if running.seek.is_some() || running.draining() {
            return;
        }
        running.heard = now;
        if running.ledger.is_full(&running.limits) {
            running.seek = Some(envelope.offset);
            return;
        }
        if let Some(charge) = running.ledger.deliver(envelope, &self.judge, &running.filter, copy, now) {
            self.budget.charge(charge);
        }
        if running.ledger.closable().is_some_and(|open| open.is_full(&running.limits)) {
            self.close_batch(partition, now);
        }
    }

    fn poll_failed(&mut self, error: KafkaError) -> Result<(), WorkerError> {
        match error {
            KafkaError::MessageConsumptionFatal(_) => Err(WorkerError::Fatal(error)),
            KafkaError::MessageConsumption(RDKafkaErrorCode::AutoOffsetReset) => {
                self.look_at_log_bounds(self.held.keys().copied().collect(), true);
                Ok(())
            }
            error => {
                // The client goes on by itself, and its context has said it.
                tracing::debug!(error = %error, "poll failed");
                Ok(())
            }
        }
    }

    /// Looks whether the positions of partitions are in their logs; `failed` if the client says that one is not.
    fn look_at_log_bounds(&mut self, partitions: Vec<i32>, failed: bool) {
        for partition in partitions {
            let Some(held) = self.held.get_mut(&partition) else { continue };
            let ticket = held.ticket.clone();
            let Some(running) = held.running_mut() else { continue };
            if let Some(look) = &mut running.look {
                look.failed |= failed;
                continue;
            }
            running.look = Some(Look { position: running.ledger.position(), failed });
            let services = self.services.clone();
            self.runtime.spawn(async move {
                let mut attempts = services.attempts("log_bounds", &ticket);
                let bounds = attempts.until_ok(|| services.reader.log_bounds(ticket.partition)).await;
                // After them: what lies in a new log is judged by the new id.
                let topic_id = attempts.until_ok(|| services.reader.topic_id()).await;
                if let Some(((low, high), topic_id)) = bounds.zip(topic_id) {
                    services.link.report(Event::TopicId(topic_id));
                    services.link.report(Event::LogBounds { ticket: ticket.clone(), low, high });
                }
            });
        }
    }

    fn serve_rebalances(&mut self, consumer: &BaseConsumer<Context>) {
        for rebalance in consumer.context().take_rebalances() {
            let (event, partitions) = match &rebalance {
                Rebalance::Assigned(partitions) => ("assigned", partitions),
                Rebalance::Revoked(partitions) => ("revoked", partitions),
                Rebalance::Lost(partitions) => ("lost", partitions),
            };
            metrics::counter!(metric_names::CONSUMER_REBALANCES_TOTAL, "event" => event).increment(1);
            tracing::info!(event, ?partitions, "rebalance");
            match rebalance {
                Rebalance::Assigned(partitions) => {
                    self.signs.assigned.pass();
                    if !self.stopping {
                        partitions.into_iter().for_each(|partition| self.hold(partition));
                    }
                }
                Rebalance::Revoked(partitions) => self.begin_release(partitions, true),
                Rebalance::Lost(partitions) => {
                    for partition in partitions {
                        self.forget(partition);
                        if let Some(release) = &mut self.release {
                            release.forget(partition);
                        }
                    }
                }
            }
        }
        let ends = consumer.context().take_ends();
        for end in ends {
            self.show_lag(end.partition, end.offset);
        }
    }

    /// A new assignment of a partition.
    fn hold(&mut self, partition: i32) {
        self.forget(partition);
        self.last_ticket += 1;
        let ticket = Ticket::new(partition, self.last_ticket);
        self.held.insert(partition, Held::new(ticket.clone()));
        self.begin_takeover(ticket);
    }

    /// Under a new ticket, so that nothing counts that runs for the old one.
    fn take_over_again(&mut self, ticket: &Ticket, why: &str) {
        let partition = ticket.partition;
        let Some(held) = self.held.get(&partition).filter(|held| held.ticket == *ticket) else { return };
        let (paused, draining) = (held.paused, held.running().is_some_and(Running::draining));
        if draining || !ticket.is_valid() {
            // It is being given back: the next owner finds the plan.
            self.forget(partition);
            return;
        }
        tracing::warn!(partition, why, "taking over again");
        self.hold(partition);
        if let Some(held) = self.held.get_mut(&partition) {
            held.paused = paused;
        }
    }

    fn begin_takeover(&mut self, ticket: Ticket) {
        let after = self.closing.remove(&ticket.partition);
        self.runtime.spawn(take_over(self.services.clone(), ticket, after));
    }

    /// The partition is no longer this worker's: what runs for it is abandoned.
    fn forget(&mut self, partition: i32) {
        let Some(held) = self.held.remove(&partition) else { return };
        held.ticket.revoke();
        self.budget.refund(held.charge());
        self.close_storage(held.ticket, false);
    }

    /// Forgets what storage holds of a partition.
    fn close_storage(&mut self, ticket: Ticket, flush: bool) {
        let services = self.services.clone();
        let partition = ticket.partition;
        let before = self.closing.remove(&partition);
        let closing = self.runtime.spawn(async move {
            if let Some(before) = before {
                let _ = before.await;
            }
            if let Err(error) = services.writer.close(partition, flush).await {
                // The next owner rebuilds from the records what was not rolled up.
                tracing::warn!(partition, error = %error, "closing the partition failed");
            }
            services.link.report(Event::Closed { ticket });
        });
        self.closing.insert(partition, closing);
    }

    fn run_commits(&mut self, consumer: &BaseConsumer<Context>) {
        let committer = MemberCommitter { consumer, topic: &self.settings.topic };
        for ticket in self.commits.run(&committer, Instant::now()) {
            tracing::warn!(partition = ticket.partition, "the group has given the partition away");
            if self.held.get(&ticket.partition).is_some_and(|held| held.ticket == ticket) {
                self.forget(ticket.partition);
            }
        }
    }

    /// Moves positions that a rewind or a takeover set, and pauses and resumes.
    fn steer(&mut self, consumer: &BaseConsumer<Context>) {
        self.seek(consumer);
        metrics::gauge!(metric_names::CONSUMER_BUDGET_BYTES).set(count(self.budget.used().bytes));
        let (mut pause, mut resume) = (TopicPartitionList::new(), TopicPartitionList::new());
        let share = self.budget.share(self.held.len());
        for (partition, held) in &mut self.held {
            let was = held.paused;
            let paused = !held.running().is_some_and(|running| running.takes_in(&share, was));
            if paused != held.paused {
                held.paused = paused;
                let list = if paused { &mut pause } else { &mut resume };
                list.add_partition(&self.settings.topic, *partition);
            }
        }
        let set =
            |list: &TopicPartitionList,
             change: fn(&BaseConsumer<Context>, &TopicPartitionList) -> KafkaResult<()>| {
                if list.count() > 0
                    && let Err(error) = change(consumer, list)
                {
                    tracing::warn!(error = %error, partitions = ?list, "can't pause or resume");
                }
            };
        set(&pause, BaseConsumer::pause);
        set(&resume, BaseConsumer::resume);
    }

    fn seek(&mut self, consumer: &BaseConsumer<Context>) {
        let mut list = TopicPartitionList::new();
        for (partition, held) in &mut self.held {
            let Some(offset) = held.running().and_then(|running| running.seek) else { continue };
            if let Err(error) =
                list.add_partition_offset(&self.settings.topic, *partition, rdkafka::Offset::Offset(offset))
            {
                tracing::warn!(error = %error, partition, "can't seek");
            }
        }
        if list.count() == 0 {
            return;
        }
        let list = match consumer.seek_partitions(list, Duration::from_secs(5)) {
            Ok(list) => list,
            Err(error) => {
                tracing::warn!(error = %error, "seek failed");
                return;
            }
        };
        for element in list.elements() {
            let Some(held) = self.held.get_mut(&element.partition()) else { continue };
            let Some(running) = held.running_mut() else { continue };
            let Err(error) = element.error() else {
                running.seek = None;
                running.seek_failures = 0;
                continue;
            };
            // Right after an assignment the partition may not be started yet; the next turn tries again.
            running.seek_failures += 1;
            let restart = running.seek_failures >= SEEK_TRIES && self.release.is_none();
            let Some(offset) = running.seek.filter(|_| restart) else { continue };
            tracing::debug!(error = %error, partition = element.partition(), offset, "seek failed: fetching anew");
            match restart_at(consumer, &self.settings.topic, element.partition(), offset) {
                Ok(()) => {
                    running.seek = None;
                    running.seek_failures = 0;
                }
                Err(error) => {
                    tracing::warn!(error = %error, partition = element.partition(), "can't fetch anew")
                }
            }
        }
    }
}
