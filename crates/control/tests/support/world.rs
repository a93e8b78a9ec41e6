//! A system in memory around the real control database: outboxes that emit, relays that deliver out of order and send markers,
//! workers that batch, forward, write, die and begin again. It knows what is stored; the control database says what it believes.

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use usage_control::{Advance, Control, Forward};
use usage_schemas::{Marker, Timestamp};
use uuid::Uuid;

/// A record that was forwarded so often becomes a dead letter.
const HOPS: u32 = 3;

struct Record {
    outbox: usize,
    emitted: i64,
    /// The partition that decides it.
    home: usize,
    /// Stored or dead-lettered.
    done: bool,
}

#[derive(Clone)]
enum Entry {
    Record { id: usize, hops: u32 },
    Marker(Marker),
}

struct Outbox {
    source: String,
    id: Uuid,
    /// Records that are not delivered for good yet.
    pending: Vec<usize>,
    retired: bool,
    /// The control database has noted a marker of it.
    heard: bool,
}

struct Partition {
    log: Vec<Entry>,
    next: usize,
    batch_seq: i64,
    batch: Option<Batch>,
    /// Its worker rests until this act: what is forwarded to it lies there for a while.
    rests_until: u32,
}

/// A batch under way, up to the entry before `end`.
struct Batch {
    end: usize,
    step: Step,
    forwards: Vec<Forward>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Send,
    Write,
    Note,
}

pub struct World {
    control: Control,
    random: StdRng,
    pub seed: u64,
    act: u32,
    now: i64,
    records: Vec<Record>,
    outboxes: Vec<Outbox>,
    partitions: Vec<Partition>,
    /// Markers on their way to a partition.
    underway: Vec<(usize, Marker)>,
    /// Different answers that were read.
    pub answers: std::collections::BTreeSet<i64>,
}

impl World {
    /// Two sources, the first with two outboxes, over the partitions that the control database has.
    pub async fn new(control: Control, seed: u64) -> Self {
        let mut world = Self {
            control,
            random: StdRng::seed_from_u64(seed),
            seed,
            act: 0,
            now: 1,
            records: Vec::new(),
            outboxes: Vec::new(),
            partitions: Vec::new(),
            underway: Vec::new(),
            answers: std::collections::BTreeSet::new(),
        };
        for source in ["a", "a", "b"] {
            world.open(source);
        }
        for _ in world.control.progress().await.unwrap() {
            world.add_partition();
        }
        world
    }

    fn open(&mut self, source: &str) {
        let id = Uuid::from_u128(1 + self.outboxes.len() as u128);
        let source = source.to_owned();
        self.outboxes.push(Outbox { source, id, pending: Vec::new(), retired: false, heard: false });
    }

    fn add_partition(&mut self) {
        self.partitions.push(Partition {
            log: Vec::new(),
            next: 0,
            batch_seq: 0,
            batch: None,
            rests_until: 0,
        });
    }

    fn some_partition(&mut self) -> usize {
        self.random.random_range(0..self.partitions.len())
    }

    fn some_outbox(&mut self) -> Option<usize> {
        let live: Vec<usize> =
            (0..self.outboxes.len()).filter(|outbox| !self.outboxes[*outbox].retired).collect();
        (!live.is_empty()).then(|| live[self.random.random_range(0..live.len())])
    }

    /// Does one thing at random.
    pub async fn act(&mut self) {
        self.act += 1;
        match self.random.random_range(0..1_000) {
            0..70 => self.emit(),
            70..160 => self.deliver(),
            160..200 => self.mark(),
            200..400 => self.pass_marker(),
            400..990 => {
                let partition = self.some_partition();
                if self.partitions[partition].rests_until > self.act {
                    return;
                }
                if self.random.random_ratio(1, 12) {
                    self.partitions[partition].rests_until = self.act + self.random.random_range(20..150);
                }
                let dies = self.random.random_ratio(1, 12);
                self.work(partition, dies).await;
            }
            990..992 => {
                let source = if self.random.random_bool(0.5) { "a" } else { "b" };
                self.open(source);
            }
            992..994 => self.retire().await,
            _ if self.partitions.len() < 5 => self.grow().await,
            _ => {}
        }
    }

