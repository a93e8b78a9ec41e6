//! `usage_emit`, the way in for every other language.

use std::fs;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use usage_devstack::testing::cases_dir;
use usage_schemas::{Bounds, Quantity, Timestamp, UsageRecord, json, validate};
use uuid::Uuid;

use crate::support::Source;

const TENANT: &str = "'0190f3c2-6f1e-7a44-9d3b-5a1f0c2e7b10'";

/// Calls it in a transaction that is rolled back. The error's field, message and code; or the record.
async fn call(
    connection: &mut PgConnection,
    arguments: &str,
) -> Result<UsageRecord, (String, String, String)> {
    let mut tx = connection.begin().await.unwrap();
    let sql = format!("SELECT usage_emit({arguments})");
    let result = sqlx::query_scalar::<_, Uuid>(AssertSqlSafe(sql)).fetch_one(&mut *tx).await;
    let id = match result {
        Ok(id) => id,
        Err(error) => {
            let error = error.as_database_error().expect("an error of the database");
            let code = error.code().unwrap_or_default().into_owned();
            let field = error
                .downcast_ref::<sqlx::postgres::PgDatabaseError>()
                .column()
                .unwrap_or_default()
                .to_string();
            return Err((field, error.message().to_string(), code));
        }
    };
    let (payload, source): (Vec<u8>, Option<String>) =
        sqlx::query_as("SELECT payload, source FROM usage_outbox").fetch_one(&mut *tx).await.unwrap();
    assert_eq!(source, None, "the relay's default");
    let record = json::decode(&payload, "demo").unwrap();
    assert_eq!(record.record_id, id);
    Ok(record)
}

#[tokio::test]
async fn every_fault_is_raised_with_its_field() {
    let source = Source::new().await;
    let mut connection = source.pool.acquire().await.unwrap();
    let t = TENANT;
    let rest = "1, 'k'";
    for (arguments, field, part) in [
        (format!("NULL, 'm', {rest}"), "tenant_id", "missing"),
        (format!("'00000000-0000-0000-0000-000000000000', 'm', {rest}"), "tenant_id", "nil"),
        (format!("{t}, NULL, {rest}"), "metric", "missing"),
        (format!("{t}, '', {rest}"), "metric", "is empty"),
        (format!("{t}, 'M', {rest}"), "metric", "does not begin"),
        (format!("{t}, '1m', {rest}"), "metric", "does not begin"),
        (format!("{t}, 'm m', {rest}"), "metric", "other characters"),
        (format!("{t}, E'm\\n', {rest}"), "metric", "other characters"),
        (format!("{t}, 'mé', {rest}"), "metric", "other characters"),
        (format!("{t}, repeat('m', 129), {rest}"), "metric", "longer than 128 bytes"),
        (format!("{t}, 'm', NULL, 'k'"), "value", "missing"),
        (format!("{t}, 'm', 'NaN', 'k'"), "value", "not a number"),
        (format!("{t}, 'm', 'Infinity', 'k'"), "value", "not a number"),
        (format!("{t}, 'm', '-Infinity', NULL, kind => 'gauge'"), "value", "not a number"),
        (format!("{t}, 'm', 1e20, 'k'"), "value", "out of range"),
        (format!("{t}, 'm', -1e20, NULL, kind => 'gauge'"), "value", "out of range"),
        (format!("{t}, 'm', 1e-19, 'k'"), "value", "18 decimal places"),
        (format!("{t}, 'm', -0.1, 'k'"), "value", "not negative"),
        (format!("{t}, 'm', 1, NULL"), "idempotency_key", "a counter has"),
        (format!("{t}, 'm', 1, ''"), "idempotency_key", "is empty"),
        (format!("{t}, 'm', 1, repeat('é', 128)"), "idempotency_key", "longer than 255 bytes"),
        (format!("{t}, 'm', {rest}, NULL"), "occurred_at", "missing"),
        (format!("{t}, 'm', {rest}, 'infinity'"), "occurred_at", "not a time"),
        (format!("{t}, 'm', {rest}, '-infinity'"), "occurred_at", "not a time"),
        (format!("{t}, 'm', {rest}, clock_timestamp() + interval '6 minutes'"), "occurred_at", "5 minutes"),
        (
            format!("{t}, 'm', {rest}, clock_timestamp() - interval '2558 days'"),
            "occurred_at",
            "longest retention",
        ),
        (format!("{t}, 'm', {rest}, kind => NULL"), "kind", "neither counter nor gauge"),
        (format!("{t}, 'm', {rest}, kind => 'Counter'"), "kind", "neither counter nor gauge"),
        (format!("{t}, 'm', {rest}, resource_type => 'VM'"), "resource_type", "does not begin"),
        (format!("{t}, 'm', {rest}, subject_type => ''"), "subject_type", "is empty"),
        (format!("{t}, 'm', {rest}, metadata => '[1]'"), "metadata", "not a JSON object"),
        (format!("{t}, 'm', {rest}, metadata => 'null'"), "metadata", "not a JSON object"),
        (
            format!("{t}, 'm', {rest}, metadata => json_build_object('a', repeat('é', 4096))"),
            "metadata",
            "8192",
        ),
        (format!("{t}, 'm', {rest}, metadata => {}", nested(129)), "metadata", "128 levels"),
        (
            format!(
                "{t}, 'm', {rest}, metadata => ('{{\"a\\\"[\":' || repeat('[', 128) || '\"]\"' || repeat(']', 128) || '}}')::json"
            ),
            "metadata",
            "128 levels",
        ),
    ] {
        let (column, message, code) = call(&mut connection, &arguments).await.expect_err(&arguments);
        assert_eq!((column.as_str(), code.as_str()), (field, "22023"), "{arguments}: {message}");
        assert!(
            message.starts_with(&format!("usage_emit: {field}: ")) && message.contains(part),
            "{message}"
        );
    }
}

