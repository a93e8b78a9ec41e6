//! Everything of a run: servers, proxies between them and the processes, and the processes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::spawn_blocking;
use usage_devstack::{ClickHouse, Kafka, Listener, Postgres, ports, probe};
use uuid::Uuid;

use super::disk::Disk;
use super::emitter;
use super::member::Member;
use super::proxy::Proxy;
use super::schedule::{Actor, EMITTERS, Link, Server, actors, links};
use super::truth;
use crate::answers::Api;
use crate::pipeline::{Options, Pipeline, Servers};
use crate::workload::{SOURCE, tenants};

/// Partitions that the topic begins with; few, so that it can grow cheaply.
pub const PARTITIONS: u32 = 6;
const READY: Duration = Duration::from_secs(120);
/// The quota of one tenant; a minute of the load is more. Its window is too long to end in a run.
pub const BOUNDED_RECORDS: usize = 100;

/// The tenant that has a quota: not the noisy one.
pub fn bounded(seed: u64) -> Uuid {
    tenants(seed, emitter::TENANTS)[1]
}

type Shared<T> = Arc<Mutex<T>>;

fn shared<T>(value: T) -> Shared<T> {
    Arc::new(Mutex::new(value))
}

/// Whoever does something to a server or a process holds its lock meanwhile.
pub struct Cluster {
    pub pipeline: Pipeline,
    pub api: Api,
    pub kafka: Shared<Kafka>,
    pub clickhouse: Shared<ClickHouse>,
    pub source: Shared<Postgres>,
    pub control: Shared<Postgres>,
    pub links: BTreeMap<Link, Shared<Proxy>>,
    pub members: BTreeMap<Actor, Shared<Member>>,
    /// One of offsets and partitions changes at a time.
    pub topic: Shared<()>,
    /// The disk, or why there is none.
    pub disk: Result<Disk, String>,
    /// The file that tells the emitters by how many hours their clock is wrong.
    pub clock: PathBuf,
    pub brokers: String,
    pub clickhouse_url: String,
}

/// What a cluster is made for.
#[derive(Debug, Clone)]
pub struct Load {
    pub seed: u64,
    /// Transactions per second, of all emitters.
    pub rate: u32,
    /// Transactions at once, of one emitter.
    pub workers: u32,
    /// Records of a transaction, at most.
    pub records: u32,
}

impl Cluster {
    /// Starts servers, proxies and processes, with data and logs in `dir`.
    pub async fn start(dir: &Path, load: &Load, disk: Result<(), String>) -> anyhow::Result<Self> {
        let (ways, listeners) = kafka_ways().await?;
        let at = |name: &str| dir.join(name);
        let (kafka, clickhouse, source, control) =
            (at("kafka"), at("clickhouse"), at("source"), at("control"));
        let (kafka, clickhouse, source, control) = tokio::try_join!(
            blocking(move || Kafka::start_with(&kafka, &listeners)),
            blocking(move || ClickHouse::start(&clickhouse)),
            blocking(move || Postgres::start(&source)),
            blocking(move || Postgres::start(&control)),
        )?;
        let disk = match disk {
            Ok(()) => Ok(Disk::mount(source.owner()?)?),
            Err(reason) => Err(reason),
        };
        if let Ok(disk) = &disk {
            let place = disk.path().display();
            source.query("postgres", &format!("CREATE TABLESPACE small LOCATION '{place}'"))?;
        }
        let servers = Servers {
            kafka_brokers: kafka.brokers(),
            clickhouse_url: clickhouse.url(),
            control_database_url: control.url("postgres"),
            source_database_url: source.url("postgres"),
            source_tablespace: disk.as_ref().ok().map(|_| "small".into()),
        };
        let options = Options { partitions: Some(PARTITIONS), servers: Some(servers), ..Options::default() };
        let pipeline = Pipeline::prepare(options).await?;
        truth::migrate(&pipeline.source).await?;
        let bounded = bounded(load.seed).to_string();
        let quota = ["--tenant", &bounded, "--records", &BOUNDED_RECORDS.to_string(), "--window", "30days"];
        pipeline.usagectl(&[&["quota", "set", SOURCE], &quota[..]].concat())?;

        let mut links = ways;
        let loopback = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        for link in self::links() {
            let port = match link.1 {
                Server::Kafka => continue,
                Server::ClickHouse => clickhouse.http_port(),
                Server::Source => source.port(),
                Server::Control => control.port(),
            };
            links.insert(link, Proxy::start(loopback(port)).await?);
        }
        let (clock, port) = (at("clock"), ports::free()?);
        let places = Places { dir, load, clock: &clock, links: &links, api_port: port };
        let members = actors()
            .into_iter()
            .map(|actor| Ok((actor, shared(member(&pipeline, &places, actor)?))))
            .collect::<anyhow::Result<BTreeMap<_, _>>>()?;
        Ok(Self {
            api: pipeline.api(port)?,
            brokers: kafka.brokers(),
            clickhouse_url: clickhouse.url(),
            kafka: shared(kafka),
            clickhouse: shared(clickhouse),
            source: shared(source),
            control: shared(control),
            links: links.into_iter().map(|(link, proxy)| (link, shared(proxy))).collect(),
            members,
            topic: shared(()),
            disk,
            clock,
            pipeline,
        })
    }

