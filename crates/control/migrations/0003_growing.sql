-- Growing the topic (protocol 5.4). While workers that take over wait, the count that will be the current one; it names whose turn it
-- is to end that, so that a `usagectl` that slept through another's growth can't.
ALTER TABLE partition_state
    ADD COLUMN growing_to integer REFERENCES partition_counts (count),
    ADD CHECK (growing = (growing_to IS NOT NULL)),
    ADD CHECK (growing_to > current);
