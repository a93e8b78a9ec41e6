use uuid::Uuid;

use super::*;

const RANGE: &str = "from=2026-01-01T00:00:00Z&to=2026-02-01T00:00:00Z";

fn read(rest: &str) -> Result<AggregatedQuery, Vec<ParameterError>> {
    AggregatedQuery::read(Some(&format!("{RANGE}&{rest}")), 3_660)
}

fn codes(rest: &str) -> Vec<String> {
    let errors = read(rest).unwrap_err();
    errors.into_iter().map(|error| format!("{}:{}", error.parameter, error.code)).collect()
}

#[test]
fn defaults_are_the_documented_ones() {
    let query = read("metric=tokens").unwrap();
    assert_eq!((query.aggregation, query.fill), (Aggregation::Sum, Fill::None));
    assert_eq!(query.zone, Zone::utc());
    assert_eq!(query.group_by, GroupBy::default());
    assert_eq!(query.cut, Some(Cut::Total { from: query.from, to: query.to }));
}

#[test]
fn all_metrics_need_to_be_kept_apart() {
    assert_eq!(codes(""), ["metric:needs_group_by"]);
    assert_eq!(codes("group_by=source"), ["metric:needs_group_by"]);
    assert!(read("group_by=source,metric").unwrap().group_by.metric);
}

#[test]
fn every_fault_is_told() {
    let mut found = codes(
        "aggregation=total&window_size=YEAR&window_time_zone=Mars/Base&group_by=day&fill=null&metric=a&fill=zero",
    );
    found.sort();
    assert_eq!(
        found,
        [
            "aggregation:unknown_value",
            "fill:repeated",
            "group_by:unknown_value",
            "window_size:unknown_value",
            "window_time_zone:unknown_zone",
        ]
    );
}

#[test]
fn a_zone_with_a_plus_says_how_to_write_it() {
    let errors = read("metric=a&window_time_zone=Etc/GMT+5").unwrap_err();
    assert!(
        errors[0].detail.contains("`Etc/GMT+5`") && errors[0].detail.contains("%2B"),
        "{}",
        errors[0].detail
    );
    assert_eq!(read("metric=a&window_time_zone=Etc/GMT%2B5").unwrap().zone.name(), "Etc/GMT+5");
}

#[test]
fn raw_parameters_are_not_taken() {
    assert_eq!(codes("metric=a&limit=5"), ["limit:unknown_parameter"]);
    assert_eq!(codes("metric=a&status=all"), ["status:unknown_parameter"]);
}

#[test]
fn long_ranges_are_bounded_only_when_cut() {
    let long = "from=2000-01-01T00:00:00Z&to=2026-01-01T00:00:00Z&metric=a";
    assert!(AggregatedQuery::read(Some(long), 3_660).is_ok());
    let errors = AggregatedQuery::read(Some(&format!("{long}&window_size=DAY")), 3_660).unwrap_err();
    assert_eq!(errors[0].code, "range_too_long");
}

#[test]
fn an_empty_range_has_no_windows() {
    let query = "from=2026-01-01T00:00:00Z&to=2026-01-01T00:00:00Z&metric=a&window_size=DAY&fill=zero";
    assert_eq!(AggregatedQuery::read(Some(query), 3_660).unwrap().cut, None);
}

#[test]
fn equal_questions_hash_equally_and_no_others() {
    let own = Grant::unbounded(Uuid::from_u128(1));
    let base = read("metric=a&metric=b&group_by=metric,source&window_size=PT1H").unwrap().hash(&own);
    assert_eq!(
        base,
        read("group_by=source&group_by=metric&metric=b&metric=a&window_size=HOUR").unwrap().hash(&own)
    );
    for other in [
        "metric=a&group_by=metric,source&window_size=PT1H",
        "metric=a&metric=b&group_by=metric&window_size=PT1H",
        "metric=a&metric=b&group_by=metric,source&window_size=DAY",
        "metric=a&metric=b&group_by=metric,source",
        "metric=a&metric=b&group_by=metric,source&window_size=PT1H&fill=zero",
        "metric=a&metric=b&group_by=metric,source&window_size=PT1H&aggregation=avg",
        "metric=a&metric=b&group_by=metric,source&window_size=PT1H&source=x",
        "metric=a&metric=b&group_by=metric,source&window_size=PT1H&window_time_zone=Africa/Cairo",
        "metric=a&metric=b&group_by=metric,source&window_size=PT1H&subject_type=x",
    ] {
        assert_ne!(base, read(other).unwrap().hash(&own), "{other}");
    }
    assert_ne!(
        base,
        read("metric=a&metric=b&group_by=metric,source&window_size=PT1H")
            .unwrap()
            .hash(&Grant::unbounded(Uuid::from_u128(2)))
    );
}

#[test]
fn each_aggregation_asks_for_what_it_needs() {
    for (word, aggregation) in Aggregation::WORDS {
        assert_eq!(aggregation.as_str(), word);
        let measure = aggregation.measure();
        assert_eq!(measure.min_max, matches!(word, "min" | "max"));
        assert_eq!(measure.latest, word == "latest");
    }
}
