-- An acceleration: active records by quarter of an hour, up to each (kafka_partition, month)'s horizon.
-- Horizon row: tenant_id = nil, metric = source = '', kind = 'counter', bucket = first instant of the month, record_count = 0,
-- horizon = W: "every batch of the partition up to number W is in this month's rows". Other rows have horizon = 0.
-- Readers count per key without generation only the rows of the highest generation.
-- `latest` is neutral at ('1900-01-01', zero bytes, 0) and means nothing where record_count = 0; its id is in the order of its bytes.
CREATE TABLE IF NOT EXISTS usage_rollups
(
    tenant_id       UUID,
    metric          LowCardinality(String),
    source          LowCardinality(String),
    kind            Enum8('counter' = 1, 'gauge' = 2),
    bucket          DateTime('UTC') CODEC(Delta(4), ZSTD(1)),
    kafka_partition Int32,
    generation      UInt32,
    record_count    SimpleAggregateFunction(sum, UInt64) CODEC(ZSTD(1)),
    value_sum       SimpleAggregateFunction(sum, Decimal(76, 18)) CODEC(ZSTD(1)),
    value_min       SimpleAggregateFunction(min, Nullable(Decimal(38, 18))) CODEC(ZSTD(1)),
    value_max       SimpleAggregateFunction(max, Nullable(Decimal(38, 18))) CODEC(ZSTD(1)),
    latest          SimpleAggregateFunction(max, Tuple(DateTime64(6, 'UTC'), FixedString(16), Decimal(38, 18))) CODEC(ZSTD(1)),
    horizon         SimpleAggregateFunction(max, Int64)
)
ENGINE = AggregatingMergeTree
PARTITION BY toYYYYMM(bucket)
ORDER BY (tenant_id, metric, source, kind, bucket, kafka_partition, generation)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1;
