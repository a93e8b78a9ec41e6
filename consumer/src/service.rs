//! The process: checks, the runtime beside, the owner's thread, and the end of both.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rdkafka::consumer::BaseConsumer;
use rdkafka::error::KafkaError;
use rdkafka::producer::FutureProducer;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use usage_access::policy::PolicyDecisionPoint;
use usage_control::{Control, ControlError, Quotas};
use usage_schemas::codec::Decoder;
use usage_service::error_chain::error_chain;
use usage_service::health::Health;
use usage_service::{clock, retry::Backoff};
use usage_storage::Storage;

use crate::attribution::Permissions;
use crate::config::Config;
use crate::context::Context;
use crate::dead_letter::Sender;
use crate::judge::{Judge, Registry};
use crate::link::Link;
use crate::plan::not_kept_limit;
use crate::services::Services;
use crate::side_reader::SideReader;
use crate::startup;
use crate::worker::{Signs, Worker, WorkerError, WorkerSettings};

/// A loop that stands for this long is dead: the process should be restarted.
const STANDSTILL: Duration = Duration::from_secs(120);
/// How long closing the group member may take at the end.
const CLOSE_WITHIN: Duration = Duration::from_secs(3);

/// Why the consumer ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("control database")]
    Control(#[from] ControlError),
    #[error("kafka client")]
    Kafka(#[from] KafkaError),
    #[error("the worker ended")]
    Worker(#[from] WorkerError),
    #[error("the worker's thread can't be started")]
    Thread(#[source] std::io::Error),
    #[error("the worker panicked")]
    Panic,
}

/// Runs a worker until `shutdown`.
pub async fn run(
    config: Config,
    storage: Arc<dyn Storage>,
    policy: Arc<dyn PolicyDecisionPoint>,
    health: Health,
    shutdown: CancellationToken,
) -> Result<(), RunError> {
    let master_keys = config.master_keys()?;
    let control = Control::connect_lazy(&config.control_database)?.with_master_keys(master_keys);
    let signs = Signs {
        assigned: health.flag("assignment"),
        heartbeat: Arc::new(AtomicI64::new(clock::now_millis())),
    };
    add_checks(&health, &storage, &control, &policy);
    let Some(checked) = startup::wait(&config, &*storage, &control, &shutdown).await else { return Ok(()) };
    watch(&health, signs.heartbeat.clone(), shutdown.clone());

    let producer: FutureProducer = config.producer().create()?;
    let (records, dead_letters) = (&config.kafka.records_topic, &config.kafka.dead_letters_topic);
    let sender = Sender::new(producer, records, dead_letters, checked.dead_letter_partitions);
    let reader = SideReader::new(config.side_reader(), records)?;
    let mut limits = config.consumer.limits();
    limits.not_kept = limits.not_kept.min(not_kept_limit(checked.metadata_limit));
    let settings = WorkerSettings {
        topic: records.clone(),
        limits,
        budget: config.consumer.budget(),
        registry_refresh: config.consumer.registry_refresh,
        quota_refresh: config.consumer.quota_refresh,
        quota_keep: config.consumer.quota_keep,
        policy_refresh: config.consumer.policy_refresh,
    };
    let mut member: BaseConsumer<Context> = config.member().create_with_context(Context::default())?;

    let runtime = Handle::current();
    let bounds = config.consumer.bounds();
    let retry_max = config.consumer.retry_max;
    let (ended, end) = oneshot::channel();
    let stop = shutdown.clone();
    let own = move || -> Result<(), RunError> {
        let (link, events) = Link::to_this_thread();
        let owner = link.owner();
        let waker = owner.clone();
        member.set_nonempty_callback(move || waker.unpark());
        let limit = checked.metadata_limit;
        let services =
            Services::new(storage.writer(), control, policy, sender, reader, link, limit, retry_max);
        let services = Arc::new(services);
        wake_on(&runtime, &stop, owner);
        let Some((registry, quotas)) = runtime.block_on(first_registry(&services, &stop))? else {
            return Ok(());
        };
        let (registry, quotas) = (Arc::new(registry), Arc::new(quotas));
        let permissions = Permissions::default();
        let judge = Judge { decoder: Decoder::new(), bounds, registry, stale: false, quotas, permissions };
        let mut worker = Worker::new(settings, services, events, runtime, judge, signs);
        let result = worker.run(&member, &stop);
        close(member);
        Ok(result?)
    };
    let thread = std::thread::Builder::new().name("owner".into());
    let thread = thread.spawn(move || {
        // Nobody listens only if the process is past its bound already.
        let _ = ended.send(own());
    });
    let thread = thread.map_err(RunError::Thread)?;
    let result = end.await;
    if thread.join().is_err() {
        return Err(RunError::Panic);
    }
    result.map_err(|_| RunError::Panic)?
}

fn add_checks(
    health: &Health,
    storage: &Arc<dyn Storage>,
    control: &Control,
    policy: &Arc<dyn PolicyDecisionPoint>,
) {
    let policy = policy.clone();
    health.check("policy", move || {
        let policy = policy.clone();
        async move { policy.ready().await.map_err(|error| error_chain(&error)) }
    });
    let storage = storage.clone();
    health.check_storage("clickhouse", move || {
        let storage = storage.clone();
        async move { storage.check().await.map_err(|error| error_chain(&error)) }
    });
    let control = control.clone();
    health.check("control_database", move || {
        let control = control.clone();
        async move { control.ping().await.map_err(|error| error_chain(&error)) }
    });
}

/// Fails liveness when the owner's loop stands still.
fn watch(health: &Health, heartbeat: Arc<AtomicI64>, shutdown: CancellationToken) {
    let flag = health.live_flag("owner");
    heartbeat.store(clock::now_millis(), Ordering::Relaxed);
    tokio::spawn(async move {
        let mut look = tokio::time::interval(Duration::from_secs(5));
        loop {
            tokio::select! {
                _ = look.tick() => {}
                () = shutdown.cancelled() => return,
            }
            let still = clock::now_millis().saturating_sub(heartbeat.load(Ordering::Relaxed));
            if u128::try_from(still).unwrap_or(0) > STANDSTILL.as_millis() {
                flag.fail("the owner's loop stands still");
            } else {
                flag.pass();
            }
        }
    });
}

fn wake_on(runtime: &Handle, shutdown: &CancellationToken, owner: std::thread::Thread) {
    let shutdown = shutdown.clone();
    runtime.spawn(async move {
        shutdown.cancelled().await;
        owner.unpark();
    });
}

/// Registry and quotas: nothing is decided before both are known. Waits for them, but not for another configuration; `None` at the end of
/// the process.
async fn first_registry(
    services: &Services,
    shutdown: &CancellationToken,
) -> Result<Option<(Registry, Quotas)>, ControlError> {
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(15));
    loop {
        match tokio::try_join!(services.registry(), services.control.quotas()) {
            Ok((registry, rules)) => return Ok(Some((registry, Quotas::new(rules)))),
            Err(error) if error.is_about_master_keys() => return Err(error),
            Err(error) => {
                tracing::warn!(error = %error_chain(&error), "the registry can't be read");
                tokio::select! {
                    () = tokio::time::sleep(backoff.next()) => {}
                    () = shutdown.cancelled() => return Ok(None),
                }
            }
        }
    }
}

/// Leaves the group. Closing polls until the broker has answered, so it has a thread of its own and a bound.
fn close(member: BaseConsumer<Context>) {
    use rdkafka::consumer::Consumer as _;
    member.context().close();
    let (closed, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(member);
        let _ = closed.send(());
    });
    if end.recv_timeout(CLOSE_WITHIN).is_err() {
        tracing::warn!("the group was not left in time; it will miss this member's heartbeats");
    }
}
