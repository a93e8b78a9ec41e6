//! Ctrl-C and SIGTERM for tools that have started servers: the tool notices, returns, and everything it holds is dropped.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Result, bail};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static FOREGROUND: Mutex<BTreeSet<Pid>> = Mutex::new(BTreeSet::new());

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
            for group in groups().iter() {
                let _ = killpg(*group, Signal::SIGTERM);
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

fn groups() -> MutexGuard<'static, BTreeSet<Pid>> {
    FOREGROUND.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process group that gets SIGTERM when a signal comes; forgotten on drop.
#[derive(Debug)]
pub struct Foreground(Pid);

impl Foreground {
    /// The group of a child that somebody waits for. If a signal came already, it is passed on at once.
    #[must_use]
    pub fn set(pid: u32) -> Self {
        let group = Pid::from_raw(pid.cast_signed());
        groups().insert(group);
        if came() {
            let _ = killpg(group, Signal::SIGTERM);
        }
        Self(group)
    }
}

impl Drop for Foreground {
    fn drop(&mut self) {
        groups().remove(&self.0);
    }
}
