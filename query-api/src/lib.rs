//! Usage over HTTP: aggregates, records, usage types, health (design section 9).
//!
//! A request goes through [`observe`] (ids, log line, metrics, problems), [`auth`] (token), [`grant`] (the policy's
//! decision), a strict reader of its parameters ([`query`], [`raw_query`], [`body`]) and then to storage, of which only the trait
//! is known here. Windows are cut
//! in [`windows`]; storage only buckets by them.

pub mod accept;
pub mod allowances;
pub mod answer;
pub mod app;
pub mod auth;
pub mod body;
pub mod config;
pub mod csv;
pub mod cursor;
pub mod decimal;
pub mod etag;
pub mod failure;
pub mod filters;
pub mod framing;
pub mod grant;
pub mod hints;
pub mod observe;
pub mod pages;
pub mod params;
pub mod process;
pub mod query;
pub mod rates;
pub mod raw_query;
pub mod records;
pub mod registry;
pub mod routes;
pub mod server;
pub mod shared;
pub mod state;
pub mod store;
pub mod stream;
pub mod tls;
pub mod windows;
pub mod zones;
