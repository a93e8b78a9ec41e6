use proptest::prelude::*;
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;

const DAY: i64 = 86_400_000_000;
/// 10^18: a value of 1.
const ONE: i128 = 1_000_000_000_000_000_000;

fn version(version: i32, valid_from: Option<i64>, rules: Rules) -> TypeVersion {
    TypeVersion {
        version,
        valid_from: valid_from.map(Timestamp::from_micros),
        kind: Kind::Gauge,
        unit: "1".into(),
        description: None,
        rules,
        created_at: Timestamp::from_micros(0),
    }
}

fn compiled(versions: Vec<TypeVersion>) -> CompiledType {
    CompiledType::new(UsageType { name: "vm.memory".into(), versions }).unwrap()
}

fn of(rules: Rules) -> CompiledType {
    compiled(vec![version(1, None, rules)])
}

fn record() -> RecordRef<'static> {
    RecordRef {
        record_id: Uuid::from_u128(1),
        tenant_id: Uuid::from_u128(2),
        source: "hypervisor",
        metric: "vm.memory",
        kind: Kind::Gauge,
        value: Quantity::from_unscaled(ONE).unwrap(),
        timestamp: Timestamp::from_micros(DAY),
        idempotency_key: None,
        resource_id: None,
        resource_type: None,
        subject_id: None,
        subject_type: None,
        metadata: None,
    }
}

fn quantity(text: &str) -> Quantity {
    Quantity::parse(text).unwrap()
}

fn value(text: &str) -> RecordRef<'static> {
    RecordRef { value: quantity(text), ..record() }
}

