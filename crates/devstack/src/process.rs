//! Child processes of the stack: how they are started, watched and ended.
//!
//! Two lives are possible. An [`Attached`](Life::Attached) child ends with the process that started it, whatever ends that
//! one: the kernel sends it a signal (`PR_SET_PDEATHSIG`). A [`Detached`](Life::Detached) child gets a session of its own and
//! stays until somebody ends it by its [`ProcessId`].

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{SigSet, Signal, kill, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// How long a child lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// Ends with this process; the signal is what the kernel sends when this process is gone.
    Attached(Signal),
    /// Has its own session and outlives this process.
    Detached,
}

/// A process as it can be found again later: the id alone may have been given to another process meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// The process id.
    pub pid: u32,
    /// Clock ticks after boot at which it started (field 22 of `/proc/PID/stat`).
    pub start_ticks: u64,
}

/// How long a process is given to stand still after SIGSTOP: one in the middle of a disk access takes a moment.
const STANDS_WITHIN: Duration = Duration::from_secs(5);

impl ProcessId {
    /// The identity of a running process, `None` when there is none with this id.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (state, start_ticks) = parse_stat(&stat)?;
        // A zombie runs nothing any more; it only waits to be reaped.
        (state != 'Z' && state != 'X').then_some(Self { pid, start_ticks })
    }

    /// Whether that very process still runs.
    #[must_use]
    pub fn is_running(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Sends the signal if that very process still runs; says whether it was sent. After SIGSTOP it stands still: a thread that
    /// runs on another processor would go on for a moment, long enough to answer.
    pub fn signal(self, signal: Signal) -> Result<bool> {
        if !self.is_running() {
            return Ok(false);
        }
        match kill(self.nix(), signal) {
            Ok(()) if signal == Signal::SIGSTOP => {
                wait_until(STANDS_WITHIN, || !self.is_running() || self.stands_still());
                Ok(true)
            }
            Ok(()) => Ok(true),
            Err(nix::errno::Errno::ESRCH) => Ok(false),
            Err(error) => Err(error).with_context(|| format!("sending {signal} to process {}", self.pid)),
        }
    }

    /// Whether all of its threads are stopped.
    fn stands_still(self) -> bool {
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", self.pid)) else { return false };
        let mut states = threads.flatten().filter_map(|thread| {
            // A thread that has ended meanwhile has no state.
            let stat = fs::read_to_string(thread.path().join("stat")).ok()?;
            parse_stat(&stat).map(|(state, _)| state)
        });
        states.all(|state| matches!(state, 'T' | 't' | 'Z' | 'X'))
    }

    /// Asks the process to end, waits up to `grace`, then kills its process group. Says whether it was running.
    pub fn end(self, ask: Signal, grace: Duration) -> Result<bool> {
        if !self.signal(ask)? {
            return Ok(false);
        }
        if wait_until(grace, || !self.is_running()) {
            return Ok(true);
        }
        if self.is_running() {
            // Every child of the stack leads its own group, so this takes its helpers along.
            let _ = killpg(self.nix(), Signal::SIGKILL);
            self.signal(Signal::SIGKILL)?;
        }
        if !wait_until(Duration::from_secs(10), || !self.is_running()) {
            bail!("process {} did not end after SIGKILL", self.pid);
        }
        Ok(true)
    }

    fn nix(self) -> Pid {
        Pid::from_raw(self.pid.cast_signed())
    }
}

/// The children that the process has now.
#[must_use]
pub fn children_of(parent: u32) -> Vec<ProcessId> {
    let Ok(threads) = fs::read_dir(format!("/proc/{parent}/task")) else { return Vec::new() };
    let lists = threads
        .flatten()
        .map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    lists
        .flat_map(|list| {
            list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()
        })
        .filter_map(ProcessId::of)
        .collect()
}

/// State letter and start time out of the text of `/proc/PID/stat`; the name in parentheses may hold anything.
fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    let mut fields = after_name.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // The state is field 3, the start time field 22.
    let start = fields.nth(18)?.parse().ok()?;
    Some((state, start))
}

/// Looks every 20 ms until the condition holds; false when the time is over.
pub fn wait_until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        nap(Duration::from_millis(20));
    }
}

