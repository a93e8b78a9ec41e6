//! Workers in processes of their own.

use std::time::{Duration, Instant};

use usage_service::fail_points::VARIABLE;
use uuid::Uuid;

use super::{Pipeline, WITHIN, eventually};

/// A worker in a process of its own.
pub struct Process {
    child: std::process::Child,
    pub log: std::path::PathBuf,
}

impl Process {
    pub fn start(pipeline: &Pipeline, more: &[&str]) -> Self {
        Self::armed(pipeline, "", more)
    }

    /// One that ends or freezes at the fail points that `points` names.
    pub fn armed(pipeline: &Pipeline, points: &str, more: &[&str]) -> Self {
        let log = std::env::temp_dir().join(format!("usage-consumer-{}.log", Uuid::new_v4()));
        let file = std::fs::File::create(&log).expect("a log file");
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_usage-consumer"));
        for setting in pipeline.settings().iter().map(String::as_str).chain(more.iter().copied()) {
            command.args(["--set", setting]);
        }
        command.env(VARIABLE, points);
        let child =
            command.stderr(file).stdin(std::process::Stdio::null()).spawn().expect("the worker starts");
        Self { child, log }
    }

    fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"));
        nix::sys::signal::kill(pid, signal).expect("the worker lives");
    }

    pub fn kill9(mut self) {
        self.child.kill().expect("the worker lives");
        self.child.wait().expect("it ends");
        std::fs::remove_file(&self.log).expect("the log is there");
    }

    /// Waits until it has frozen itself at its fail point.
    pub async fn froze(&self) {
        let stat = format!("/proc/{}/stat", self.child.id());
        let stopped = || {
            let stat = std::fs::read_to_string(&stat).expect("it lives");
            stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
        };
        eventually(&format!("it freezes at its point: see {}", self.log.display()), || async { stopped() })
            .await;
    }

    /// Greatest resident memory so far.
    pub fn peak_bytes(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it lives");
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("linux says it");
        let kib: usize = peak.trim().trim_end_matches(" kB").parse().expect("a number");
        kib * 1_024
    }

    /// Greatest resident memory and processor time so far.
    pub fn usage(&self) -> String {
        let read = |file: &str| {
            std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap_or_default()
        };
        let status = read("status");
        let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default().to_string();
        let stat = read("stat");
        // Ticks of 10 ms in user and system mode.
        let ticks: u64 =
            stat.split_whitespace().skip(13).take(2).filter_map(|text| text.parse::<u64>().ok()).sum();
        let threads =
            std::fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten().flatten();
        let mut by_name = std::collections::BTreeMap::<String, u64>::new();
        for thread in threads {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            let Some((head, tail)) = stat.rsplit_once(')') else { continue };
            let name = head.split_once('(').map_or("", |(_, name)| name);
            let ticks = tail
                .split_whitespace()
                .skip(11)
                .take(2)
                .filter_map(|text| text.parse::<u64>().ok())
                .sum::<u64>();
            *by_name.entry(name.to_string()).or_default() += ticks * 10;
        }
        format!("{peak}, {} ms of processor time, by thread {by_name:?}", ticks * 10)
    }

    pub fn log_contains(&self, text: &str) -> bool {
        self.log_count(text) > 0
    }

    pub fn log_count(&self, text: &str) -> usize {
        std::fs::read_to_string(&self.log).expect("the log is there").matches(text).count()
    }

    pub fn terminate(&self) {
        self.signal(nix::sys::signal::Signal::SIGTERM);
    }

    pub fn pause(&self) {
        self.signal(nix::sys::signal::Signal::SIGSTOP);
    }

    pub fn resume(&self) {
        self.signal(nix::sys::signal::Signal::SIGCONT);
    }

    /// Asks it to stop. It holds itself to its 10 s: longer is no clean end.
    pub async fn stop(self) {
        self.terminate();
        self.stopped(WITHIN).await;
    }

    /// Waits for the clean end that it was asked for.
    pub async fn stopped(mut self, within: Duration) {
        let status = self.ended(within).await;
        assert!(status.success(), "{status}: see {}", self.log.display());
        self.remove_log();
    }

    /// Waits until it has ended itself at its fail point.
    pub async fn died(mut self) {
        let status = self.ended(WITHIN).await;
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(signal, Some(9), "{status}: see {}", self.log.display());
        self.remove_log();
    }

    /// Waits until it has ended, in whatever way.
    pub async fn gone(mut self) {
        self.ended(WITHIN).await;
        self.remove_log();
    }

    async fn ended(&mut self, within: Duration) -> std::process::ExitStatus {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait().expect("it can be asked") {
                return status;
            }
            assert!(Instant::now() < deadline, "it still runs: see {}", self.log.display());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// It is kept only when something went wrong, or on request.
    fn remove_log(&self) {
        if std::env::var_os("USAGE_TEST_KEEP_LOGS").is_none() {
            std::fs::remove_file(&self.log).expect("the log is there");
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // After a panic nothing of the test may live on; an ended process can't be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
