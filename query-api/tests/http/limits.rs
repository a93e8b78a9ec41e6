//! Limits of requests, counted in a real Postgres, and allowances that are read from one.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use sqlx::PgPool;
use usage_access::Scopes;
use usage_control::testing::with_database;
use usage_limits::{Allowance, Consumption, Counter, Period, RateLimits};
use usage_query_api::allowances::{Allowances, Spending};
use usage_query_api::config::{AllowancesConfig, MeterConfig};
use usage_query_api::rates;
use usage_service::problem::kinds;
use uuid::Uuid;

use crate::policy::Says;
use crate::support::{Answer, Harness, Setup, bearer, config};

fn url() -> String {
    usage_devstack::testing::control_database_url()
}

/// An instance that limits its requests by the settings.
fn instance(pool: &PgPool, settings: &[&str]) -> Harness {
    let rules = rates::Rules::read(&config(settings).limits).unwrap();
    let counters = RateLimits::new(pool.clone(), rates::TABLE)
        .unwrap()
        .with_timeout(Duration::from_secs(60))
        .with_key(b"all");
    Harness::with(Setup { rates: rates::layer(&counters, rules), ..Setup::default() })
}

async fn ask(harness: &Harness, authorization: &str) -> Answer {
    let request = Request::get("/v1/usage/types").header("authorization", authorization);
    harness.send(request.body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn tenants_and_tokens_have_limits_of_their_own_over_all_instances() {
    with_database(&url(), |database| async move {
        let control = database.control().await;
        control.migrate().await.unwrap();
        // A day: its end is far, except once in a long while.
        let settings = ["limits.tenant_requests=3/1d", "limits.token_requests=2/1d"];
        let instances = [instance(control.pool(), &settings), instance(control.pool(), &settings)];
        let tenant = Uuid::new_v4();
        let (one, other) = (bearer(tenant, Scopes::all()), bearer(tenant, Scopes::NONE));
        let first = ask(&instances[0], &one).await;
        assert_eq!(first.status, 200, "{}", first.text);
        assert_eq!(first.header("ratelimit-policy"), "\"api.token\";q=2;w=86400, \"api.tenant\";q=3;w=86400");
        assert!(
            first.header("ratelimit").starts_with("\"api.token\";r=1;t="),
            "{}",
            first.header("ratelimit")
        );
        assert_eq!(ask(&instances[1], &one).await.status, 200);
        let refused = ask(&instances[0], &one).await;
        refused.problem(429, kinds::RATE_LIMITED.slug);
        assert!(refused.header("retry-after").parse::<u64>().unwrap() > 0);
        assert!(refused.detail().contains("api.token"), "{}", refused.text);
        assert_eq!(refused.json()["violated-policies"], serde_json::json!(["api.token"]));
        // The tenant's third, then none: whatever the token may, it is counted before it is looked at.
        assert_eq!(ask(&instances[1], &other).await.status, 403);
        assert!(ask(&instances[1], &other).await.detail().contains("api.tenant"));
        // Who can't say who it is uses up nothing and learns nothing.
        let nobody = ask(&instances[0], "Bearer nonsense").await;
        nobody.problem(401, "unauthenticated");
        assert_eq!(nobody.header("ratelimit-policy"), "");
        assert_eq!(ask(&instances[0], &bearer(Uuid::new_v4(), Scopes::all())).await.status, 200);
        let health = Request::get("/health/live").header("authorization", &one).body(Body::empty()).unwrap();
        assert_eq!(instances[0].send(health).await.status, 200);
        control.close().await;
    })
    .await;
}

#[tokio::test]
async fn counting_waits_for_no_connection_of_the_catalog() {
    with_database(&url(), |database| async move {
        let control = database.control().await;
        control.migrate().await.unwrap();
        let mut taken = Vec::new();
        while taken.len() < control.pool().options().get_max_connections() as usize {
            taken.push(control.pool().acquire().await.unwrap());
        }
        let rules = rates::Rules::read(&config(&["limits.tenant_requests=1/1d"]).limits).unwrap();
        let counters = rates::counters(&control, b"all").unwrap().with_timeout(Duration::from_secs(60));
        let api = Harness::with(Setup { rates: rates::layer(&counters, rules), ..Setup::default() });
        let token = bearer(Uuid::new_v4(), Scopes::all());
        assert_eq!(ask(&api, &token).await.status, 200);
        ask(&api, &token).await.problem(429, kinds::RATE_LIMITED.slug);
        drop(taken);
        control.close().await;
    })
    .await;
}

#[tokio::test]
async fn without_the_control_database_requests_pass_or_not_as_configured() {
    with_database(&url(), |database| async move {
        let control = database.control().await;
        // Not migrated: there is no table to count in.
        let open = instance(control.pool(), &["limits.tenant_requests=1/1d"]);
        let token = bearer(Uuid::new_v4(), Scopes::all());
        for _ in 0..3 {
            assert_eq!(ask(&open, &token).await.status, 200);
        }
        let settings = ["limits.tenant_requests=1/1d", "limits.requests_fail_closed=true"];
        let refused = ask(&instance(control.pool(), &settings), &token).await;
        refused.problem(503, kinds::UNAVAILABLE.slug);
        assert_eq!(refused.header("retry-after"), "1");
        control.close().await;
    })
    .await;
}

#[tokio::test]
async fn the_migration_makes_what_the_crate_counts_in() {
    let file = include_str!("../../../crates/control/migrations/0005_rate_limits.sql");
    let pool = PgPool::connect_lazy(&url()).unwrap();
    let own = RateLimits::new(pool, rates::TABLE).unwrap().migration_sql();
    assert!(file.starts_with("--") && file.ends_with(&own), "{own}");
}

#[test]
fn problem_types_are_those_of_the_crate() {
    use usage_limits::http::{ALLOWANCE_EXHAUSTED, RATE_LIMITED, UNAVAILABLE};
    for (own, kind) in [
        (ALLOWANCE_EXHAUSTED, kinds::ALLOWANCE_EXHAUSTED),
        (RATE_LIMITED, kinds::RATE_LIMITED),
        (UNAVAILABLE, kinds::UNAVAILABLE),
    ] {
        assert_eq!(own, format!("usage/{}", kind.slug));
    }
}

fn meter(name: &str, period: &str, limit: Option<i64>) -> MeterConfig {
    MeterConfig {
        name: name.to_owned(),
        period: period.to_owned(),
        zone: None,
        anchor: None,
        every_months: None,
        limit,
    }
}

#[tokio::test]
async fn a_tenant_reads_its_own_allowances() {
    with_database(&url(), |database| async move {
        let pool = PgPool::connect(database.url()).await.unwrap();
        let allowance = Allowance::new("mail_usage").unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(allowance.migration_sql())).execute(&pool).await.unwrap();
        let settings = AllowancesConfig {
            database_url: Some(database.url().to_owned().into()),
            table: "mail_usage".to_owned(),
            meters: vec![meter("mail_sent", "month", Some(10)), meter("bytes", "day", None)],
            allow_plaintext: false,
            ca_file: None,
            client_certificate: None,
            client_key: None,
        };
        let allowances = Allowances::connect_lazy(Spending::read(&settings).unwrap().unwrap());
        let api = Harness::with(Setup { allowances: Some(Arc::new(allowances)), ..Setup::default() });
        let now = usage_service::clock::now();
        let last_month = Period::CalendarMonthUtc.window_at(now).unwrap().start - Duration::from_secs(1);
        let account = format!("{}:mails", api.tenant);
        let month = Period::CalendarMonthUtc;
        for (now, amount) in [(now, 12), (last_month, 4)] {
            let counter = Counter { subject: &account, meter: "mail_sent", period: &month, now };
            let outcome = allowance.consume(&pool, counter, amount, None).await.unwrap();
            assert!(matches!(outcome, Consumption::Consumed(_)));
        }

        let path = format!("/v1/usage/allowances/{account}");
        let answer = api.get(&format!("{path}?periods=3")).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let json = answer.json();
        assert_eq!(json["subject"], account.as_str());
        let mails = &json["allowances"][0];
        assert_eq!(
            (&mails["meter"], &mails["used"], &mails["limit"], &mails["remaining"]),
            (&"mail_sent".into(), &"12".into(), &"10".into(), &"0".into())
        );
        let used: Vec<_> = mails["history"].as_array().unwrap().iter().map(|past| &past["used"]).collect();
        assert_eq!(used, ["12", "4", "0"]);
        assert_eq!(mails["period"]["start"], mails["history"][0]["start"]);
        assert_eq!(mails["history"][0]["start"], mails["history"][1]["end"]);
        let bytes = &json["allowances"][1];
        assert_eq!((&bytes["used"], &bytes["limit"]), (&"0".into(), &serde_json::Value::Null));

        let one = api.get(&format!("{path}?meter=bytes")).await.json();
        assert_eq!(one["allowances"].as_array().unwrap().len(), 1);
        let faults = api.get(&format!("{path}?meter=mail_send&periods=0&period=1")).await;
        let expected = ["meter:unknown_value", "period:unknown_parameter", "periods:out_of_range"];
        assert_eq!(faults.problem(400, kinds::INVALID_PARAMETER.slug), expected);
        assert!(faults.text.contains("did you mean `mail_sent`"), "{}", faults.text);
        // Others' subjects, and what only looks like its own.
        for subject in
            [Uuid::new_v4().to_string(), format!("{}2", api.tenant), "%FF".to_owned(), "a".to_owned()]
        {
            api.get(&format!("/v1/usage/allowances/{subject}")).await.problem(404, kinds::NOT_FOUND.slug);
        }
        // A meter is bounded as a metric is, and allowances have no source to be bounded by.
        api.policy.says(Says::limited(&["bytes", "mail_send"], &[]));
        let bounded = api.get(&format!("{path}?periods=3")).await.json();
        assert_eq!((bounded["allowances"].as_array().unwrap().len(), &bounded["allowances"][0]), (1, bytes));
        for meter in ["mail_sent", "nothing", "bytes&meter=mail_sent"] {
            let refused = api.get(&format!("{path}?meter={meter}")).await;
            refused.problem(403, kinds::FORBIDDEN.slug);
            assert_eq!(refused.detail(), "the action `read_allowances` was refused");
        }
        let fault = api.get(&format!("{path}?meter=mail_send")).await;
        assert_eq!(fault.problem(400, kinds::INVALID_PARAMETER.slug), ["meter:unknown_value"]);
        assert!(!fault.text.contains("mail_sent"), "{}", fault.text);
        api.policy.says(Says::limited(&[], &["gateway"]));
        api.get(&path).await.problem(403, kinds::FORBIDDEN.slug);
        api.policy.says(Says::Shipped);
        sqlx::raw_sql("DROP TABLE mail_usage").execute(&pool).await.unwrap();
        api.get(&path).await.problem(500, kinds::INTERNAL.slug);
        pool.close().await;
    })
    .await;
}

#[tokio::test]
async fn without_a_table_there_are_no_allowances() {
    let api = Harness::new();
    api.get(&format!("/v1/usage/allowances/{}", api.tenant)).await.problem(404, kinds::NOT_FOUND.slug);
}
