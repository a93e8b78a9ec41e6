//! The read side against a real server, with a plain model in Rust as the reference.

mod aggregates;
mod database;
mod faults;
mod model;
mod moments;
mod pages;
mod problems;
mod samples;

pub(super) use aggregates::everything;
