//! Tables and JSON on standard output.
//!
//! A reader that has gone (`usagectl … | head`) or a full disk ends no command halfway: what it does it does to the end, and then the
//! program says by its exit code that not all was written ([`outcome`]).

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::sync::OnceLock;

use anyhow::Context as _;
use comfy_table::{Table, presets};
use serde::Serialize;
use usage_schemas::Timestamp;

/// The first failure of standard output; nothing is written after it.
static FAILED: OnceLock<std::io::Error> = OnceLock::new();

/// Exit code where the reader has gone: 128 and the number of SIGPIPE, as shells know it.
pub(crate) const READER_GONE: u8 = 141;

/// Stands for the one of the standard library, which panics where nothing can be written.
macro_rules! println {
    () => { $crate::output::print(format_args!("\n")) };
    ($($part:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($part)*))) };
}

/// As `println!`.
macro_rules! print {
    ($($part:tt)*) => { $crate::output::print(format_args!($($part)*)) };
}

/// As `println!`, on standard error; what nobody can read is not missed.
macro_rules! eprintln {
    ($($part:tt)*) => { $crate::output::hint(format_args!($($part)*)) };
}

pub(crate) fn print(text: Arguments<'_>) {
    if FAILED.get().is_none()
        && let Err(error) = write(&mut std::io::stdout().lock(), text)
    {
        let _ = FAILED.set(error);
    }
}

pub(crate) fn hint(text: Arguments<'_>) {
    let _ = write(&mut std::io::stderr().lock(), format_args!("{text}\n"));
}

fn write(to: &mut impl Write, text: Arguments<'_>) -> std::io::Result<()> {
    to.write_fmt(text)?;
    to.flush()
}

/// Whether all that was printed until now was written: to be asked before what can't be printed again is committed.
///
/// # Errors
/// That standard output could not be written.
pub(crate) fn written() -> anyhow::Result<()> {
    match FAILED.get() {
        None => Ok(()),
        Some(error) => Err(std::io::Error::new(error.kind(), error.to_string())).context("standard output"),
    }
}

/// The exit code of a command that has done its work, and what to say of it.
pub(crate) fn outcome() -> (u8, Option<String>) {
    code_of(FAILED.get())
}

fn code_of(failed: Option<&std::io::Error>) -> (u8, Option<String>) {
    match failed {
        None => (0, None),
        Some(error) if error.kind() == ErrorKind::BrokenPipe => (READER_GONE, None),
        Some(error) => (1, Some(format!("standard output: {error}"))),
    }
}

/// Prints rows under their headings, for people.
pub(crate) fn table(headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(headings.iter().map(|heading| heading.to_string()).collect::<Vec<_>>());
    for row in rows {
        table.add_row(row);
    }
    println!("{table}");
}

/// Prints JSON, for programs.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// A time in microseconds since the Unix epoch as RFC 3339.
pub(crate) fn time(micros: i64) -> String {
    Timestamp::from_micros(micros).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_has_gone_is_no_error_and_a_full_disk_is_a_plain_one() {
        assert_eq!(code_of(None), (0, None));
        assert_eq!(code_of(Some(&ErrorKind::BrokenPipe.into())), (141, None));
        let (code, text) = code_of(Some(&ErrorKind::StorageFull.into()));
        assert!(code == 1 && text.unwrap().starts_with("standard output: "));
        let mut small = [0; 4];
        assert!(write(&mut &mut small[..], format_args!("more than fits")).is_err());
    }
}
