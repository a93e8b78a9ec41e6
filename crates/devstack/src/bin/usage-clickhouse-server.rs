//! The real ClickHouse server out of `libchdb.so`: `usage-clickhouse-server LIBRARY PROGRAM-ARGUMENT…`.
//!
//! The library runs `clickhouse local`, which listens as long as a query reads from standard input. So this process gives it
//! a pipe of its own and closes the other end at SIGTERM or SIGINT: that is a clean stop.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::pipe;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{SigSet, Signal};

/// What `query_stable_v2` returns a pointer to.
#[repr(C)]
struct LocalResult {
    _buffer: *mut c_char,
    _length: usize,
    _vector: *mut c_void,
    _elapsed: f64,
    _rows: u64,
    _bytes: u64,
    error: *mut c_char,
}

type Query = unsafe extern "C" fn(c_int, *mut *mut c_char) -> *mut LocalResult;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let library = arguments.next().context("the first argument must be the path of libchdb.so")?;
    // argv[0] must be the program's name.
    let mut owned = vec![CString::new("clickhouse")?];
    for argument in arguments {
        owned.push(CString::new(argument)?);
    }
    stop_on_signal()?;
    run_clickhouse(&library, &owned)
}

/// Puts a pipe in the place of standard input and starts the thread that closes its writing end at a signal.
fn stop_on_signal() -> Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.thread_block()?;
    let (reader, writer) = pipe()?;
    nix::unistd::dup2_stdin(&reader)?;
    drop(reader);
    std::thread::Builder::new().name("stop".to_owned()).spawn(move || {
        let _ = signals.wait();
        drop(writer);
    })?;
    Ok(())
}

#[expect(unsafe_code, reason = "the server is a C function of a shared library")]
fn run_clickhouse(library: &str, arguments: &[CString]) -> Result<()> {
    let mut argv: Vec<*mut c_char> = arguments.iter().map(|argument| argument.as_ptr().cast_mut()).collect();
    let argc = c_int::try_from(argv.len())?;
    argv.push(std::ptr::null_mut());
    // SAFETY: the library was verified by its checksum; `query_stable_v2` has this signature in the pinned version, takes
    // argv only for the call, and returns null or a result that lives until the process ends.
    let error = unsafe {
        let loaded = libloading::Library::new(library).with_context(|| format!("loading {library}"))?;
        let query = loaded.get::<Query>(b"query_stable_v2\0").context("finding query_stable_v2")?;
        let result = query(argc, argv.as_mut_ptr());
        let error = match result.as_ref() {
            None => Some("no result".to_owned()),
            Some(result) if result.error.is_null() => None,
            Some(result) => Some(CStr::from_ptr(result.error).to_string_lossy().into_owned()),
        };
        // Its threads and exit handlers are still there: unloading the code under them would crash.
        std::mem::forget(loaded);
        error
    };
    match error {
        Some(error) => bail!("clickhouse ended with an error: {error}"),
        None => Ok(()),
    }
}
