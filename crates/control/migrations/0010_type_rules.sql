-- What a version of a usage type demands of a record. json and not jsonb: the text stays as it was written, so that the same
-- registration again is recognised, and \u0000 can stand in a rule.
ALTER TABLE usage_types ADD COLUMN rules json NOT NULL DEFAULT '{}';
