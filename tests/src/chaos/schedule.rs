//! What breaks and when: drawn up front from the seed, so that a seed is a schedule.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{Rng as _, SeedableRng as _};

/// A process of the pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Actor {
    Emitter(usize),
    Relay(usize),
    Consumer(usize),
    Api,
}

/// A server that the processes talk to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Server {
    Kafka,
    ClickHouse,
    /// Postgres of the source, with the outbox.
    Source,
    /// Postgres of the control database.
    Control,
}

/// What lies between a process and a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link(pub Actor, pub Server);

pub const EMITTERS: usize = 2;
pub const RELAYS: usize = 2;
pub const CONSUMERS: usize = 3;

/// All processes.
pub fn actors() -> Vec<Actor> {
    let mut actors: Vec<Actor> = (0..EMITTERS).map(Actor::Emitter).collect();
    actors.extend((0..RELAYS).map(Actor::Relay));
    actors.extend((0..CONSUMERS).map(Actor::Consumer));
    actors.push(Actor::Api);
    actors
}

impl Actor {
    /// The servers that it talks to.
    pub fn servers(self) -> &'static [Server] {
        match self {
            Self::Emitter(_) => &[Server::Source],
            Self::Relay(_) => &[Server::Source, Server::Kafka],
            Self::Consumer(_) => &[Server::Kafka, Server::ClickHouse, Server::Control],
            Self::Api => &[Server::ClickHouse, Server::Control],
        }
    }
}

/// All links.
pub fn links() -> Vec<Link> {
    let of = |actor: Actor| actor.servers().iter().map(move |server| Link(actor, *server));
    actors().into_iter().flat_map(of).collect()
}

/// How a link behaves while it is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bad {
    /// Nothing arrives, in either direction.
    Cut,
    /// The server hears the client, the client hears nothing.
    NoAnswers,
    /// The client hears the server, the server hears nothing.
    NoRequests,
    /// Every piece is late by this much, and pieces are small.
    Slow(Duration),
}

/// What becomes of that which was on its way while the link was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// It arrives late.
    Late,
    /// It is lost and the connections end.
    Lost,
}

/// How far back the consumer group's offsets are set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Back {
    Earliest,
    By(u32),
}

/// One thing that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Kill(Actor),
    /// SIGSTOP, then SIGCONT: a zombie if it is longer than session or lease.
    Freeze(Actor, Duration),
    Terminate(Actor),
    KillKafka {
        away: Duration,
    },
    /// In the middle of an insert, if one runs within a moment.
    KillClickHouse {
        away: Duration,
    },
    FreezeClickHouse(Duration),
    /// Postgres' immediate shutdown and a start.
    RestartPostgres(Server),
    Network {
        link: Link,
        bad: Bad,
        lasts: Duration,
        after: After,
    },
    FillDisk(Duration),
    ResetOffsets(Back),
    /// The command is killed after this time, then runs to its end.
    GrowTopic {
        killed_after: Duration,
    },
    /// The source's clock is wrong by so many hours.
    Clock {
        hours: i8,
        lasts: Duration,
    },
}

/// A kind of fault, as `--faults` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
pub enum Kind {
    Kill,
    Freeze,
    Terminate,
    Kafka,
    Clickhouse,
    Postgres,
    Network,
    Disk,
    Reset,
    Grow,
    Clock,
}

impl Kind {
    pub const ALL: [Self; 11] = [
        Self::Kill,
        Self::Freeze,
        Self::Terminate,
        Self::Kafka,
        Self::Clickhouse,
        Self::Postgres,
        Self::Network,
        Self::Disk,
        Self::Reset,
        Self::Grow,
        Self::Clock,
    ];

    /// How often it is drawn once each kind has had its turn. What takes everything down for long comes seldom, or nothing else would
    /// happen in between.
    fn weight(self) -> u32 {
        match self {
            Self::Network => 8,
            Self::Kill | Self::Freeze => 6,
            Self::Terminate | Self::Clickhouse => 3,
            Self::Postgres | Self::Clock | Self::Kafka | Self::Disk => 2,
            Self::Reset => 1,
            // A topic grows in the first round only: its partitions never become fewer again.
            Self::Grow => 0,
        }
    }

    /// How long it is not drawn again: a broker takes 10 s to come back, a stopped group as long, and nothing flows meanwhile.
    fn rest(self) -> Duration {
        match self {
            Self::Kafka | Self::Reset => Duration::from_secs(30),
            _ => Duration::ZERO,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill => "kill",
            Self::Freeze => "freeze",
            Self::Terminate => "terminate",
            Self::Kafka => "kafka",
            Self::Clickhouse => "clickhouse",
            Self::Postgres => "postgres",
            Self::Network => "network",
            Self::Disk => "disk",
            Self::Reset => "reset",
            Self::Grow => "grow",
            Self::Clock => "clock",
        })
    }
}

/// A fault and when it begins, counted from the start of the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    pub at: Duration,
    pub fault: Fault,
}

