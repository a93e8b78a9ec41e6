//! The routes and what surrounds them.

use axum::Router;
use axum::routing::get;
use tower_http::catch_panic::CatchPanicLayer;
use usage_service::health::Health;

use crate::routes::{aggregated, allowances, raw, records, types, watermarks};
use crate::state::App;
use crate::{auth, observe};

/// Every path of the API.
pub const PATHS: &[&str] = &[
    "/v1/usage/aggregated",
    "/v1/usage/raw",
    "/v1/usage/records/{id}",
    "/v1/usage/metadata/watermarks",
    "/v1/usage/types",
    "/v1/usage/types/{name}",
    "/v1/usage/allowances/{subject}",
    "/health/live",
    "/health/ready",
];

/// The API with its health paths. `/metrics` is not here: it speaks of all tenants and has a listener of its own.
pub fn router(app: App, health: &Health) -> Router {
    Router::new()
        .route("/v1/usage/aggregated", get(aggregated::get))
        .route("/v1/usage/raw", get(raw::get))
        .route("/v1/usage/records/{id}", get(records::get))
        .route("/v1/usage/metadata/watermarks", get(watermarks::get))
        .route("/v1/usage/types", get(types::list).post(types::post))
        .route("/v1/usage/types/{name}", get(types::get))
        .route("/v1/usage/allowances/{subject}", get(allowances::get))
        .layer(app.rates.clone())
        .layer(axum::middleware::from_fn_with_state(app.clone(), auth::remember))
        .with_state(app)
        .merge(health.probes())
        .layer(CatchPanicLayer::custom(observe::panicked))
        .layer(axum::middleware::from_fn(observe::layer))
}
