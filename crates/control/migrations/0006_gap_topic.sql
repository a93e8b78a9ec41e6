-- Id of the topic that a gap was found in, NULL if it was not known. The same offsets of a topic made anew are other records, for which
-- nobody has accepted anything yet.
ALTER TABLE gaps ADD COLUMN topic_id uuid;