    fn emit(&mut self) {
        let Some(outbox) = self.some_outbox() else { return };
        let home = self.some_partition();
        self.outboxes[outbox].pending.push(self.records.len());
        self.records.push(Record { outbox, emitted: self.now, home, done: false });
        self.now += 1;
    }

    /// Delivers any of an outbox's records, to a wrong partition at times; at times it will be delivered again.
    fn deliver(&mut self) {
        let Some(outbox) = self.some_outbox() else { return };
        if self.outboxes[outbox].pending.is_empty() {
            return;
        }
        let at = self.random.random_range(0..self.outboxes[outbox].pending.len());
        let id = self.outboxes[outbox].pending[at];
        if !self.random.random_ratio(1, 10) {
            self.outboxes[outbox].pending.remove(at);
        }
        let home = self.records[id].home;
        let to = if self.random.random_bool(0.5) { self.some_partition() } else { home };
        self.partitions[to].log.push(Entry::Record { id, hops: 0 });
    }

    /// What an outbox can vouch for now, on its way to every partition.
    fn mark(&mut self) {
        let Some(outbox) = self.some_outbox() else { return };
        let pending = self.outboxes[outbox].pending.iter().map(|id| self.records[*id].emitted);
        let until = pending.min().unwrap_or(self.now);
        let Outbox { source, id, .. } = &self.outboxes[outbox];
        let marker =
            Marker { source: source.clone(), outbox: *id, complete_until: Timestamp::from_micros(until) };
        self.underway.extend((0..self.partitions.len()).map(|partition| (partition, marker.clone())));
    }

    /// Markers overtake each other, as those of several relays do.
    fn pass_marker(&mut self) {
        if self.underway.is_empty() {
            return;
        }
        let at = self.random.random_range(0..self.underway.len());
        let (partition, marker) = self.underway.swap_remove(at);
        self.partitions[partition].log.push(Entry::Marker(marker));
    }

    /// One step of a partition's worker. One that dies leaves its plan: the next begins the same batch again.
    async fn work(&mut self, partition: usize, dies: bool) {
        let Some(mut batch) = self.partitions[partition].batch.take().or_else(|| self.plan(partition)) else {
            return;
        };
        match batch.step {
            Step::Send => {
                batch.forwards = self.send(partition, batch.end);
                batch.step = Step::Write;
            }
            Step::Write => {
                for entry in self.partitions[partition].log[self.partitions[partition].next..batch.end].iter()
                {
                    if let Entry::Record { id, hops } = entry
                        && (self.records[*id].home == partition || *hops >= HOPS)
                    {
                        self.records[*id].done = true;
                    }
                }
                batch.step = Step::Note;
            }
            Step::Note if !dies => {
                self.note(partition, &batch).await;
                return self.check().await;
            }
            Step::Note => {}
        }
        if dies {
            batch = Batch { step: Step::Send, forwards: Vec::new(), ..batch };
        }
        self.partitions[partition].batch = Some(batch);
    }

    fn plan(&mut self, partition: usize) -> Option<Batch> {
        let Partition { log, next, .. } = &self.partitions[partition];
        let (left, next) = (log.len() - next, *next);
        let rows = self.random.random_range(1..=6).min(left);
        (rows > 0).then_some(Batch { end: next + rows, step: Step::Send, forwards: Vec::new() })
    }

    /// Forwards what belongs elsewhere, at times to where it does not belong either.
    fn send(&mut self, partition: usize, end: usize) -> Vec<Forward> {
        let mut forwards = Vec::new();
        for offset in self.partitions[partition].next..end {
            let Entry::Record { id, hops } = self.partitions[partition].log[offset] else { continue };
            let Record { home, outbox, .. } = self.records[id];
            if home == partition || hops >= HOPS {
                continue;
            }
            let mut to = if self.random.random_ratio(1, 3) { self.some_partition() } else { home };
            if to == partition {
                to = home;
            }
            forwards.push(Forward {
                source: self.outboxes[outbox].source.clone(),
                from_offset: offset as i64,
                to_partition: to as i32,
                to_offset: self.partitions[to].log.len() as i64,
                again: hops > 0,
            });
            self.partitions[to].log.push(Entry::Record { id, hops: hops + 1 });
        }
        forwards
    }

