//! The relay as a process of its own, which can be killed and frozen.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use usage_devstack::testing;
use usage_service::fail_points::VARIABLE;

use crate::support::{KEY, KEY_ID, SOURCE, Source, Topic, until};

pub struct Process(Child);

impl Process {
    pub fn start(source: &Source, topic: &Topic, instance: &str, lease: Duration) -> Self {
        Self::armed(source, topic, instance, lease, "")
    }

    /// One that ends or freezes at the fail points that `points` names.
    pub fn armed(source: &Source, topic: &Topic, instance: &str, lease: Duration, points: &str) -> Self {
        let (lease, timeout) = (lease.as_millis(), lease.as_millis() * 2 / 3);
        let child = Command::new(env!("CARGO_BIN_EXE_usage-relay"))
            .args(["--set", "telemetry.listen=127.0.0.1:0", "--set", &format!("relay.instance={instance}")])
            .args(["--set", &format!("relay.lease={lease}ms")])
            .args(["--set", &format!("relay.message_timeout={timeout}ms")])
            .env("USAGE_KAFKA_BROKERS", testing::kafka_brokers())
            .env("USAGE_KAFKA_RECORDS_TOPIC", &topic.name)
            .env("USAGE_SOURCE_DATABASE_URL", &source.url)
            .env("USAGE_RELAY_DEFAULT_SOURCE", SOURCE)
            .env("USAGE_RELAY_SOURCE_KEYS", format!("{SOURCE}:{KEY_ID}:{KEY}"))
            .env(VARIABLE, points)
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        Self(child)
    }

    pub fn signal(&self, signal: &str) {
        let signalled = Command::new("kill").args([signal, &self.0.id().to_string()]).status().unwrap();
        assert!(signalled.success());
    }

    /// kill -9.
    pub fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// Waits until it has killed itself at its fail point.
    pub async fn died(mut self) {
        let status = until("it dies at its point", async || self.0.try_wait().unwrap()).await;
        assert_eq!(status.signal(), Some(9), "{status}");
    }

    /// Waits until it has frozen itself at its fail point.
    pub async fn froze(&mut self) {
        let stat = format!("/proc/{}/stat", self.0.id());
        until("it freezes at its point", async || {
            let text = std::fs::read_to_string(&stat).unwrap();
            let (_, rest) = text.rsplit_once(") ").unwrap();
            rest.starts_with('T').then_some(())
        })
        .await;
    }

    pub fn terminate(&mut self) -> std::process::ExitStatus {
        self.signal("-TERM");
        self.0.wait().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Already gone in every test that passes.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
