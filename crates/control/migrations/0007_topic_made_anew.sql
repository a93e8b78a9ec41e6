-- Number of the last batch that a partition had of the topic before the present one; NULL if the present one is the first. Offsets of
-- batches up to it mean rows of a topic that is gone.
ALTER TABLE consumer_progress ADD COLUMN topic_after_seq bigint CHECK (topic_after_seq >= 0);
