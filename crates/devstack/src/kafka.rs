//! The real Kafka broker: one node that is controller and broker (KRaft).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;

use crate::install::{apt, kafka as install};
use crate::process::{Launch, Life, ProcessId, Server};
use crate::{cache, ports, probe};

const READY: Duration = Duration::from_secs(120);
/// After a kill -9 every log is read again, and whoever kills brokers keeps the machine busy with the rest meanwhile.
const READY_AGAIN: Duration = Duration::from_secs(300);
const GRACE: Duration = Duration::from_secs(20);
/// 22 characters of URL-safe base64; any will do for a cluster of one.
const CLUSTER_ID: &str = "dXNhZ2UtY29sbGVjdG9yMQ";

/// A Kafka broker with its data in one directory.
#[derive(Debug)]
pub struct Kafka {
    dir: PathBuf,
    home: PathBuf,
    port: u16,
    life: Life,
    /// Whether it is started again and again: a fast start counts for more than speed afterwards.
    short_lived: bool,
    server: Server,
}

/// One more way into the broker for one group of clients, so that what lies between can be cut: the broker listens on `port` and tells
/// those who come there to go on at `advertised`, where a proxy listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// Upper-case letters and digits, unlike any other's.
    pub name: String,
    /// Where the broker listens.
    pub port: u16,
    /// Where its clients connect.
    pub advertised: u16,
}

/// Ways in for clients that have to say who they are, on a broker whose ACLs bind them (docs/kafka-security.md). Its plaintext listener
/// is the broker's own: who comes by it may do everything, and so may the user `admin`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    /// Where it listens for SASL_SSL with SCRAM-SHA-512.
    pub sasl: u16,
    /// Where it listens for TLS with client certificates; the principal is the common name.
    pub tls: u16,
    /// The broker's private key and certificate, PEM.
    pub keystore: PathBuf,
    /// Certificates of the authorities that sign clients' certificates, PEM.
    pub truststore: PathBuf,
}

impl Kafka {
    /// Starts a broker that ends with this process; the data of an earlier one in `dir` is kept.
    pub fn start(dir: &Path) -> Result<Self> {
        Self::start_as(dir, Life::Attached(Signal::SIGKILL))
    }

    /// Starts a broker with the given life.
    pub fn start_as(dir: &Path, life: Life) -> Result<Self> {
        Self::launch(dir, life, &[], None)
    }

    /// Starts a broker that ends with this process, has more listeners and is to be started often.
    pub fn start_with(dir: &Path, listeners: &[Listener]) -> Result<Self> {
        Self::launch(dir, Life::Attached(Signal::SIGKILL), listeners, None)
    }

    /// Starts a broker that ends with this process and asks its clients who they are.
    pub fn start_guarded(dir: &Path, guard: &Guard) -> Result<Self> {
        Self::launch(dir, Life::Attached(Signal::SIGKILL), &[], Some(guard))
    }

    fn launch(dir: &Path, life: Life, listeners: &[Listener], guard: Option<&Guard>) -> Result<Self> {
        let home = install::home()?;
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        let dir = dir.canonicalize()?;
        let [port, controller] = ports::kept(&dir)?;
        fs::write(dir.join("server.properties"), properties(&dir, port, controller, listeners, guard))?;
        fs::write(dir.join("log4j2.yaml"), LOG4J)?;
        // The formatting tool writes the checkpoint first and meta.properties last.
        if !dir.join("data/meta.properties").exists() {
            format_storage(&home, &dir)?;
        }
        let short_lived = !listeners.is_empty() || guard.is_some();
        let server = launch(&home, &dir, life, short_lived)?;
        let mut this = Self { dir, home, port, life, short_lived, server };
        this.await_ready()?;
        Ok(this)
    }

    /// `127.0.0.1:PORT`.
    #[must_use]
    pub fn brokers(&self) -> String {
        Self::address(self.port)
    }

    /// `127.0.0.1:PORT` of a broker that another process started.
    #[must_use]
    pub fn address(port: u16) -> String {
        format!("127.0.0.1:{port}")
    }

