//! The rows that are on their way to Kafka.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::error::RDKafkaErrorCode;

use crate::relay::encode::{Impossible, REFUSED, Source, TOO_LARGE};
use crate::relay::rows::{Row, RowKey};
use crate::relay::sender::{Report, Via};

/// One row on its way.
#[derive(Clone)]
pub(super) struct Flight {
    pub key: RowKey,
    pub partition: i32,
    pub source: Arc<Source>,
    via: Via,
    serial: u64,
    /// Age of the row at its departure, on the database's clock.
    age: Duration,
    departed: Instant,
}

impl Flight {
    pub(super) fn new(row: &Row, partition: i32, source: Arc<Source>, via: Via) -> Self {
        Self { key: row.key, partition, source, via, serial: 0, age: row.age, departed: Instant::now() }
    }

    /// Time since the row was written.
    pub(super) fn age(&self) -> Duration {
        self.age + self.departed.elapsed()
    }
}

/// A row that can never be sent.
pub(super) struct Dead {
    pub key: RowKey,
    pub source: Arc<Source>,
    pub why: Impossible,
}

/// What a report means.
pub(super) enum Landing {
    /// Nothing is known of such a row any more.
    Unknown,
    Delivered(Flight),
    /// Its batch was refused for what it is; the row has to be sent alone.
    Suspect(Flight),
    /// It was refused alone; [`Flights::take_dead`] has it.
    Dead(i32),
    /// May pass.
    Failed(Flight, RDKafkaErrorCode),
}

/// All rows of a partition that are on their way.
#[derive(Default)]
pub(super) struct Flights {
    by_id: HashMap<i64, Flight>,
    /// Refused in a batch: to be sent alone.
    suspects: HashSet<i64>,
    dead: Vec<Dead>,
    serial: u64,
}

impl Flights {
    /// Returns the serial number that tells this flight from any other of the same id.
    pub(super) fn depart(&mut self, mut flight: Flight) -> u64 {
        self.serial += 1;
        flight.serial = self.serial;
        self.by_id.insert(flight.key.id, flight);
        self.serial
    }

    pub(super) fn contains(&self, id: i64) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(super) fn is_suspect(&self, id: i64) -> bool {
        self.suspects.contains(&id)
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Forgets everything: it was another server's. Reports that still come mean nothing.
    pub(super) fn forget(&mut self) {
        self.by_id.clear();
        self.suspects.clear();
        self.dead.clear();
    }

    /// Takes the rows that were refused alone.
    pub(super) fn take_dead(&mut self) -> Vec<Dead> {
        std::mem::take(&mut self.dead)
    }

    pub(super) fn land(&mut self, report: Report) -> Landing {
        if self.by_id.get(&report.id).is_none_or(|flight| flight.serial != report.serial) {
            return Landing::Unknown;
        }
        let Some(flight) = self.by_id.remove(&report.id) else { return Landing::Unknown };
        let code = match report.outcome {
            Ok(()) => {
                self.suspects.remove(&report.id);
                return Landing::Delivered(flight);
            }
            Err(code) => code,
        };
        let Some(reason) = final_reason(code) else { return Landing::Failed(flight, code) };
        if flight.via == Via::Batch {
            self.suspects.insert(report.id);
            return Landing::Suspect(flight);
        }
        self.suspects.remove(&report.id);
        let partition = flight.partition;
        let why = Impossible::new(reason, &code.to_string());
        self.dead.push(Dead { key: flight.key, source: flight.source, why });
        Landing::Dead(partition)
    }
}

/// The errors that no repetition changes. All others, missing rights among them, may pass.
fn final_reason(code: RDKafkaErrorCode) -> Option<&'static str> {
    match code {
        RDKafkaErrorCode::MessageSizeTooLarge => Some(TOO_LARGE),
        RDKafkaErrorCode::InvalidRecord => Some(REFUSED),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
