//! `complete_until`: which sources it is about, and that it is read before the records.

use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Value, json};
use usage_control::{Completeness, SourceComplete};

use crate::memory::{Mood, record};
use crate::support::{Harness, Setup};

/// 2026-01-01T00:00:00Z
const DAY: i64 = 1_767_225_600_000_000;
const TOTAL: &str = "/v1/usage/aggregated?from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z&metric=tokens";
const WATERMARKS: &str = "/v1/usage/metadata/watermarks";

/// Without a memory of its own, so that each question looks.
fn harness() -> Harness {
    Harness::with(Setup { cache: Duration::ZERO, ..Setup::default() })
}

fn known(sources: &[(&str, bool, Option<i64>)]) -> Completeness {
    let source = |(source, retired, complete_until): &(&str, bool, Option<i64>)| SourceComplete {
        source: (*source).to_owned(),
        retired: *retired,
        complete_until: *complete_until,
    };
    Completeness { gap: false, sources: sources.iter().map(source).collect() }
}

async fn complete_until(api: &Harness, path: &str) -> Value {
    let answer = api.get(path).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    answer.json()["complete_until"].clone()
}

#[tokio::test]
async fn it_is_the_least_of_the_sources_that_the_question_is_about() {
    let api = harness();
    assert_eq!(complete_until(&api, TOTAL).await, Value::Null, "there is no source");
    let sources =
        [("batch", false, Some(DAY + 6)), ("gateway", false, Some(DAY + 1_500_000)), ("old", true, Some(1))];
    api.registry.set_completeness(known(&sources));
    assert_eq!(complete_until(&api, TOTAL).await, "2026-01-01T00:00:00.000006Z");
    let gateway = format!("{TOTAL}&source=gateway");
    assert_eq!(complete_until(&api, &gateway).await, "2026-01-01T00:00:01.500000Z");
    let both = format!("{gateway}&source=batch&source=old");
    assert_eq!(complete_until(&api, &both).await, "2026-01-01T00:00:00.000006Z");
    for unknown in ["source=old", "source=gateway&source=nobody"] {
        assert_eq!(complete_until(&api, &format!("{TOTAL}&{unknown}")).await, Value::Null, "{unknown}");
    }
    // One that never sent a marker hides the total, not the others.
    let silent = [("gateway", false, Some(DAY)), ("mail", false, None)];
    api.registry.set_completeness(known(&silent));
    assert_eq!(complete_until(&api, TOTAL).await, Value::Null);
    assert_eq!(complete_until(&api, &gateway).await, "2026-01-01T00:00:00.000000Z");
    api.registry.set_completeness(Completeness { gap: true, ..known(&silent) });
    assert_eq!(complete_until(&api, &gateway).await, Value::Null, "offsets were skipped");
}

#[tokio::test]
async fn watermarks_have_it_by_source_and_in_all() {
    let api = harness();
    for source in ["gateway", "batch", "unheard"] {
        let mut record = record(api.tenant, "tokens", "1", "2026-01-01T01:00:00Z");
        record.source = source.to_owned();
        api.memory.add(record);
    }
    // The last one has no records of this tenant, but may be about to have some.
    api.registry.set_completeness(known(&[
        ("batch", false, Some(DAY + 2)),
        ("gateway", false, Some(DAY + 3)),
        ("other", false, Some(DAY + 1)),
    ]));
    let answer = api.get(WATERMARKS).await.json();
    assert_eq!(answer["complete_until"], "2026-01-01T00:00:00.000001Z");
    let by_source: Vec<_> = answer["sources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|found| (found["source"].clone(), found["complete_until"].clone()))
        .collect();
    let expected = [
        (json!("batch"), json!("2026-01-01T00:00:00.000002Z")),
        (json!("gateway"), json!("2026-01-01T00:00:00.000003Z")),
        (json!("unheard"), Value::Null),
    ];
    assert_eq!(by_source, expected);
}

/// Markers that arrive while storage is read speak of records that the answer may lack.
#[tokio::test]
async fn it_is_read_before_the_records() {
    for path in [TOTAL, WATERMARKS] {
        let api = harness();
        api.registry.set_completeness(known(&[("gateway", false, Some(DAY))]));
        api.memory.set_mood(Mood::HangsFor(api.tenant));
        let asking = api.get(path);
        let later = async {
            api.memory.asked(1).await;
            api.registry.set_completeness(known(&[("gateway", false, Some(DAY + 9))]));
            api.memory.set_mood(Mood::Well);
        };
        let (answer, ()) = tokio::join!(asking, later);
        assert_eq!(answer.json()["complete_until"], "2026-01-01T00:00:00.000000Z", "{path}");
    }
}

#[tokio::test]
async fn without_the_control_database_there_is_no_answer_rather_than_one_without_it() {
    let api = harness();
    api.registry.set_away(true);
    for path in [TOTAL, WATERMARKS] {
        api.get(path).await.problem(503, "unavailable");
        assert_eq!(api.memory.calls(), 0, "{path}");
    }
    api.registry.set_away(false);
    assert_eq!(complete_until(&api, WATERMARKS).await, Value::Null);
}
