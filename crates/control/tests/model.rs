//! Completeness against a simulated system: `complete_until` never runs ahead of the truth, and comes to it in the end.

mod support;

use support::with_partitions;
use support::world::World;

const SEEDS: std::ops::Range<u64> = 4..12;
const ACTS: usize = 1_500;

#[tokio::test]
async fn complete_until_never_runs_ahead_of_the_truth_and_arrives() {
    for seed in SEEDS {
        with_partitions(3, move |control| async move {
            let mut world = World::new(control, seed).await;
            for _ in 0..ACTS {
                world.act().await;
            }
            world.come_to_rest().await;
            assert!(world.answers.len() > 3, "seed {seed}: only {:?}", world.answers);
        })
        .await;
    }
}