/// The field that a record breaks.
fn breaks(judge: &CompiledType, record: &RecordRef<'_>) -> Option<&'static str> {
    judge.check(record).err().map(|violation| violation.field)
}

fn limits(min: Option<&str>, max: Option<&str>, integer: bool) -> Rules {
    Rules { min: min.map(quantity), max: max.map(quantity), integer, ..Rules::default() }
}

fn metadata(schema: Value) -> Rules {
    Rules { metadata: Some(schema), ..Rules::default() }
}

#[test]
fn a_type_without_rules_takes_every_record_of_its_kind() {
    let judge = of(Rules::default());
    assert!(judge.versions[0].rules.is_none(), "nothing to be looked at");
    assert_eq!(judge.check(&record()), Ok(()));
    let counter = RecordRef { kind: Kind::Counter, ..record() };
    let violation = judge.check(&counter).unwrap_err();
    assert_eq!(violation.to_string(), "kind: the usage type is a gauge");
}

#[test]
fn limits_are_inclusive_to_the_last_of_18_places() {
    let judge =
        of(limits(Some("0.000000000000000001"), Some("99999999999999999999.999999999999999998"), false));
    for good in ["0.000000000000000001", "1", "99999999999999999999.999999999999999998"] {
        assert_eq!(breaks(&judge, &value(good)), None, "{good}");
    }
    for bad in ["0", "-0.000000000000000001", "99999999999999999999.999999999999999999"] {
        assert_eq!(breaks(&judge, &value(bad)), Some("value"), "{bad}");
    }
    let one = of(limits(Some("7.50"), Some("7.5"), false));
    assert_eq!(breaks(&one, &value("7.5")), None, "min = max takes just that value");
    assert_eq!(breaks(&one, &value("7.500000000000000001")), Some("value"));
    assert_eq!(breaks(&one, &value("7.499999999999999999")), Some("value"));
}

#[test]
fn whole_numbers_may_be_written_with_places() {
    let judge = of(limits(None, None, true));
    for good in ["1.0", "0", "-3", "1e19", "99999999999999999999"] {
        assert_eq!(breaks(&judge, &value(good)), None, "{good}");
    }
    for bad in ["1.000000000000000001", "0.5", "-0.999999999999999999"] {
        assert_eq!(breaks(&judge, &value(bad)), Some("value"), "{bad}");
    }
}

proptest! {
    /// The rules against their definition on unscaled numbers.
    #[test]
    fn limits_agree_with_plain_comparisons(
        min in proptest::option::of(-5 * ONE..5 * ONE),
        max in proptest::option::of(-5 * ONE..5 * ONE),
        integer: bool,
        value in prop_oneof![-6 * ONE..6 * ONE, (-6i128..6).prop_map(|whole| whole * ONE)],
    ) {
        let quantity = |unscaled: Option<i128>| unscaled.map(|unscaled| Quantity::from_unscaled(unscaled).unwrap());
        let rules = Rules { min: quantity(min), max: quantity(max), integer, ..Rules::default() };
        let passes = |value: i128| {
            min.is_none_or(|min| min <= value) && max.is_none_or(|max| value <= max) && (!integer || value % ONE == 0)
        };
        let refused = !rules.faults(Kind::Gauge).is_empty();
        let first_whole = min.map_or(0, |min| (-6..=6).find(|whole| whole * ONE >= min).unwrap() * ONE);
        let possible = if integer { passes(first_whole) || max.is_some_and(|max| min.is_none() && max < 0) } else { min.is_none_or(|min| max.is_none_or(|max| min <= max)) };
        prop_assert_eq!(refused, !possible, "rules that nothing passes are refused, and no others");
        if !refused {
            let record = RecordRef { value: Quantity::from_unscaled(value).unwrap(), ..record() };
            prop_assert_eq!(of(rules).check(&record).is_ok(), passes(value));
        }
    }

    /// What a version that only allows more lets through, of everything that the older one did.
    #[test]
    fn rules_that_allow_all_of_others_refuse_nothing_that_those_take(
        limits in proptest::array::uniform4(proptest::option::of(-3i128..3)),
        integer: [bool; 2],
        types in proptest::array::uniform2(proptest::option::of(proptest::collection::btree_set("[ab]", 1..3))),
        value in -8i128..8,
        resource_type in proptest::option::of("[ab]"),
    ) {
        let whole = |half: Option<i128>| half.map(|half| Quantity::from_unscaled(half * ONE).unwrap());
        let [a, b] = [0, 1].map(|which| Rules {
            min: whole(limits[which]),
            max: whole(limits[which + 2]),
            integer: integer[which],
            resource_types: types[which].clone(),
            metadata: None,
        });
        prop_assume!(a.faults(Kind::Gauge).is_empty() && b.faults(Kind::Gauge).is_empty());
        let record = RecordRef {
            value: Quantity::from_unscaled(value * ONE / 2).unwrap(),
            resource_type: resource_type.as_deref(),
            ..record()
        };
        prop_assert!(a.allow_all_of(&a));
        if b.allow_all_of(&a) && of(a).check(&record).is_ok() {
            prop_assert_eq!(of(b).check(&record), Ok(()));
        }
    }
}

#[test]
fn rules_that_demand_more_do_not_allow_all_of_the_older_ones() {
    let types = |names: &[&str]| Rules {
        resource_types: Some(names.iter().map(|name| (*name).to_owned()).collect()),
        ..Rules::default()
    };
    let schema = || metadata(json!({"required": ["plan"]}));
    for (older, newer) in [
        (Rules::default(), limits(Some("0"), None, false)),
        (limits(Some("1"), None, false), limits(Some("1.000000000000000001"), None, false)),
        (limits(None, Some("2"), false), limits(None, Some("1"), false)),
        (limits(None, Some("2"), false), limits(None, Some("2"), true)),
        (Rules::default(), types(&["vm"])),
        (types(&["vm", "pod"]), types(&["vm"])),
        (Rules::default(), schema()),
        (schema(), metadata(json!({"required": []}))),
    ] {
        assert!(!newer.allow_all_of(&older), "{newer:?} after {older:?}");
    }
    for (older, newer) in [
        (limits(Some("1"), Some("2"), true), Rules::default()),
        (limits(Some("1"), Some("2"), true), limits(Some("0"), Some("2"), false)),
        (types(&["vm"]), types(&["vm", "pod"])),
        (schema(), schema()),
        (schema(), Rules::default()),
    ] {
        assert!(newer.allow_all_of(&older), "{newer:?} after {older:?}");
    }
}

#[test]
fn a_record_is_judged_by_the_version_of_its_timestamp() {
    let from = 10 * DAY;
    let judge = compiled(vec![
        version(1, None, limits(None, Some("1"), false)),
        version(2, Some(from), limits(None, Some("2"), false)),
        version(3, Some(from + 5), limits(None, Some("3"), false)),
    ]);
    let most = |micros: i64| {
        let at = |text| RecordRef { timestamp: Timestamp::from_micros(micros), ..value(text) };
        ["1", "2", "3", "4"].iter().rev().find(|text| judge.check(&at(text)).is_ok()).copied().unwrap()
    };
    for (micros, version, allowed) in [
        (i64::MIN, 1, "1"),
        (-DAY, 1, "1"),
        (from - 1, 1, "1"),
        (from, 2, "2"),
        (from + 4, 2, "2"),
        (from + 5, 3, "3"),
        (i64::MAX, 3, "3"),
    ] {
        let at = judge.at(Timestamp::from_micros(micros)).unwrap();
        assert_eq!((at.version, most(micros)), (version, allowed), "{micros}");
    }
    // The error names the version that judged.
    let late = RecordRef { timestamp: Timestamp::from_micros(from), ..value("3") };
    assert!(judge.check(&late).unwrap_err().detail.contains("version 2"));
}

#[test]
fn versions_that_are_not_in_order_are_no_type() {
    let some = |number, from| version(number, from, Rules::default());
    for versions in [
        vec![],
        vec![some(2, Some(5))],
        vec![some(1, Some(5))],
        vec![some(1, None), some(2, None)],
        vec![some(1, None), some(3, Some(5))],
        vec![some(1, None), some(2, Some(5)), some(3, Some(5))],
        vec![some(1, None), some(2, Some(5)), some(3, Some(4))],
        vec![some(1, None), some(1, Some(5))],
        vec![version(1, None, limits(Some("2"), Some("1"), false))],
        vec![version(1, None, metadata(json!({"type": "objekt"})))],
    ] {
        let usage_type = UsageType { name: "x".into(), versions };
        assert!(CompiledType::new(usage_type.clone()).is_err(), "{usage_type:?}");
        assert_eq!(breaks(&CompiledType::refusing(usage_type), &record()), Some("metric"));
    }
}

#[test]
fn a_listed_resource_type_must_be_named() {
    let judge = of(Rules { resource_types: Some(["pod".into(), "vm".into()].into()), ..Rules::default() });
    for (given, broken) in [
        (Some("vm"), None),
        (Some("pod"), None),
        (Some("v"), Some("resource_type")),
        (None, Some("resource_type")),
    ] {
        assert_eq!(breaks(&judge, &RecordRef { resource_type: given, ..record() }), broken, "{given:?}");
    }
}

#[test]
fn metadata_is_held_against_the_schema() {
    let judge = of(metadata(json!({
        "required": ["plan"],
        "properties": {
            "plan": {"enum": ["basic", "pro"]},
            "seats": {"type": "integer", "minimum": 1},
            "started": {"format": "date-time"},
            "code": {"pattern": "^[A-Z]{2}$"},
        },
        "additionalProperties": false,
    })));
    let with = |text: &'static str| RecordRef { metadata: Some(text), ..record() };
    for good in [
        r#"{"plan":"pro"}"#,
        r#" {"seats":1, "plan":"basic","started":"2026-01-01T00:00:00Z","code":"AT"} "#,
        r#"{"pl\u0061n":"pro"}"#,
    ] {
        assert_eq!(judge.check(&with(good)), Ok(()), "{good}");
    }
    for bad in [
        "{}",
        r#"{"plan":"enterprise"}"#,
        r#"{"plan":"pro","seats":0}"#,
        r#"{"plan":"pro","seats":1.5}"#,
        r#"{"plan":"pro","started":"yesterday"}"#,
        r#"{"plan":"pro","code":"at"}"#,
        r#"{"plan":"pro","extra":1}"#,
    ] {
        assert_eq!(breaks(&judge, &with(bad)), Some("metadata"), "{bad}");
    }
    assert_eq!(breaks(&judge, &record()), Some("metadata"), "none is judged as an empty object");
    assert_eq!(breaks(&of(metadata(json!({"properties": {"plan": {"type": "string"}}}))), &record()), None);
}

/// A type without a schema keeps such metadata; what a schema would say of it depends on the reader.
#[test]
fn metadata_that_two_readers_could_take_for_different_things_is_refused_by_a_schema() {
    let judge = of(metadata(json!({"properties": {"plan": {"enum": ["pro"]}}})));
    for text in [
        r#"{"plan":"free","plan":"pro"}"#,
        r#"{"a":{"x":1,"\u0078":2}}"#,
        r#"{"a":"\ud800"}"#,
        r#"{"a":1e400}"#,
    ] {
        crate::validate::metadata(text, &crate::Bounds::default()).unwrap();
        let record = RecordRef { metadata: Some(text), ..record() };
        assert_eq!(breaks(&judge, &record), Some("metadata"), "{text}");
        assert_eq!(breaks(&of(Rules::default()), &record), None, "{text}");
    }
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(127), "]".repeat(127));
    assert_eq!(breaks(&judge, &RecordRef { metadata: Some(&deep), ..record() }), Some("metadata"));
}

