//! Answers that are under way while the topic grows (protocol 5.4): rows may lie where they did not look.

use std::time::Duration;

use crate::memory::Mood;
use crate::support::{Answer, Harness, Setup};

const TOTAL: &str = "/v1/usage/aggregated?from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z&metric=tokens";

/// Asks once; `meanwhile` happens after storage was asked and before it answers.
async fn ask(api: &Harness, meanwhile: impl FnOnce(&Harness)) -> Answer {
    let asked = api.memory.calls();
    api.memory.set_mood(Mood::HangsFor(api.tenant));
    let (answer, ()) = tokio::join!(api.get(TOTAL), async {
        api.memory.asked(asked + 1).await;
        meanwhile(api);
        api.memory.set_mood(Mood::Well);
    });
    answer
}

fn api(cache: Duration) -> Harness {
    let api = Harness::with(Setup { cache, ..Setup::default() });
    api.add("tokens", "5", "2026-01-01T12:00:00Z");
    api
}

#[tokio::test]
async fn a_reader_with_old_counts_answers_503() {
    let api = api(Duration::ZERO);
    let answer = ask(&api, |api| api.registry.list_count(24)).await;
    answer.problem(503, "unavailable");
    assert_eq!(answer.header("retry-after"), "1");
    assert_eq!(api.rows(TOTAL).await[0]["value"], "5", "the next one looks there too");
}

#[tokio::test]
async fn an_answer_that_took_long_stands_if_no_count_was_listed() {
    let api = api(Duration::ZERO);
    let answer = ask(&api, |_| {}).await;
    assert_eq!(answer.status.as_u16(), 200, "{}", answer.text);
    assert_eq!(api.registry.count_reads(), 2, "before and after");
}

#[tokio::test]
async fn a_reader_that_cant_ask_whether_its_counts_hold_answers_503() {
    let api = api(Duration::ZERO);
    ask(&api, |api| api.registry.set_away(true)).await.problem(503, "unavailable");
}

#[tokio::test]
async fn counts_that_growing_waits_for_are_not_read_again() {
    let api = api(Duration::from_secs(600));
    let answer = ask(&api, |api| api.registry.list_count(24)).await;
    assert_eq!(answer.status.as_u16(), 200, "no row lies by the new count yet: {}", answer.text);
    assert_eq!(api.registry.count_reads(), 1);
}

#[tokio::test]
async fn a_stream_under_way_is_broken_off_rather_than_wrong() {
    let mut setup = Setup::page_rows(1);
    setup.cache = Duration::ZERO;
    let api = Harness::with(setup);
    for metric in ["bytes", "tokens"] {
        api.add(metric, "5", "2026-01-01T12:00:00Z");
    }
    let path = TOTAL.replace("&metric=tokens", "&group_by=metric");
    let whole = api.get_as(&path, "text/csv").await;
    assert_eq!((whole.broken, whole.text.lines().count()), (false, 3), "{}", whole.text);

    // The counts are read before and after each page: the second page meets the growth.
    api.registry.list_count_at_read(24, api.registry.count_reads() + 4);
    let answer = api.get_as(&path, "text/csv").await;
    assert!(answer.status.as_u16() == 200 && answer.broken, "{answer:?}");
}
