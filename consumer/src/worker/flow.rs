//! The way of batches through the owner's thread: events from beside it, closing, shipping, and what is done by time.

use std::time::{Duration, Instant};

use usage_service::{clock, fail_point, metric_names};
use usage_storage::StoredId;
use uuid::Uuid;

use super::beside::{
    answer, look_at_topic, refresh, refresh_quotas, reload_filter, roll_up, show_completeness, sweep_quotas,
};
use super::held::{Drain, Held, Running, Sight, State};
use super::release::mark;
use super::{SEEK_TRIES, TICK, Worker};
use crate::attribution::Permissions;
use crate::commit::CommitOutcome;
use crate::ledger::{Answer, Ledger, Rewind};
use crate::link::{Event, Fate};
use crate::ship::{Shipment, ship};
use crate::takeover::Taken;
use crate::telemetry::count;
use crate::ticket::Ticket;

/// How long a decided batch waits for others that are about to be decided.
const COMPANY: Duration = Duration::from_millis(30);
/// A joint write that takes longer than this no longer holds up the others.
const SLOW_WRITE: Duration = Duration::from_secs(10);
/// How often a stopped partition is named again.
const ALARM: Duration = Duration::from_secs(60);
/// How long nothing may come from a partition before it is looked whether there is something.
const SILENCE: Duration = Duration::from_secs(30);
/// How often it is shown how far the sources are.
const COMPLETENESS: Duration = Duration::from_secs(10);
/// How often the topic is looked at: one that was made anew is noticed by nothing else, if its log has grown beyond the
/// worker's position meanwhile.
const TOPIC_REFRESH: Duration = Duration::from_secs(10);
/// How often counters of quotas are swept.
const SWEEP: Duration = Duration::from_secs(60);
/// How long nothing must be in hand before the commit says so.
const IDLE: Duration = Duration::from_secs(1);

impl Worker {
    pub(super) fn serve_events(&mut self) -> bool {
        let mut busy = false;
        while let Ok(event) = self.events.try_recv() {
            busy = true;
            self.serve(event);
        }
        busy
    }

    fn serve(&mut self, event: Event) {
        match event {
            Event::Commit(request) => self.commits.push(request),
            Event::TakenOver { ticket, taken } => self.taken_over(&ticket, *taken),
            Event::Waits { ticket, why } => self.wait(&ticket, why),
            Event::Stopped { ticket, why } => self.stop(&ticket, why),
            Event::Answered { ticket, question, registry, permissions, found, counters, counts } => {
                if let Some(registry) = registry {
                    self.registry_asked = Instant::now();
                    self.registry_is(registry);
                }
                self.learn(&permissions);
                let identity =
                    |stored: &StoredId| ((stored.tenant_id, stored.record_id), stored.content_hash);
                let stored = found.iter().map(identity).collect();
                let permissions = Permissions::of(&permissions, Instant::now());
                let answer = Answer { number: question, stored, permissions, counters, counts };
                self.answered(&ticket, &answer);
            }
            Event::Shipped { ticket, fate } => self.shipped(&ticket, fate),
            Event::WriteFree => self.writes = self.writes.saturating_sub(1),
            Event::Closed { ticket } => {
                if let Some(running) = self.running(&ticket)
                    && let Some(Drain::Flushing) = running.drain
                {
                    running.drain = Some(Drain::Done);
                }
            }
            Event::Registry(registry) => self.registry_is(registry),
            Event::Quotas(quotas) => {
                self.quotas_run = false;
                if let Some(quotas) = quotas {
                    self.judge.quotas = quotas;
                }
            }
            Event::Permissions(permissions) => self.asked_again(&permissions),
            Event::FilterLoaded { ticket, load, filter } => {
                // One that was begun before the partition was taken over again lacks what was stored since.
                if let Some(running) = self.running(&ticket)
                    && let Some((_, since)) = running.loading.take_if(|(number, _)| *number == load)
                {
                    running.filter = *filter;
                    since.iter().for_each(|id| running.filter.insert(id));
                }
            }
            Event::TickDone { fenced } => {
                self.tick_runs = false;
                fenced.iter().for_each(|ticket| self.fenced(ticket));
            }
            Event::TopicId(now) => self.check_topic_id(now),
            Event::LogBounds { ticket, low, high } => self.check_log_bounds(&ticket, low, high),
        }
    }

