-- The control database: what the workers, the readers and the operators agree on.

-- What may be metered. A change of a type is a new version; version 1 applies to all times (valid_from is NULL), a later one to
-- timestamps from its valid_from.
CREATE TABLE usage_types (
    name        text COLLATE "C" NOT NULL,
    version     integer NOT NULL DEFAULT 1 CHECK (version > 0),
    kind        text NOT NULL CHECK (kind IN ('counter', 'gauge')),
    unit        text NOT NULL,
    description text,
    valid_from  timestamptz,
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (name, version),
    CHECK ((version = 1) = (valid_from IS NULL))
);

-- Keys that sign the messages of a source. Validity is judged by the broker's timestamp and must outlast the topic's retention.
CREATE TABLE source_keys (
    source      text COLLATE "C" NOT NULL,
    key_id      text COLLATE "C" NOT NULL,
    key         bytea NOT NULL,
    valid_from  timestamptz NOT NULL,
    valid_until timestamptz CHECK (valid_until > valid_from),
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (source, key_id)
);

-- Every partition count that the topic of records has or had: a tenant's rows lie where one of these counts put them.
CREATE TABLE partition_counts (
    count    integer PRIMARY KEY CHECK (count > 0),
    known_at timestamptz NOT NULL DEFAULT now()
);

-- The one row that says by which count workers store now, and whether the topic is growing (workers that take over wait).
CREATE TABLE partition_state (
    singleton  boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    current    integer NOT NULL REFERENCES partition_counts (count),
    growing    boolean NOT NULL DEFAULT false,
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- How far each partition is: batch_seq never goes back; next_offset is the first offset that is not done, NULL before the first
-- batch. The row is inserted when a worker takes the partition over.
CREATE TABLE consumer_progress (
    kafka_partition integer PRIMARY KEY CHECK (kafka_partition >= 0),
    batch_seq       bigint NOT NULL DEFAULT 0 CHECK (batch_seq >= 0),
    next_offset     bigint CHECK (next_offset >= 0),
    updated_at      timestamptz NOT NULL DEFAULT now()
);

-- Offsets [from_offset, to_offset) that an operator skipped. Until accepted, complete_until is unknown.
CREATE TABLE gaps (
    kafka_partition integer NOT NULL,
    from_offset     bigint NOT NULL,
    to_offset       bigint NOT NULL,
    noticed_at      timestamptz NOT NULL DEFAULT now(),
    accepted_at     timestamptz,
    PRIMARY KEY (kafka_partition, from_offset, to_offset),
    CHECK (from_offset < to_offset)
);
