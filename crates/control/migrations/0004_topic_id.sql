-- Id of the topic that a partition was consumed of last, NULL before the first takeover that knew it. A topic that is deleted and made
-- anew has another one: offsets of the partition then mean other rows.
ALTER TABLE consumer_progress ADD COLUMN topic_id uuid;
