//! Against real servers.

mod allowance;
mod app;
mod isolation;
mod languages;
mod layer;
mod rates;
mod support;
mod tally;
