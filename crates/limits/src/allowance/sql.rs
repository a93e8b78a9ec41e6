//! The texts that Postgres gets. They are public: any driver and any language can send them.

use crate::identifier::TableName;
use crate::retry::Sql;

/// The statements of one allowance table.
#[derive(Debug, Clone)]
pub struct Statements {
    /// $1 subject, $2 meter, $3 period_start, $4 amount, $5 limit.
    pub spend_or_fail: Sql,
    /// The same parameters; no row when the allowance does not carry the amount.
    pub spend: Sql,
    /// $1 subject, $2 meter, $3 period_start, $4 amount.
    pub refund: Sql,
    /// $1 subject, $2 meter, $3 period_starts.
    pub read: Sql,
    /// $1 meter, $2 first period_start to keep, $3 most rows.
    pub purge: Sql,
}

/// What is left of the limit; a counter without one ends at the greatest bigint. As a subtraction on the side of the limit,
/// which can't overflow: both are positive.
const ROOM: &str = "COALESCE($5::bigint, 9223372036854775807) - $4::bigint";

impl Statements {
    pub fn new(table: &TableName) -> Self {
        let table = table.quoted();
        // `used` is NOT NULL. A zero or negative amount makes it NULL as well: no plain SQL can mint an allowance.
        let spend_or_fail = format!(
            "INSERT INTO {table} AS a (subject, meter, period_start, used) \
             VALUES ($1::text, $2::text, $3::timestamptz, \
             CASE WHEN $4::bigint > 0 AND ($5::bigint IS NULL OR $4::bigint <= $5::bigint) THEN $4::bigint END) \
             ON CONFLICT (subject, meter, period_start) DO UPDATE SET \
             used = CASE WHEN a.used <= {ROOM} THEN a.used + $4::bigint END, updated_at = clock_timestamp() \
             RETURNING used"
        );
        let spend = format!(
            "INSERT INTO {table} AS a (subject, meter, period_start, used) \
             SELECT $1::text, $2::text, $3::timestamptz, $4::bigint \
             WHERE $4::bigint > 0 AND ($5::bigint IS NULL OR $4::bigint <= $5::bigint) \
             ON CONFLICT (subject, meter, period_start) DO UPDATE SET \
             used = a.used + $4::bigint, updated_at = clock_timestamp() \
             WHERE a.used <= {ROOM} \
             RETURNING used"
        );
        let refund = format!(
            "UPDATE {table} SET used = GREATEST(used - $4::bigint, 0), updated_at = clock_timestamp() \
             WHERE subject = $1::text AND meter = $2::text AND period_start = $3::timestamptz AND $4::bigint > 0 \
             RETURNING used"
        );
        let read = format!(
            "SELECT period_start, used FROM {table} \
             WHERE subject = $1::text AND meter = $2::text AND period_start = ANY($3::timestamptz[])"
        );
        // Rows that somebody is spending from (with the clock of an hour ago) are left for the next time, not waited for.
        let purge = format!(
            "DELETE FROM {table} WHERE ctid = ANY(ARRAY(\
             SELECT ctid FROM {table} WHERE meter = $1::text AND period_start < $2::timestamptz \
             ORDER BY period_start LIMIT $3 FOR UPDATE SKIP LOCKED))"
        );
        Self {
            spend_or_fail: spend_or_fail.into(),
            spend: spend.into(),
            refund: refund.into(),
            read: read.into(),
            purge: purge.into(),
        }
    }
}

