//! What `verify` prints: a line for each difference, for people or as JSON, and a summary.

use ethnum::I256;
use serde_json::{Value, json};
use usage_schemas::Kind;
use usage_storage::{BucketKey, BucketTotals, Difference, Verified};

use crate::output;

/// Decimals of a value.
const SCALE: usize = 18;

#[derive(Debug, Clone, Copy)]
pub(super) struct Printer {
    pub json: bool,
}

impl Printer {
    pub(super) fn difference(self, difference: &Difference) {
        if self.json { println!("{}", as_json(difference)) } else { println!("{}", as_text(difference)) }
    }

    pub(super) fn repaired(self, buckets: usize) {
        if self.json {
            println!("{}", json!({ "rolled_up_anew": buckets }));
        } else {
            println!("rolled {buckets} buckets up anew; what differs now:");
        }
    }

    pub(super) fn summary(self, verified: &Verified, found: u64, repaired: usize, left: u64) {
        let Verified { months, buckets, records, identities } = verified;
        if self.json {
            let summary = json!({ "months": months, "buckets": buckets, "records": records, "identities": identities,
                                  "differences": found, "rolled_up_anew": repaired, "left": left });
            println!("{}", json!({ "summary": summary }));
        } else {
            println!(
                "{buckets} buckets of {months} months compared with {records} records, {identities} identities looked at: \
                 {found} differences, {repaired} buckets rolled up anew, {left} left"
            );
        }
    }
}

fn as_text(difference: &Difference) -> String {
    match difference {
        Difference::Bucket { key, expected, found } => {
            let BucketKey { tenant_id, metric, source, partition, .. } = key;
            format!(
                "bucket: tenant {tenant_id}, metric {metric}, source {source}, kind {}, {}, partition {partition}: \
                 the records give {}, rolled up is {}",
                kind(key.kind),
                time(key),
                totals_text(expected.as_deref()),
                totals_text(found.as_deref()),
            )
        }
        Difference::StoredTwice { tenant_id, record_id, copies } => {
            format!("stored twice: tenant {tenant_id}, record {record_id}: {copies} copies")
        }
        Difference::WrongPartition { tenant_id, partition, records, first_offset, last_offset } => format!(
            "wrong partition: tenant {tenant_id}, partition {partition}: {records} records, offsets {first_offset} to {last_offset}"
        ),
    }
}

fn as_json(difference: &Difference) -> Value {
    match difference {
        Difference::Bucket { key, expected, found } => json!({
            "difference": "bucket", "tenant_id": key.tenant_id, "metric": key.metric, "source": key.source,
            "kind": kind(key.kind), "bucket": time(key), "partition": key.partition,
            "expected": expected.as_deref().map(totals_json), "found": found.as_deref().map(totals_json),
        }),
        Difference::StoredTwice { tenant_id, record_id, copies } => {
            json!({ "difference": "stored_twice", "tenant_id": tenant_id, "record_id": record_id, "copies": copies })
        }
        Difference::WrongPartition { tenant_id, partition, records, first_offset, last_offset } => json!({
            "difference": "wrong_partition", "tenant_id": tenant_id, "partition": partition, "records": records,
            "first_offset": first_offset, "last_offset": last_offset,
        }),
    }
}

fn totals_text(totals: Option<&BucketTotals>) -> String {
    let Some(BucketTotals { count, sum, min, max, latest }) = totals else { return "nothing".into() };
    let value = |value: &Option<i128>| value.map_or_else(|| "none".into(), |value| decimal(value.into()));
    let latest = latest.map_or_else(
        || "none".into(),
        |(at, id, value)| format!("{} of {id} at {}", decimal(value.into()), output::time(at)),
    );
    format!("count {count}, sum {}, min {}, max {}, latest {latest}", decimal(*sum), value(min), value(max))
}