    /// The running partition of a ticket, unless that assignment is over.
    fn running(&mut self, ticket: &Ticket) -> Option<&mut Running> {
        self.held.get_mut(&ticket.partition).filter(|held| held.ticket == *ticket)?.running_mut()
    }

    fn taken_over(&mut self, ticket: &Ticket, taken: Taken) {
        let limits = self.settings.limits;
        let Some(held) = self.held.get_mut(&ticket.partition).filter(|held| held.ticket == *ticket) else {
            return;
        };
        if !ticket.is_valid() {
            return;
        }
        metrics::histogram!(metric_names::CONSUMER_TAKEOVER_SECONDS).record(held.since.elapsed());
        let Taken { place, done_seq, next, filter, topic_id, quotas_from } = taken;
        let ledger = Ledger::new(place, done_seq, next, Instant::now()).with_quotas_from(quotas_from);
        held.topic_id = topic_id;
        held.state = State::Running(Box::new(Running::new(ledger, filter, limits)));
    }

    fn wait(&mut self, ticket: &Ticket, why: String) {
        let Some(held) = self.held.get_mut(&ticket.partition).filter(|held| held.ticket == *ticket) else {
            return;
        };
        if !matches!(&held.state, State::Waiting(before) if *before == why) {
            tracing::error!(partition = ticket.partition, why, "the partition waits");
        }
        held.state = State::Waiting(why);
    }

    fn stop(&mut self, ticket: &Ticket, why: String) {
        let Some(held) = self.held.get_mut(&ticket.partition).filter(|held| held.ticket == *ticket) else {
            return;
        };
        tracing::error!(partition = ticket.partition, why, "the partition is stopped");
        self.budget.refund(held.charge());
        held.state = State::Stopped(why);
    }

    /// What was taken over of a topic that is gone is taken over again: the offsets of the new one begin anew.
    fn check_topic_id(&mut self, now: Option<Uuid>) {
        let gone = |held: &&Held| held.topic_id.zip(now).is_some_and(|(then, now)| then != now);
        let tickets: Vec<Ticket> = self.held.values().filter(gone).map(|held| held.ticket.clone()).collect();
        for ticket in tickets {
            self.take_over_again(&ticket, "the topic was made anew");
        }
    }

    /// Another owner has fenced a partition that the group still gives to this worker.
    fn fenced(&mut self, ticket: &Ticket) {
        if self.running(ticket).is_some() {
            self.take_over_again(ticket, "fenced by another owner");
        }
    }

    fn check_log_bounds(&mut self, ticket: &Ticket, low: i64, high: i64) {
        let partition = ticket.partition;
        let Some(held) = self.held.get_mut(&partition).filter(|held| held.ticket == *ticket) else { return };
        let paused = held.paused;
        let Some(running) = held.running_mut() else { return };
        let Some(look) = running.look.take() else { return };
        let position = running.ledger.position();
        let silent = !paused && running.heard.elapsed() >= SILENCE;
        match look.sight(position, low, high, silent) {
            // The takeover finds out what is gone, and notes that what is done ends there.
            Sight::Gone if position > high => {
                self.take_over_again(ticket, "its offset is beyond the log's end")
            }
            Sight::Gone => {
                let why = format!(
                    "offset {position} is not in the log, which has {low} to {high}; stop the group, move it with \
                     `kafka-consumer-groups --reset-offsets`, start it: ids keep the counts right"
                );
                self.stop(ticket, why);
            }
            Sight::FetchAnew if !running.draining() => {
                tracing::info!(partition, offset = position, end = high, silent, "fetching anew");
                running.heard = Instant::now();
                running.seek.get_or_insert(position);
                running.seek_failures = SEEK_TRIES;
            }
            Sight::FetchAnew | Sight::Fine => {}
        }
    }

    /// Partitions from which nothing has come for a while, though they are not paused.
    fn silent(&self) -> Vec<i32> {
        let silent = |held: &Held| {
            !held.paused && held.running().is_some_and(|running| running.heard.elapsed() >= SILENCE)
        };
        self.held.iter().filter(|(_, held)| silent(held)).map(|(partition, _)| *partition).collect()
    }