    /// Starts all processes and waits until the services say that they are ready.
    pub async fn launch(&self) -> anyhow::Result<()> {
        for member in self.members.values() {
            member.lock().await.start()?;
        }
        let deadline = tokio::time::Instant::now() + READY;
        let mut every = tokio::time::interval(Duration::from_millis(200));
        for member in self.members.values() {
            let (actor, port) = {
                let member = member.lock().await;
                (member.actor, telemetry_port(&member))
            };
            let Some(port) = port else { continue };
            while let Err(error) = blocking(move || probe::http_ok(port, "/health/ready")).await {
                if tokio::time::Instant::now() > deadline {
                    return Err(error.context(format!("{actor} was not ready after {READY:?}")));
                }
                every.tick().await;
            }
        }
        Ok(())
    }

    pub async fn member(&self, actor: Actor) -> OwnedMutexGuard<Member> {
        self.members[&actor].clone().lock_owned().await
    }

    pub fn postgres(&self, server: Server) -> &Shared<Postgres> {
        if server == Server::Source { &self.source } else { &self.control }
    }
}

/// Runs what blocks beside the runtime.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    spawn_blocking(work).await?
}

/// A proxy and a listener of its own for each of Kafka's clients: the broker names its address itself, so it must name the proxy's.
async fn kafka_ways() -> anyhow::Result<(BTreeMap<Link, Proxy>, Vec<Listener>)> {
    let (mut proxies, mut listeners) = (BTreeMap::new(), Vec::new());
    for link in links().into_iter().filter(|Link(_, server)| *server == Server::Kafka) {
        let port = ports::free()?;
        let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], port))).await?;
        let name = link.0.to_string().replace('-', "").to_uppercase();
        listeners.push(Listener { name, port, advertised: proxy.address().port() });
        proxies.insert(link, proxy);
    }
    Ok((proxies, listeners))
}

struct Places<'a> {
    dir: &'a Path,
    load: &'a Load,
    clock: &'a Path,
    links: &'a BTreeMap<Link, Proxy>,
    api_port: u16,
}

fn member(pipeline: &Pipeline, places: &Places<'_>, actor: Actor) -> anyhow::Result<Member> {
    let address = |server: Server| {
        let proxy = places.links.get(&Link(actor, server));
        proxy.map(|proxy| proxy.address().to_string()).context("each link has a proxy")
    };
    let mut env = pipeline.env().clone();
    for server in actor.servers() {
        let (variable, value) = match server {
            Server::Kafka => ("USAGE_KAFKA_BROKERS", address(Server::Kafka)?),
            Server::ClickHouse => {
                ("USAGE_CLICKHOUSE_URL", format!("http://{}", address(Server::ClickHouse)?))
            }
            Server::Source => through(&env, "USAGE_SOURCE_DATABASE_URL", &address(Server::Source)?)?,
            Server::Control => through(&env, "USAGE_CONTROL_DATABASE_URL", &address(Server::Control)?)?,
        };
        env.insert(variable.into(), value);
    }
    let log = places.dir.join(format!("logs/{actor}.log"));
    if let Actor::Emitter(number) = actor {
        let load = places.load;
        let program = std::env::current_exe()?;
        let arguments = emitter_arguments(load, number, &env["USAGE_SOURCE_DATABASE_URL"], places.clock);
        return Ok(Member::new(actor, program, arguments, env, log));
    }
    let (program, config) = match actor {
        Actor::Relay(_) => ("usage-relay", pipeline.relay_config()),
        Actor::Api => ("usage-query-api", pipeline.api_config(places.api_port)),
        _ => ("usage-consumer", String::new()),
    };
    let file = places.dir.join(format!("config/{actor}.toml"));
    if let Some(parent) = file.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::write(&file, config)?;
    let mut arguments = vec!["--config".into(), file.to_string_lossy().into_owned()];
    let listen = format!("telemetry.listen=127.0.0.1:{}", ports::free()?);
    for setting in std::iter::once(listen.as_str()).chain(settings(actor).iter().copied()) {
        arguments.extend(["--set".into(), setting.into()]);
    }
    Ok(Member::new(actor, pipeline.program(program), arguments, env, log))
}

