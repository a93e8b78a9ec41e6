-- Quotas (protocol 5.1): how many records of a source a tenant may have kept within a window of the broker's clock.

-- Each tenant is counted by itself. source NULL: every source without a row that fits better; tenant_id NULL: every tenant without one of
-- its own. max_records NULL: no bound.
CREATE TABLE quotas (
    source         text COLLATE "C",
    tenant_id      uuid,
    max_records    bigint CHECK (max_records >= 0),
    window_seconds integer CHECK (window_seconds BETWEEN 1 AND 2678400),
    updated_at     timestamptz NOT NULL DEFAULT now(),
    UNIQUE NULLS NOT DISTINCT (source, tenant_id),
    CHECK ((max_records IS NULL) = (window_seconds IS NULL)),
    CHECK (source IS NOT NULL OR tenant_id IS NULL)
);

-- Kept records of a window. Only the transaction that moves a partition's batch_seq adds to them, so that each batch counts once.
-- kafka_partition is where the tenant was counted last: its worker removes windows that lie far enough behind it.
CREATE TABLE quota_counters (
    source          text COLLATE "C" NOT NULL,
    tenant_id       uuid NOT NULL,
    window_seconds  integer NOT NULL,
    window_start    timestamptz NOT NULL,
    window_end      timestamptz NOT NULL,
    records         bigint NOT NULL CHECK (records > 0),
    kafka_partition integer NOT NULL,
    PRIMARY KEY (source, tenant_id, window_seconds, window_start)
) WITH (fillfactor = 70);
CREATE INDEX ON quota_counters (kafka_partition, window_end);

-- After a restore the log is read again: offsets below quotas_from were decided before, and are neither held to quotas nor counted.
ALTER TABLE consumer_progress ADD COLUMN quotas_from bigint CHECK (quotas_from >= 0);