    /// Everything from the offset on is delivered again.
    fn rewound(running: &mut Running, Rewind(offset): Rewind) {
        running.seek = Some(offset);
    }

    fn answered(&mut self, ticket: &Ticket, found: &Answer) {
        let Some(held) = self.held.get_mut(&ticket.partition).filter(|held| held.ticket == *ticket) else {
            return;
        };
        let Some(running) = held.running_mut() else { return };
        let (again, cut) = running.ledger.answer(
            found,
            &self.judge,
            &running.filter,
            &running.limits,
            &mut self.last_question,
        );
        if let Some((rewind, charge)) = cut {
            self.budget.refund(charge);
            Self::rewound(running, rewind);
        }
        if let Some(question) = again {
            self.runtime.spawn(answer(self.services.clone(), ticket.clone(), question));
        }
        fail_point!("consumer.answered");
    }

    fn shipped(&mut self, ticket: &Ticket, fate: Fate) {
        let Some(running) = self.running(ticket) else { return };
        match fate {
            Fate::Done { refused } => {
                fail_point!("consumer.finish");
                let Some(decided) = running.ledger.finish(&refused) else { return };
                running.done_time = Some(decided.oldest);
                let rows = &decided.batch.rows;
                let stored = rows.record_id.iter().zip(&rows.offset);
                running.stored(stored.filter(|(_, offset)| !refused.contains(offset)).map(|(id, _)| id));
                running.planned = true;
                let mut refund = decided.charge;
                if !refused.is_empty() {
                    // What was decided on the refused rows is decided again.
                    let (rewind, charge) = running.ledger.rewind();
                    refund.add(charge);
                    Self::rewound(running, rewind);
                }
                self.budget.refund(refund);
                fail_point!("consumer.finished");
            }
            Fate::PlanTooLong(length) => {
                // 16 characters of grace: the broker's limit is below this length, by how much is not said.
                let mut limits = running.limits;
                let (rewind, charge) = running.ledger.shorten(length.saturating_sub(16), &mut limits);
                running.limits = limits;
                Self::rewound(running, rewind);
                self.budget.refund(charge);
            }
            Fate::Fenced => self.fenced(ticket),
            Fate::Grown => self.take_over_again(ticket, "the topic grows"),
            Fate::Abandoned => {
                // The ticket is not valid any more; the rebalance that ended it follows.
                self.forget(ticket.partition);
            }
            Fate::Stopped(why) => self.stop(ticket, why),
        }
    }

    /// Closes batches that are full, old, or could go along with another.
    pub(super) fn close_batches(&mut self) {
        let now = Instant::now();
        let free = self.write_is_free(now);
        let age = self.settings.limits.age;
        let old = |running: &Running| {
            running.ledger.closable().is_some_and(|open| now.duration_since(open.opened) >= age)
        };
        let any_old = free && self.held.values().filter_map(Held::running).any(old);
        let mut due = Vec::new();
        for (partition, held) in &self.held {
            let Some(running) = held.running().filter(|running| !running.draining()) else { continue };
            let Some(open) = running.ledger.closable() else { continue };
            let go_along = any_old && open.deferred.is_empty() && running.ledger.in_flight().is_none();
            let ask_early = !open.deferred.is_empty() && now.duration_since(open.opened) >= age;
            if open.is_full(&running.limits) || go_along || ask_early {
                due.push(*partition);
            }
        }
        due.into_iter().for_each(|partition| self.close_batch(partition, now));
    }

    /// Closes the partition's batch, if it can be closed, and asks what it wants to know.
    pub(super) fn close_batch(&mut self, partition: i32, now: Instant) {
        let Some(held) = self.held.get_mut(&partition) else { return };
        let ticket = held.ticket.clone();
        let Some(running) = held.running_mut() else { return };
        fail_point!("consumer.close");
        let (question, cut) =
            running.ledger.close(&running.limits, &self.judge, &running.filter, &mut self.last_question, now);
        if let Some((rewind, charge)) = cut {
            self.budget.refund(charge);
            Self::rewound(running, rewind);
        }
        if let Some(question) = question {
            self.runtime.spawn(answer(self.services.clone(), ticket, question));
        }
        fail_point!("consumer.closed");
    }