    /// The port of the clients' listener.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.server.id().pid
    }

    /// Id and start time of the process.
    #[must_use]
    pub fn id(&self) -> ProcessId {
        self.server.id()
    }

    /// The log file.
    #[must_use]
    pub fn log(&self) -> &Path {
        self.server.log()
    }

    /// The directory with `libs/*.jar`.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.home.clone()
    }

    /// A command that runs one of Kafka's own tools, as `bin/*.sh` would, for example
    /// `org.apache.kafka.tools.consumer.group.ConsumerGroupCommand`.
    pub fn tool(&self, class: &str) -> Result<Command> {
        tool(&self.home, class)
    }

    /// The same for a broker that another process started.
    pub fn installed_tool(class: &str) -> Result<Command> {
        tool(&install::home()?, class)
    }

    /// Kills it at once.
    pub fn kill9(&mut self) {
        self.server.kill9();
    }

    /// Starts it again on the same ports and data; one that still runs is killed first.
    pub fn restart(&mut self) -> Result<()> {
        self.server.kill9();
        self.server = launch(&self.home, &self.dir, self.life, self.short_lived)?;
        self.await_ready()
    }

    /// Stops it in order.
    pub fn stop(mut self) -> Result<()> {
        self.server.stop(Signal::SIGTERM, GRACE)
    }

    /// Freezes the process (SIGSTOP).
    pub fn pause(&self) {
        let _ = self.server.signal(Signal::SIGSTOP);
    }

    /// Lets a frozen process go on.
    pub fn resume(&self) {
        let _ = self.server.signal(Signal::SIGCONT);
    }

    fn await_ready(&mut self) -> Result<()> {
        let port = self.port;
        let limit = if self.short_lived { READY_AGAIN } else { READY };
        probe::await_ready("Kafka", &mut self.server, limit, || probe::kafka_ready(port))
    }
}

fn java(home: &Path) -> Result<Command> {
    let mut command = Command::new(apt::java().context("Java 17 is not there")?);
    command.arg("-cp").arg(home.join("libs").join("*"));
    Ok(command)
}

pub(crate) fn tool(home: &Path, class: &str) -> Result<Command> {
    let mut command = java(home)?;
    // Short runs: the second compiler would cost more than it brings.
    command.args(["-Xmx256m", "-XX:TieredStopAtLevel=1", class]);
    Ok(command)
}

fn format_storage(home: &Path, dir: &Path) -> Result<()> {
    let mut command = tool(home, "kafka.tools.StorageTool")?;
    command
        .args(["format", "--ignore-formatted", "--cluster-id", CLUSTER_ID, "--config"])
        .arg(dir.join("server.properties"));
    cache::run_quietly(command).context("formatting Kafka's data directory")
}

fn launch(home: &Path, dir: &Path, life: Life, short_lived: bool) -> Result<Server> {
    let mut command = java(home)?;
    if short_lived {
        // Without the second compiler a start takes 4.3 s of CPU instead of 6.4 s (measured).
        command.arg("-XX:TieredStopAtLevel=1");
    }
    command.current_dir(dir).args(["-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-Djava.awt.headless=true"]);
    command.arg(format!("-Dlog4j2.configurationFile={}", dir.join("log4j2.yaml").display()));
    command.arg("kafka.Kafka").arg(dir.join("server.properties"));
    Server::start(Launch { command, log: dir.join("kafka.log"), life })
}

impl Guard {
    /// As docs/kafka-security.md has them.
    fn properties(&self) -> String {
        let (keystore, truststore) = (self.keystore.display(), self.truststore.display());
        format!(
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:admin
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.sasl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
ssl.truststore.type=PEM
ssl.truststore.location={truststore}
listener.name.tls.ssl.client.auth=required
ssl.principal.mapping.rules=RULE:^CN=([^,]+).*$/$1/
"
        )
    }
}

