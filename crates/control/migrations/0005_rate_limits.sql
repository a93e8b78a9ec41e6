-- Counters of the query-api's own rate limits: what `usage_limits::RateLimits::migration_sql` makes, which a test holds it to.

CREATE TABLE IF NOT EXISTS "rate_limits" (
  bucket       text        NOT NULL,
  window_start timestamptz NOT NULL,
  count        integer     NOT NULL DEFAULT 0,
  expires_at   timestamptz NOT NULL,
  PRIMARY KEY (bucket, window_start),
  CONSTRAINT "rate_limits_count_non_negative" CHECK (count >= 0),
  CONSTRAINT "rate_limits_expires_after_window" CHECK (expires_at > window_start)
) WITH (fillfactor = 60);

CREATE INDEX IF NOT EXISTS "rate_limits_expires_idx" ON "rate_limits" (expires_at);

COMMENT ON TABLE "rate_limits" IS
  'Counters of rate limits, shared by all instances: one row per bucket and window.';
COMMENT ON COLUMN "rate_limits".bucket IS
  'Scope, seconds of the window, and the hash of the subject. Never a token, address or name itself.';
COMMENT ON COLUMN "rate_limits".window_start IS
  'A new window is a new row: nothing is ever set back to zero.';
