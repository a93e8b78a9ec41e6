//! A value that is read elsewhere and remembered; whoever asks while a read is under way shares its outcome.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};

/// The outcome of one read, for everybody who waits for it.
type Read<T, E> = Shared<BoxFuture<'static, Result<T, E>>>;

/// Cheap to clone; clones are one memory.
#[derive(Clone)]
pub struct Remembered<T, E>(Arc<Mutex<State<T, E>>>);

struct State<T, E> {
    /// With the time when its read began.
    value: Option<(T, Instant)>,
    reading: Option<(Read<T, E>, Instant)>,
    /// How often all was forgotten: a read that began before is of no use to those who come after.
    forgotten: u64,
}

impl<T, E> Default for Remembered<T, E> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State { value: None, reading: None, forgotten: 0 })))
    }
}

impl<T, E> Remembered<T, E>
where
    T: Clone + Send + Sync + 'static,
    E: Clone + Send + Sync + 'static,
{
    /// A value whose read began less than `age` ago; else the outcome of one that did and is under way; else that of `read`.
    /// Nobody waits longer than `read` takes, nor is it given up when the one who began it goes away.
    ///
    /// # Errors
    /// The read's, the same for all who shared it. It is not remembered.
    pub async fn younger_than<F>(&self, age: Duration, read: impl FnOnce() -> F) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let outcome = {
            let mut state = self.state();
            if let Some((value, _)) = state.value.as_ref().filter(|(_, began)| began.elapsed() < age) {
                return Ok(value.clone());
            }
            match state.reading.as_ref().filter(|(_, began)| began.elapsed() < age) {
                Some((outcome, _)) => outcome.clone(),
                None => self.begin(&mut state, read()),
            }
        };
        outcome.await
    }

    /// Forgets the value, and does not share with those who come what is being read.
    pub fn forget(&self) {
        let mut state = self.state();
        state.value = None;
        state.reading = None;
        state.forgotten += 1;
    }

    fn begin(
        &self,
        state: &mut State<T, E>,
        read: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Read<T, E> {
        let began = Instant::now();
        let (memory, forgotten) = (self.clone(), state.forgotten);
        // A task of its own: it goes on if all who wait go away, and the next one finds its outcome.
        let task = tokio::spawn(async move {
            let outcome = read.await;
            memory.end(began, forgotten, outcome.as_ref().ok());
            outcome
        });
        let memory = self.clone();
        let outcome = async move {
            match task.await {
                Ok(outcome) => outcome,
                // Tasks are never cancelled while somebody asks: it panicked, and so do they.
                Err(error) => {
                    memory.end(began, forgotten, None);
                    std::panic::resume_unwind(error.into_panic())
                }
            }
        };
        let outcome = outcome.boxed().shared();
        state.reading = Some((outcome.clone(), began));
        outcome
    }

    fn end(&self, began: Instant, forgotten: u64, value: Option<&T>) {
        let mut state = self.state();
        if state.forgotten != forgotten {
            return;
        }
        // A later read may have taken this one's place.
        state.reading.take_if(|(_, other)| *other == began);
        if let Some(value) = value
            && state.value.as_ref().is_none_or(|(_, other)| *other < began)
        {
            state.value = Some((value.clone(), began));
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T, E>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;
    use tokio::sync::Semaphore;

    use super::*;

    const LONG: Duration = Duration::from_secs(3_600);

    /// Reads that end when they are let: each answers with its number, or fails.
    #[derive(Clone)]
    struct Source {
        begun: Arc<AtomicUsize>,
        gate: Arc<Semaphore>,
        fails: bool,
    }

    impl Source {
        fn new(fails: bool) -> Self {
            Self { begun: Arc::default(), gate: Arc::new(Semaphore::new(0)), fails }
        }

        fn begun(&self) -> usize {
            self.begun.load(Ordering::SeqCst)
        }

        fn read(&self) -> impl Future<Output = Result<usize, String>> + Send + 'static {
            let source = self.clone();
            let number = source.begun.fetch_add(1, Ordering::SeqCst);
            async move {
                source.gate.acquire().await.unwrap().forget();
                if source.fails { Err(format!("read {number} failed")) } else { Ok(number) }
            }
        }
    }

    /// Waits until every task that can go on has done so.
    async fn settled() {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn all_who_wait_share_one_failure_and_the_next_one_reads_again() {
        let (memory, source) = (Remembered::default(), Source::new(true));
        for round in 0..2 {
            let asked = join_all((0..20).map(|_| memory.younger_than(LONG, || source.read())));
            let (outcomes, ()) = tokio::join!(asked, async {
                settled().await;
                source.gate.add_permits(1);
            });
            assert_eq!(outcomes, vec![Err(format!("read {round} failed")); 20]);
            assert_eq!(source.begun(), round + 1);
        }
    }

    #[tokio::test]
    async fn a_read_goes_on_when_the_one_who_began_it_goes_away() {
        let (memory, source) = (Remembered::default(), Source::new(false));
        {
            let first = memory.younger_than(LONG, || source.read());
            futures::pin_mut!(first);
            assert!(futures::poll!(&mut first).is_pending());
        }
        source.gate.add_permits(1);
        settled().await;
        assert_eq!(memory.younger_than(LONG, || source.read()).await, Ok(0));
        assert_eq!(source.begun(), 1);
    }

    #[tokio::test]
    async fn what_began_before_a_change_is_not_shared_after_it() {
        let (memory, source) = (Remembered::default(), Source::new(false));
        let before = memory.younger_than(LONG, || source.read());
        let after = async {
            memory.forget();
            memory.younger_than(LONG, || source.read()).await
        };
        let (before, after, ()) = tokio::join!(before, after, async {
            settled().await;
            source.gate.add_permits(2);
        });
        assert_eq!((before, after), (Ok(0), Ok(1)));
        assert_eq!(memory.younger_than(LONG, || source.read()).await, Ok(1), "the late end of the old one");
    }

    #[tokio::test]
    async fn neither_values_nor_reads_that_are_too_old_are_used() {
        let (memory, source) = (Remembered::default(), Source::new(false));
        let ask = || memory.younger_than(Duration::ZERO, || source.read());
        source.gate.add_permits(3);
        assert_eq!(tokio::join!(ask(), ask()), (Ok(0), Ok(1)));
        assert_eq!(ask().await, Ok(2));
    }
}
