//! The worker of one outbox partition: read, produce, and delete what Kafka has acknowledged.
//!
//! Crash windows: before the acknowledgement the row is there and is sent again; between acknowledgement and delete it is sent again as well
//! and its id makes the second copy harmless; after the delete it is in Kafka. There is no window in which it is in neither.

mod course;
mod flights;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::error::RDKafkaErrorCode;
use sqlx::PgConnection;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use usage_schemas::partition::partition_of;
use usage_service::retry::Backoff;
use usage_service::{error_chain, fail_point, metric_names};

use self::course::{Course, Part};
use self::flights::{Dead, Flight, Flights, Landing};
use super::encode::{self, PAYLOAD_TYPES};
use super::floor::Proven;
use super::lanes::Lanes;
use super::rows::{self, Row, RowKey};
use super::sender::{Report, Ticket, Via};
use super::session::{self, Database, ServerId};
use super::set_aside::{self, Aside};
use super::{Horizon, Shared, Trouble};

/// How long healthy partitions of the topic may take before a poll goes on without their acknowledgements.
const AWAIT: Duration = Duration::from_millis(200);
/// When a row is looked at again that the database refused to move out of the way.
const REFUSED_AGAIN: Duration = Duration::from_secs(60);

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
    /// Of the rounds that the course rests on.
    session: u64,
    course: Course,
    lanes: Lanes,
    flights: Flights,
    reports: mpsc::UnboundedReceiver<Report>,
    reporter: mpsc::UnboundedSender<Report>,
    acked: Vec<RowKey>,
    /// Rows that the database refused to move out of the way, and until when they are left lying.
    refused: HashMap<RowKey, Instant>,
    last_error: Option<RDKafkaErrorCode>,
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
            session: 0,
            course: Course::new(Instant::now()),
            flights: Flights::default(),
            reports,
            reporter,
            acked: Vec::new(),
            refused: HashMap::new(),
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
            tracing::warn!(
                partition = self.part,
                error = session::reason(&error),
                backoff_ms = wait.as_millis(),
                "outbox partition lost its database"
            );
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
            let looked = self.look(&mut connection).await?;
            backoff.reset();
            let settings = &self.shared.settings;
            pause = if looked.produced > 0 { settings.poll_min } else { (pause * 2).min(settings.poll_max) };
            if !looked.more {
                self.rest(pause).await;
            }
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
        self.course.reset();
        if self.server.as_ref() != Some(&server) {
            if let Some(before) = &self.server {
                tracing::warn!(partition = self.part, before = %before, now = %server, "the source database is another server now");
            }
            self.flights.forget();
            self.lanes = Lanes::new(self.shared.settings.backoff_base, self.shared.settings.backoff_max);
            self.acked.clear();
            self.refused.clear();
            self.server = Some(server);
        }
        Ok(connection)
    }

    fn may_work(&self) -> bool {
        !self.orders.stop.is_cancelled() && Instant::now() < *self.orders.valid_until.borrow()
    }

    /// What is proven for this connection's server. A new session of the rounds starts from nothing.
    fn proven(&mut self) -> Proven {
        let horizon = self.orders.horizon.borrow().clone();
        if horizon.session != self.session {
            self.session = horizon.session;
            self.course.reset();
        }
        if horizon.server == self.server { horizon.proven } else { Proven::default() }
    }

    /// Reads a page of the walk, and one of what is new while rows are left lying.
    async fn look(&mut self, connection: &mut PgConnection) -> Result<Looked, sqlx::Error> {
        let mut looked = Looked::default();
        let Some(partitions) = self.shared.sender().partitions() else { return Ok(looked) };
        if self.may_read(partitions) {
            let proven = self.proven();
            self.course.begin(Instant::now(), proven, &mut self.lanes);
            for part in [Part::Walk, Part::Tail] {
                let Some(from) = self.course.next(part).filter(|_| self.may_read(partitions)) else {
                    continue;
                };
                let begun = Instant::now();
                let (limit, max_bytes) = (self.shared.settings.batch_rows, self.shared.max_payload());
                let page = rows::scan(connection, self.part, from, limit, max_bytes).await?;
                self.course.read(part, page.rows.iter().map(|row| row.key), page.full);
                let sorted = self.sort_out(&page.rows, partitions).await;
                looked.produced += sorted.produced;
                self.set_aside(connection, sorted.waiting, sorted.dead).await?;
                self.await_reports().await;
                self.clear_landed(connection).await?;
                if part == Part::Walk {
                    let confirmed =
                        self.course.walked(sorted.skipped, begun.elapsed(), Instant::now(), &mut self.lanes);
                    if let Some(proof) = confirmed {
                        self.shared.confirm(self.part, proof);
                    }
                }
                let last = part == Part::Tail || self.course.next(Part::Tail).is_none();
                looked.more = self.course.is_walking() || (last && page.full);
            }
        }
        let trouble = self.lanes.is_failing().then(|| Trouble {
            error: self.last_error.map(|code| code.to_string()).unwrap_or_default(),
            wait: self.lanes.longest_wait(Instant::now()),
        });
        self.shared.report(self.part, trouble);
        Ok(looked)
    }

    /// Whether it makes sense to read rows now.
    fn may_read(&self, partitions: i32) -> bool {
        self.may_work() && !self.lanes.all_closed(partitions, Instant::now())
    }

    /// Produces what can be produced now.
    async fn sort_out(&mut self, rows: &[Row], partitions: i32) -> Sorted {
        let mut sorted = Sorted::default();
        let shared = self.shared.clone();
        let most = 2 * usize::try_from(shared.settings.batch_rows).unwrap_or(usize::MAX / 2);
        let mut by_source: Vec<(Arc<encode::Source>, u32)> = Vec::new();
        for row in rows {
            let id = row.key.id;
            let refused = self.refused.get(&row.key).is_some_and(|until| Instant::now() < *until);
            if refused || self.flights.contains(id) {
                sorted.skipped = true;
                continue;
            }
            let Some(source) = shared.sources.of(row.source.as_deref()) else {
                sorted.waiting.push((
                    row.key,
                    format!("source {} is not configured", set_aside::label(row.source.as_deref())),
                ));
                continue;
            };
            if !PAYLOAD_TYPES.contains(&row.payload_type.as_str()) {
                let what = format!("payload type {} is not known", set_aside::label(Some(&row.payload_type)));
                sorted.waiting.push((row.key, what));
                continue;
            }
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
            fail_point!("relay.produce");
            if let Err(code) = shared.sender().send(message, partition, via, ticket).await {
                // It never left: the same as a report that says so.
                let landing = self.flights.land(Report { id, serial, outcome: Err(code) });
                self.settle(landing);
                sorted.skipped = true;
                continue;
            }
            fail_point!("relay.produced");
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

    /// Moves rows out of the way: those that have to wait, with the reason, and those that can never be sent.
    async fn set_aside(
        &mut self,
        connection: &mut PgConnection,
        waiting: Vec<(RowKey, String)>,
        dead: Vec<Dead>,
    ) -> Result<(), sqlx::Error> {
        if waiting.is_empty() && dead.is_empty() {
            return Ok(());
        }
        let mut moves: Vec<(RowKey, Aside)> = waiting.iter().map(|(key, _)| (*key, Aside::Waiting)).collect();
        moves.extend(dead.iter().map(|dead| {
            (dead.key, Aside::Dead { reason: dead.why.reason, error: dead.why.error().to_string() })
        }));
        fail_point!("relay.move_aside");
        let refused = set_aside::move_rows(connection, self.part, moves).await?;
        fail_point!("relay.moved_aside");
        let now = Instant::now();
        self.refused.retain(|_, until| now < *until);
        self.refused.extend(refused.iter().map(|refused| (refused.key, now + REFUSED_AGAIN)));
        if let Some(first) = refused.first() {
            tracing::error!(
                partition = self.part,
                rows = refused.len(),
                id = first.key.id,
                error = %error_chain(&first.error),
                "the database refuses to move outbox rows out of the way; they stay and are tried again"
            );
        }
        let moved = |key: &RowKey| !refused.iter().any(|refused| refused.key == *key);
        let reasons: BTreeSet<&str> =
            waiting.iter().filter(|(key, _)| moved(key)).map(|(_, what)| what.as_str()).take(10).collect();
        if !reasons.is_empty() {
            tracing::error!(partition = self.part, ?reasons, "outbox rows wait until a relay can send them");
        }
        self.course.gone(waiting.iter().map(|(key, _)| key).filter(|key| moved(key)));
        for Dead { key, source, why } in dead.iter().filter(|dead| moved(&dead.key)) {
            source.dead_letters.increment(1);
            self.course.gone([key]);
            tracing::error!(
                partition = self.part,
                id = key.id,
                source = source.name,
                reason = why.reason,
                error = why.error(),
                "outbox row can never be produced"
            );
        }
        Ok(())
    }

    /// Takes the rows out whose fate is known: delivered ones are deleted, refused ones become dead letters.
    async fn clear_landed(&mut self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        if !self.acked.is_empty() {
            fail_point!("relay.remove");
            rows::delete(connection, self.part, &self.acked).await?;
            fail_point!("relay.removed");
            self.course.gone(&self.acked);
            self.acked.clear();
        }
        let dead = self.flights.take_dead();
        self.set_aside(connection, Vec::new(), dead).await
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
                fail_point!("relay.acked");
                flight.source.delivered.increment(1);
                flight.source.latency_ms.record(usage_service::telemetry::millis(flight.age()));
                self.lanes.delivered(flight.partition);
                self.acked.push(flight.key);
            }
            Landing::Suspect(flight) => {
                // It is sent again alone, at once: the batch it was in may have been the fault.
                self.lanes.withdrawn(flight.partition);
                self.course.look_again();
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

/// What one look has found.
#[derive(Default)]
struct Looked {
    produced: usize,
    /// There is more to read at once.
    more: bool,
}

/// What became of a page's rows.
#[derive(Default)]
struct Sorted {
    produced: usize,
    /// Some have to be looked at again.
    skipped: bool,
    /// Can't be sent yet, and why.
    waiting: Vec<(RowKey, String)>,
    dead: Vec<Dead>,
}
