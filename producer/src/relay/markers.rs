//! Completeness markers: "every record that this source emitted through this outbox before T is in front of this message or already
//! delivered", signed, through every partition of the topic.
//!
//! Workers confirm proofs (`floor.rs`) by passes from which nothing is left. Each relay stores what was confirmed of its partitions; the holder
//! of partition 0 sends the least of all partitions, and less for a source that has older rows waiting. A partition that nobody holds, or
//! whose rows can't go, holds T back, and rightly so.
//!
//! Crash windows: what is stored is true whoever stored it, since a row is gone from the outbox only after its acknowledgement; so is a marker,
//! since it is produced after what it speaks of was acknowledged. A marker that is lost is made good by the next one.

mod rules;
mod store;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use tokio::sync::mpsc;
use usage_schemas::Timestamp;
use usage_service::{fail_point, metric_names};
use uuid::Uuid;

pub(crate) use self::rules::Alarm;
use self::rules::Pace;
#[cfg(test)]
pub(crate) use self::rules::until;
use super::encode::{self, Source};
use super::floor::{Look, Rounds};
use super::lease::Held;
use super::sender::{Report, Sender, Ticket, Via};
use super::session::{self, ServerId};
use super::{Shared, set_aside};
use crate::pg_time::PgTime;

/// The longest that handing over one marker may take; leases are more important.
const HAND_OVER: Duration = Duration::from_millis(50);
/// How often an alarm that lasts is said again.
const AGAIN: Duration = Duration::from_secs(60);

/// Who takes a turn, and of what.
pub(crate) struct Turn<'a> {
    pub server: &'a ServerId,
    pub owner: &'a str,
    pub held: &'a [Held],
    /// It holds the first partition, so it speaks for all.
    pub sends: bool,
}

/// What a relay does for completeness.
pub(crate) struct Markers {
    shared: Arc<Shared>,
    /// The last check of this session let proofs pass. Proofs from before it are void.
    checked: bool,
    alarm: Option<Alarm>,
    said_at: Option<Instant>,
    pace: Pace,
    turned_at: Option<Instant>,
    sent: BTreeMap<String, Timestamp>,
    sent_at: Option<Instant>,
    reports: mpsc::UnboundedReceiver<Report>,
    reporter: mpsc::UnboundedSender<Report>,
    on_their_way: usize,
    round: u64,
    said_failing: bool,
}

