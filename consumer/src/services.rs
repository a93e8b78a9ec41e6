//! What the work beside the owner's thread uses.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use secrecy::ExposeSecret;
use tokio::sync::Semaphore;
use usage_access::policy::PolicyDecisionPoint;
use usage_control::{Control, ControlError};
use usage_schemas::codec::Decoder;
use usage_schemas::{CompiledType, UsageType};
use usage_service::error_chain::error_chain;
use usage_service::metric_names;
use usage_service::retry::Backoff;
use usage_storage::Writer;

use crate::dead_letter::Sender;
use crate::judge::{Registry, Types};
use crate::link::Link;
use crate::side_reader::SideReader;
use crate::ticket::Ticket;

/// First wait between attempts at something that may pass.
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// How many partitions load their ids at once: each holds some of them in memory twice.
const LOADS: usize = 2;

/// Shared by all tasks of a worker.
pub struct Services {
    pub writer: Arc<dyn Writer>,
    pub control: Control,
    /// Whether a source may emit for another tenant than its home.
    pub policy: Arc<dyn PolicyDecisionPoint>,
    pub sender: Sender,
    pub reader: SideReader,
    pub link: Link,
    pub decoder: Decoder,
    pub loads: Semaphore,
    /// Greatest length of a commit's metadata.
    pub metadata_limit: usize,
    /// Greatest wait between attempts at something that may pass.
    pub retry_max: Duration,
    /// Readings of the registry that were begun.
    readings: AtomicU64,
    /// Those of the last reading: few change from one to the next.
    types: Mutex<Types>,
}

impl Services {
    #[allow(clippy::too_many_arguments, reason = "each is another part of the world")]
    pub fn new(
        writer: Arc<dyn Writer>,
        control: Control,
        policy: Arc<dyn PolicyDecisionPoint>,
        sender: Sender,
        reader: SideReader,
        link: Link,
        metadata_limit: usize,
        retry_max: Duration,
    ) -> Self {
        Self {
            writer,
            control,
            policy,
            sender,
            reader,
            link,
            decoder: Decoder::new(),
            loads: Semaphore::new(LOADS),
            metadata_limit,
            retry_max,
            readings: AtomicU64::new(0),
            types: Mutex::default(),
        }
    }

    /// Attempts at something for the partition of a ticket.
    pub fn attempts<'a>(&self, operation: &'static str, ticket: &'a Ticket) -> Attempts<'a> {
        Attempts { operation, ticket, backoff: Backoff::new(FIRST_WAIT.min(self.retry_max), self.retry_max) }
    }

    /// Usage types, sources and their keys, from the primary.
    pub async fn registry(&self) -> Result<Registry, ControlError> {
        let reading = self.readings.fetch_add(1, Ordering::Relaxed) + 1;
        let control = &self.control;
        let (types, keys, sources) =
            tokio::try_join!(control.usage_types(), control.source_keys(), control.sources())?;
        let mut registry = Registry { reading, ..Registry::default() };
        registry.types = self.compiled(types);
        registry.sources.extend(sources.into_iter().map(|source| (source.name, source.attribution)));
        for key in keys {
            registry.keys.add(
                &key.source,
                &key.key_id,
                key.key.expose_secret(),
                key.valid_from,
                key.valid_until,
            );
        }
        Ok(registry)
    }

    /// Makes types ready for judging; one that can't be refuses its records, under an alarm, and keeps no other from being judged.
    fn compiled(&self, types: Vec<UsageType>) -> Types {
        let mut known = self.types.lock().expect("not poisoned");
        let compile = |usage_type: UsageType| match known.get(usage_type.name.as_str()) {
            Some(known) if *known.usage_type() == usage_type => known.clone(),
            _ => Arc::new(CompiledType::new(usage_type.clone()).unwrap_or_else(|error| {
                tracing::error!(error = %error, "records of a usage type are refused");
                CompiledType::refusing(usage_type)
            })),
        };
        let types =
            types.into_iter().map(|usage_type| (usage_type.name.as_str().into(), compile(usage_type)));
        let types: Types = types.collect();
        known.clone_from(&types);
        types
    }
}

/// Attempts at something for one partition: waits between them, says so, and ends with the ticket.
pub struct Attempts<'a> {
    operation: &'static str,
    ticket: &'a Ticket,
    backoff: Backoff,
}

impl Attempts<'_> {
    /// An attempt failed in a way that may pass: waits. False if the ticket was revoked.
    pub async fn failed(&mut self, error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
        let wait = self.backoff.next();
        metrics::counter!(metric_names::RETRIES_TOTAL, "operation" => self.operation).increment(1);
        metrics::gauge!(metric_names::BACKOFF_SECONDS, "operation" => self.operation).set(wait.as_secs_f64());
        tracing::warn!(
            operation = self.operation,
            partition = self.ticket.partition,
            backoff_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
            error = %error_chain(error),
            "will be tried again"
        );
        tokio::select! {
            () = tokio::time::sleep(wait) => true,
            () = self.ticket.revoked() => false,
        }
    }

    pub fn succeeded(&mut self) {
        if self.backoff.attempts() > 0 {
            metrics::gauge!(metric_names::BACKOFF_SECONDS, "operation" => self.operation).set(0);
            self.backoff.reset();
        }
    }

    /// Repeats `attempt` until it succeeds; `None` when the ticket was revoked.
    pub async fn until_ok<T, E, F, A>(&mut self, mut attempt: F) -> Option<T>
    where
        E: std::error::Error + Send + Sync + 'static,
        F: FnMut() -> A,
        A: Future<Output = Result<T, E>>,
    {
        loop {
            let result = tokio::select! {
                result = attempt() => result,
                () = self.ticket.revoked() => return None,
            };
            match result {
                Ok(value) => {
                    self.succeeded();
                    return Some(value);
                }
                Err(error) => {
                    if !self.failed(&error).await {
                        return None;
                    }
                }
            }
        }
    }
}