    fn write_is_free(&self, now: Instant) -> bool {
        self.writes == 0 || now.duration_since(self.write_began) >= SLOW_WRITE
    }

    /// Ships every ready batch in one joint write, if none runs.
    pub(super) fn start_write(&mut self) {
        let now = Instant::now();
        if !self.write_is_free(now) {
            return;
        }
        let running = || self.held.values().filter_map(Held::running).filter(|running| !running.draining());
        let ready = running().filter_map(|running| running.ledger.ready());
        let Some(oldest) = ready.map(|decided| decided.opened).min() else { return };
        let company =
            running().any(|running| running.ledger.in_flight().is_none() && running.ledger.is_waiting());
        if company && now.duration_since(oldest) < self.settings.limits.age + COMPANY {
            return;
        }
        let mut shipments = Vec::new();
        for held in self.held.values_mut() {
            let ticket = held.ticket.clone();
            let Some(running) = held.running_mut().filter(|running| !running.draining()) else { continue };
            let (offset, _) = running.ledger.done();
            let count = running.ledger.place().count;
            if let Some(decided) = running.ledger.start() {
                running.idle_since = None;
                shipments.push(Shipment {
                    ticket,
                    offset,
                    plan: decided.plan(count),
                    decided,
                    forwards: Vec::new(),
                });
            }
        }
        self.writes += 1;
        self.write_began = now;
        self.runtime.spawn(ship(self.services.clone(), shipments));
    }

    /// Says in the commit that nothing is in hand, once that has lasted.
    pub(super) fn mark_idle(&mut self) {
        let now = Instant::now();
        for held in self.held.values_mut() {
            let ticket = held.ticket.clone();
            let Some(running) = held.running_mut().filter(|running| !running.draining()) else { continue };
            if let Some(marking) = &mut running.marking {
                match marking.try_recv() {
                    Err(tokio::sync::oneshot::error::TryRecvError::Empty) => continue,
                    Ok(outcomes) if outcomes == [CommitOutcome::Committed] => {
                        fail_point!("consumer.marked");
                        running.planned = false;
                    }
                    _ => {}
                }
                running.marking = None;
            }
            if !running.ledger.is_idle() {
                running.idle_since = None;
            } else if running.planned && now.duration_since(*running.idle_since.get_or_insert(now)) >= IDLE {
                fail_point!("consumer.mark");
                let (request, outcome) = mark(&ticket, running.ledger.done());
                running.marking = Some(outcome);
                self.commits.push(request);
            }
        }
    }

