use proptest::prelude::*;

use super::*;

const KNOWN: &[&str] = &[
    "from",
    "to",
    "metric",
    "group_by",
    "window_size",
    "window_time_zone",
    "subject_id",
    "source",
    "limit",
    "cursor",
    "fill",
];

fn faults(raw: &str, read: impl FnOnce(&mut Params)) -> Vec<(String, &'static str, String)> {
    let mut params = Params::parse(Some(raw), KNOWN);
    read(&mut params);
    let errors = params.finish(None::<()>).unwrap_err();
    errors.into_iter().map(|error| (error.parameter, error.code, error.detail)).collect()
}

#[test]
fn strangers_learn_our_names_in_one_call() {
    for (theirs, ours) in [
        ("start_time", "from"),
        ("startTime", "from"),
        ("endTime", "to"),
        ("windowSize", "window_size"),
        ("granularity", "window_size"),
        ("windowTimeZone", "window_time_zone"),
        ("timezone", "window_time_zone"),
        ("groupBy", "group_by"),
        ("group_by[]", "group_by"),
        ("meter", "metric"),
        ("customer_id", "subject_id"),
        ("page_size", "limit"),
        ("mertic", "metric"),
        ("form", "from"),
    ] {
        let found = faults(&format!("{theirs}=1"), |_| ());
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].0.as_str(), found[0].1), (theirs, "unknown_parameter"));
        assert!(found[0].2.contains(&format!("did you mean `{ours}`")), "{theirs}: {}", found[0].2);
    }
}

#[test]
fn all_faults_are_told_at_once() {
    let found = faults(
        "from=2026-01-01&to=2026-01-02T00:00:00+01:00&metrik=a&limit=5&limit=6&subject_id=x",
        |params| {
            params.range();
            params.one("limit");
            params.uuids("subject_id");
        },
    );
    let mut codes: Vec<_> = found.iter().map(|(parameter, code, _)| format!("{parameter}:{code}")).collect();
    codes.sort();
    assert_eq!(
        codes,
        [
            "from:invalid_time",
            "limit:repeated",
            "metrik:unknown_parameter",
            "subject_id:invalid_uuid",
            "to:space_in_time"
        ]
    );
}

#[test]
fn a_space_in_a_time_says_how_to_write_a_plus() {
    for raw in ["to=2026-01-01T00:00:00+01:00", "to=2026-01-01%2000:00:00Z", "to=2026-01-01T00:00:00%2001:00"]
    {
        let found = faults(raw, |params| {
            params.time("to");
        });
        assert_eq!(found[0].1, "space_in_time");
        assert!(found[0].2.contains("%2B"));
    }
    let mut params = Params::parse(Some("to=2026-01-01T00:00:00%2B01:00"), KNOWN);
    assert_eq!(params.time("to"), Some(1_767_222_000_000_000));
    assert!(params.is_clean());
}

#[test]
fn undecodable_text_is_refused_by_name() {
    for raw in
        ["metric=%", "metric=%4", "metric=%zz", "metric=%ff", "metric=%C3", "metric=a%00b", "metric=%+1"]
    {
        let found = faults(raw, |_| ());
        assert_eq!((found[0].0.as_str(), found[0].1), ("metric", "invalid_encoding"), "{raw}");
    }
    let found = faults("%ff=1", |_| ());
    assert_eq!(found[0].1, "invalid_encoding");
    // Told once, not also as missing.
    let found = faults("from=%ff", |params| {
        params.time("from");
    });
    assert_eq!(found.len(), 1);
}

#[test]
fn empty_and_missing_values_are_faults() {
    for raw in ["metric=", "metric", "metric=&metric=a"] {
        assert_eq!(faults(raw, |_| ())[0].1, "empty", "{raw}");
    }
    assert_eq!(
        faults("", |params| {
            params.time("from");
        })[0]
            .1,
        "missing"
    );
    assert!(Params::parse(None, KNOWN).is_clean());
    assert!(Params::parse(Some("&&"), KNOWN).is_clean());
}

#[test]
fn problem_81_repeated_and_encoded_filters_are_kept() {
    let mut params =
        Params::parse(Some("source=b&source=a&group%5Fby=metric&group_by=source,subject&source=a"), KNOWN);
    assert_eq!(params.many("source"), ["a", "b"]);
    assert_eq!(params.list("group_by"), ["metric", "source", "subject"]);
    assert!(params.is_clean());
    // Brackets are nobody's filter here: refused, not dropped.
    let found = faults("filter%5Bk%5D=v&source=a", |_| ());
    assert_eq!((found[0].0.as_str(), found[0].1), ("filter[k]", "unknown_parameter"));
}

