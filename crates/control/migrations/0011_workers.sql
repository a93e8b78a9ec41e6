-- Whose progress this database holds: offsets of another topic mean other rows, and another group reads the log from its start.
CREATE TABLE workers (
    one_row        boolean PRIMARY KEY DEFAULT true CHECK (one_row),
    consumer_group text NOT NULL,
    records_topic  text NOT NULL
);