/// Waits between two looks at something that offers no event: a foreign process or a server that is starting.
#[expect(clippy::disallowed_methods, reason = "foreign processes offer no event to await")]
pub fn nap(time: Duration) {
    std::thread::sleep(time);
}

/// A server of the stack with its log file.
#[derive(Debug)]
pub struct Server {
    child: Child,
    id: ProcessId,
    life: Life,
    log: PathBuf,
}

/// What is to be started.
#[derive(Debug)]
pub struct Launch {
    /// Program, arguments, environment and user.
    pub command: Command,
    /// Standard output and error are appended here.
    pub log: PathBuf,
    /// How long it lives.
    pub life: Life,
}

impl Server {
    /// Starts the program; its output goes to the end of the log file.
    pub fn start(launch: Launch) -> Result<Self> {
        let Launch { mut command, log, life } = launch;
        let out = open_log(&log)?;
        let program = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let child = spawn(command, life).with_context(|| format!("starting {program}"))?;
        let pid = child.id();
        // Not reaped yet, so the entry in /proc is still ours even if it ended at once; then 0 makes `is_running` false.
        let id = ProcessId::of(pid).unwrap_or(ProcessId { pid, start_ticks: 0 });
        Ok(Self { child, id, life, log })
    }

    /// Id and start time.
    #[must_use]
    pub fn id(&self) -> ProcessId {
        self.id
    }

    /// The log file.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The exit status, if it has ended.
    pub fn exited(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().context("asking for the exit status of a server")
    }

    /// Sends a signal to the process itself.
    pub fn signal(&self, signal: Signal) -> Result<bool> {
        self.id.signal(signal)
    }

    /// Kills the process and its helpers at once and reaps it.
    pub fn kill9(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let _ = killpg(self.id.nix(), Signal::SIGKILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks with a signal, waits, kills when the time is over.
    pub fn stop(&mut self, ask: Signal, grace: Duration) -> Result<()> {
        let _ = self.id.signal(Signal::SIGCONT);
        let _ = self.id.signal(ask);
        if wait_until(grace, || matches!(self.child.try_wait(), Ok(Some(_)))) {
            return Ok(());
        }
        self.kill9();
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Life::Attached(_) = self.life {
            self.kill9();
        }
    }
}

fn open_log(log: &Path) -> Result<File> {
    if let Some(parent) = log.parent() {
        fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
    }
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("opening {}", log.display()))
}

type SpawnJob = (Command, Sender<io::Result<Child>>);

/// Starts a child on a thread that never ends.
///
/// `PR_SET_PDEATHSIG` watches the thread that started the child, not the process: a server that was started by a test's
/// thread or by a worker of a runtime would die with that thread.
pub fn spawn(mut command: Command, life: Life) -> io::Result<Child> {
    static SPAWNER: OnceLock<Sender<SpawnJob>> = OnceLock::new();
    prepare(&mut command, life);
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, jobs) = mpsc::channel::<SpawnJob>();
        std::thread::Builder::new()
            .name("devstack-spawner".to_owned())
            .spawn(move || {
                for (mut command, reply) in jobs {
                    let _ = reply.send(command.spawn());
                }
            })
            .expect("a thread can be started");
        sender
    });
    let (reply, answer) = mpsc::channel();
    let gone = || io::Error::other("the spawning thread is gone");
    spawner.send((command, reply)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

#[expect(
    unsafe_code,
    reason = "pre_exec: prctl, setsid and the signal mask exist only between fork and exec"
)]
fn prepare(command: &mut Command, life: Life) {
    if let Life::Attached(_) = life {
        command.process_group(0);
    }
    let parent = nix::unistd::getpid();
    let setup = move || -> io::Result<()> {
        // A caller that waits for signals with sigwait has them blocked, and the mask is inherited.
        SigSet::empty().thread_set_mask()?;
        match life {
            Life::Detached => {
                nix::unistd::setsid()?;
            }
            // Comes after std has changed the user: a change of user clears the setting.
            Life::Attached(signal) => {
                nix::sys::prctl::set_pdeathsig(signal)?;
                if nix::unistd::getppid() != parent {
                    return Err(io::Error::other("the parent ended meanwhile"));
                }
            }
        }
        Ok(())
    };
    // SAFETY: the closure makes only async-signal-safe system calls and allocates only on its way to an error.
    unsafe {
        command.pre_exec(setup);
    }
}

#[cfg(test)]
mod tests;