    /// What is done about once a second.
    pub(super) fn tick(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.ticked) < TICK {
            return;
        }
        self.ticked = now;
        self.show();
        if now.duration_since(self.registry_asked) >= self.settings.registry_refresh {
            self.registry_asked = now;
            self.runtime.spawn(refresh(self.services.clone()));
        }
        self.age_registry(now);
        if !self.quotas_run && now.duration_since(self.quotas_asked) >= self.settings.quota_refresh {
            self.quotas_run = true;
            self.quotas_asked = now;
            self.runtime.spawn(refresh_quotas(self.services.clone()));
        }
        if now.duration_since(self.quotas_swept) >= SWEEP {
            self.quotas_swept = now;
            self.sweep_quotas();
        }
        self.age_permissions(now);
        if now.duration_since(self.completeness_asked) >= COMPLETENESS {
            self.completeness_asked = now;
            self.runtime.spawn(show_completeness(self.services.clone()));
        }
        if now.duration_since(self.topic_asked) >= TOPIC_REFRESH {
            self.topic_asked = now;
            self.runtime.spawn(look_at_topic(self.services.clone()));
        }
        if now.duration_since(self.listened) >= SILENCE {
            self.listened = now;
            let silent = self.silent();
            if !silent.is_empty() {
                self.look_at_log_bounds(silent, false);
            }
        }
        let mut reload = Vec::new();
        let mut tickets = Vec::new();
        for held in self.held.values_mut() {
            let ticket = held.ticket.clone();
            let Some(running) = held.running_mut().filter(|running| !running.draining()) else { continue };
            tickets.push(ticket.clone());
            if running.filter.wants_reload() && running.loading.is_none() {
                self.last_load += 1;
                running.loading = Some((self.last_load, Vec::new()));
                reload.push((ticket, self.last_load, running.ledger.place().count));
            }
        }
        for (ticket, load, count) in reload {
            self.runtime.spawn(reload_filter(self.services.clone(), ticket, load, count));
        }
        if !self.tick_runs && !tickets.is_empty() {
            self.tick_runs = true;
            self.runtime.spawn(roll_up(self.services.clone(), tickets));
        }
    }

    /// Windows that ended long before what a partition has done last get no more records, unless offsets are set back.
    fn sweep_quotas(&self) {
        let keep = i64::try_from(self.settings.quota_keep.as_secs()).unwrap_or(i64::MAX);
        let ended = |(partition, held): (&i32, &Held)| {
            let done = held.running()?.done_time?;
            Some((*partition, (done / 1_000).saturating_sub(keep)))
        };
        let ended: Vec<(i32, i64)> = self.held.iter().filter_map(ended).collect();
        if !ended.is_empty() {
            self.runtime.spawn(sweep_quotas(self.services.clone(), ended));
        }
    }

    /// Until when a batch may wait before the loop must look at it again.
    pub(super) fn batch_due(&self, running: &Running, now: Instant) -> Option<Instant> {
        let open = running.ledger.closable()?;
        // Without these it waits for an event, not for a time.
        let by_time =
            !open.deferred.is_empty() || (running.ledger.in_flight().is_none() && self.write_is_free(now));
        by_time.then(|| open.opened + self.settings.limits.age)
    }

    fn show(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.alarmed) >= ALARM {
            self.alarmed = now;
            for (partition, held) in &self.held {
                match &held.state {
                    State::Stopped(why) => tracing::error!(partition, why, "the partition is stopped"),
                    State::Waiting(why) => tracing::error!(partition, why, "the partition waits"),
                    State::TakingOver if held.takes_long(now) => {
                        let seconds = now.duration_since(held.since).as_secs();
                        tracing::error!(partition, seconds, "the partition is still being taken over");
                    }
                    State::TakingOver | State::Running(_) => {}
                }
            }
        }
        for state in ["running", "taking_over", "waiting", "stopped"] {
            let held = self.held.values().filter(|held| held.state_name() == state).count();
            metrics::gauge!(metric_names::CONSUMER_PARTITIONS, "state" => state).set(count(held));
        }
        let filters = || self.held.values().filter_map(Held::running).map(|running| &running.filter);
        metrics::gauge!(metric_names::CONSUMER_FILTER_IDS)
            .set(count(filters().map(|filter| filter.len()).sum()));
        metrics::gauge!(metric_names::CONSUMER_FILTER_BYTES)
            .set(count(filters().map(|filter| filter.bytes()).sum()));
        for (partition, age) in self.services.writer.horizon_age_seconds() {
            let age = count(usize::try_from(age).unwrap_or(usize::MAX));
            metrics::gauge!(metric_names::STORAGE_HORIZON_AGE_SECONDS, "partition" => partition.to_string())
                .set(age);
        }
        let now = clock::now_millis();
        for (partition, held) in &self.held {
            let oldest = held.running().and_then(|running| running.ledger.oldest());
            let age = oldest.map_or(0, |oldest| now.saturating_sub(oldest).max(0) / 1_000);
            let age = count(usize::try_from(age).unwrap_or(0));
            metrics::gauge!(metric_names::CONSUMER_LAG_SECONDS, "partition" => partition.to_string())
                .set(age);
        }
    }

    pub(super) fn show_lag(&self, partition: i32, end: i64) {
        let Some(running) = self.held.get(&partition).and_then(Held::running) else { return };
        let lag = end.saturating_sub(running.ledger.done().0).max(0);
        let lag = count(usize::try_from(lag).unwrap_or(0));
        metrics::gauge!(metric_names::CONSUMER_LAG_RECORDS, "partition" => partition.to_string()).set(lag);
    }
}
