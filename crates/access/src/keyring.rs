//! The public keys as they are known now, and how they are read again: every few minutes, and when a token names an unknown one.
//!
//! Whoever sends tokens with invented key ids must not make this process ask the issuer for each of them: for unknown keys they
//! are read at most once in [`ASKED_EVERY`], and all who wait share one reading. What can't be read or makes no sense changes
//! nothing: the keys that were read before stay.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use tokio::sync::watch;
use usage_service::CancellationToken;
use usage_service::error_chain;
use usage_service::metric_names::AUTH_KEY_READS_TOTAL;
use usage_service::retry::Backoff;

use crate::KeyError;
use crate::public_keys::PublicKeys;
use crate::source::Source;

/// How often unknown keys may have the keys read.
pub const ASKED_EVERY: Duration = Duration::from_secs(10);
/// Bounds of the waits after a reading that failed.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

#[derive(Clone)]
pub(crate) struct Keyring(Arc<Inner>);

struct Inner {
    source: Source,
    keys: ArcSwapOption<PublicKeys>,
    gate: Mutex<Gate>,
    /// Changes whenever a reading has ended.
    ended: watch::Sender<()>,
    state: Mutex<State>,
    asked_every: Duration,
}

/// What the last readings found.
#[derive(Default)]
struct State {
    text: Vec<u8>,
    /// Why the last one failed.
    fault: Option<String>,
}

/// Whether a reading is under way, and when the last one was begun for an unknown key.
#[derive(Debug, Default)]
struct Gate {
    reading: bool,
    asked: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
enum Turn {
    /// Read; say when it ended.
    Read,
    /// Somebody reads already.
    Wait,
    /// The keys were read for an unknown one a moment ago.
    Never,
}

impl Gate {
    fn for_unknown(&mut self, now: Instant, every: Duration) -> Turn {
        if self.reading {
            return Turn::Wait;
        }
        if self.asked.is_some_and(|asked| now.saturating_duration_since(asked) < every) {
            return Turn::Never;
        }
        (self.reading, self.asked) = (true, Some(now));
        Turn::Read
    }

    fn for_refresh(&mut self) -> Turn {
        if self.reading {
            return Turn::Wait;
        }
        self.reading = true;
        Turn::Read
    }
}

/// Ends a reading, also one that panicked.
struct Reading(Arc<Inner>);

impl Drop for Reading {
    fn drop(&mut self) {
        let mut gate = lock(&self.0.gate);
        gate.reading = false;
        self.0.ended.send_replace(());
    }
}

impl Keyring {
    /// Reads the file.
    ///
    /// # Errors
    /// It can't be read, or has no key to verify with.
    pub fn from_file(path: &Path) -> Result<Self, KeyError> {
        let source = Source::File(path.into());
        let text = Source::read_now(path)?;
        let keys = source.parse(&text)?;
        if keys.is_empty() {
            return Err(KeyError::NoKey { origin: source.to_string() });
        }
        let keyring = Self::new(source, ASKED_EVERY);
        keyring.0.keys.store(Some(Arc::new(keys)));
        lock(&keyring.0.state).text = text;
        Ok(keyring)
    }

    /// Knows no keys until they have been read.
    pub fn new(source: Source, asked_every: Duration) -> Self {
        Self(Arc::new(Inner {
            source,
            keys: ArcSwapOption::empty(),
            gate: Mutex::default(),
            ended: watch::Sender::new(()),
            state: Mutex::default(),
            asked_every,
        }))
    }

    /// The keys; none if they have never been read.
    pub fn keys(&self) -> Option<Arc<PublicKeys>> {
        self.0.keys.load_full()
    }

    fn knows(&self, id: &str) -> bool {
        self.0.keys.load().as_ref().is_some_and(|keys| keys.find(Some(id)).is_some())
    }

    /// Has the keys read if that may make `id` known, and waits for it. Whether it is known now.
    pub async fn look_for(&self, id: &str) -> bool {
        // A reading that was under way may have begun before the key was published: once more after it, if that may be.
        for _ in 0..2 {
            // Somebody else's reading may just have ended.
            if self.knows(id) {
                return true;
            }
            let every = self.0.asked_every;
            if !self.read_or_wait(|gate| gate.for_unknown(Instant::now(), every)).await {
                return false;
            }
        }
        self.knows(id)
    }

