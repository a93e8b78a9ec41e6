-- usage_emit: emits one usage record from any language, in the caller's transaction.
--
--   SELECT usage_emit('0190f3c2-6f1e-7a44-9d3b-5a1f0c2e7b10', 'llm.requests', 1, 'order-17');
--
-- It returns the record's id, writes one row, and does nothing else. What a database can check is checked here; an error has SQLSTATE
-- 22023, a message `usage_emit: <parameter>: <what is wrong>` and the parameter as its column name. The row's source is left NULL: that is
-- the relay's default_source. The payload is JSON (usage-schemas, src/json.rs); the relay encodes it as Avro.
--
-- Times are kept in microseconds. Postgres itself rounds a text with more digits while it makes a timestamptz of it, before this function
-- sees it; the Rust client cuts them off. A record that is emitted again under its key has to state the same time, to the
-- microsecond, or it contradicts the first one: so pass occurred_at, in microseconds, wherever an operation may be retried.

-- Greatest length of metadata in bytes. Replace it to allow less or more; the consumer has a bound of its own.
CREATE FUNCTION usage_emit_metadata_bytes() RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 8192;

-- How many objects and arrays are open at the deepest place of a JSON text. Brackets in strings don't count.
CREATE FUNCTION usage_emit_metadata_depth(metadata text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN (
  SELECT coalesce(max(open), 0) FROM (
    SELECT sum(CASE WHEN bracket IN ('{', '[') THEN 1 ELSE -1 END) OVER (ORDER BY place) AS open
    FROM unnest(string_to_array(
      regexp_replace(regexp_replace(metadata, '"([^"\\]|\\.)*"', '', 'g'), '[^][{}]+', '', 'g'), NULL)) WITH ORDINALITY AS b (bracket, place)
  ) AS walk
);

-- A name: 1 to 128 of a-z 0-9 _ . -, first a letter. NULL if it is one, else what is wrong.
CREATE FUNCTION usage_emit_name_fault(name text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN
  CASE
    WHEN name COLLATE "C" ~ '^[a-z][a-z0-9_.-]{0,127}$' THEN NULL
    WHEN name IS NULL THEN 'missing'
    WHEN name = '' THEN 'is empty'
    WHEN octet_length(name) > 128 THEN 'is longer than 128 bytes'
    WHEN name COLLATE "C" !~ '^[a-z]' THEN 'does not begin with a letter a-z'
    ELSE 'has other characters than a-z 0-9 _ . -'
  END;

-- Identity of a keyed record: UUIDv8 of the first 16 bytes of SHA-256(tenant as 16 bytes || key as UTF-8).
CREATE FUNCTION usage_record_id(tenant_id uuid, idempotency_key text) RETURNS uuid LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $id$
DECLARE
  hash bytea := substring(sha256(uuid_send(tenant_id) || convert_to(idempotency_key, 'UTF8')) FROM 1 FOR 16);
BEGIN
  hash := set_byte(hash, 6, (get_byte(hash, 6) & 15) | 128);
  hash := set_byte(hash, 8, (get_byte(hash, 8) & 63) | 128);
  RETURN encode(hash, 'hex')::uuid;
END $id$;

-- Identity of a record without a key: UUIDv7, made once, when its row is written.
CREATE FUNCTION usage_record_id_by_time() RETURNS uuid LANGUAGE plpgsql VOLATILE AS $id$
DECLARE
  millis bytea := substring(int8send(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3);
  bytes bytea := overlay(uuid_send(gen_random_uuid()) PLACING millis FROM 1);
BEGIN
  RETURN encode(set_byte(bytes, 6, (get_byte(bytes, 6) & 15) | 112), 'hex')::uuid;
END $id$;

CREATE FUNCTION usage_emit_fail(field text, fault text) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $fail$
BEGIN
  RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = format('usage_emit: %s: %s', field, fault), COLUMN = field;
END $fail$;

CREATE FUNCTION usage_emit(
  tenant_id       uuid,
  metric          text,
  value           numeric,
  idempotency_key text,
  occurred_at     timestamptz DEFAULT now(),
  kind            text        DEFAULT 'counter',
  resource_id     uuid        DEFAULT NULL,
  resource_type   text        DEFAULT NULL,
  subject_id      uuid        DEFAULT NULL,
  subject_type    text        DEFAULT NULL,
  metadata        json        DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql VOLATILE AS $emit$
#variable_conflict use_variable
DECLARE
  record_id uuid;
  clock     timestamptz;
  key_bytes integer;
  size      integer;
BEGIN
  IF tenant_id IS NULL THEN
    PERFORM usage_emit_fail('tenant_id', 'missing');
  ELSIF tenant_id = '00000000-0000-0000-0000-000000000000' THEN
    PERFORM usage_emit_fail('tenant_id', 'the nil UUID is no tenant');
  END IF;
  IF usage_emit_name_fault(metric) IS NOT NULL THEN
    PERFORM usage_emit_fail('metric', usage_emit_name_fault(metric));
  END IF;
  IF kind IS NULL OR kind NOT IN ('counter', 'gauge') THEN
    PERFORM usage_emit_fail('kind', 'is neither counter nor gauge');
  END IF;

  -- NaN is greater than every number in Postgres, so it has to be asked for first.
  IF value IS NULL THEN
    PERFORM usage_emit_fail('value', 'missing');
  ELSIF value = 'NaN' OR value = 'Infinity' OR value = '-Infinity' THEN
    PERFORM usage_emit_fail('value', 'not a number');
  ELSIF abs(value) >= 100000000000000000000 THEN
    PERFORM usage_emit_fail('value', 'out of range');
  ELSIF scale(value) > 18 AND scale(trim_scale(value)) > 18 THEN
    PERFORM usage_emit_fail('value', 'more than 18 decimal places');
  ELSIF value < 0 AND kind = 'counter' THEN
    PERFORM usage_emit_fail('value', 'a counter is not negative');
  END IF;

  IF idempotency_key IS NULL THEN
    IF kind = 'counter' THEN
      PERFORM usage_emit_fail('idempotency_key', 'a counter has an idempotency key');
    END IF;
    record_id := usage_record_id_by_time();
  ELSE
    key_bytes := octet_length(convert_to(idempotency_key, 'UTF8'));
    IF key_bytes = 0 THEN
      PERFORM usage_emit_fail('idempotency_key', 'is empty');
    ELSIF key_bytes > 255 THEN
      PERFORM usage_emit_fail('idempotency_key', 'is longer than 255 bytes');
    END IF;
    record_id := usage_record_id(tenant_id, idempotency_key);
  END IF;

  IF resource_type IS NOT NULL AND usage_emit_name_fault(resource_type) IS NOT NULL THEN
    PERFORM usage_emit_fail('resource_type', usage_emit_name_fault(resource_type));
  END IF;
  IF subject_type IS NOT NULL AND usage_emit_name_fault(subject_type) IS NOT NULL THEN
    PERFORM usage_emit_fail('subject_type', usage_emit_name_fault(subject_type));
  END IF;

  IF metadata IS NOT NULL THEN
    size := octet_length(convert_to(metadata::text, 'UTF8'));
    IF size > usage_emit_metadata_bytes() THEN
      PERFORM usage_emit_fail('metadata', format('has %s bytes, %s are allowed', size, usage_emit_metadata_bytes()));
    ELSIF json_typeof(metadata) <> 'object' THEN
      PERFORM usage_emit_fail('metadata', 'is not a JSON object');
    -- Few texts have so many brackets at all.
    ELSIF length(metadata::text) - length(translate(metadata::text, '{[', '')) > 128 AND usage_emit_metadata_depth(metadata::text) > 128 THEN
      PERFORM usage_emit_fail('metadata', 'is more than 128 levels deep');
    END IF;
  END IF;

  -- Hours, since a day of an interval is as long as the session's time zone makes it. 61368 hours are 2557 days: 7 years.
  clock := clock_timestamp();
  IF occurred_at IS NULL THEN
    PERFORM usage_emit_fail('occurred_at', 'missing');
  ELSIF NOT isfinite(occurred_at) THEN
    PERFORM usage_emit_fail('occurred_at', 'is not a time');
  ELSIF occurred_at > clock + interval '5 minutes' THEN
    PERFORM usage_emit_fail('occurred_at', 'more than 5 minutes in the future');
  ELSIF occurred_at < clock - interval '61368 hours' THEN
    PERFORM usage_emit_fail('occurred_at', 'older than the longest retention');
  END IF;

  INSERT INTO usage_outbox (part, tenant_id, payload_type, payload)
  VALUES (usage_outbox_part(tenant_id), tenant_id, 'usage-collector.record.v1+json', convert_to(json_build_object(
    'record_id', record_id,
    'tenant_id', tenant_id,
    'metric', metric,
    'kind', kind,
    'value', trim_scale(value)::text,
    'timestamp', to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
    'idempotency_key', idempotency_key,
    'resource_id', resource_id,
    'resource_type', resource_type,
    'subject_id', subject_id,
    'subject_type', subject_type,
    'metadata', metadata::text
  )::text, 'UTF8'));
  RETURN record_id;
END $emit$;

COMMENT ON FUNCTION usage_emit(uuid, text, numeric, text, timestamptz, text, uuid, text, uuid, text, json) IS
  'Emits one usage record in the caller''s transaction and returns its id. occurred_at is kept in microseconds; a retry under the same idempotency_key has to pass the same occurred_at, value and fields, or it is refused as a contradiction.';

-- Whatever search_path the caller has, the functions find this schema's tables and the system's operators.
DO $do$
DECLARE
  fn regprocedure;
BEGIN
  FOR fn IN SELECT p.oid::regprocedure FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
      WHERE n.nspname = current_schema() AND p.proname IN ('usage_emit', 'usage_record_id', 'usage_record_id_by_time', 'usage_emit_fail') LOOP
    EXECUTE format('ALTER FUNCTION %s SET search_path = pg_catalog, %I, pg_temp', fn, current_schema());
  END LOOP;
END $do$;

INSERT INTO usage_outbox_migrations (version) VALUES (2);
