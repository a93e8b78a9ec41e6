-- The truth: one row per kept record. (kafka_partition, batch_seq, month) is stored wholly or not at all.
-- UUID columns order by their second half in ClickHouse: compare ids by UUIDToNum(record_id) where order matters.
CREATE TABLE IF NOT EXISTS usage_records
(
    record_id       UUID CODEC(NONE),
    tenant_id       UUID,
    source          LowCardinality(String),
    metric          LowCardinality(String),
    kind            Enum8('counter' = 1, 'gauge' = 2),
    value           Decimal(38, 18) CODEC(ZSTD(1)),
    timestamp       DateTime64(6, 'UTC') CODEC(Delta(8), ZSTD(1)),
    idempotency_key Nullable(String) CODEC(ZSTD(1)),
    resource_id     Nullable(UUID) CODEC(ZSTD(1)),
    resource_type   LowCardinality(Nullable(String)),
    subject_id      Nullable(UUID) CODEC(ZSTD(1)),
    subject_type    LowCardinality(Nullable(String)),
    metadata        Nullable(String) CODEC(ZSTD(1)),
    ingested_at     DateTime64(6, 'UTC') CODEC(Delta(8), ZSTD(1)),
    status          Enum8('active' = 1, 'inactive' = 2) DEFAULT 'active',
    inactive_at     Nullable(DateTime64(6, 'UTC')),
    version         UInt32 DEFAULT 1,
    content_hash    FixedString(16) CODEC(NONE),
    kafka_partition Int32,
    kafka_offset    Int64 CODEC(Delta(8), ZSTD(1)),
    batch_seq       Int64 CODEC(Delta(8), ZSTD(1)),
    INDEX batch_seq_range batch_seq TYPE minmax GRANULARITY 1,
    PROJECTION by_record_id (SELECT _part_offset ORDER BY record_id)
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(timestamp)
ORDER BY (tenant_id, metric, timestamp, record_id)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1,
    enable_block_number_column = 1, enable_block_offset_column = 1;