/// Short enough that what waits for a fault's end does not fill the run.
fn settings(actor: Actor) -> &'static [&'static str] {
    match actor {
        Actor::Relay(_) => &[
            "relay.lease=4s",
            "relay.message_timeout=2s",
            "relay.backoff_base=200ms",
            "relay.backoff_max=3s",
        ],
        Actor::Consumer(_) => &[
            // Kafka's least by default.
            "consumer.session_timeout=6s",
            "consumer.retry_max=3s",
            "clickhouse.flush_age=2s",
            "clickhouse.write_timeout=8s",
        ],
        // Rollups are asked for even the smallest question, or nobody would notice that they are wrong.
        Actor::Api => &["clickhouse.rollup_rows=0", "limits.cache=2s"],
        Actor::Emitter(_) => &[],
    }
}

/// The database's URL with another host and port.
fn through(
    env: &BTreeMap<String, String>,
    variable: &'static str,
    address: &str,
) -> anyhow::Result<(&'static str, String)> {
    let url = env.get(variable).with_context(|| format!("{variable} is not known"))?;
    let (before, rest) = url.split_once('@').context("a database URL has a user")?;
    let (_, name) = rest.split_once('/').context("a database URL ends with /NAME")?;
    Ok((variable, format!("{before}@{address}/{name}")))
}

fn emitter_arguments(load: &Load, number: usize, url: &str, clock: &Path) -> Vec<String> {
    let emitters = u32::try_from(EMITTERS).unwrap_or(1);
    let rate = load.rate.div_ceil(emitters).to_string();
    let life = format!("{}-{number}.{{life}}", load.seed);
    let (seed, workers, records) =
        (load.seed.to_string(), load.workers.to_string(), load.records.to_string());
    let clock = clock.to_string_lossy().into_owned();
    let pairs = [
        ("--url", url),
        ("--seed", &seed),
        ("--life", &life),
        ("--rate", &rate),
        ("--workers", &workers),
        ("--records", &records),
        ("--clock", &clock),
    ];
    let flags = pairs.iter().flat_map(|(flag, value)| [(*flag).to_string(), (*value).to_string()]);
    std::iter::once(emitter::COMMAND.to_string()).chain(flags).collect()
}

fn telemetry_port(member: &Member) -> Option<u16> {
    let listen = member.arguments.iter().find_map(|argument| argument.strip_prefix("telemetry.listen="))?;
    listen.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_reached_through_its_proxy_under_its_name() {
        let env =
            BTreeMap::from([("V".to_string(), "postgres://usage:usage@127.0.0.1:5/source_1".to_string())]);
        let (variable, url) = through(&env, "V", "127.0.0.1:9").unwrap();
        assert_eq!((variable, url.as_str()), ("V", "postgres://usage:usage@127.0.0.1:9/source_1"));
        assert!(through(&env, "W", "127.0.0.1:9").is_err());
    }

    #[test]
    fn emitters_share_the_rate_and_have_lives_of_their_own() {
        let load = Load { seed: 7, rate: 301, workers: 4, records: 5 };
        let arguments = emitter_arguments(&load, 1, "postgres://x", Path::new("/clock"));
        let line = arguments.join(" ");
        assert_eq!(
            line,
            "emit --url postgres://x --seed 7 --life 7-1.{life} --rate 151 --workers 4 --records 5 --clock /clock"
        );
    }

    #[test]
    fn every_service_has_a_frozen_time_that_outlasts_its_session_or_lease() {
        // 4 s to 12 s are drawn (schedule.rs): some of both kinds.
        assert!(settings(Actor::Consumer(0)).contains(&"consumer.session_timeout=6s"));
        assert!(settings(Actor::Relay(0)).contains(&"relay.lease=4s"));
    }
}
