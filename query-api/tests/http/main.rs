//! The API as a caller sees it, over stores in memory; `real` has the real ones.

mod aggregated;
mod auth;
mod bounds;
mod breaker;
mod catalog;
mod completeness;
mod constrained;
mod door;
mod errors;
mod fill;
mod growing;
mod hostile;
mod kills;
mod limits;
mod memory;
mod paging;
mod policy;
mod process;
mod raw;
mod real;
mod refused;
mod smuggled;
mod streams;
mod support;
mod types;
mod windows;
