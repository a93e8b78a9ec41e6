//! Usage types and their versions on a real Postgres.

use std::future::Future;

use usage_control::testing::with_database;
use usage_control::{Control, ControlError, LEAD, NewUsageType, Registration, TypeFault};
use usage_devstack::testing::control_database_url;
use usage_schemas::{Kind, Quantity, RecordRef, Rules, Timestamp, TypesRegistry, UsageType};
use usage_service::clock;
use uuid::Uuid;

/// Runs a test with a migrated control database of its own.
async fn with_control<F, T>(test: F)
where
    F: FnOnce(Control) -> T + Send + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    with_database(&control_database_url(), |database| async move {
        let control = database.control().await;
        control.migrate().await.unwrap();
        test(control).await;
    })
    .await;
}

fn tokens() -> NewUsageType {
    NewUsageType::new("llm.tokens", Kind::Counter, "token")
}

fn quantity(text: &str) -> Quantity {
    Quantity::parse(text).unwrap()
}

/// At most so much.
fn most(max: &str) -> Rules {
    Rules { max: Some(quantity(max)), ..Rules::default() }
}

/// A version that begins so many seconds from now.
fn follows(version: i32, seconds: i64, rules: Rules) -> NewUsageType {
    let from = Timestamp::from_micros(clock::now_micros() + seconds * 1_000_000);
    NewUsageType { version, valid_from: Some(from), rules, ..tokens() }
}

async fn created(control: &Control, new: &NewUsageType) -> UsageType {
    match control.register_type(new).await.unwrap() {
        Registration::Created(created) => created,
        other => panic!("{other:?}"),
    }
}