#[test]
fn ids_must_be_real() {
    let nil = Uuid::nil().to_string();
    for (text, code) in [
        ("x", "invalid_uuid"),
        ("00000000000000000000000000000001", "invalid_uuid"),
        ("%7B018f3c5e-0000-7000-8000-000000000001%7D", "invalid_uuid"),
        (nil.as_str(), "nil_uuid"),
    ] {
        let found = faults(&format!("subject_id={text}"), |params| {
            params.uuids("subject_id");
        });
        assert_eq!((found[0].0.as_str(), found[0].1), ("subject_id", code), "{text}");
    }
}

#[test]
fn problem_34_a_filter_is_a_name_and_nothing_else() {
    let found = faults("source=x%27%29%20OR%201%3D1%20--", |params| {
        params.names("source");
    });
    assert_eq!((found[0].0.as_str(), found[0].1), ("source", "invalid_name"));
    for (text, ok) in [
        ("a", true),
        ("llm-gateway.v1_2", true),
        ("A", false),
        ("1a", false),
        ("", false),
        ("ä", false),
        ("a b", false),
    ] {
        assert_eq!(is_name(text), ok, "{text}");
    }
    assert!(is_name(&"a".repeat(128)) && !is_name(&"a".repeat(129)));
}

#[test]
fn times_beyond_reason_are_refused() {
    for (raw, code) in [
        ("from=1899-12-31T23:59:59Z", "out_of_range"),
        ("from=2200-01-01T00:00:01Z", "out_of_range"),
        ("from=9999-12-31T23:59:59Z", "out_of_range"),
        ("from=1717000000", "invalid_time"),
        ("from=2026-01-01T00:00:00", "invalid_time"),
    ] {
        let found = faults(raw, |params| {
            params.time("from");
        });
        assert_eq!(found[0].1, code, "{raw}");
    }
}

#[test]
fn a_range_may_be_empty_but_not_reversed() {
    let range = |raw: &str| Params::parse(Some(raw), KNOWN).range();
    assert!(range("from=2026-01-01T00:00:00Z&to=2026-01-01T00:00:00Z").is_some());
    let found = faults("from=2026-01-01T00:00:00.000001Z&to=2026-01-01T00:00:00Z", |params| {
        params.range();
    });
    assert_eq!((found[0].0.as_str(), found[0].1), ("from", "from_after_to"));
}

#[test]
fn words_name_the_nearest() {
    let found = faults("fill=zeros", |params| {
        params.word("fill", &[("none", 0), ("zero", 1)]);
    });
    assert_eq!(found[0].1, "unknown_value");
    assert!(found[0].2.contains("`zero`"));
}

#[test]
fn values_are_bounded_in_number() {
    let raw = (0..101).map(|at| format!("source=s{at}")).collect::<Vec<_>>().join("&");
    let found = faults(&raw, |params| {
        params.many("source");
    });
    assert_eq!(found[0].1, "too_many");
}

/// A whole query that nobody typed: refused at once, without a list of what else is wrong with it.
#[test]
fn a_query_of_very_many_parameters_is_one_fault() {
    let range = "from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z";
    let most = format!("{range}{}", "&source=a".repeat(MOST_PAIRS - 2));
    assert_eq!(faults(&most, |_| ()).len(), 0);
    for raw in [format!("{most}&a"), "a&".repeat(32_000), "source=%ff&".repeat(MOST_PAIRS + 1)] {
        let found = faults(&raw, |params| {
            params.range();
            params.names("source");
        });
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].1, "too_many");
    }
}

#[test]
fn very_many_faults_are_counted_not_listed() {
    let raw = (0..900).map(|at| format!("stranger{at}=1")).collect::<Vec<_>>().join("&");
    let found = faults(&raw, |_| ());
    assert_eq!(found.len(), MOST_FAULTS + 1);
    let last = &found[MOST_FAULTS];
    assert_eq!((last.1, last.2.as_str()), ("more_faults", "850 more faults are not listed"));
    // One parameter with very many words is no way around it.
    let raw = format!("group_by={}", "x,".repeat(30_000));
    let found = faults(&raw, |params| assert_eq!(params.list("group_by").len(), MOST_VALUES));
    assert_eq!(found[0].1, "too_many");
}

#[test]
fn a_long_stranger_is_given_no_hint() {
    let found = faults(&format!("{}=1", "a".repeat(65_000)), |_| ());
    assert_eq!((found[0].0.len(), found[0].1), (128, "unknown_parameter"));
    assert!(found[0].2.starts_with("unknown parameter. Known: from, "), "{}", found[0].2);
}

proptest! {
    #[test]
    fn any_text_survives_encoding(text in "[^\\x00]{1,40}") {
        let encoded: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
        prop_assert_eq!(decode(&encoded).unwrap(), text);
    }

    #[test]
    fn any_query_string_is_judged_without_a_panic(raw in ".{0,120}") {
        let mut params = Params::parse(Some(&raw), KNOWN);
        params.range();
        params.uuids("subject_id");
        params.names("source");
        params.list("group_by");
        let _ = params.finish(Some(()));
    }
}