impl Markers {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let (reporter, reports) = mpsc::unbounded_channel();
        Self {
            shared,
            checked: false,
            alarm: None,
            said_at: None,
            pace: Pace::default(),
            turned_at: None,
            sent: BTreeMap::new(),
            sent_at: None,
            reports,
            reporter,
            on_their_way: 0,
            round: 0,
            said_failing: false,
        }
    }

    /// Another connection: nothing counts that was proven before.
    pub(crate) fn start_over(&mut self) {
        self.checked = false;
        self.pace = Pace::default();
    }

    /// A look for the rounds has been made.
    pub(crate) fn looked(&mut self, look: &Look) {
        self.pace.looked(look.clock, look.high, !look.holders.is_empty());
    }

    /// Why this relay sends no markers although it should.
    pub(crate) fn alarm(&self) -> Option<Alarm> {
        self.alarm
    }

    /// Stores what was confirmed and sends markers, if that is due.
    ///
    /// # Errors
    /// The connection is lost, or leads to another server.
    pub(crate) async fn turn(
        &mut self,
        connection: &mut PgConnection,
        turn: Turn<'_>,
        rounds: &mut Rounds,
    ) -> Result<(), sqlx::Error> {
        self.take_reports();
        let since = self.turned_at.map_or(Duration::MAX, |at| at.elapsed());
        if turn.held.is_empty() {
            self.raise(None);
            self.quiet();
            return Ok(());
        }
        if !self.pace.is_due(since) {
            return Ok(());
        }
        self.turned_at = Some(Instant::now());
        match self.take_turn(connection, &turn, rounds).await {
            // Delivery goes on, whatever the tables of completeness lack.
            Err(error) if set_aside::is_refusal(&error) => {
                tracing::error!(error = session::reason(&error), "completeness can't be stored or read");
                rounds.void_completeness();
                self.checked = false;
                self.raise(Some(Alarm::Refused));
                Ok(())
            }
            result => result,
        }
    }

    async fn take_turn(
        &mut self,
        connection: &mut PgConnection,
        turn: &Turn<'_>,
        rounds: &mut Rounds,
    ) -> Result<(), sqlx::Error> {
        let state = store::state(connection, turn.server).await?;
        let alarm = state.alarm();
        if let Some(hold) = state.new_hold() {
            store::hold(connection, hold).await?;
        }
        let lags = matches!(alarm, Some(Alarm::SequenceBehind { .. }));
        self.raise(alarm);
        if lags || !self.checked {
            // Whatever was proven until now may rest on the lagging sequence.
            rounds.void_completeness();
            self.checked = !lags;
            return Ok(());
        }
        let stored = self.store(connection, turn, rounds.series()).await?;
        if !turn.sends || self.shared.sources.all().next().is_none() {
            self.pace.settle(stored);
            self.quiet();
            return Ok(());
        }
        let told = store::read(connection, turn.server, &self.shared.sources).await?;
        self.pace.settle(Some(told.partitions));
        let until: Vec<(Arc<Source>, Timestamp)> = told
            .sources
            .into_iter()
            .filter_map(|(source, waiting)| Some((source, rules::until(told.partitions, waiting)?)))
            .collect();
        for (source, until) in &until {
            source.completeness_lag(told.clock, *until);
        }
        if alarm.is_none() {
            self.send(told.outbox, until).await;
        }
        Ok(())
    }

    /// Stores what was confirmed of the held partitions. Returns the least of it, once there is something of each.
    async fn store(
        &self,
        connection: &mut PgConnection,
        turn: &Turn<'_>,
        series: u64,
    ) -> Result<Option<PgTime>, sqlx::Error> {
        let confirmed = self.shared.confirmed();
        let of = |held: &Held| confirmed.get(&held.part).filter(|proof| proof.series == series);
        let complete: Vec<_> = turn.held.iter().filter_map(|held| Some((*held, of(held)?.until))).collect();
        if complete.is_empty() {
            return Ok(None);
        }
        fail_point!("relay.store_complete");
        store::complete(connection, turn.server, turn.owner, &complete).await?;
        fail_point!("relay.stored_complete");
        let least = complete.iter().map(|(_, until)| *until).min();
        Ok(least.filter(|_| complete.len() == turn.held.len()))
    }

    /// Sends a marker of each source through every partition, unless those of the last time are still on their way or it would say nothing new.
    async fn send(&mut self, outbox: Uuid, until: Vec<(Arc<Source>, Timestamp)>) {
        let sender = self.shared.sender();
        let Some(partitions) = sender.partitions() else { return };
        // A producer that was given up says nothing of what it had in hand.
        let lost = 2 * self.shared.settings.message_timeout;
        if self.on_their_way > 0 && self.sent_at.is_some_and(|at| at.elapsed() < lost) {
            return;
        }
        self.on_their_way = 0;
        let repeats = self.sent_at.is_none_or(|at| at.elapsed() >= rules::IDLE);
        self.round += 1;
        for (source, until) in until {
            if !repeats && self.sent.get(&source.name).is_some_and(|sent| *sent >= until) {
                continue;
            }
            fail_point!("relay.send_marker");
            for partition in 0..partitions {
                self.hand_over(&sender, &source, outbox, until, partition).await;
            }
            fail_point!("relay.sent_marker");
            tracing::debug!(source = source.name, complete_until = %until, partitions, "sent completeness markers");
            self.sent.insert(source.name.clone(), until);
            self.sent_at = Some(Instant::now());
        }
    }

    async fn hand_over(
        &mut self,
        sender: &Sender,
        source: &Source,
        outbox: Uuid,
        until: Timestamp,
        partition: i32,
    ) {
        let message = encode::marker(source, outbox, until);
        let ticket = Ticket { id: i64::from(partition), serial: self.round, reports: self.reporter.clone() };
        let handed = sender.send(message, partition, Via::Batch, ticket);
        match tokio::time::timeout(HAND_OVER, handed).await {
            Ok(Ok(())) => self.on_their_way += 1,
            // The queue is full of rows, or the client refuses: the next turn comes soon.
            Ok(Err(_)) | Err(_) => count("failure", 1),
        }
    }

    fn take_reports(&mut self) {
        while let Ok(report) = self.reports.try_recv() {
            if report.serial == self.round {
                self.on_their_way = self.on_their_way.saturating_sub(1);
            }
            match report.outcome {
                Ok(()) => {
                    self.said_failing = false;
                    count("success", 1);
                }
                Err(error) => {
                    count("failure", 1);
                    if !std::mem::replace(&mut self.said_failing, true) {
                        tracing::warn!(kafka_partition = report.id, error = %error, "kafka does not take completeness markers");
                    }
                }
            }
        }
    }

    /// Says what is wrong, or that nothing is any more.
    fn raise(&mut self, alarm: Option<Alarm>) {
        for reason in Alarm::REASONS {
            let on = alarm.is_some_and(|alarm| alarm.reason() == reason);
            metrics::gauge!(metric_names::OUTBOX_MARKERS_HELD, "reason" => reason).set(u8::from(on));
        }
        let same = alarm.map(Alarm::reason) == self.alarm.map(Alarm::reason);
        match alarm {
            Some(alarm) if !same || self.said_at.is_none_or(|at| at.elapsed() >= AGAIN) => {
                tracing::error!(reason = %alarm, "no completeness markers are sent");
                self.said_at = Some(Instant::now());
            }
            None if !same => tracing::info!("nothing holds completeness markers up any more"),
            _ => {}
        }
        self.alarm = alarm;
    }

    /// Another relay speaks for the sources: its gauges count.
    fn quiet(&mut self) {
        if !self.sent.is_empty() {
            self.sent.clear();
            self.sent_at = None;
            self.shared.sources.all().for_each(|source| source.no_completeness_lag());
        }
    }
}

fn count(status: &'static str, markers: u64) {
    metrics::counter!(metric_names::OUTBOX_MARKERS_TOTAL, "status" => status).increment(markers);
}
