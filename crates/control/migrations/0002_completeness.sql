-- Completeness (protocol 8): how far each source's records are stored or dead-lettered, by its own clock.

-- The greatest marker that a worker has passed, for each partition: everything that this outbox emitted before complete_until and
-- that lies in the partition is done. A row never goes back.
CREATE TABLE source_progress (
    source          text COLLATE "C" NOT NULL,
    outbox          uuid NOT NULL,
    kafka_partition integer NOT NULL CHECK (kafka_partition >= 0),
    complete_until  timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (source, outbox, kafka_partition)
) WITH (fillfactor = 50);

-- Records that a worker has produced again onto another partition and that are not known to be done there. While one is under
-- way its source is complete until complete_until at most; '-infinity' is not known. from_partition is where the bound was taken
-- from, also after the record was forwarded again.
CREATE TABLE source_forwards (
    to_partition    integer NOT NULL CHECK (to_partition >= 0),
    to_offset       bigint NOT NULL CHECK (to_offset >= 0),
    source          text COLLATE "C" NOT NULL,
    from_partition  integer NOT NULL CHECK (from_partition >= 0),
    complete_until  timestamptz NOT NULL,
    noted_at        timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (to_partition, to_offset, source)
);
CREATE INDEX ON source_forwards (source, from_partition);

-- Sources, and single outboxes, for which nobody waits any more; outbox is NULL for a whole source.
CREATE TABLE retired_sources (
    source     text COLLATE "C" NOT NULL,
    outbox     uuid,
    retired_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE NULLS NOT DISTINCT (source, outbox)
);