    /// Reads the keys, or waits for somebody who does.
    pub async fn refresh(&self) {
        self.read_or_wait(Gate::for_refresh).await;
    }

    /// False if it is nobody's turn. The reading is a task of its own: a caller that goes away must not end it, or a stranger who
    /// hangs up could keep new keys from being known.
    async fn read_or_wait(&self, turn: impl FnOnce(&mut Gate) -> Turn) -> bool {
        let (turn, mut ended) = {
            let mut gate = lock(&self.0.gate);
            // Under the lock, so that the end is not missed.
            (turn(&mut gate), self.0.ended.subscribe())
        };
        match turn {
            Turn::Never => return false,
            Turn::Wait => {}
            Turn::Read => {
                let reading = Reading(self.0.clone());
                tokio::spawn(async move { reading.0.read().await });
            }
        }
        // The sender lives as long as the keyring.
        ended.changed().await.is_ok()
    }

    /// Keeps the keys current until `shutdown`.
    pub async fn keep_fresh(&self, shutdown: CancellationToken) {
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        let mut wait = match self.keys() {
            Some(_) => self.0.source.every(),
            None => Duration::ZERO,
        };
        while tokio::time::timeout(wait, shutdown.cancelled()).await.is_err() {
            self.refresh().await;
            wait = match self.fault() {
                Some(_) => backoff.next(),
                None => {
                    backoff.reset();
                    self.0.source.every()
                }
            };
        }
    }

    /// Whether tokens can be verified: some keys are known, however old they are.
    ///
    /// # Errors
    /// Why not, in a sentence.
    pub fn ready(&self) -> Result<(), String> {
        match self.keys() {
            Some(keys) if keys.is_empty() => {
                Err(KeyError::NoKey { origin: self.0.source.to_string() }.to_string())
            }
            Some(_) => Ok(()),
            None => Err(self.fault().unwrap_or_else(|| "the keys were not read yet".into())),
        }
    }

    /// Why the last reading failed.
    pub fn fault(&self) -> Option<String> {
        lock(&self.0.state).fault.clone()
    }
}

impl Inner {
    async fn read(&self) {
        let read = self.source.read().await.and_then(|text| self.take(text));
        let status = if read.is_ok() { "success" } else { "failure" };
        metrics::counter!(AUTH_KEY_READS_TOTAL, "status" => status).increment(1);
        let fault = read.err().map(|error| error_chain(&error));
        if let Some(error) = &fault {
            tracing::warn!(%error, "the keys of tokens could not be read; those known before stay");
        }
        lock(&self.state).fault = fault;
    }

    fn take(&self, text: Vec<u8>) -> Result<(), KeyError> {
        if lock(&self.state).text == text {
            return Ok(());
        }
        let keys = self.source.parse(&text)?;
        if keys.is_empty() {
            tracing::error!(origin = %self.source, "no key may sign tokens any more: all are refused");
        } else {
            tracing::info!(origin = %self.source, keys = ?keys.ids(), "the keys of tokens have changed");
        }
        self.keys.store(Some(Arc::new(keys)));
        lock(&self.state).text = text;
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn unknown_keys_have_one_reading_in_ten_seconds() {
        let (mut gate, begin) = (Gate::default(), Instant::now());
        let turn = |gate: &mut Gate, seconds: u32| gate.for_unknown(begin + seconds * SECOND, ASKED_EVERY);
        assert_eq!(turn(&mut gate, 0), Turn::Read);
        assert_eq!(turn(&mut gate, 1), Turn::Wait);
        gate.reading = false;
        assert_eq!([turn(&mut gate, 1), turn(&mut gate, 9)], [Turn::Never, Turn::Never]);
        assert_eq!(turn(&mut gate, 10), Turn::Read);
    }

    #[test]
    fn the_regular_reading_neither_waits_nor_counts() {
        let (mut gate, begin) = (Gate::default(), Instant::now());
        assert_eq!(gate.for_refresh(), Turn::Read);
        assert_eq!(gate.for_refresh(), Turn::Wait);
        assert_eq!(gate.for_unknown(begin, ASKED_EVERY), Turn::Wait);
        gate.reading = false;
        // It may have begun before the key was published.
        assert_eq!(gate.for_unknown(begin, ASKED_EVERY), Turn::Read);
        gate.reading = false;
        assert_eq!(gate.for_refresh(), Turn::Read);
    }
}
