//! The relay: brings committed outbox rows to Kafka and removes them once the broker has acknowledged them.
//!
//! Strategy (`docs/architecture.md`): the outbox's partitions are leased on the database's clock, so that several relays share them. Each
//! partition has a worker with a connection of its own, which polls above a floor, produces signed messages, and deletes rows one by
//! one as their own delivery reports say so. One more connection keeps leases, proves the floor and completeness, sends markers, and
//! truncates emptied leaves.
//!
//! Behind a pooler in transaction mode nothing is lost (there are no session locks), but the settings of a session are: set them for the
//! role instead (`ALTER ROLE … SET jit = off`, `enable_seqscan = off`, `enable_bitmapscan = off`, `enable_nestloop = off`), and use a pooler that
//! knows prepared statements.

mod config;
pub(crate) mod encode;
mod floor;
mod housekeeping;
mod lanes;
mod lease;
mod markers;
mod partition;
mod rows;
mod sender;
mod session;
mod set_aside;
mod supervisor;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use usage_schemas::codec::Encoder;
use uuid::Uuid;

pub use config::{RELAY, RelayConfig, RelaySettings, SETTINGS, SourceConfig};

use self::encode::Sources;
use self::floor::{Proof, Proven};
use self::sender::Sender;
use self::session::ServerId;
use self::supervisor::Supervisor;
use crate::Waker;

/// The whole stop has to fit into the 10 s that a process has.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);
/// A JSON payload may be so many times longer than its Avro: a byte as `\u0000`.
const JSON_LENGTH: i64 = 6;

/// Why a relay can't work at all. Whatever may pass is retried instead.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    #[error("{0}")]
    Config(String),
    #[error("cannot set up the Kafka client")]
    Kafka(#[source] rdkafka::error::KafkaError),
}

/// What rounds have proven, and for which server.
#[derive(Debug, Clone, Default)]
pub(crate) struct Horizon {
    pub server: Option<ServerId>,
    /// Floors of another session are void.
    pub session: u64,
    pub proven: Proven,
}

/// What all workers of a relay share.
pub(crate) struct Shared {
    pub settings: RelaySettings,
    pub sources: Sources,
    pub encoder: Encoder,
    pub waker: Waker,
    sender: ArcSwap<Sender>,
    /// By outbox partition, while Kafka does not take its rows.
    troubles: Mutex<BTreeMap<i16, Trouble>>,
    /// By outbox partition: the last proof that a pass of it has confirmed.
    completed: Mutex<BTreeMap<i16, Proof>>,
}

/// Why rows are not delivered just now.
#[derive(Debug, Clone)]
pub(crate) struct Trouble {
    pub error: String,
    /// Until the next attempt.
    pub wait: Duration,
}

impl Shared {
    pub(crate) fn report(&self, part: i16, trouble: Option<Trouble>) {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        match trouble {
            Some(trouble) => troubles.insert(part, trouble),
            None => troubles.remove(&part),
        };
    }

    /// The one that takes longest.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        let troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        troubles.values().max_by_key(|trouble| trouble.wait).cloned()
    }

    /// A pass of the partition has confirmed the proof.
    pub(crate) fn confirm(&self, part: i16, proof: Proof) {
        self.completed.lock().unwrap_or_else(PoisonError::into_inner).insert(part, proof);
    }

    /// What was confirmed of the partitions.
    pub(crate) fn confirmed(&self) -> BTreeMap<i16, Proof> {
        self.completed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn sender(&self) -> Arc<Sender> {
        self.sender.load_full()
    }

    /// Payloads that are longer can't become messages and are not even read.
    pub(crate) fn max_payload(&self) -> i32 {
        i32::try_from(self.settings.max_message_bytes * JSON_LENGTH).unwrap_or(i32::MAX)
    }

    /// How long a stop waits for what is on its way.
    pub(crate) fn drain_within(&self) -> Duration {
        (self.settings.message_timeout + Duration::from_millis(500)).min(DRAIN_WITHIN)
    }
}

/// How a relay is doing; the reasons are `None` while all is well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub database: Option<String>,
    pub kafka: Option<String>,
    /// Why this relay sends no completeness markers although it should.
    pub completeness: Option<String>,
    /// Outbox partitions that this relay holds.
    pub partitions: Vec<i16>,
}

/// A relay that is set up but does not run yet.
pub struct Relay {
    supervisor: Supervisor,
    waker: Waker,
    status: watch::Receiver<Status>,
}

impl Relay {
    /// Checks the configuration and sets up the Kafka client; nothing has to be reachable yet. Needs a tokio runtime.
    ///
    /// # Errors
    /// A configuration that can't work.
    pub fn new(config: RelayConfig) -> Result<Self, RelayError> {
        config.validate()?;
        let database = config.database()?;
        let RelayConfig { kafka, relay: settings, .. } = config;
        let sources = Sources::new(settings.keys()?, settings.default_source.clone());
        let sender = Sender::new(&kafka, &settings)?;
        let waker = Waker::new();
        let owner = settings.instance.clone().unwrap_or_else(|| format!("relay-{}", Uuid::new_v4()));
        let shared = Arc::new(Shared {
            settings,
            sources,
            encoder: Encoder::new(),
            waker: waker.clone(),
            sender: ArcSwap::from_pointee(sender),
            troubles: Mutex::default(),
            completed: Mutex::default(),
        });
        let (supervisor, status) = Supervisor::new(shared, database, kafka, owner);
        Ok(Self { supervisor, waker, status })
    }

    /// Wakes this relay; for emitters of the same process.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// How it is doing.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// Relays until `shutdown`, then waits a few seconds for what is on its way and gives its leases back.
    pub async fn serve(self, shutdown: CancellationToken) {
        self.supervisor.run(shutdown).await;
    }

    /// Sets a relay up and serves.
    ///
    /// # Errors
    /// A configuration that can't work.
    pub async fn run(config: RelayConfig, shutdown: CancellationToken) -> Result<(), RelayError> {
        Self::new(config)?.serve(shutdown).await;
        Ok(())
    }
}
