//! Ctrl-C and SIGTERM for tools that have started servers: the tool notices, returns, and everything it holds is dropped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static FOREGROUND: Mutex<Option<Pid>> = Mutex::new(None);

/// Takes SIGINT, SIGTERM and SIGHUP over. Call it at the start of `main`, before any thread is started. A second signal ends
/// the process at once; what is attached to it then dies by the kernel's hand.
pub fn handle() -> Result<()> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block()?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        while signals.wait().is_ok() {
            if INTERRUPTED.swap(true, Ordering::SeqCst) {
                std::process::abort();
            }
            if let Some(group) = *FOREGROUND.lock().unwrap_or_else(PoisonError::into_inner) {
                let _ = killpg(group, Signal::SIGTERM);
            }
        }
    })?;
    Ok(())
}

/// Whether a signal came.
#[must_use]
pub fn came() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// An error once a signal came.
pub fn check() -> Result<()> {
    if came() {
        bail!("interrupted");
    }
    Ok(())
}

/// Names the process group that gets SIGTERM when a signal comes; forgotten on drop.
#[derive(Debug)]
pub struct Foreground(());

impl Foreground {
    /// The group of the child that runs in the foreground now.
    #[must_use]
    pub fn set(pid: u32) -> Self {
        *FOREGROUND.lock().unwrap_or_else(PoisonError::into_inner) = Some(Pid::from_raw(pid.cast_signed()));
        Self(())
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        *FOREGROUND.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