#[tokio::test]
async fn what_is_just_within_the_bounds_is_taken() {
    let source = Source::new().await;
    let mut connection = source.pool.acquire().await.unwrap();
    let t = TENANT;
    for arguments in [
        format!("{t}, 'm' || repeat('x', 127), 0, repeat('k', 255)"),
        format!("{t}, 'a_.-9', 99999999999999999999.999999999999999999, 'k'"),
        format!("{t}, 'm', -99999999999999999999.999999999999999999000, NULL, kind => 'gauge'"),
        format!("{t}, 'm', 1, 'k', clock_timestamp() + interval '299 seconds'"),
        format!("{t}, 'm', 1, 'k', clock_timestamp() - interval '2556 days'"),
        format!("{t}, 'm', 1, 'k', metadata => {}", nested(128)),
        // Many brackets, none of them deep: in strings and side by side.
        format!(
            "{t}, 'm', 1, 'k', metadata => ('{{\"\\\"' || repeat('[', 200) || '\":[[]' || repeat(',[]', 200) || ']}}')::json"
        ),
        format!("{t}, 'm', 1, 'k', metadata => ('{{\"a\":\"' || repeat('x', 8184) || '\"}}')::json"),
    ] {
        let record = call(&mut connection, &arguments).await.expect(&arguments);
        let now = Timestamp::from_micros(usage_service::clock::now_micros());
        validate::validate(&record.borrowed(), &Bounds::default(), now).expect(&arguments);
    }
}

/// Metadata so many levels deep.
fn nested(levels: usize) -> String {
    format!("('{{\"a\":' || repeat('[', {0}) || repeat(']', {0}) || '}}')::json", levels - 1)
}

