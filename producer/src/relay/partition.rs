//! The worker of one outbox partition: read, produce, and delete what Kafka has acknowledged.
//!
//! Crash windows: before the acknowledgement the row is there and is sent again; between acknowledgement and delete it is sent again as well
//! and its id makes the second copy harmless; after the delete it is in Kafka. There is no window in which it is in neither.

mod flights;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::error::RDKafkaErrorCode;
use sqlx::PgConnection;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use usage_schemas::partition::partition_of;
use usage_service::retry::Backoff;
use usage_service::{error_chain, metric_names};

use self::flights::{Dead, Flight, Flights, Landing};
use super::encode;
use super::floor::{Floor, Pass};
use super::lanes::Lanes;
use super::rows::{self, Row, RowKey};
use super::sender::{Report, Ticket, Via};
use super::session::{self, Database, ServerId};
use super::{Horizon, Shared, Trouble};

/// How long healthy partitions of the topic may take before a poll goes on without their acknowledgements.
const AWAIT: Duration = Duration::from_millis(200);
/// How often a poll starts from 0, whatever the floor is: a row wrongly below it is late, not lost.
const BELT: Duration = Duration::from_secs(60);
/// While partitions of the topic are closed, polls go on behind what was seen; this often at most they start from the floor again.
const SWEEP: Duration = Duration::from_secs(1);

/// What the worker of a partition is told by its supervisor.
pub(crate) struct Orders {
    /// The floor's proof.
    pub horizon: watch::Receiver<Horizon>,
    /// No new work after this.
    pub valid_until: watch::Receiver<Instant>,
    /// Stop: take no new rows, wait for those on their way.
    pub stop: CancellationToken,
}

/// Works on one outbox partition until it is told to stop.
pub(crate) struct Worker {
    part: i16,
    database: Database,
    shared: Arc<Shared>,
    orders: Orders,
    woken: watch::Receiver<u64>,
    server: Option<ServerId>,
    floor: Floor,
    lanes: Lanes,
    flights: Flights,
    reports: mpsc::UnboundedReceiver<Report>,
    reporter: mpsc::UnboundedSender<Report>,
    acked: Vec<RowKey>,
    belt_at: Instant,
    behind: Option<Behind>,
    last_error: Option<RDKafkaErrorCode>,
}

/// Polls while some partition of the topic is closed.
#[derive(Debug, Clone, Copy)]
struct Behind {
    /// Everything up to here was seen.
    cursor: i64,
    sweep_at: Instant,
}

impl Worker {
    pub(crate) fn new(part: i16, database: Database, shared: Arc<Shared>, orders: Orders) -> Self {
        let (reporter, reports) = mpsc::unbounded_channel();
        let settings = &shared.settings;
        Self {
            part,
            database,
            lanes: Lanes::new(settings.backoff_base, settings.backoff_max),
            woken: shared.waker.subscribe(),
            shared,
            orders,
            server: None,
            floor: Floor::default(),
            flights: Flights::default(),
            reports,
            reporter,
            acked: Vec::new(),
            belt_at: Instant::now() + BELT,
            behind: None,
            last_error: None,
        }
    }

    /// Works until the stop, whatever happens to the database in between; then settles what is on its way.
    pub(crate) async fn run(mut self) {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        let stop = self.orders.stop.clone();
        while !stop.is_cancelled() {
            let Some(error) = self.work(&mut backoff).await.err() else { break };
            let wait = backoff.next();
            tracing::warn!(partition = self.part, error = %error_chain(&error), backoff_ms = wait.as_millis(), "outbox partition lost its database");
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
        self.drain().await;
    }

    /// Polls over one connection until the stop.
    async fn work(&mut self, backoff: &mut Backoff) -> Result<(), sqlx::Error> {
        let stop = self.orders.stop.clone();
        let mut connection = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            connection = self.connect() => connection?,
        };
        let mut pause = self.shared.settings.poll_min;
        while !self.orders.stop.is_cancelled() {
            self.check_server()?;
            self.take_reports();
            self.clear_landed(&mut connection).await?;
            let produced = if self.may_work() { self.pass(&mut connection).await? } else { 0 };
            backoff.reset();
            let settings = &self.shared.settings;
            pause = if produced > 0 { settings.poll_min } else { (pause * 2).min(settings.poll_max) };
            self.rest(pause).await;
        }
        Ok(())
    }

