use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// What the double does with a question of a tenant, and with a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Well,
    Away,
    Refuses,
    Hangs,
    /// Answers looks, but no question.
    Slow,
}

struct Double {
    mood: Mutex<Mood>,
    questions: AtomicUsize,
    looks: AtomicUsize,
}

impl Double {
    fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    fn asked(&self) -> (usize, usize) {
        (self.questions.load(Ordering::SeqCst), self.looks.load(Ordering::SeqCst))
    }

    async fn behave(&self, tenant: Uuid) -> Result<(), StorageError> {
        let counter = if tenant.is_nil() { &self.looks } else { &self.questions };
        counter.fetch_add(1, Ordering::SeqCst);
        let mood = *self.mood.lock().unwrap();
        match mood {
            Mood::Well => Ok(()),
            Mood::Slow if tenant.is_nil() => Ok(()),
            Mood::Hangs | Mood::Slow => std::future::pending().await,
            Mood::Away => Err(StorageError::Unavailable("connection refused".into())),
            Mood::Refuses => Err(StorageError::Final { code: 62, message: "syntax".into() }),
        }
    }
}

#[async_trait]
impl Reader for Double {
    async fn aggregate(&self, query: &AggregateQuery) -> Result<Vec<AggregateRow>, StorageError> {
        self.behave(query.tenant_id).await.map(|()| Vec::new())
    }

    async fn raw(&self, query: &RawQuery) -> Result<Vec<StoredRecord>, StorageError> {
        self.behave(query.tenant_id).await.map(|()| Vec::new())
    }

    async fn record(&self, tenant_id: Uuid, _: Uuid) -> Result<Option<StoredRecord>, StorageError> {
        self.behave(tenant_id).await.map(|()| None)
    }

    async fn watermarks(&self, query: &WatermarkQuery) -> Result<Vec<SourceWatermark>, StorageError> {
        self.behave(query.tenant_id).await.map(|()| Vec::new())
    }
}

const SECOND: Duration = Duration::from_secs(1);
const TENANT: Uuid = Uuid::from_u128(7);

fn guarded(mood: Mood) -> (Arc<Double>, Arc<GuardedReader>) {
    let double = Arc::new(Double {
        mood: Mutex::new(mood),
        questions: AtomicUsize::new(0),
        looks: AtomicUsize::new(0),
    });
    let inner = Arc::clone(&double) as Arc<dyn Reader>;
    (double, Arc::new(GuardedReader::new(inner, "double", 5 * SECOND, BreakerConfig::default())))
}

async fn ask(reader: &GuardedReader) -> Result<(), StorageError> {
    reader.record(TENANT, TENANT).await.map(drop)
}

fn open_for(answer: Result<(), StorageError>) -> Option<Duration> {
    match answer {
        Err(StorageError::Open { retry_after }) => Some(retry_after),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn five_failures_in_a_row_open_it_and_a_probe_closes_it() {
    let (double, reader) = guarded(Mood::Away);
    for _ in 0..5 {
        assert!(matches!(ask(&reader).await, Err(StorageError::Unavailable(_))));
    }
    assert_eq!(open_for(ask(&reader).await), Some(30 * SECOND));
    tokio::time::advance(10 * SECOND).await;
    assert_eq!(
        open_for(reader.watermarks(&WatermarkQuery::of_tenant(TENANT)).await.map(drop)),
        Some(20 * SECOND)
    );
    assert_eq!(double.asked(), (5, 0), "an open circuit asks nothing");

    // Still away: the probe fails, and the callers wait anew.
    tokio::time::advance(20 * SECOND).await;
    assert_eq!(open_for(ask(&reader).await), Some(30 * SECOND));
    assert_eq!(double.asked(), (5, 1), "the probe is one cheap look");
    tokio::time::advance(30 * SECOND).await;
    double.set(Mood::Well);
    ask(&reader).await.unwrap();
    ask(&reader).await.unwrap();
    assert_eq!(double.asked(), (7, 2));
}

#[tokio::test(start_paused = true)]
async fn failures_that_are_no_row_or_too_far_apart_leave_it_closed() {
    let (double, reader) = guarded(Mood::Away);
    for _ in 0..3 {
        for _ in 0..4 {
            assert_eq!(open_for(ask(&reader).await), None);
        }
        double.set(Mood::Well);
        ask(&reader).await.unwrap();
        double.set(Mood::Away);
    }
    for _ in 0..20 {
        tokio::time::advance(3 * SECOND).await;
        assert_eq!(open_for(ask(&reader).await), None);
    }
}

#[tokio::test(start_paused = true)]
async fn refused_questions_are_answers() {
    let (double, reader) = guarded(Mood::Refuses);
    for _ in 0..50 {
        assert!(matches!(ask(&reader).await, Err(StorageError::Final { code: 62, .. })));
    }
    double.set(Mood::Away);
    for _ in 0..4 {
        assert!(ask(&reader).await.is_err());
    }
    double.set(Mood::Refuses);
    assert!(ask(&reader).await.is_err());
    double.set(Mood::Away);
    for _ in 0..4 {
        assert!(ask(&reader).await.is_err());
    }
    assert_eq!(open_for(ask(&reader).await), None, "the refused question came between");
}

#[tokio::test(start_paused = true)]
async fn slow_questions_of_one_caller_shut_nobody_out() {
    let (double, reader) = guarded(Mood::Slow);
    for _ in 0..4 {
        let slow = (0..8).map(|_| ask(&reader));
        for answer in futures::future::join_all(slow).await {
            assert!(matches!(answer, Err(StorageError::Timeout)));
        }
    }
    let (questions, looks) = double.asked();
    assert_eq!(questions, 32);
    assert!((1..=20).contains(&looks), "some looks, never more than five at a time: {looks}");
    double.set(Mood::Well);
    ask(&reader).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_hangs_opens_it() {
    let (double, reader) = guarded(Mood::Hangs);
    for answer in futures::future::join_all((0..5).map(|_| ask(&reader))).await {
        assert!(matches!(answer, Err(StorageError::Timeout)));
    }
    // The looks that follow hang as well.
    tokio::time::sleep(LOOK_WITHIN + SECOND).await;
    let started = Instant::now();
    assert!(open_for(ask(&reader).await).is_some());
    assert_eq!(started.elapsed(), Duration::ZERO, "nobody waits for an open circuit");
    assert_eq!(double.asked(), (5, 5));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_while_it_probes_leaves_nothing_half_open() {
    let (double, reader) = guarded(Mood::Away);
    for _ in 0..5 {
        assert!(ask(&reader).await.is_err());
    }
    tokio::time::advance(30 * SECOND).await;
    double.set(Mood::Hangs);
    let gone = tokio::time::timeout(SECOND, ask(&reader)).await;
    assert!(gone.is_err());
    // The look goes on, fails at its own deadline, and the next probe comes one interval later.
    tokio::time::sleep(2 * SECOND).await;
    assert!(open_for(ask(&reader).await).is_some_and(|wait| wait <= 30 * SECOND));
    double.set(Mood::Well);
    tokio::time::advance(30 * SECOND).await;
    ask(&reader).await.unwrap();
}
