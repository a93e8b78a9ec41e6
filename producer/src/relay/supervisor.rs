//! Keeps leases, proves the floor, looks after the leaves, and has a worker for each partition that it holds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::{CancellationToken, DropGuard};
use usage_service::config::KafkaConfig;
use usage_service::retry::Backoff;
use usage_service::{error_chain, metric_names};

use super::encode::PAYLOAD_TYPES;
use super::floor::Rounds;
use super::lease::{Held, Leases, working_time};
use super::markers::{Markers, Turn};
use super::partition::{Orders, Worker};
use super::session::{self, Database, ServerId};
use super::{Horizon, Sender, Shared, Status, housekeeping, rows, set_aside};

/// How often the floor is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// How often completeness is stored and markers are sent.
const MARK: Duration = Duration::from_secs(1);
/// How often free partitions are looked for, at most.
const TAKE: Duration = Duration::from_secs(1);
/// How often emptied leaves are truncated.
const TRUNCATE: Duration = Duration::from_secs(5);
/// How often rows are counted for the gauges.
const COUNT: Duration = Duration::from_secs(10);
/// Counting ends here; a gauge that says so is alarm enough.
const COUNT_ROWS: i64 = 100_000;
/// How often waiting rows are looked for that can go on now.
const UNPARK: Duration = Duration::from_secs(30);
const UNPARK_ROWS: i64 = 1_000;
/// A stop that takes longer is cut.
const JOIN_WITHIN: Duration = Duration::from_millis(7_500);
/// Saying goodbye to the database; with the above within the 10 s that a process has.
const FAREWELL_WITHIN: Duration = Duration::from_secs(2);

/// A partition that this relay holds, and who works on it.
struct Station {
    held: Held,
    valid_until: watch::Sender<Instant>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

pub(crate) struct Supervisor {
    shared: Arc<Shared>,
    database: Database,
    kafka: KafkaConfig,
    leases: Leases,
    rounds: Rounds,
    markers: Markers,
    horizon: watch::Sender<Horizon>,
    status: watch::Sender<Status>,
    stations: BTreeMap<i16, Station>,
    /// Stopped, but not settled yet; given back once they are.
    leaving: Vec<Station>,
    renew_at: Instant,
    /// Whether the gauges of this relay say something.
    counts: bool,
    /// Stops the workers even if the relay is dropped.
    guard: DropGuard,
}

impl Supervisor {
    pub(crate) fn new(
        shared: Arc<Shared>,
        database: Database,
        kafka: KafkaConfig,
        owner: String,
    ) -> (Self, watch::Receiver<Status>) {
        let starting = || Some("starting".to_string());
        let (status, seen) = watch::channel(Status {
            database: starting(),
            kafka: starting(),
            completeness: None,
            partitions: Vec::new(),
        });
        let leases = Leases::new(owner, shared.settings.lease);
        let supervisor = Self {
            markers: Markers::new(shared.clone()),
            rounds: Rounds::default(),
            shared,
            database,
            kafka,
            leases,
            horizon: watch::Sender::new(Horizon::default()),
            status,
            stations: BTreeMap::new(),
            leaving: Vec::new(),
            renew_at: Instant::now(),
            counts: false,
            guard: CancellationToken::new().drop_guard(),
        };
        (supervisor, seen)
    }

    /// Runs until the shutdown. A lost database is looked for again, for ever; workers go on while their leases last.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        while !shutdown.is_cancelled() {
            let Some(error) = self.session(&shutdown, &mut backoff).await.err() else { break };
            let (reason, wait) = (session::reason(&error), backoff.next());
            tracing::warn!(error = reason, backoff_ms = wait.as_millis(), "relay lost the source database");
            self.status.send_modify(|status| status.database = Some(reason));
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
        self.stop().await;
    }