    /// Leaves a server that is not the one on which the leases are.
    fn check_server(&self) -> Result<(), sqlx::Error> {
        match &self.orders.horizon.borrow().server {
            Some(server) if self.server.as_ref() != Some(server) => {
                Err(sqlx::Error::Protocol("the connection leads to another server than the leases'".into()))
            }
            _ => Ok(()),
        }
    }

    /// Connects, and starts from nothing if this is another server than before.
    async fn connect(&mut self) -> Result<PgConnection, sqlx::Error> {
        let mut connection = self.database.connect_scanner().await?;
        let server = session::server_id(&mut connection).await?;
        // The floor belongs to a connection. What is in hand belongs to a server: elsewhere the same id may be another row.
        self.floor.reset();
        self.behind = None;
        if self.server.as_ref() != Some(&server) {
            if let Some(before) = &self.server {
                tracing::warn!(partition = self.part, before = %before, now = %server, "the source database is another server now");
            }
            self.flights.forget();
            self.lanes = Lanes::new(self.shared.settings.backoff_base, self.shared.settings.backoff_max);
            self.acked.clear();
            self.server = Some(server);
        }
        Ok(connection)
    }

    fn may_work(&self) -> bool {
        !self.orders.stop.is_cancelled() && Instant::now() < *self.orders.valid_until.borrow()
    }

    /// The proof that is good for this connection's server.
    fn proven(&self) -> i64 {
        let horizon = self.orders.horizon.borrow();
        if horizon.server == self.server { horizon.proven } else { 0 }
    }

    /// One look through the partition, from its floor or, while something is closed, from where the last one ended. Returns how many
    /// messages it produced.
    async fn pass(&mut self, connection: &mut PgConnection) -> Result<usize, sqlx::Error> {
        let Some(partitions) = self.shared.sender().partitions() else { return Ok(0) };
        let begun = Instant::now();
        let reopened = self.lanes.take_reopened(begun);
        let mut sweep = self.behind.is_none_or(|behind| reopened || begun >= behind.sweep_at);
        if begun >= self.belt_at {
            self.belt_at = begun + BELT;
            self.floor.reset();
            sweep = true;
        }
        let cursor = self.behind.filter(|_| !sweep).map(|behind| behind.cursor);
        let mut pass = Pass::begin(cursor.unwrap_or(self.floor.get()), self.proven());
        let mut left = BTreeSet::new();
        let (mut produced, mut skipped) = (0, false);
        let mut last_seen = pass.next_page();
        while pass.more() && self.may_work() && !self.lanes.all_closed(partitions, Instant::now()) {
            let settings = &self.shared.settings;
            let (limit, max_bytes) = (settings.batch_rows, self.shared.max_payload());
            let page = rows::scan(connection, self.part, pass.next_page(), limit, max_bytes).await?;
            let last = page.rows.last().map(|row| row.key.id);
            pass.page(last, page.full);
            last_seen = last.unwrap_or(last_seen);
            left.extend(page.rows.iter().map(|row| row.key));
            let sorted = self.sort_out(&page.rows, partitions).await;
            produced += sorted.produced;
            skipped |= sorted.skipped;
            let mut gone = self.park(connection, sorted.unconfigured).await?;
            gone.extend(self.bury(connection, sorted.dead).await?);
            self.await_reports().await;
            gone.extend(self.clear_landed(connection).await?);
            for key in gone {
                left.remove(&key);
            }
        }
        self.floor.advance(&pass, left.first().map(|key: &RowKey| key.id));
        if sweep && !pass.more() {
            self.lanes.open_unused(begun);
        }
        // A pass that was cut short has not seen everything.
        self.remember(sweep, skipped || (cursor.is_none() && pass.more()), last_seen, begun);
        Ok(produced)
    }

