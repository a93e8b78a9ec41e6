//! Several pipelines side by side: what a crash costs is mostly the wait for a dead member's session.

use futures::future::join_all;

use super::points::Visit;
use super::workload::Workload;
use super::{Pipeline, Process};

/// Small batches and early flushes, so that every step is taken soon.
pub const SETTINGS: [&str; 4] = [
    "consumer.batch_rows=40",
    "consumer.batch_age=20ms",
    "clickhouse.flush_age=200ms",
    "consumer.retry_max=300ms",
];
/// New records of a slice.
pub const SLICE: usize = 160;
const PARTITIONS: i32 = 3;
const LANES: usize = 4;

pub struct Lane {
    pub pipeline: Pipeline,
    pub workload: Workload,
}

impl Lane {
    pub async fn start(seed: u64) -> Self {
        let pipeline = Pipeline::start(PARTITIONS).await;
        let workload = Workload::new(&pipeline, seed);
        Self { pipeline, workload }
    }

    pub async fn send(&mut self) {
        self.workload.send(&self.pipeline, SLICE).await;
    }

    pub fn worker(&self) -> Process {
        Process::start(&self.pipeline, &SETTINGS)
    }

    pub fn armed(&self, points: &str) -> Process {
        Process::armed(&self.pipeline, points, &SETTINGS)
    }

    /// A worker without fail points does what is left, and then everything must be right.
    pub async fn finish(&self, when: &str) {
        let worker = self.worker();
        self.pipeline.settled().await;
        worker.stop().await;
        self.check(when).await;
    }

    /// Call it after all workers have stopped.
    pub async fn check(&self, when: &str) {
        self.workload.check(&self.pipeline, when).await;
        assert_eq!(
            self.pipeline.rollup_differences().await,
            0,
            "{when}: rollups that differ from the records"
        );
        let ends = self.pipeline.settled().await;
        let progress = self.pipeline.control.progress().await.expect("the control database answers");
        let noted: Vec<i64> = progress.iter().filter_map(|progress| progress.next_offset).collect();
        assert_eq!(noted, ends, "{when}: the control database knows what is done");
        assert_eq!(self.pipeline.control.gaps().await.expect("it answers"), [], "{when}");
    }
}

/// Runs `each` for all visits, on a few pipelines at once.
pub async fn in_lanes(visits: &[Visit], each: impl AsyncFn(&mut Lane, Visit)) {
    let each = &each;
    let lanes = (0..LANES.min(visits.len())).map(|lane| async move {
        let mut pipeline = Lane::start(lane as u64).await;
        for visit in visits.iter().skip(lane).step_by(LANES) {
            each(&mut pipeline, *visit).await;
        }
        pipeline.pipeline.end().await;
    });
    join_all(lanes).await;
}
