//! The operators' command line.
//!
//! Ends with 0 when all is done, with 2 when the command line or the configuration is wrong, with 1 for everything else;
//! with 141 when all is done and nobody has read it to the end.

// Before the others: its macros stand for `println!` and the like everywhere.
#[macro_use]
mod output;
mod arguments;
mod commands;
mod parse;
mod settings;

use std::process::ExitCode;

use clap::Parser as _;
use usage_service::config::ConfigError;
use usage_service::telemetry::{self, TelemetryConfig};

use arguments::Arguments;

/// An input that was found to be wrong only after the command line was taken apart.
#[derive(Debug, thiserror::Error)]
#[error("{argument}: {detail}")]
pub(crate) struct WrongInput {
    pub argument: &'static str,
    pub detail: String,
}

/// `verify` has found something; what it is was printed.
#[derive(Debug, thiserror::Error)]
#[error("{0} differences")]
pub(crate) struct Differs(pub u64);

fn main() -> ExitCode {
    usage_service::fail_points::arm();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are errors to clap, too; it knows where to print and with which code to end.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match run(arguments) {
        Ok(()) => {
            let (code, error) = output::outcome();
            if let Some(error) = error {
                eprintln!("error: {error}");
            }
            ExitCode::from(code)
        }
        Err(error) => {
            eprintln!("error: {}", usage_service::error_chain(error.as_ref()));
            let input = error.is::<WrongInput>() || error.is::<ConfigError>();
            ExitCode::from(if input { 2 } else { 1 })
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    let config = TelemetryConfig {
        filter: "warn,rdkafka=error,librdkafka=error".into(),
        ..TelemetryConfig::default()
    };
    telemetry::init(&config, "usagectl")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(commands::run(arguments))
}
