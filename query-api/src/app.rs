//! The routes and what surrounds them.

use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Router};
use tower_http::catch_panic::CatchPanicLayer;
use usage_access::policy::Action;
use usage_service::health::Health;

use crate::auth::Asks;
use crate::routes::{aggregated, allowances, raw, records, types, watermarks};
use crate::state::App;
use crate::{auth, framing, observe};

/// One method of one path, and the action that a caller must be permitted.
pub struct Endpoint {
    pub method: &'static str,
    pub path: &'static str,
    pub action: Action,
    handler: fn() -> MethodRouter<App>,
}

/// All that the router serves to callers with a token: what is not listed has no route.
pub const ENDPOINTS: &[Endpoint] = &[
    reads("/v1/usage/aggregated", Action::Read, || get(aggregated::get)),
    reads("/v1/usage/raw", Action::Read, || get(raw::get)),
    reads("/v1/usage/records/{id}", Action::Read, || get(records::get)),
    reads("/v1/usage/metadata/watermarks", Action::Read, || get(watermarks::get)),
    reads("/v1/usage/types", Action::ReadTypes, || get(types::list)),
    reads("/v1/usage/types/{name}", Action::ReadTypes, || get(types::get)),
    Endpoint {
        method: "POST",
        path: "/v1/usage/types",
        action: Action::RegisterType,
        handler: || post(types::post),
    },
    reads("/v1/usage/allowances/{subject}", Action::ReadAllowances, || get(allowances::get)),
];

/// What is told to everybody.
pub const PROBES: &[&str] = &["/health/live", "/health/ready"];

const fn reads(path: &'static str, action: Action, handler: fn() -> MethodRouter<App>) -> Endpoint {
    Endpoint { method: "GET", path, action, handler }
}

/// Every path of the API.
pub fn paths() -> impl Iterator<Item = &'static str> {
    ENDPOINTS.iter().map(|endpoint| endpoint.path).chain(PROBES.iter().copied())
}

/// The API with its health paths. `/metrics` is not here: it speaks of all tenants and has a listener of its own.
pub fn router(app: App, health: &Health) -> Router {
    let routes = ENDPOINTS.iter().fold(Router::new(), |routes, endpoint| {
        let asks = Extension(Asks(endpoint.action));
        routes.route(endpoint.path, (endpoint.handler)().route_layer(asks))
    });
    routes
        .layer(app.rates.clone())
        .layer(axum::middleware::from_fn_with_state(app.clone(), auth::remember))
        .with_state(app)
        .merge(health.probes())
        .layer(CatchPanicLayer::custom(observe::panicked))
        .layer(axum::middleware::from_fn(framing::one_reading))
        .layer(axum::middleware::from_fn(observe::layer))
}