    /// Decides where the next pass begins, and says how Kafka takes the rows.
    fn remember(&mut self, sweep: bool, skipped: bool, last_seen: i64, begun: Instant) {
        let now = Instant::now();
        self.behind = match self.behind {
            _ if sweep && !skipped => None,
            // A sweep reads everything that is closed again: it may take a tenth of the time.
            _ if sweep => Some(Behind { cursor: last_seen, sweep_at: now + SWEEP.max((now - begun) * 10) }),
            Some(behind) => Some(Behind { cursor: behind.cursor.max(last_seen), ..behind }),
            None => None,
        };
        let trouble = self.lanes.is_failing().then(|| Trouble {
            error: self.last_error.map(|code| code.to_string()).unwrap_or_default(),
            wait: self.lanes.longest_wait(now),
        });
        self.shared.report(self.part, trouble);
    }

    /// Produces what can be produced now.
    async fn sort_out(&mut self, rows: &[Row], partitions: i32) -> Sorted {
        let mut sorted = Sorted::default();
        let shared = self.shared.clone();
        let most = 2 * usize::try_from(shared.settings.batch_rows).unwrap_or(usize::MAX / 2);
        let mut by_source: Vec<(Arc<encode::Source>, u32)> = Vec::new();
        for row in rows {
            let id = row.key.id;
            if self.flights.contains(id) {
                sorted.skipped = true;
                continue;
            }
            let Some(source) = shared.sources.of(row.source.as_deref()) else {
                sorted.unconfigured.push((row.key, row.source.clone()));
                continue;
            };
            let partition = partition_of(row.tenant_id, partitions);
            if self.flights.len() >= most || !self.may_work() || !self.lanes.admit(partition, Instant::now())
            {
                sorted.skipped = true;
                continue;
            }
            let message = match encode::message(&shared.encoder, source, row) {
                Ok(message) => message,
                Err(why) => {
                    self.lanes.withdrawn(partition);
                    sorted.dead.push(Dead { key: row.key, source: source.clone(), why });
                    continue;
                }
            };
            let via = if self.flights.is_suspect(id) { Via::Alone } else { Via::Batch };
            let flight = Flight::new(row, partition, source.clone(), via);
            let serial = self.flights.depart(flight);
            let ticket = Ticket { id, serial, reports: self.reporter.clone() };
            if let Err(code) = shared.sender().send(message, partition, via, ticket).await {
                // It never left: the same as a report that says so.
                let landing = self.flights.land(Report { id, serial, outcome: Err(code) });
                self.settle(landing);
                sorted.skipped = true;
                continue;
            }
            sorted.produced += 1;
            match by_source.iter_mut().find(|(known, _)| Arc::ptr_eq(known, source)) {
                Some((_, count)) => *count += 1,
                None => by_source.push((source.clone(), 1)),
            }
        }
        for (source, count) in by_source {
            source.batch_rows.record(count);
        }
        sorted
    }

    /// Moves rows of sources without a key out of the way. Returns their names.
    async fn park(
        &mut self,
        connection: &mut PgConnection,
        unconfigured: Vec<(RowKey, Option<String>)>,
    ) -> Result<Vec<RowKey>, sqlx::Error> {
        if unconfigured.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<RowKey> = unconfigured.iter().map(|(key, _)| *key).collect();
        rows::park(connection, self.part, &keys).await?;
        let sources: BTreeSet<&str> =
            unconfigured.iter().map(|(_, source)| source.as_deref().unwrap_or("(none)")).collect();
        tracing::error!(
            partition = self.part,
            rows = keys.len(),
            ?sources,
            "outbox rows wait: their source is not configured"
        );
        Ok(keys)
    }

    /// Moves rows that can never be sent to the dead letters. Returns their names.
    async fn bury(
        &mut self,
        connection: &mut PgConnection,
        dead: Vec<Dead>,
    ) -> Result<Vec<RowKey>, sqlx::Error> {
        if dead.is_empty() {
            return Ok(Vec::new());
        }
        let rows = dead.iter().map(|dead| (dead.key, dead.why.reason, dead.why.error.clone())).collect();
        rows::bury(connection, self.part, rows).await?;
        for Dead { key, source, why } in &dead {
            source.dead_letters.increment(1);
            tracing::error!(
                partition = self.part,
                id = key.id,
                source = source.name,
                reason = why.reason,
                error = why.error,
                "outbox row can never be produced"
            );
        }
        Ok(dead.iter().map(|dead| dead.key).collect())
    }

