//! What every process of the usage collector needs: configuration, telemetry, health, lifecycle, problem details, retry.
//!
//! A `main` reads: [`config::load`], [`telemetry::init`], [`lifecycle::shutdown_on_signals`], [`health::serve`], then its own
//! work inside [`lifecycle::graceful`].

pub mod breaker;
pub mod clock;
pub mod config;
pub mod error_chain;
pub mod fail_points;
pub mod health;
pub mod lifecycle;
pub mod metric_names;
pub mod postgres;
pub mod problem;
pub mod retry;
pub mod telemetry;
pub mod trace;
pub mod transport;

pub use error_chain::error_chain;
pub use fail::fail_point;
pub use tokio_util::sync::CancellationToken;