/// The whole schedule of a seed: each kind once in a random order, then by weight, every 2 to 5 seconds.
pub fn plan(seed: u64, lasts: Duration, kinds: &[Kind]) -> Vec<Step> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut first: Vec<Kind> = kinds.to_vec();
    first.shuffle(&mut random);
    let mut first = first.into_iter();
    let (mut steps, mut last) = (Vec::new(), BTreeMap::new());
    let mut at = Duration::from_millis(random.random_range(2_000..4_000));
    while at < lasts {
        let drawn = first.next().or_else(|| {
            let rests = |kind: &Kind| last.get(kind).is_some_and(|last| at - *last < kind.rest());
            let weight = |kind: &Kind| if rests(kind) { 0 } else { kind.weight() };
            kinds.choose_weighted(&mut random, weight).ok().copied()
        });
        // Whatever there is rests, or has had its only turn.
        let Some(kind) = drawn else {
            at += Duration::from_secs(5);
            continue;
        };
        last.insert(kind, at);
        steps.push(Step { at, fault: draw(kind, &mut random) });
        at += Duration::from_millis(random.random_range(2_000..5_000));
    }
    steps
}

fn draw(kind: Kind, random: &mut StdRng) -> Fault {
    let mut seconds = |range: std::ops::Range<u64>| {
        Duration::from_millis(random.random_range(range.start * 1_000..range.end * 1_000))
    };
    match kind {
        Kind::Kill => Fault::Kill(pick(&actors(), random)),
        Kind::Terminate => Fault::Terminate(pick(&actors(), random)),
        Kind::Freeze => {
            let lasts = seconds(4..12);
            Fault::Freeze(pick(&actors(), random), lasts)
        }
        Kind::Kafka => Fault::KillKafka { away: seconds(0..5) },
        Kind::Clickhouse => {
            let away = seconds(0..8);
            if random.random_ratio(1, 4) {
                Fault::FreezeClickHouse(away)
            } else {
                Fault::KillClickHouse { away }
            }
        }
        Kind::Postgres => Fault::RestartPostgres(pick(&[Server::Source, Server::Control], random)),
        Kind::Network => {
            let (lasts, late) = (seconds(3..14), Duration::from_millis(random.random_range(50..600)));
            let bad = [Bad::Cut, Bad::NoAnswers, Bad::NoRequests, Bad::Slow(late)];
            Fault::Network {
                link: pick(&links(), random),
                bad: pick(&bad, random),
                lasts,
                after: pick(&[After::Late, After::Lost], random),
            }
        }
        Kind::Disk => Fault::FillDisk(seconds(3..9)),
        Kind::Reset => {
            let by = Back::By(random.random_range(1..3_000));
            Fault::ResetOffsets(if random.random_ratio(1, 3) { Back::Earliest } else { by })
        }
        Kind::Grow => Fault::GrowTopic { killed_after: seconds(0..9) },
        Kind::Clock => {
            let lasts = seconds(3..10);
            Fault::Clock { hours: pick(&[-2, 2], random), lasts }
        }
    }
}

fn pick<T: Copy>(from: &[T], random: &mut StdRng) -> T {
    from[random.random_range(0..from.len())]
}

impl Fault {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Kill(_) => Kind::Kill,
            Self::Freeze(..) => Kind::Freeze,
            Self::Terminate(_) => Kind::Terminate,
            Self::KillKafka { .. } => Kind::Kafka,
            Self::KillClickHouse { .. } | Self::FreezeClickHouse(_) => Kind::Clickhouse,
            Self::RestartPostgres(_) => Kind::Postgres,
            Self::Network { .. } => Kind::Network,
            Self::FillDisk(_) => Kind::Disk,
            Self::ResetOffsets(_) => Kind::Reset,
            Self::GrowTopic { .. } => Kind::Grow,
            Self::Clock { .. } => Kind::Clock,
        }
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Emitter(number) => write!(f, "emitter-{number}"),
            Self::Relay(number) => write!(f, "relay-{number}"),
            Self::Consumer(number) => write!(f, "consumer-{number}"),
            Self::Api => f.write_str("query-api"),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kafka => "kafka",
            Self::ClickHouse => "clickhouse",
            Self::Source => "source database",
            Self::Control => "control database",
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(actor) => write!(f, "kill -9 {actor}"),
            Self::Freeze(actor, lasts) => write!(f, "freeze {actor} for {lasts:.1?}"),
            Self::Terminate(actor) => write!(f, "terminate {actor}"),
            Self::KillKafka { away } => write!(f, "kill -9 kafka, away for {away:.1?}"),
            Self::KillClickHouse { away } => write!(f, "kill -9 clickhouse, away for {away:.1?}"),
            Self::FreezeClickHouse(lasts) => write!(f, "freeze clickhouse for {lasts:.1?}"),
            Self::RestartPostgres(server) => write!(f, "immediate restart of the {server}"),
            Self::Network { link: Link(actor, server), bad, lasts, after } => {
                match bad {
                    Bad::Cut => write!(f, "cut {actor} from {server}")?,
                    Bad::NoAnswers => write!(f, "no answers of {server} to {actor}")?,
                    Bad::NoRequests => write!(f, "no requests of {actor} to {server}")?,
                    Bad::Slow(late) => write!(f, "slow {actor} to {server} by {late:.1?}")?,
                }
                let after = if *after == After::Late { "arrives late" } else { "is lost" };
                write!(f, " for {lasts:.1?}, what was sent {after}")
            }
            Self::FillDisk(lasts) => write!(f, "full disk of the outbox for {lasts:.1?}"),
            Self::ResetOffsets(Back::Earliest) => write!(f, "offsets back to the earliest"),
            Self::ResetOffsets(Back::By(count)) => write!(f, "offsets back by {count}"),
            Self::GrowTopic { killed_after } => {
                write!(f, "the topic grows, the command is killed after {killed_after:.1?}")
            }
            Self::Clock { hours, lasts } => write!(f, "the source's clock {hours:+} h for {lasts:.1?}"),
        }
    }
}

#[cfg(test)]
mod tests;