    async fn note(&mut self, partition: usize, batch: &Batch) {
        let state = &mut self.partitions[partition];
        state.batch_seq += 1;
        let markers: Vec<Marker> = state.log[state.next..batch.end]
            .iter()
            .filter_map(|entry| match entry {
                Entry::Marker(marker) => Some(marker.clone()),
                Entry::Record { .. } => None,
            })
            .collect();
        state.next = batch.end;
        for marker in &markers {
            for outbox in self.outboxes.iter_mut().filter(|outbox| outbox.id == marker.outbox) {
                outbox.heard = true;
            }
        }
        let advance = Advance {
            partition: partition as i32,
            batch_seq: state.batch_seq,
            next_offset: batch.end as i64,
            markers,
            forwards: batch.forwards.clone(),
            ..Advance::default()
        };
        assert_eq!(self.control.advance(std::slice::from_ref(&advance)).await.unwrap(), [true]);
        if self.random.random_ratio(1, 5) {
            // Its answer was lost, and so the next worker says it again.
            assert_eq!(self.control.advance(&[advance]).await.unwrap(), [false]);
        }
    }

    /// An outbox whose database is gone with what it had not delivered.
    async fn retire(&mut self) {
        let Some(outbox) = self.some_outbox() else { return };
        let Outbox { source, id, heard, .. } = &self.outboxes[outbox];
        if *heard
            && self.outboxes.iter().filter(|other| !other.retired && other.source == *source).count() > 1
        {
            self.control.retire(source, Some(*id)).await.unwrap();
            self.outboxes[outbox].retired = true;
        }
    }

    /// Workers take over by the new count: plans of the old one are not carried out, and tenants have moved.
    async fn grow(&mut self) {
        let partitions = self.partitions.len() as i32;
        self.control.announce_partitions(partitions + 1, partitions).await.unwrap();
        self.control.open_progress(self.partitions.len() as i32).await.unwrap();
        self.add_partition();
        for partition in &mut self.partitions {
            partition.batch = None;
        }
        for record in self.records.iter_mut().filter(|record| !record.done) {
            if self.random.random_ratio(1, 4) {
                record.home = self.partitions.len() - 1;
            }
        }
    }

    /// Whatever the control database says is complete is done.
    async fn check(&mut self) {
        let known = self.control.completeness().await.unwrap();
        for source in ["a", "b"] {
            let Some(until) = known.complete_until(&[source]) else { continue };
            self.answers.insert(until);
            for (id, record) in self.records.iter().enumerate() {
                let outbox = &self.outboxes[record.outbox];
                let counts = outbox.source == source && outbox.heard && !outbox.retired;
                assert!(
                    !counts || record.emitted >= until || record.done,
                    "seed {}: {source} is complete until {until}, record {id} of {} is not done",
                    self.seed,
                    record.emitted
                );
            }
        }
    }

    /// Nobody dies any more and everything is delivered: both sources become complete until now.
    pub async fn come_to_rest(&mut self) {
        while self.outboxes.iter().any(|outbox| !outbox.retired && !outbox.pending.is_empty()) {
            self.deliver();
        }
        // A second round of markers: a forward that was noted late goes with the next batch.
        for _ in 0..2 {
            for outbox in
                (0..self.outboxes.len()).filter(|outbox| !self.outboxes[*outbox].retired).collect::<Vec<_>>()
            {
                let Outbox { source, id, .. } = &self.outboxes[outbox];
                let complete_until = Timestamp::from_micros(self.now);
                let marker = Marker { source: source.clone(), outbox: *id, complete_until };
                self.underway.extend((0..self.partitions.len()).map(|partition| (partition, marker.clone())));
            }
            while !self.underway.is_empty() {
                self.pass_marker();
            }
            while self.partitions.iter().any(|partition| partition.next < partition.log.len()) {
                for partition in 0..self.partitions.len() {
                    self.work(partition, false).await;
                }
            }
        }
        let known = self.control.completeness().await.unwrap();
        for source in ["a", "b"] {
            assert_eq!(known.complete_until(&[source]), Some(self.now), "seed {}: {source}", self.seed);
        }
    }
}
