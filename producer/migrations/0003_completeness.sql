-- Completeness markers (docs/architecture.md), and what became of dead letters.
--
-- Rights: a relay needs SELECT, INSERT and DELETE on usage_outbox_returned.

-- While the clock of this database is behind a complete_until that it once gave, a relay sends no marker; nor afterwards, until every
-- partition is complete beyond this time.
ALTER TABLE usage_outbox_identity ADD COLUMN hold_until timestamptz NOT NULL DEFAULT '-infinity';

-- Rows that went from usage_outbox_waiting back into the outbox, where they are older than what a partition says of itself: their sources
-- are complete only until `oldest`, as long as not every partition is complete beyond `returned_at`.
CREATE TABLE usage_outbox_returned (
  source      text,
  oldest      timestamptz NOT NULL,
  returned_at timestamptz NOT NULL
);

-- For the oldest waiting row of a source, each second. A hash, since a text may be longer than an index takes.
CREATE INDEX usage_outbox_waiting_oldest ON usage_outbox_waiting (hashtextextended(source, 0), emitted_at);

-- An operator decides what becomes of a dead letter (`usagectl outbox dead-letters`). The row stays as a record of it, without the payload
-- where that went on its way again or was thrown away.
ALTER TABLE usage_outbox_dead_letters
  ADD COLUMN state text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'retried', 'resolved', 'discarded')),
  ADD COLUMN decided_at timestamptz,
  ADD COLUMN decided_by text,
  ADD COLUMN note text;

INSERT INTO usage_outbox_migrations (version) VALUES (3);
