//! Against real servers.

mod allowance;
mod isolation;
mod languages;
mod support;
