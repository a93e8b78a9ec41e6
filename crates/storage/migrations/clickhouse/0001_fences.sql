-- Who may write a partition: the owner of its highest epoch. All rows are kept; an epoch is never used again.
CREATE TABLE IF NOT EXISTS usage_fences
(
    kafka_partition Int32,
    epoch           Int64,
    owner           String,
    taken_at        DateTime64(6, 'UTC')
)
ENGINE = MergeTree
ORDER BY (kafka_partition, epoch)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