    /// Works over one connection.
    async fn session(
        &mut self,
        shutdown: &CancellationToken,
        backoff: &mut Backoff,
    ) -> Result<(), sqlx::Error> {
        let mut connection = tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            connection = self.database.connect() => connection?,
        };
        let server = session::server_id(&mut connection).await?;
        self.leases.sweep(&mut connection).await?;
        // Proofs belong to a connection: a new one begins a new round.
        self.rounds.start_over();
        self.markers.start_over();
        self.publish_proofs(&server);
        self.renew_at = Instant::now();
        let lease_turn = (self.shared.settings.lease / 6).min(TAKE);
        let (mut look, mut lease, mut truncate) = (every(LOOK), every(lease_turn), every(TRUNCATE));
        let (mut count, mut unpark, mut mark) = (every(COUNT), every(UNPARK), every(MARK));
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                _ = lease.tick() => self.lease_turn(&mut connection).await?,
                _ = look.tick() => self.look(&mut connection, &server).await?,
                _ = mark.tick() => self.mark(&mut connection, &server).await?,
                _ = unpark.tick() => self.unpark(&mut connection).await?,
                _ = truncate.tick() => {
                    if self.holds_first() {
                        let leaves = housekeeping::truncate_empty_leaves(&mut connection).await?;
                        if leaves > 0 {
                            tracing::debug!(leaves, "truncated emptied outbox leaves");
                        }
                    }
                }
                _ = count.tick() => self.count(&mut connection).await?,
            }
            backoff.reset();
            self.look_after_kafka();
        }
    }

    /// What one relay does for all of them is done by the holder of partition 0.
    fn holds_first(&self) -> bool {
        self.stations.contains_key(&0)
    }

    async fn look(&mut self, connection: &mut PgConnection, server: &ServerId) -> Result<(), sqlx::Error> {
        let (seen, look) = housekeeping::look(connection, self.shared.settings.lease).await?;
        if seen != *server {
            return Err(sqlx::Error::Protocol("the connection leads to another server now".into()));
        }
        self.markers.looked(&look);
        self.rounds.observe(look).map_err(|back| sqlx::Error::Protocol(back.to_string()))?;
        self.publish_proofs(server);
        Ok(())
    }

    fn publish_proofs(&self, server: &ServerId) {
        let (session, proven) = (self.rounds.session(), self.rounds.proven());
        self.horizon.send_replace(Horizon { server: Some(server.clone()), session, proven });
    }

    /// Stores what was confirmed of completeness and sends markers.
    async fn mark(&mut self, connection: &mut PgConnection, server: &ServerId) -> Result<(), sqlx::Error> {
        let held: Vec<Held> = self.stations.values().map(|station| station.held).collect();
        let turn = Turn { server, owner: self.leases.owner(), held: &held, sends: self.holds_first() };
        self.markers.turn(connection, turn, &mut self.rounds).await?;
        self.publish_proofs(server);
        let completeness = self.markers.alarm().map(|alarm| alarm.to_string());
        self.status.send_if_modified(|status| {
            let changed = status.completeness != completeness;
            status.completeness = completeness;
            changed
        });
        Ok(())
    }

    /// Prolongs leases, takes free partitions up to this relay's share, gives back what is above it.
    async fn lease_turn(&mut self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        if Instant::now() >= self.renew_at {
            // Before the statement: the lease runs from some moment after this one.
            let asked = Instant::now();
            let held = self.leases.renew(connection).await?;
            self.renew_at = asked + self.shared.settings.lease / 3;
            self.drop_lost(&held);
            for station in self.stations.values() {
                station.valid_until.send_replace(asked + working_time(self.shared.settings.lease));
            }
        }
        self.replace_dead();
        let share = self.leases.share(connection).await?;
        while self.stations.len() + self.leaving.len() < share {
            let asked = Instant::now();
            let Some(held) = self.leases.take(connection).await? else { break };
            self.start(held, asked);
        }
        while self.stations.len() > share {
            let Some((part, station)) = self.stations.pop_last() else { break };
            tracing::info!(
                partition = part,
                epoch = station.held.epoch,
                "gives an outbox partition to another relay"
            );
            station.stop.cancel();
            self.leaving.push(station);
        }
        // Only once what was on its way has landed, so that the next holder need not send it again.
        let settled: Vec<Held> = self
            .leaving
            .iter()
            .filter(|station| station.task.is_finished())
            .map(|station| station.held)
            .collect();
        if !settled.is_empty() {
            self.leases.give_back(connection, &settled).await?;
            self.leaving.retain(|station| !settled.contains(&station.held));
        }
        self.publish();
        Ok(())
    }

    fn start(&mut self, held: Held, asked: Instant) {
        tracing::info!(partition = held.part, epoch = held.epoch, "took an outbox partition");
        let valid_until = watch::Sender::new(asked + working_time(self.shared.settings.lease));
        let stop = self.guard.token().child_token();
        let orders = Orders {
            horizon: self.horizon.subscribe(),
            valid_until: valid_until.subscribe(),
            stop: stop.clone(),
        };
        let worker = Worker::new(held.part, self.database.clone(), self.shared.clone(), orders);
        let task = tokio::spawn(worker.run());
        self.stations.insert(held.part, Station { held, valid_until, stop, task });
    }

    /// Lets go of partitions whose lease ran out before it could be prolonged.
    fn drop_lost(&mut self, held: &[Held]) {
        self.stations.retain(|part, station| {
            let keeps = held.contains(&station.held);
            if !keeps {
                tracing::warn!(
                    partition = part,
                    epoch = station.held.epoch,
                    "lost the lease of an outbox partition"
                );
                station.stop.cancel();
            }
            keeps
        });
    }

    /// A worker never ends by itself; one that did has panicked.
    fn replace_dead(&mut self) {
        let dead: Vec<Held> = self
            .stations
            .values()
            .filter(|station| station.task.is_finished())
            .map(|station| station.held)
            .collect();
        for held in dead {
            tracing::error!(
                partition = held.part,
                "the worker of an outbox partition has died; starting another"
            );
            if let Some(station) = self.stations.remove(&held.part) {
                let asked = *station.valid_until.borrow() - working_time(self.shared.settings.lease);
                self.start(held, asked);
            }
        }
    }

    /// Moves waiting rows back whose source has a key now and whose payload type is known.
    async fn unpark(&mut self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        loop {
            let moved = match self.return_waiting(connection).await {
                // Leases are more important than waiting rows.
                Err(error) if set_aside::is_refusal(&error) => {
                    tracing::error!(
                        error = session::reason(&error),
                        "waiting outbox rows can't be moved back"
                    );
                    return Ok(());
                }
                moved => moved?,
            };
            if moved == 0 {
                return Ok(());
            }
            tracing::info!(
                rows = moved,
                "waiting outbox rows go on: their source is configured and their payload type known"
            );
            self.shared.waker.wake();
            if Instant::now() >= self.renew_at {
                // The rest comes later: leases go first.
                return Ok(());
            }
        }
    }

    async fn return_waiting(&self, connection: &mut PgConnection) -> Result<u64, sqlx::Error> {
        if self.holds_first() {
            rows::forget_returned(connection).await?;
        }
        let sources: Vec<String> = self.shared.sources.names().map(Into::into).collect();
        let without_source = self.shared.sources.has_default();
        rows::unpark(connection, &sources, without_source, &PAYLOAD_TYPES, UNPARK_ROWS).await
    }

    /// Counts rows for the gauges; a relay that no longer does so shows none, so that the sum over all relays is right.
    async fn count(&mut self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        if !self.holds_first() {
            if std::mem::take(&mut self.counts) {
                self.gauge(metric_names::OUTBOX_PENDING_ROWS, &[]);
                self.gauge(metric_names::OUTBOX_WAITING_ROWS, &[]);
            }
            return Ok(());
        }
        self.counts = true;
        let pending = housekeeping::pending(connection, COUNT_ROWS).await?;
        self.gauge(metric_names::OUTBOX_PENDING_ROWS, &pending);
        let waiting = rows::waiting(connection, COUNT_ROWS).await?;
        self.gauge(metric_names::OUTBOX_WAITING_ROWS, &waiting);
        if !waiting.is_empty() {
            let waiting: Vec<(String, i64)> = waiting
                .iter()
                .take(10)
                .map(|(source, count)| (set_aside::label(source.as_deref()), *count))
                .collect();
            tracing::error!(sources = ?waiting, "outbox rows wait for their source to be configured or for a relay that knows their payload type");
        }
        Ok(())
    }

    /// Sets a gauge of every configured source; all others are one.
    fn gauge(&self, name: &'static str, rows: &[(Option<String>, i64)]) {
        let sources = &self.shared.sources;
        let of = |label: Option<&str>| -> i64 {
            let same = |source: &Option<String>| {
                sources.of(source.as_deref()).map(|source| source.name.as_str()) == label
            };
            rows.iter().filter(|(source, _)| same(source)).map(|(_, count)| count).sum()
        };
        let set = |label: String, count: i64| {
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            metrics::gauge!(name, "source_module" => label).set(count);
        };
        for source in sources.names() {
            set(source.into(), of(Some(source)));
        }
        set("unknown".into(), of(None));
    }

    /// Makes a new producer if the old one has ended for good, and says how Kafka is.
    fn look_after_kafka(&mut self) {
        let sender = self.shared.sender();
        if let Some(error) = sender.fatal_error() {
            tracing::error!(error, "the kafka producer has failed for good; making another");
            match Sender::new(&self.kafka, &self.shared.settings) {
                Ok(sender) => {
                    let old = self.shared.sender.swap(Arc::new(sender));
                    // Dropping a producer waits for its threads.
                    tokio::task::spawn_blocking(move || drop(old));
                }
                Err(error) => tracing::error!(error = %error_chain(&error), "can't make a kafka producer"),
            }
        }
        let trouble = self.shared.trouble();
        let wait = trouble.as_ref().map_or(Duration::ZERO, |trouble| trouble.wait);
        metrics::gauge!(metric_names::BACKOFF_SECONDS, "operation" => "relay_produce")
            .set(wait.as_secs_f64());
        let kafka = match (sender.partitions(), trouble) {
            (None, _) => Some("the topic's partition count is not known".to_string()),
            (Some(_), trouble) => trouble.map(|trouble| trouble.error),
        };
        self.status.send_if_modified(|status| {
            let changed = status.kafka != kafka;
            status.kafka = kafka;
            changed
        });
    }

    fn publish(&self) {
        let partitions: Vec<i16> = self.stations.keys().copied().collect();
        self.status.send_if_modified(|status| {
            let changed = status.database.is_some() || status.partitions != partitions;
            status.database = None;
            status.partitions.clone_from(&partitions);
            changed
        });
    }

    /// Stops the workers, then gives the leases back, so that another relay need not wait for them to run out.
    async fn stop(&mut self) {
        let mut stations: Vec<Station> = std::mem::take(&mut self.stations).into_values().collect();
        for station in &stations {
            station.stop.cancel();
        }
        stations.append(&mut self.leaving);
        let deadline = tokio::time::Instant::now() + JOIN_WITHIN;
        let mut held = Vec::new();
        for mut station in stations {
            let part = station.held.part;
            held.push(station.held);
            if tokio::time::timeout_at(deadline, &mut station.task).await.is_err() {
                tracing::warn!(
                    partition = part,
                    "an outbox partition did not settle in time; its last rows are sent again"
                );
                station.task.abort();
            }
        }
        let farewell = async {
            let mut connection = self.database.connect().await?;
            self.leases.give_back(&mut connection, &held).await?;
            self.leases.leave(&mut connection).await?;
            connection.close().await
        };
        match tokio::time::timeout(FAREWELL_WITHIN, farewell).await {
            Ok(Ok(())) => tracing::info!(partitions = held.len(), "relay stopped"),
            Ok(Err(error)) => {
                tracing::warn!(error = %error_chain(&error), "leases were not given back; they run out")
            }
            Err(_) => tracing::warn!("leases were not given back; they run out"),
        }
        self.publish();
    }
}

fn every(period: Duration) -> Interval {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}
