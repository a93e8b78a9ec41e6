//! Puts the process together from its configuration.

use std::sync::Arc;

use anyhow::Context as _;
use secrecy::ExposeSecret as _;
use usage_access::TokenVerifier;
use usage_access::policy::PolicyDecisionPoint;
use usage_control::Control;
use usage_service::CancellationToken;
use usage_service::breaker::BreakerConfig;
use usage_service::error_chain;
use usage_service::health::{self, Health};
use usage_service::telemetry::Telemetry;
use usage_storage::Storage;
use usage_storage::clickhouse::ClickHouseStorage;

use crate::allowances::{Allowances, Spending};
use crate::app;
use crate::config::Config;
use crate::cursor::Cursors;
use crate::rates::{self, Rules};
use crate::registry::Catalog;
use crate::server::Server;
use crate::state::{App, Limits};
use crate::store::{Bounds, Store};

/// Name of the storage plugin in metrics.
const PLUGIN: &str = "clickhouse";

/// Serves until `shutdown`. Storage and control database may be away at the start: the process then is live, not ready.
///
/// # Errors
/// A setting that can't be used, or an address that can't be bound.
pub async fn run(config: Config, telemetry: Telemetry, shutdown: CancellationToken) -> anyhow::Result<()> {
    config.validate().map_err(anyhow::Error::msg)?;
    let verifier = Arc::new(config.auth.verifier()?);
    tokio::spawn({
        let (verifier, shutdown) = (verifier.clone(), shutdown.clone());
        async move { verifier.keep_fresh(shutdown).await }
    });
    let control = Control::connect_lazy(&config.control_database).context("control_database.url")?;
    let storage = ClickHouseStorage::connect(config.clickhouse);
    let limits = config.limits;
    let counters = rates::counters(&control, config.api.cursor_key.expose_secret().as_bytes())?;
    let rules = Rules::read(&limits).map_err(anyhow::Error::msg)?;
    if !rules.is_empty() {
        tokio::spawn(rates::sweep(counters.clone(), shutdown.clone()));
    }
    let allowances = Spending::read(&config.allowances).map_err(anyhow::Error::msg)?;

    let catalog = Arc::new(Catalog::new(Arc::new(control), limits.cache, limits.control_timeout));
    let bounds = Bounds {
        timeout: limits.storage_timeout,
        breaker: BreakerConfig {
            half_open_after: limits.breaker_half_open_after,
            ..BreakerConfig::default()
        },
        concurrent: limits.concurrent_questions,
        concurrent_per_tenant: limits.concurrent_questions_per_tenant,
        ..Bounds::default()
    };
    let store = Store::new(PLUGIN, storage.reader(), bounds);
    let policy = config.policy.decision_point().context("policy")?;
    let health = Health::new(telemetry);
    watch(&health, &verifier, &store, &catalog, &policy);
    let app = App {
        verifier,
        policy,
        store,
        catalog,
        cursors: Cursors::new(config.api.cursor_key.expose_secret().as_bytes()),
        limits: Limits {
            aggregated_rows: limits.aggregated_rows,
            window_days: limits.window_days,
            body_bytes: limits.body,
        },
        rates: rates::layer(&counters, rules),
        allowances: allowances.map(|spending| Arc::new(Allowances::connect_lazy(spending))),
    };
    let certificate = config.api.certificate().map_err(anyhow::Error::msg)?.map(Arc::new);
    if let Some(certificate) = certificate.clone() {
        let shutdown = shutdown.clone();
        tokio::spawn(async move { certificate.keep_renewed(shutdown).await });
    }
    let server = Server::bind(&config.api.listen, certificate, app::router(app, &health))
        .await
        .with_context(|| format!("api.listen: can't listen on {}", config.api.listen))?;
    health::serve(&config.telemetry.listen, health, shutdown.clone())
        .await
        .with_context(|| format!("telemetry.listen: can't listen on {}", config.telemetry.listen))?;
    tracing::info!(address = %server.address()?, tls = server.speaks_tls(), "serving the API");
    server.run(shutdown).await.context("the API's listener failed")
}

/// Ready means: the keys of tokens are known; storage, the control database with its usage types, and the policy decision point answer.
pub fn watch(
    health: &Health,
    verifier: &Arc<TokenVerifier>,
    store: &Store,
    catalog: &Arc<Catalog>,
    policy: &Arc<dyn PolicyDecisionPoint>,
) {
    let verifier = verifier.clone();
    health.check("token_keys", move || std::future::ready(verifier.ready()));
    let store = store.clone();
    health.check_storage(PLUGIN, move || {
        let store = store.clone();
        async move { store.probe().await.map_err(|error| error_chain(&error)) }
    });
    let pinged = catalog.clone();
    health.check("control_database", move || {
        let pinged = pinged.clone();
        async move { pinged.ping().await.map_err(|error| error_chain(&error)) }
    });
    let catalog = catalog.clone();
    health.check("types_registry", move || {
        let catalog = catalog.clone();
        async move { catalog.types().await.map(drop).map_err(|error| error_chain(&error)) }
    });
    let policy = policy.clone();
    health.check("policy", move || {
        let policy = policy.clone();
        async move {
            policy.ready().await.map_err(|error| {
                // Strangers may ask whether the process is ready; where the decision point is and what it said is for the log.
                tracing::warn!(error = %error_chain(&error), "the policy decision point is not ready");
                "it can't decide at present".to_owned()
            })
        }
    });
}