/// The fields that keep a version from following.
async fn cannot_follow(control: &Control, new: &NewUsageType) -> Vec<&'static str> {
    match control.register_type(new).await.unwrap() {
        Registration::CannotFollow(faults) => faults.iter().map(|fault| fault.field).collect(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_type_is_registered_once() {
    with_control(|control| async move {
        let registered = created(&control, &tokens()).await;
        let newest = registered.newest();
        assert_eq!((newest.version, newest.valid_from, newest.kind), (1, None, Kind::Counter));
        assert_eq!(
            control.register_type(&tokens()).await.unwrap(),
            Registration::Unchanged(registered.clone())
        );
        for other in [
            NewUsageType { kind: Kind::Gauge, ..tokens() },
            NewUsageType { unit: "byte".into(), ..tokens() },
            NewUsageType { description: Some("what a model reads".into()), ..tokens() },
            NewUsageType { rules: most("5"), ..tokens() },
        ] {
            assert_eq!(
                control.register_type(&other).await.unwrap(),
                Registration::Different(registered.clone())
            );
        }
        assert_eq!(control.usage_type("llm.tokens").await.unwrap(), Some(registered.clone()));
        assert_eq!(control.usage_type("llm.token").await.unwrap(), None);
        assert_eq!(control.usage_types().await.unwrap(), [registered]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_registrations_at_once_one_creates() {
    with_control(|control| async move {
        let mut running = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let control = control.clone();
            running.spawn(async move { control.register_type(&tokens()).await.unwrap() });
        }
        let results = running.join_all().await;
        let created = results.iter().filter(|result| matches!(result, Registration::Created(_))).count();
        let unchanged = results.iter().filter(|result| matches!(result, Registration::Unchanged(_))).count();
        assert_eq!((created, unchanged), (1, 7));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_different_registrations_of_one_version_at_once_one_creates() {
    with_control(|control| async move {
        created(&control, &tokens()).await;
        for version in [2, 3] {
            let mut running = tokio::task::JoinSet::new();
            for number in 0..8 {
                let control = control.clone();
                let new = follows(version, 3_600 * i64::from(version), most(&format!("{number}")));
                running.spawn(async move { control.register_type(&new).await.unwrap() });
            }
            let results = running.join_all().await;
            let created = results.iter().filter(|result| matches!(result, Registration::Created(_))).count();
            let different =
                results.iter().filter(|result| matches!(result, Registration::Different(_))).count();
            assert_eq!((created, different), (1, 7), "{results:?}");
        }
        assert_eq!(control.usage_type("llm.tokens").await.unwrap().unwrap().versions.len(), 3);
    })
    .await;
}

#[tokio::test]
async fn versions_ascend_and_so_do_names_by_bytes() {
    with_control(|control| async move {
        for name in ["b", "a.b", "a_b", "a-b", "a"] {
            created(&control, &NewUsageType { name: name.into(), ..tokens() }).await;
        }
        let second = NewUsageType { name: "a".into(), ..follows(2, -60, Rules::default()) };
        let third = NewUsageType { name: "a".into(), ..follows(3, 3_600, most("5")) };
        created(&control, &second).await;
        let newest = created(&control, &third).await;
        let types = control.usage_types().await.unwrap();
        let names: Vec<_> = types.iter().map(|found| found.name.as_str()).collect();
        assert_eq!(names, ["a", "a-b", "a.b", "a_b", "b"]);
        assert_eq!(types[0], newest);
        let versions: Vec<_> =
            types[0].versions.iter().map(|version| (version.version, version.valid_from)).collect();
        assert_eq!(versions, [(1, None), (2, second.valid_from), (3, third.valid_from)]);
        assert_eq!(types[0].newest().rules, most("5"));
        assert_eq!(types[1].versions.len(), 1);
    })
    .await;
}

/// Each of the older bodies again is no error, whatever came after it and whatever time it is.
#[tokio::test]
async fn every_version_can_be_registered_again() {
    with_control(|control| async move {
        let lead = i64::try_from(LEAD.as_secs()).unwrap();
        let versions = [
            NewUsageType { rules: most("5"), ..tokens() },
            NewUsageType { description: Some("more".into()), ..follows(2, -60, most("6")) },
            follows(3, lead + 60, most("4")),
        ];
        for version in &versions {
            created(&control, version).await;
        }
        // As if version 3 had begun long ago: it is still the same.
        let begun = clock::from_micros(clock::now_micros() - 30_000_000);
        sqlx::query("UPDATE usage_types SET valid_from = $1 WHERE version = 3")
            .bind(begun)
            .execute(control.pool())
            .await
            .unwrap();
        let third = NewUsageType {
            valid_from: Some(Timestamp::from_micros(clock::to_micros(begun))),
            ..versions[2].clone()
        };
        for version in [&versions[0], &versions[1], &third] {
            let registration = control.register_type(version).await.unwrap();
            assert!(matches!(registration, Registration::Unchanged(_)), "{registration:?}");
        }
        let other = NewUsageType { rules: most("7"), ..versions[1].clone() };
        assert!(matches!(control.register_type(&other).await.unwrap(), Registration::Different(_)));
    })
    .await;
}

#[tokio::test]
async fn a_version_follows_the_newest_one() {
    with_control(|control| async move {
        assert_eq!(cannot_follow(&control, &follows(2, 3_600, Rules::default())).await, ["version"]);
        created(&control, &tokens()).await;
        assert_eq!(cannot_follow(&control, &follows(3, 3_600, Rules::default())).await, ["version"]);
        let second = follows(2, 3_600, most("5"));
        created(&control, &second).await;
        let same_time = NewUsageType { version: 3, rules: Rules::default(), ..second };
        assert_eq!(cannot_follow(&control, &same_time).await, ["valid_from"]);
        let mixed = NewUsageType { kind: Kind::Gauge, unit: "byte".into(), ..follows(3, 7_200, most("5")) };
        assert_eq!(cannot_follow(&control, &mixed).await, ["kind", "unit"]);
        assert_eq!(control.usage_type("llm.tokens").await.unwrap().unwrap().versions.len(), 2);
    })
    .await;
}

/// No record that was counted may be judged otherwise when it comes again.
#[tokio::test]
async fn what_demands_more_begins_later_and_what_allows_more_may_begin_at_any_time() {
    with_control(|control| async move {
        let lead = i64::try_from(LEAD.as_secs()).unwrap();
        created(&control, &NewUsageType { rules: most("5"), ..tokens() }).await;
        for seconds in [-3_600, 0, lead - 60] {
            let new = follows(2, seconds, most("4"));
            assert_eq!(cannot_follow(&control, &new).await, ["valid_from"], "{seconds}");
        }
        created(&control, &follows(2, -86_400, most("6"))).await;
        created(&control, &follows(3, lead + 60, most("1"))).await;
        // What allows more than version 3 may begin right after it.
        created(&control, &follows(4, lead + 61, Rules::default())).await;
    })
    .await;
}

#[tokio::test]
async fn rules_come_back_as_they_were_given() {
    with_control(|control| async move {
        let rules = Rules {
            min: Some(quantity("0.000000000000000001")),
            max: Some(quantity("99999999999999999999.999999999999999999")),
            integer: false,
            resource_types: Some(["vm".into(), "pod".into()].into()),
            // Neither could stand in jsonb as it is.
            metadata: Some(
                serde_json::from_str(
                    r#"{"properties":{"a":{"const":"x\u0000y"},"n":{"maximum":1e2,"minimum":0.1}},"title":"t"}"#,
                )
                .unwrap(),
            ),
        };
        let new = NewUsageType { rules: rules.clone(), ..tokens() };
        assert_eq!(created(&control, &new).await.newest().rules, rules);
        assert!(matches!(control.register_type(&new).await.unwrap(), Registration::Unchanged(_)));
    })
    .await;
}

#[tokio::test]
async fn the_registry_gives_types_that_judge() {
    with_control(|control| async move {
        created(&control, &NewUsageType { rules: most("5"), ..tokens() }).await;
        let registry: &dyn TypesRegistry = &control;
        assert!(registry.usage_type("llm.token").await.unwrap().is_none());
        let judge = registry.usage_type("llm.tokens").await.unwrap().unwrap();
        let record = |value| RecordRef {
            record_id: Uuid::nil(),
            tenant_id: Uuid::from_u128(1),
            source: "s",
            metric: "llm.tokens",
            kind: Kind::Counter,
            value: quantity(value),
            timestamp: Timestamp::from_micros(0),
            idempotency_key: Some("k"),
            resource_id: None,
            resource_type: None,
            subject_id: None,
            subject_type: None,
            metadata: None,
        };
        judge.check(&record("5")).unwrap();
        assert_eq!(judge.check(&record("5.1")).unwrap_err().field, "value");
    })
    .await;
}

#[tokio::test]
async fn a_rule_of_a_newer_program_is_not_passed_over() {
    with_control(|control| async move {
        created(&control, &tokens()).await;
        sqlx::query(r#"UPDATE usage_types SET rules = '{"most": "5"}'"#)
            .execute(control.pool())
            .await
            .unwrap();
        for error in
            [control.usage_types().await.unwrap_err(), control.usage_type("llm.tokens").await.unwrap_err()]
        {
            assert!(
                matches!(&error, ControlError::Unknown(what) if what.contains("llm.tokens")),
                "{error:?}"
            );
            assert!(!error.may_pass());
        }
    })
    .await;
}

#[tokio::test]
async fn fields_that_break_their_bounds_are_named() {
    with_control(|control| async move {
        let long = "x".repeat(129);
        let from = |micros| Some(Timestamp::from_micros(micros));
        for (new, field) in [
            (NewUsageType { name: "Tokens".into(), ..tokens() }, "name"),
            (NewUsageType { name: long.clone(), ..tokens() }, "name"),
            (NewUsageType { unit: String::new(), ..tokens() }, "unit"),
            (NewUsageType { unit: " token".into(), ..tokens() }, "unit"),
            (NewUsageType { unit: long.clone(), ..tokens() }, "unit"),
            (NewUsageType { unit: "a\nb".into(), ..tokens() }, "unit"),
            (NewUsageType { description: Some("a\0b".into()), ..tokens() }, "description"),
            (NewUsageType { description: Some("x".repeat(1_025)), ..tokens() }, "description"),
            (NewUsageType { version: 0, ..tokens() }, "version"),
            (NewUsageType { version: 1_001, valid_from: from(0), ..tokens() }, "version"),
            (NewUsageType { valid_from: from(0), ..tokens() }, "valid_from"),
            (NewUsageType { version: 2, ..tokens() }, "valid_from"),
            (NewUsageType { version: 2, valid_from: from(i64::MAX), ..tokens() }, "valid_from"),
            (NewUsageType { version: 2, valid_from: from(i64::MIN), ..tokens() }, "valid_from"),
            (NewUsageType { rules: most("-1"), ..tokens() }, "rules"),
        ] {
            let error = control.register_type(&new).await.unwrap_err();
            assert!(
                matches!(&error, ControlError::Invalid { field: found, .. } if *found == field),
                "{field}: {error:?}"
            );
        }
        assert!(control.usage_types().await.unwrap().is_empty());
    })
    .await;
}

#[test]
fn all_faults_are_found_with_their_places() {
    let rules = Rules { metadata: Some(serde_json::json!({"requird": []})), ..most("-1") };
    let new = NewUsageType { name: String::new(), unit: String::new(), version: 2, rules, ..tokens() };
    let places: Vec<String> = new.faults().into_iter().map(|TypeFault { pointer, .. }| pointer).collect();
    assert_eq!(places, ["/name", "/unit", "/valid_from", "/rules/max", "/rules/metadata/requird"]);
}
