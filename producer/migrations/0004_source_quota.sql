-- Counters of the source's quota, which its processes share (docs/limits.md): what `usage_limits::RateLimits::migration_sql` makes, which
-- a test holds it to. Empty unless a quota is set.
--
-- Rights: a process with a quota needs SELECT, INSERT, UPDATE and DELETE on usage_rate_limits.

CREATE TABLE IF NOT EXISTS "usage_rate_limits" (
  bucket       text        NOT NULL,
  window_start timestamptz NOT NULL,
  count        integer     NOT NULL DEFAULT 0,
  expires_at   timestamptz NOT NULL,
  PRIMARY KEY (bucket, window_start),
  CONSTRAINT "usage_rate_limits_count_non_negative" CHECK (count >= 0),
  CONSTRAINT "usage_rate_limits_expires_after_window" CHECK (expires_at > window_start)
) WITH (fillfactor = 60);

CREATE INDEX IF NOT EXISTS "usage_rate_limits_expires_idx" ON "usage_rate_limits" (expires_at);

COMMENT ON TABLE "usage_rate_limits" IS
  'Counters of rate limits, shared by all instances: one row per bucket and window.';
COMMENT ON COLUMN "usage_rate_limits".bucket IS
  'Scope, seconds of the window, and the hash of the subject. Never a token, address or name itself.';
COMMENT ON COLUMN "usage_rate_limits".window_start IS
  'A new window is a new row: nothing is ever set back to zero.';

INSERT INTO usage_outbox_migrations (version) VALUES (4);
