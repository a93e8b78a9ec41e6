-- The outbox of a usage source, in the source's own database: Postgres 15 or newer, any schema (the first one of search_path).
--
-- Run by usage_producer::outbox::migrate, by `usagectl outbox migrate`, or by psql alone:
--   psql -1 -v ON_ERROR_STOP=1 -f 0001_outbox.sql -f 0002_usage_emit.sql -f 0003_completeness.sql -f 0004_source_quota.sql \
--     "$DATABASE_URL"
-- Parameter: the number of outbox partitions, 4 unless told otherwise. Before the first file, in the same session:
--   SET usage_outbox.partitions = 8;        (or PGOPTIONS='-c usage_outbox.partitions=8')
-- It can be changed later with usage_outbox_set_partitions(n).
--
-- Rights: emitters need INSERT on usage_outbox and USAGE on usage_outbox_id_seq; a relay needs SELECT, INSERT, UPDATE, DELETE on all
-- tables of this file, USAGE and SELECT on the sequences, and it owns the four leaves (TRUNCATE, LOCK).

CREATE TABLE usage_outbox_migrations (
  version    integer     PRIMARY KEY,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- CACHE 1: the relay's floor needs ids that are handed out in order, while the emitter already holds its lock on the table.
CREATE SEQUENCE usage_outbox_id_seq AS bigint CACHE 1;

-- Four leaves that take turns, a minute each, so that a leaf which the relay emptied gives its space back by TRUNCATE, whatever long
-- transaction holds vacuum back. The only index serves the relay's poll; rows leave within milliseconds, and nothing refers to them.
CREATE TABLE usage_outbox (
  segment      smallint    NOT NULL DEFAULT ((extract(epoch FROM clock_timestamp())::bigint / 60) % 4),
  part         smallint    NOT NULL,
  id           bigint      NOT NULL DEFAULT nextval('usage_outbox_id_seq'),
  tenant_id    uuid        NOT NULL,
  -- The clock at the INSERT, not the transaction's start: completeness is reckoned by it.
  emitted_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  payload_type text        NOT NULL,
  source       text,
  traceparent  text,
  payload      bytea       NOT NULL
) PARTITION BY LIST (segment);
ALTER SEQUENCE usage_outbox_id_seq OWNED BY usage_outbox.id;

-- The insert trigger of autovacuum is off and the dead-row trigger is a fixed number: a leaf is emptied all the time.
CREATE TABLE usage_outbox_0 PARTITION OF usage_outbox FOR VALUES IN (0) WITH (fillfactor = 100, autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 50000, autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0,
  toast.autovacuum_vacuum_threshold = 50000);
CREATE TABLE usage_outbox_1 PARTITION OF usage_outbox FOR VALUES IN (1) WITH (fillfactor = 100, autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 50000, autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0,
  toast.autovacuum_vacuum_threshold = 50000);
CREATE TABLE usage_outbox_2 PARTITION OF usage_outbox FOR VALUES IN (2) WITH (fillfactor = 100, autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 50000, autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0,
  toast.autovacuum_vacuum_threshold = 50000);
CREATE TABLE usage_outbox_3 PARTITION OF usage_outbox FOR VALUES IN (3) WITH (fillfactor = 100, autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 50000, autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0,
  toast.autovacuum_vacuum_threshold = 50000);

CREATE INDEX usage_outbox_part_id ON usage_outbox (part, id);

-- Leases of the relays, and how far each partition is complete. Updated every few seconds, never per batch.
CREATE TABLE usage_outbox_partitions (
  part           smallint    PRIMARY KEY,
  owner          text,
  epoch          bigint      NOT NULL DEFAULT 0,
  expires_at     timestamptz NOT NULL DEFAULT '-infinity',
  complete_until timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 10);

-- The relays that are alive, also those that hold no partition yet, so that the others know how many to share with.
CREATE TABLE usage_outbox_relays (
  owner      text        PRIMARY KEY,
  expires_at timestamptz NOT NULL
) WITH (fillfactor = 10);

-- Rows that can never be produced, with the reason; an operator replays or discards them.
CREATE TABLE usage_outbox_dead_letters (
  dead_letter_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  part           smallint    NOT NULL,
  id             bigint      NOT NULL,
  tenant_id      uuid        NOT NULL,
  emitted_at     timestamptz NOT NULL,
  payload_type   text        NOT NULL,
  source         text,
  traceparent    text,
  payload        bytea       NOT NULL,
  reason         text        NOT NULL,
  error          text        NOT NULL,
  failed_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Rows that the relay can't send yet: of a source that it has no key for, or of a payload type that a newer emitter writes and it does not
-- know. They come back by themselves once it has the key, or once a relay that knows the type runs.
CREATE TABLE usage_outbox_waiting (
  waiting_id   bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  part         smallint    NOT NULL,
  id           bigint      NOT NULL,
  tenant_id    uuid        NOT NULL,
  emitted_at   timestamptz NOT NULL,
  payload_type text        NOT NULL,
  source       text,
  traceparent  text,
  payload      bytea       NOT NULL,
  waiting_since timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- Hashes, since texts may be longer than an index takes.
CREATE INDEX usage_outbox_waiting_why
  ON usage_outbox_waiting (hashtextextended(source, 0), hashtextextended(payload_type, 0), waiting_id);

-- One row: this outbox's own id, which completeness markers carry.
CREATE TABLE usage_outbox_identity (
  one        boolean     PRIMARY KEY DEFAULT true CHECK (one),
  outbox_id  uuid        NOT NULL DEFAULT gen_random_uuid(),
  partitions smallint    NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Sets the number of partitions that new rows are spread over. Rows that are there keep their partition and are delivered from it.
CREATE FUNCTION usage_outbox_set_partitions(n integer) RETURNS void LANGUAGE plpgsql AS $set$
BEGIN
  IF n IS NULL OR n < 1 OR n > 256 THEN
    RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'usage_outbox_set_partitions: n: is not between 1 and 256';
  END IF;
  INSERT INTO usage_outbox_identity (partitions) VALUES (n) ON CONFLICT (one) DO UPDATE SET partitions = excluded.partitions;
  INSERT INTO usage_outbox_partitions (part) SELECT generate_series(0, n - 1) ON CONFLICT (part) DO NOTHING;
  -- A body that is parsed here and now: it depends on nobody's search_path and is inlined into the INSERT.
  EXECUTE format('CREATE OR REPLACE FUNCTION %s.usage_outbox_part(tenant uuid) RETURNS smallint LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN mod(hashtextextended(tenant::text, 0) & 9223372036854775807, %s)::smallint',
    (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = 'usage_outbox'::regclass), n);
END $set$;

DO $do$
BEGIN
  EXECUTE format('ALTER FUNCTION usage_outbox_set_partitions(integer) SET search_path = pg_catalog, %I, pg_temp', current_schema());
  PERFORM usage_outbox_set_partitions(coalesce(nullif(current_setting('usage_outbox.partitions', true), ''), '4')::integer);
END $do$;

INSERT INTO usage_outbox_migrations (version) VALUES (1);