#[test]
fn what_a_record_breaks_is_told_without_its_values() {
    let judge = of(Rules {
        min: Some(quantity("5")),
        resource_types: Some(["vm".into()].into()),
        metadata: Some(json!({
            "additionalProperties": {"type": "object", "additionalProperties": {"maxLength": 3}, "required": ["plan"]},
        })),
        ..limits(None, Some("700"), true)
    });
    let good = RecordRef { resource_type: Some("vm"), metadata: Some("{}"), ..value("31") };
    judge.check(&good).unwrap();
    let told: Vec<String> = [
        RecordRef { value: quantity("4.25"), ..good },
        RecordRef { value: quantity("777"), ..good },
        RecordRef { value: quantity("31.125"), ..good },
        RecordRef { resource_type: Some("marked-type"), ..good },
        RecordRef { metadata: Some(r#"{"marked-name":"marked-value"}"#), ..good },
        RecordRef { metadata: Some(r#"{"marked-name":{"marked-inner":"marked-value"}}"#), ..good },
        RecordRef { metadata: Some(r#"{"marked-name":{}}"#), ..good },
    ]
    .iter()
    .map(|record| judge.check(record).unwrap_err().to_string())
    .collect();
    for text in &told {
        for marked in ["marked", "4.25", "777", "31"] {
            assert!(!text.contains(marked), "{text}");
        }
    }
    assert_eq!(told[0], "value: is less than the minimum (version 1 of the usage type)");
    assert!(told[6].contains("lacks the member `plan`"), "{}", told[6]);
}

fn places(rules: &Rules, kind: Kind) -> Vec<String> {
    rules.faults(kind).into_iter().map(|fault| fault.pointer).collect()
}

#[test]
fn rules_that_nothing_could_pass_are_refused_with_their_place() {
    let types = |types: &[&str]| Rules {
        resource_types: Some(types.iter().map(|name| (*name).to_owned()).collect()),
        ..Rules::default()
    };
    let many: Vec<String> = (0..=RESOURCE_TYPES).map(|at| format!("t{at}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (rules, expected) in [
        (limits(Some("1"), Some("1"), true), vec![]),
        (limits(Some("1"), Some("0.9"), false), vec!["/max"]),
        (limits(Some("0.000000000000000001"), Some("0.9"), true), vec!["/integer"]),
        (limits(Some("-0.9"), Some("-0.1"), true), vec!["/max", "/integer"]),
        (limits(None, Some("-1"), false), vec!["/max"]),
        (types(&[]), vec!["/resource_types"]),
        (types(&["VM"]), vec!["/resource_types"]),
        (types(&many), vec!["/resource_types"]),
        (types(&many[1..]), vec![]),
    ] {
        let mut found = places(&rules, Kind::Counter);
        let mut expected = expected;
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{rules:?}");
    }
    assert_eq!(places(&limits(None, Some("-1"), false), Kind::Gauge), [""; 0], "a gauge may be negative");
}

#[test]
fn a_schema_that_would_demand_something_else_than_it_says_is_refused() {
    let nested = |levels: usize| (1..levels).fold(json!({}), |inner, _| json!({"not": inner}));
    for (schema, place) in [
        (json!(true), "/metadata"),
        (json!([]), "/metadata"),
        (json!({"requird": ["plan"]}), "/metadata/requird"),
        (json!({"properties": {"plan": {"typ": "string"}}}), "/metadata/properties/plan/typ"),
        (json!({"allOf": [{}, {"$ref": "#"}]}), "/metadata/allOf/1/$ref"),
        (json!({"$ref": "https://example.com/schema.json"}), "/metadata/$ref"),
        (json!({"$defs": {}}), "/metadata/$defs"),
        (json!({"$schema": "http://json-schema.org/draft-07/schema#"}), "/metadata/$schema"),
        (json!({"type": "objekt"}), "/metadata/type"),
        (json!({"required": "plan"}), "/metadata/required"),
        (json!({"properties": {"a/b": {"minLength": -1}}}), "/metadata/properties/a~1b/minLength"),
        (json!({"unevaluatedProperties": false}), "/metadata/unevaluatedProperties"),
        (json!({"description": "x".repeat(RULE_BYTES)}), "/metadata"),
    ] {
        assert_eq!(places(&metadata(schema.clone()), Kind::Gauge), [place], "{schema}");
    }
    assert_eq!(places(&metadata(nested(RULE_DEPTH)), Kind::Gauge), [""; 0]);
    assert_eq!(places(&metadata(nested(RULE_DEPTH + 1)), Kind::Gauge).len(), 1);
    for schema in [
        json!({"pattern": "("}),
        json!({"pattern": "(a)\\1"}),
        json!({"pattern": "((a{500}){500}){500}"}),
        json!({"format": "no-such-format"}),
        json!({"items": [true]}),
    ] {
        assert_eq!(places(&metadata(schema.clone()), Kind::Gauge).len(), 1, "{schema}");
    }
    let known = json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "t", "properties": {"$ref": {}, "x": false}});
    assert_eq!(places(&metadata(known), Kind::Gauge), [""; 0], "a member may have any name");
}

#[test]
fn equal_rules_have_one_text() {
    let rules: Rules = serde_json::from_str(
        r#"{"metadata":{"required":["b","a"],"maximum":1e2,"additionalProperties":{"type":"string","minLength":1}},"min":"1.50","integer":false,"resource_types":["vm","pod","vm"]}"#,
    )
    .unwrap();
    let text = rules.to_text();
    assert_eq!(
        text,
        r#"{"min":"1.5","resource_types":["pod","vm"],"metadata":{"additionalProperties":{"minLength":1,"type":"string"},"maximum":100.0,"required":["b","a"]}}"#
    );
    assert_eq!(Rules::from_text(&text).unwrap(), rules);
    assert_eq!(Rules::from_text(&text).unwrap().to_text(), text);
    assert_eq!(
        (Rules::default().to_text().as_str(), Rules::from_text("{}").unwrap()),
        ("{}", Rules::default())
    );
    for bad in [r#"{"most":"1"}"#, r#"{"min":1}"#, r#"{"min":"x"}"#, "[]", r#"["1"]"#, ""] {
        assert!(Rules::from_text(bad).is_err(), "{bad}");
    }
}

/// What a record may cost everybody else, whatever schema somebody has registered: what is too much is refused when it is
/// registered, and no place is looked for where that may make an error for each of many parts (8 KiB of schema and of metadata took 40 s and
/// 1.7 GB).
#[test]
fn what_a_schema_may_cost_one_record_is_bounded() {
    let long = format!("{{\"a\":\"{}\"}}", "a".repeat(8_000));
    let items = format!("{{\"a\":[{}]}}", vec!["0"; 4_000].join(","));
    let patterns = |count: usize, pattern: &str| -> Vec<Value> {
        (0..count).map(|at| json!({"pattern": format!("{pattern}{at}")})).collect()
    };
    let (placed, plain) = (Ok("breaks the schema at /properties/a"), Ok("breaks the schema (version 1"));
    for (schema, metadata, expected) in [
        (json!({"properties": {"a": {"pattern": "(a?){300}b"}}}), &long, placed),
        // As many bytes as one pattern may have, but of all of them.
        (json!({"properties": {"a": {"anyOf": patterns(200, "(a?){600}b")}}}), &long, Err("pattern")),
        (json!({"properties": {"a": {"anyOf": patterns(50, "a?b")}}}), &long, placed),
        (json!({"anyOf": [{"properties": {"a": {"items": {"allOf": vec![false; 200]}}}}]}), &items, plain),
        (
            json!({"anyOf": [{"properties": {"a": {"items": {"allOf": vec![false; 1_300]}}}}]}),
            &items,
            Err(""),
        ),
    ] {
        let rules = Rules { metadata: Some(schema), ..Rules::default() };
        let found = places(&rules, Kind::Gauge);
        match expected {
            Err(fault) => assert!(found.len() == 1 && found[0].ends_with(fault), "{found:?}"),
            Ok(said) => {
                assert!(found.is_empty(), "{found:?}");
                let record = RecordRef { metadata: Some(metadata), ..record() };
                let broken = of(rules).check(&record).unwrap_err();
                assert_eq!(broken.field, "metadata");
                assert!(broken.detail.starts_with(said), "{broken:?}");
            }
        }
    }
}