/// The table, its index, and the functions for other languages. May run again; runs in a transaction.
pub fn migration(table: &TableName) -> String {
    let (quoted, name) = (table.quoted(), table.table());
    // Counters are updated in place most of the time: the free space keeps the new versions on the same page, so that no
    // index grows with the number of calls.
    format!(
        r#"CREATE TABLE IF NOT EXISTS {quoted} (
  subject      text        NOT NULL,
  meter        text        NOT NULL,
  period_start timestamptz NOT NULL,
  used         bigint      NOT NULL,
  updated_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (subject, meter, period_start),
  CONSTRAINT "{name}_named" CHECK (subject <> '' AND meter <> ''),
  CONSTRAINT "{name}_used_not_negative" CHECK (used >= 0)
) WITH (fillfactor = 60);

CREATE INDEX IF NOT EXISTS "{name}_periods_idx" ON {quoted} (meter, period_start);

COMMENT ON TABLE {quoted} IS
  'What each subject has spent of each meter''s allowance, per period. Spent in the transaction of the work it pays for.';
COMMENT ON COLUMN {quoted}.used IS
  'NULL is how an exhausted allowance fails a transaction: SQLSTATE 23502 on this column means exhausted.';

{functions}"#,
        functions = functions(table),
    )
}

fn functions(table: &TableName) -> String {
    let (consume, refund) = (table.beside("usage_allowance_consume"), table.beside("usage_allowance_refund"));
    format!(
        r#"CREATE OR REPLACE FUNCTION {consume}(
  allowance regclass, subject text, meter text, period_start timestamptz, amount bigint, "limit" bigint DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql AS $function$
DECLARE
  spent bigint;
BEGIN
  IF coalesce(subject, '') = '' THEN RAISE invalid_parameter_value USING MESSAGE = 'subject must not be empty'; END IF;
  IF coalesce(meter, '') = '' THEN RAISE invalid_parameter_value USING MESSAGE = 'meter must not be empty'; END IF;
  IF period_start IS NULL OR NOT isfinite(period_start) THEN
    RAISE invalid_parameter_value USING MESSAGE = 'period_start must be a time';
  END IF;
  IF coalesce(amount, 0) < 1 THEN RAISE invalid_parameter_value USING MESSAGE = 'amount must be at least 1'; END IF;
  IF "limit" < 0 THEN RAISE invalid_parameter_value USING MESSAGE = 'limit must not be negative'; END IF;
  -- A NULL for "used" fails the whole transaction: not_null_violation on that column means exhausted.
  EXECUTE format(
    'INSERT INTO %s AS a (subject, meter, period_start, used) '
    'VALUES ($1, $2, $3, CASE WHEN $5 IS NULL OR $4 <= $5 THEN $4 END) '
    'ON CONFLICT (subject, meter, period_start) DO UPDATE SET '
    'used = CASE WHEN a.used <= COALESCE($5, 9223372036854775807) - $4 THEN a.used + $4 END, '
    'updated_at = clock_timestamp() RETURNING used', allowance)
  INTO spent USING subject, meter, period_start, amount, "limit";
  RETURN spent;
END
$function$;

CREATE OR REPLACE FUNCTION {refund}(
  allowance regclass, subject text, meter text, period_start timestamptz, amount bigint
) RETURNS bigint LANGUAGE plpgsql AS $function$
DECLARE
  spent bigint;
BEGIN
  IF coalesce(amount, 0) < 1 THEN RAISE invalid_parameter_value USING MESSAGE = 'amount must be at least 1'; END IF;
  EXECUTE format(
    'UPDATE %s SET used = GREATEST(used - $4, 0), updated_at = clock_timestamp() '
    'WHERE subject = $1 AND meter = $2 AND period_start = $3 RETURNING used', allowance)
  INTO spent USING subject, meter, period_start, amount;
  RETURN coalesce(spent, 0);
END
$function$;
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_names_the_quoted_table() {
        let table = TableName::parse("billing.spent").unwrap();
        let statements = Statements::new(&table);
        let texts = [
            &statements.spend_or_fail,
            &statements.spend,
            &statements.refund,
            &statements.read,
            &statements.purge,
        ];
        for text in texts {
            assert!(text.contains(r#""billing"."spent""#), "{text}");
        }
        let migration = migration(&table);
        for made in [
            r#"TABLE IF NOT EXISTS "billing"."spent" ("#,
            r#"INDEX IF NOT EXISTS "spent_periods_idx" ON "billing"."spent""#,
            r#"FUNCTION "billing".usage_allowance_consume("#,
        ] {
            assert!(migration.contains(made), "{made} is not in {migration}");
        }
    }
}