    /// Takes the rows out whose fate is known: delivered ones are deleted, refused ones become dead letters. Returns their names.
    async fn clear_landed(&mut self, connection: &mut PgConnection) -> Result<Vec<RowKey>, sqlx::Error> {
        let mut gone = Vec::new();
        if !self.acked.is_empty() {
            rows::delete(connection, self.part, &self.acked).await?;
            gone.append(&mut self.acked);
        }
        let dead = self.flights.take_dead();
        gone.extend(self.bury(connection, dead).await?);
        Ok(gone)
    }

    /// Waits for the acknowledgements of what went to partitions that answer.
    async fn await_reports(&mut self) {
        let deadline = tokio::time::Instant::now() + AWAIT;
        while self.lanes.awaited() > 0 {
            match tokio::time::timeout_at(deadline, self.reports.recv()).await {
                Ok(Some(report)) => {
                    let landing = self.flights.land(report);
                    self.settle(landing);
                }
                _ => self.lanes.stop_awaiting(),
            }
        }
    }

    fn take_reports(&mut self) {
        while let Ok(report) = self.reports.try_recv() {
            let landing = self.flights.land(report);
            self.settle(landing);
        }
    }

    /// Draws the consequences of a report.
    fn settle(&mut self, landing: Landing) {
        match landing {
            Landing::Unknown => {}
            Landing::Delivered(flight) => {
                flight.source.delivered.increment(1);
                flight.source.latency_ms.record(usage_service::telemetry::millis(flight.age()));
                self.lanes.delivered(flight.partition);
                self.acked.push(flight.key);
            }
            Landing::Suspect(flight) => {
                // It is sent again alone, at once: the batch it was in may have been the fault.
                self.lanes.withdrawn(flight.partition);
                self.sweep_soon();
            }
            Landing::Dead(partition) => self.lanes.withdrawn(partition),
            Landing::Failed(flight, code) => {
                flight.source.failed.increment(1);
                self.last_error = Some(code);
                if matches!(
                    code,
                    RDKafkaErrorCode::UnknownPartition | RDKafkaErrorCode::UnknownTopicOrPartition
                ) {
                    self.shared.sender().refresh_partitions();
                }
                if let Some(wait) = self.lanes.failed(flight.partition, Instant::now()) {
                    metrics::counter!(metric_names::RETRIES_TOTAL, "operation" => "relay_produce")
                        .increment(1);
                    tracing::error!(partition = self.part, kafka_partition = flight.partition, source = flight.source.name, error = %code, backoff_ms = wait.as_millis(), "kafka does not take outbox rows; they are kept and sent again");
                }
            }
        }
    }

    fn sweep_soon(&mut self) {
        if let Some(behind) = &mut self.behind {
            behind.sweep_at = Instant::now();
        }
    }

    /// Waits for the next poll; wake-ups and the stop end it early.
    async fn rest(&mut self, pause: Duration) {
        tokio::select! {
            () = self.orders.stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
            woken = self.woken.changed() => {
                if woken.is_err() {
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// After the stop: waits for what is on its way, so that it need not be sent again, and deletes it.
    async fn drain(&mut self) {
        let deadline = tokio::time::Instant::now() + self.shared.drain_within();
        while !self.flights.is_empty() {
            match tokio::time::timeout_at(deadline, self.reports.recv()).await {
                Ok(Some(report)) => {
                    let landing = self.flights.land(report);
                    self.settle(landing);
                }
                _ => break,
            }
        }
        if self.acked.is_empty() {
            return;
        }
        // A new connection: the one that worked may have been given up in the middle of a statement.
        let deleted = async {
            let mut connection = self.connect().await?;
            self.clear_landed(&mut connection).await
        };
        match tokio::time::timeout(Duration::from_secs(2), deleted).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::warn!(partition = self.part, error = %error_chain(&error), "delivered outbox rows stay and are sent again");
            }
            Err(_) => tracing::warn!(partition = self.part, "delivered outbox rows stay and are sent again"),
        }
    }
}

/// What became of a page's rows.
#[derive(Default)]
struct Sorted {
    produced: usize,
    /// Some have to be looked at again.
    skipped: bool,
    unconfigured: Vec<(RowKey, Option<String>)>,
    dead: Vec<Dead>,
}
