//! The API as a caller sees it, over stores in memory; `real` has the real ones.

mod aggregated;
mod auth;
mod bounds;
mod breaker;
mod catalog;
mod completeness;
mod errors;
mod fill;
mod growing;
mod kills;
mod limits;
mod memory;
mod paging;
mod process;
mod raw;
mod real;
mod streams;
mod support;
mod types;
mod windows;