#[tokio::test]
async fn fields_arrive_as_they_were_given() {
    let source = Source::new().await;
    let mut connection = source.pool.acquire().await.unwrap();
    // Neither the session's zone nor its date style may show.
    sqlx::raw_sql("SET timezone = 'Asia/Kathmandu'; SET datestyle = 'German'")
        .execute(&mut *connection)
        .await
        .unwrap();
    let arguments = format!(
        "{TENANT}, 'vm.temperature', -273.1500, E'key \"\\\\ \\u00e9', '2026-01-02 03:04:05.000006+00', 'gauge', \
         '0190f3c2-6f1e-7a44-9d3b-5a1f0c2e7b12', 'vm', '0190f3c2-6f1e-7a44-9d3b-5a1f0c2e7b13', 'user', '{{ \"b\":1.0, \"a\":\"\\u0000\" }}'"
    );
    let record = call(&mut connection, &arguments).await.unwrap();
    assert_eq!(record.value.to_string(), "-273.15");
    assert_eq!(record.idempotency_key.as_deref(), Some("key \"\\ é"));
    assert_eq!(record.timestamp.to_string(), "2026-01-02T03:04:05.000006Z");
    assert_eq!(record.resource_id.unwrap().to_string(), "0190f3c2-6f1e-7a44-9d3b-5a1f0c2e7b12");
    assert_eq!((record.resource_type.as_deref(), record.subject_type.as_deref()), (Some("vm"), Some("user")));
    assert_eq!(record.subject_id.unwrap().to_string(), "0190f3c2-6f1e-7a44-9d3b-5a1f0c2e7b13");
    assert_eq!(record.metadata.as_deref(), Some(r#"{ "b":1.0, "a":"\u0000" }"#));
    assert_eq!(record.record_id, usage_schemas::ids::record_id(record.tenant_id, "key \"\\ é"));
}

#[tokio::test]
async fn gauges_without_a_key_get_ids_by_time() {
    let source = Source::new().await;
    let mut connection = source.pool.acquire().await.unwrap();
    let arguments = format!("{TENANT}, 'm', 1, NULL, kind => 'gauge'");
    let first = call(&mut connection, &arguments).await.unwrap().record_id;
    let second = call(&mut connection, &arguments).await.unwrap().record_id;
    assert_eq!((first.get_version_num(), first.get_variant()), (7, uuid::Variant::RFC4122));
    assert_ne!(first, second);
    let (seconds, _) = first.get_timestamp().unwrap().to_unix();
    let now = usage_service::clock::now_millis() / 1_000;
    assert!((now - i64::try_from(seconds).unwrap()).abs() < 60);
}

/// Every row of the case file that Postgres itself reads as a number has the file's result.
#[tokio::test]
async fn values_are_judged_as_the_case_file_says() {
    let source = Source::new().await;
    let mut connection = source.pool.acquire().await.unwrap();
    let file = fs::read_to_string(cases_dir().join("values.tsv")).unwrap();
    let mut judged = 0;
    for line in file.lines().skip(1) {
        let [kind, text, expected] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let text = text.trim_matches('"').replace('\'', "''");
        let numeric = format!("SELECT '{text}'::numeric::text");
        let Ok(number) =
            sqlx::query_scalar::<_, String>(AssertSqlSafe(numeric)).fetch_one(&mut *connection).await
        else {
            // An exponent that Postgres does not know never gets as far as the function.
            assert!(
                expected.starts_with("error: ") || text.contains('e'),
                "{line}: Postgres does not read it"
            );
            judged += 1;
            continue;
        };
        let result = call(&mut connection, &format!("{TENANT}, 'm', '{text}', 'k', kind => '{kind}'")).await;
        judged += 1;
        match (expected.strip_prefix("error: "), result) {
            (None, Ok(record)) => assert_eq!(record.value, Quantity::parse(expected).unwrap(), "{line}"),
            // JSON's grammar is narrower than Postgres'; here it is a number already.
            (Some("not a number"), Ok(record)) => {
                assert_eq!(Quantity::parse(&number).unwrap(), record.value, "{line}")
            }
            (Some(error), Err((field, message, _))) => {
                assert_eq!(field, "value", "{line}: {message}");
                assert!(error == "not a number" || message.ends_with(error), "{line}: {message}");
            }
            (expected, result) => panic!("{line}: expected {expected:?}, found {result:?}"),
        }
    }
    assert_eq!(judged, file.lines().count() - 1, "no row is skipped");
}

#[tokio::test]
async fn a_role_that_may_only_insert_can_emit_with_any_search_path() {
    let source = Source::new().await;
    let mut connection = source.pool.acquire().await.unwrap();
    let role = format!("emitter_{}", Uuid::new_v4().simple());
    sqlx::raw_sql(AssertSqlSafe(format!(
        "CREATE ROLE {role}; GRANT INSERT ON usage_outbox TO {role}; GRANT USAGE ON SEQUENCE usage_outbox_id_seq TO {role}; \
         CREATE SCHEMA trap; GRANT USAGE ON SCHEMA trap TO {role}; CREATE TABLE trap.usage_outbox (id int); \
         SET search_path = trap; SET ROLE {role}"
    )))
    .execute(&mut *connection)
    .await
    .unwrap();
    sqlx::query(AssertSqlSafe(format!("SELECT public.usage_emit({TENANT}, 'm', 1, 'k')")))
        .execute(&mut *connection)
        .await
        .unwrap();
    let read = sqlx::query("SELECT FROM public.usage_outbox").execute(&mut *connection).await;
    assert!(read.is_err(), "it may not read what others emit");
    sqlx::raw_sql(AssertSqlSafe(format!(
        "RESET ROLE; SET search_path = public; DROP OWNED BY {role}; DROP ROLE {role}"
    )))
    .execute(&mut *connection)
    .await
    .unwrap();
    assert_eq!(source.count("usage_outbox").await, 1);
}