fn totals_json(totals: &BucketTotals) -> Value {
    let value = |value: Option<i128>| value.map(|value| decimal(value.into()));
    json!({
        "count": totals.count.to_string(), "sum": decimal(totals.sum), "min": value(totals.min), "max": value(totals.max),
        "latest": totals.latest.map(|(at, id, value)| {
            json!({ "timestamp": output::time(at), "record_id": id, "value": decimal(value.into()) })
        }),
    })
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
    }
}

fn time(key: &BucketKey) -> String {
    output::time(i64::from(key.bucket) * 1_000_000)
}

/// Units of 10^-18 in plain notation without trailing zeros; also of values that no quantity may have.
fn decimal(units: I256) -> String {
    let text = units.to_string();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.as_str()),
    };
    let padded = format!("{digits:0>width$}", width = SCALE + 1);
    let (whole, fraction) = padded.split_at(padded.len() - SCALE);
    match fraction.trim_end_matches('0') {
        "" => format!("{sign}{whole}"),
        fraction => format!("{sign}{whole}.{fraction}"),
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const UNIT: i128 = 1_000_000_000_000_000_000;

    #[test]
    fn values_are_printed_to_the_last_digit() {
        for (units, text) in [
            (I256::ZERO, "0"),
            (I256::ONE, "0.000000000000000001"),
            (I256::from(-UNIT / 2), "-0.5"),
            (I256::from(12 * UNIT), "12"),
            (I256::from(UNIT) * 10_000_000_000 + 1, "10000000000.000000000000000001"),
        ] {
            assert_eq!(decimal(units), text);
        }
        assert_eq!(decimal(I256::MAX).len(), 78, "76 digits and more are no error");
    }

    #[test]
    fn a_difference_names_the_bucket_and_both_sides() {
        let totals = |count: u64| BucketTotals {
            count,
            sum: I256::from(3 * UNIT),
            min: Some(UNIT),
            max: Some(2 * UNIT),
            latest: Some((900_000_001, Uuid::from_u128(9), 2 * UNIT)),
        };
        let key = BucketKey {
            tenant_id: Uuid::from_u128(7),
            metric: "tokens".into(),
            source: "gateway".into(),
            kind: Kind::Counter,
            bucket: 900,
            partition: 3,
        };
        let difference = Difference::Bucket {
            key: key.clone(),
            expected: Some(totals(2).into()),
            found: Some(totals(1).into()),
        };
        let text = as_text(&difference);
        for part in [
            "tenant 00000000-0000-0000-0000-000000000007",
            "metric tokens, source gateway, kind counter, 1970-01-01T00:15:00.000000Z, partition 3",
            "the records give count 2, sum 3, min 1, max 2, latest 2 of 00000000-0000-0000-0000-000000000009 at",
            "rolled up is count 1, sum 3",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
        let json = as_json(&difference);
        assert_eq!((&json["expected"]["count"], &json["found"]["count"]), (&json!("2"), &json!("1")));
        assert_eq!((&json["bucket"], &json["partition"]), (&json!("1970-01-01T00:15:00.000000Z"), &json!(3)));
        assert!(
            as_text(&Difference::Bucket { key, expected: None, found: Some(totals(1).into()) })
                .contains("the records give nothing")
        );
    }

    #[test]
    fn other_differences_name_what_a_person_looks_for() {
        let (tenant_id, record_id) = (Uuid::from_u128(7), Uuid::from_u128(9));
        let twice = Difference::StoredTwice { tenant_id, record_id, copies: 2 };
        assert!(as_text(&twice).ends_with("record 00000000-0000-0000-0000-000000000009: 2 copies"));
        assert_eq!(as_json(&twice)["difference"], "stored_twice");
        let wrong = Difference::WrongPartition {
            tenant_id,
            partition: 3,
            records: 5,
            first_offset: 10,
            last_offset: 99,
        };
        assert!(as_text(&wrong).ends_with("partition 3: 5 records, offsets 10 to 99"));
        assert_eq!(as_json(&wrong)["last_offset"], 99);
    }
}