/// Why, where it is not plain:
/// - `group.coordinator.append.linger.ms=0`: the plan is in the commit, one synchronous commit a batch, and nearly all of its
///   7 ms is this linger (default 5); with 0 it is 1 ms. One group has nothing to gather meanwhile.
/// - `group.initial.rebalance.delay.ms=0`: a test's group need not wait 3 s for members that never come.
/// - `offsets.retention.minutes`: 30 days, because an expired offset takes the plan along.
/// - few partitions of the internal topics, small indexes and segments: hundreds of test topics share one small disk.
/// - `log.cleaner.dedupe.buffer.size`: its default of 128 MB is a quarter of the heap.
fn properties(
    dir: &Path,
    port: u16,
    controller: u16,
    listeners: &[Listener],
    guard: Option<&Guard>,
) -> String {
    let more = |text: fn(&Listener) -> String| listeners.iter().map(text).collect::<String>();
    let guarded = guard.map_or_else(<(String, &str, String)>::default, |guard| {
        let ways = format!(",SASL://127.0.0.1:{},TLS://127.0.0.1:{}", guard.sasl, guard.tls);
        (ways, ",SASL:SASL_SSL,TLS:SSL", guard.properties())
    });
    let (ways, protocols, guarded) = (guarded.0.as_str(), guarded.1, guarded.2.as_str());
    format!(
        "process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{}{ways}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}{}{ways}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT{}{protocols}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={}
auto.create.topics.enable=false
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
offsets.retention.minutes=43200
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.coordinator.append.linger.ms=0
group.initial.rebalance.delay.ms=0
log.segment.bytes=134217728
log.index.size.max.bytes=1048576
log.cleaner.threads=1
log.cleaner.dedupe.buffer.size=16777216
num.network.threads=2
num.io.threads=4
num.recovery.threads.per.data.dir=2
{guarded}",
        more(|listener| format!(",{}://127.0.0.1:{}", listener.name, listener.port)),
        more(|listener| format!(",{}://127.0.0.1:{}", listener.name, listener.advertised)),
        more(|listener| format!(",{}:PLAINTEXT", listener.name)),
        dir.join("data").display()
    )
}

const LOG4J: &str = "Configuration:
  status: warn
  Appenders:
    Console:
      name: out
      PatternLayout:
        pattern: '[%d] %p %m (%c)%n'
  Loggers:
    Root:
      level: info
      AppenderRef:
        ref: out
    Logger:
      - name: kafka.authorizer
        level: warn
      - name: org.apache.kafka.common.config
        level: warn
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_listener_is_listened_on_advertised_and_mapped() {
        let listener = |name: &str, port, advertised| Listener { name: name.to_owned(), port, advertised };
        let text = properties(Path::new("/x"), 1, 2, &[listener("A0", 3, 4), listener("B1", 5, 6)], None);
        for line in [
            "listeners=PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2,A0://127.0.0.1:3,B1://127.0.0.1:5",
            "advertised.listeners=PLAINTEXT://127.0.0.1:1,A0://127.0.0.1:4,B1://127.0.0.1:6",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,A0:PLAINTEXT,B1:PLAINTEXT",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        let guard = Guard { sasl: 7, tls: 8, keystore: "/k.pem".into(), truststore: "/t.pem".into() };
        let guarded = properties(Path::new("/x"), 1, 2, &[], Some(&guard));
        for line in [
            "advertised.listeners=PLAINTEXT://127.0.0.1:1,SASL://127.0.0.1:7,TLS://127.0.0.1:8",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_SSL,TLS:SSL",
            "listener.name.tls.ssl.client.auth=required",
            "ssl.truststore.location=/t.pem",
        ] {
            assert!(guarded.lines().any(|found| found == line), "{line} is not in\n{guarded}");
        }
        let plain = properties(Path::new("/x"), 1, 2, &[], None);
        assert!(!plain.contains("authorizer"), "{plain}");
        assert!(plain.contains("\nadvertised.listeners=PLAINTEXT://127.0.0.1:1\n"), "{plain}");
    }
}
