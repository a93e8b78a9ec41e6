//! Every program on real servers, with marked secrets and marked records: nothing of them is in what the programs write.

mod marked;
mod point;
mod program;
mod refused;
mod run;

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use futures::future::try_join_all;
use marked::Marked;
use point::Point;
use program::{checked, failing, panicking, serving};
use run::{Secrets, Written};
use usage_devstack::ClickHouse;
use usage_service::fail_points::VARIABLE;
use usage_tests::pipeline::{Options, Pipeline, RANGE, Servers};
use usage_tests::topic;
use uuid::Uuid;

const PATIENCE: Duration = Duration::from_secs(300);
/// Everything that our own crates and all others can say.
const TRACE: &str = "trace";

/// A ClickHouse whose users have the marked password.
async fn clickhouse(dir: &Path, secrets: &Secrets) -> anyhow::Result<ClickHouse> {
    let mut server = ClickHouse::start(dir)?;
    let users = dir.join("users.xml");
    let text = std::fs::read_to_string(&users)?;
    let marked =
        text.replace("<password>usage</password>", &format!("<password>{}</password>", secrets.clickhouse));
    assert_eq!(marked.matches(&secrets.clickhouse).count(), 3);
    std::fs::write(&users, marked)?;
    server.restart()?;
    for (password, good) in [("usage", false), (&secrets.clickhouse, true)] {
        let asked = reqwest::Client::new().get(server.url()).query(&[("query", "SELECT 1")]);
        let answer = asked.basic_auth("usage_reader", Some(password)).send().await?;
        assert_eq!(answer.status().is_success(), good, "{}", answer.text().await?);
    }
    Ok(server)
}

/// A pipeline with secrets wherever one can be configured; those that have to be right are. `server` is a ClickHouse that has the
/// marked password, else it is the run's.
async fn prepared(
    secrets: &Secrets,
    point: &Point,
    server: Option<&ClickHouse>,
    more: &[(&'static str, String)],
) -> anyhow::Result<Pipeline> {
    let servers = Servers {
        kafka_brokers: usage_devstack::testing::kafka_brokers(),
        clickhouse_url: server.map_or_else(usage_devstack::testing::clickhouse_url, ClickHouse::url),
        // The server trusts loopback, whatever the password is.
        control_database_url: secrets.in_url(&usage_devstack::testing::control_database_url()),
        source_database_url: secrets.in_url(&usage_devstack::testing::source_database_url()),
        source_tablespace: None,
    };
    let users = [
        "USAGE_CLICKHOUSE_WRITER_PASSWORD",
        "USAGE_CLICKHOUSE_READER_PASSWORD",
        "USAGE_CLICKHOUSE_MAINTENANCE_PASSWORD",
    ];
    let passwords = users.iter().filter(|_| server.is_some()).map(|user| (*user, secrets.clickhouse.clone()));
    let env = [
        ("USAGE_CONTROL_DATABASE_MASTER_KEY_FILE", String::new()),
        ("USAGE_CONTROL_DATABASE_MASTER_KEY", secrets.master_key.clone()),
        ("USAGE_POLICY_URL", point.url.clone()),
        ("USAGE_POLICY_TOKEN", secrets.policy.clone()),
        ("USAGE_TELEMETRY_FILTER", TRACE.to_owned()),
        ("USAGE_KAFKA_SECURITY_SASL_MECHANISM", "PLAIN".to_owned()),
        ("USAGE_KAFKA_SECURITY_SASL_USERNAME", "usage".to_owned()),
        ("USAGE_KAFKA_SECURITY_SASL_PASSWORD", secrets.sasl.clone()),
        ("USAGE_KAFKA_CLIENT_KEY_PASSWORD", secrets.key_password.clone()),
    ];
    Pipeline::prepare(Options {
        partitions: Some(1),
        servers: Some(servers),
        env: env.into_iter().chain(passwords).chain(more.iter().cloned()).collect(),
        ..Options::default()
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_and_what_records_hold_are_never_written() -> anyhow::Result<()> {
    let secrets = Secrets::new();
    let dir = tempfile::tempdir()?;
    let server = clickhouse(dir.path(), &secrets).await?;
    let point = Point::start(&secrets.policy, Uuid::nil()).await?;
    let pipeline = prepared(&secrets, &point, Some(&server), &[]).await?;
    let mut written = Written::default();
    let mut running = pipeline.run()?;

    // Kept, of an unknown type, a conflict, and what is no record at all.
    let marked = Marked::new();
    marked.emit(&pipeline, "llm.requests", "a", "now()").await?;
    marked.emit(&pipeline, "mail.sent", "b", "now()").await?;
    marked.emit_value(&pipeline, "llm.requests", "a", "now()", &marked.other_value).await?;
    let garbage = format!("{} {}", marked.value, marked.subject);
    topic::write(pipeline.records_topic(), Some(0), Some(garbage.as_bytes()), Some(garbage.as_bytes()), &[])
        .await?;
    topic::await_letters(pipeline.dead_letters_topic(), 3, PATIENCE).await?;

    let answers = marked.ask(&running.api, &secrets).await?;
    assert!(
        answers.iter().any(|(status, body)| *status == 200 && body.contains(&marked.value)),
        "the record was read"
    );
    assert!(
        answers.iter().any(|(status, _)| *status == 400) && answers.iter().any(|(status, _)| *status == 401)
    );
    assert!(
        point.answered() > 0 && point.turned_away() == 0,
        "whether it may be read was asked with the token"
    );
    written.add("answers", answers.iter().map(|(_, body)| body.as_str()).collect::<Vec<_>>().join("\n"));

    // usagectl: the tables of an operator may show records; its errors and its tables show no secret.
    let mut tool = String::new();
    for line in [
        &["dead-letters", "list", "--json"][..],
        &["dead-letters", "count"],
        &["source", "list"],
        &["types", "list"],
        &["verify"],
        &["--check-config"],
        &["source", "add", "demo", "--key-id", "demo-1", "--key-hex", &secrets.key_hex],
        &["types", "list", "--set", &format!("control_database.url={}", secrets.nowhere())],
        &["types", "list", "--set", &secrets.plain],
        &["verify", "--set", &format!("clickhouse.reader_password={}", secrets.wrong_clickhouse)],
        &[
            "storage",
            "migrate",
            "--set",
            &format!("clickhouse.maintenance_password={}", secrets.wrong_clickhouse),
        ],
    ] {
        let (_, out, error) = pipeline.usagectl_ended(line)?;
        tool.push_str(&out);
        tool.push_str(&error);
        written.add("usagectl's errors", error);
    }
    secrets.assert_absent("usagectl", &tool);

    for (name, process) in [
        ("usage-relay", &mut running.relay),
        ("usage-consumer", &mut running.consumer),
        ("usage-query-api", &mut running.query_api),
    ] {
        written.add(&format!("{name}'s metrics"), process.metrics()?);
        process.terminate()?;
        let log = process.log()?;
        assert!(log.contains("DEBUG") || log.contains("TRACE") || log.contains("INFO"), "{name} logs: {log}");
        written.add(name, log);
    }
    secrets.assert_absent_all(&written, &pipeline)?;
    marked.assert_absent_all(&written);
    written.assert_no_statement();
    server.stop()
}

/// What the API answers while the decision point turns it away.
async fn asked_with_a_wrong_token(
    pipeline: &Pipeline,
    point: &Point,
    written: &mut Written,
) -> anyhow::Result<String> {
    let port = usage_devstack::ports::free()?;
    let api = pipeline.api(port)?;
    let before = point.turned_away();
    let (from, to) = RANGE;
    let query = [("from", from), ("to", to)];
    let asking = api.try_get(Uuid::new_v4(), "/v1/usage/raw", &query);
    let config = pipeline.api_config(port);
    let (output, (status, body)) =
        serving(pipeline, "usage-query-api", &config, "serving the API", asking).await?;
    assert_eq!(status, 403, "an answer that makes no sense is a refusal: {body}");
    assert!(point.turned_away() > before && point.answered() == 0, "a wrong token was tried");
    written.add("usage-query-api, turned away", output);
    Ok(body)
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_of_every_program_name_no_secret() -> anyhow::Result<()> {
    let secrets = Secrets::new();
    // It turns everybody away, and repeats what it was sent.
    let point = Point::start("another token", Uuid::nil()).await?;
    let pipeline = prepared(&secrets, &point, None, &[]).await?;
    let mut written = Written::default();
    let broken = secrets.broken_files();
    for program in ["usage-consumer", "usage-relay", "usage-query-api"] {
        let config = match program {
            "usage-relay" => pipeline.relay_config(),
            "usage-query-api" => pipeline.api_config(0),
            _ => String::new(),
        };
        // Most of the time is spent in waiting for what does not answer.
        let failures = secrets.failures(&config, &broken);
        let outputs = failures.iter().map(|(_, more, text)| failing(&pipeline, program, text, more));
        for ((what, ..), output) in failures.iter().zip(try_join_all(outputs).await?) {
            written.add(&format!("{program}, {what}"), output);
        }
        let checked = checked(&pipeline, program, &config).await?;
        assert!(checked.contains("\"***\""), "{program} --check-config: {checked}");
        assert_eq!(checked.contains("master_key = \"***\""), program == "usage-consumer", "{checked}");
        assert_eq!(checked.contains("token = \"***\""), program != "usage-relay", "{checked}");
        written.add(&format!("{program} --check-config"), checked);
    }
    let (_, out, error) = pipeline.usagectl_ended(&["--check-config"])?;
    assert!(out.contains("master_key = \"***\""), "{out}{error}");
    written.add("usagectl --check-config", out + &error);
    let answers = asked_with_a_wrong_token(&pipeline, &point, &mut written).await?;
    written.add("answers without a decision", answers);
    secrets.assert_absent_all(&written, &pipeline)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_that_quotes_every_secret_says_where_it_was_and_no_more() -> anyhow::Result<()> {
    let (secrets, marked) = (Secrets::new(), Marked::new());
    let point = Point::start(&secrets.policy, Uuid::nil()).await?;
    // A panic of ours quotes the environment: there are records in it, too.
    let quoted = format!("{} {} {} {}", marked.value, marked.subject, marked.resource, marked.metadata);
    let more = [(VARIABLE, "query.read=panic".to_owned()), ("USAGE_TESTS_QUOTED", quoted)];
    let pipeline = prepared(&secrets, &point, None, &more).await?;
    marked.emit(&pipeline, "llm.requests", "a", "now()").await?;
    let mut written = Written::default();
    for (program, point, config) in [
        ("usage-relay", "relay.produce=panic", pipeline.relay_config()),
        ("usage-consumer", "consumer.assigned=panic", String::new()),
    ] {
        let output = panicking(&pipeline, program, &config, point).await?;
        assert!(output.contains("panicked") && output.contains("fail_points.rs"), "{program}: {output}");
        assert!(output.contains("withheld"), "{program}: {output}");
        written.add(program, output);
    }

    let (mut query_api, api) = pipeline.query_api()?;
    let (from, to) = RANGE;
    let record = format!("/v1/usage/records/{}", Uuid::new_v4());
    for (path, query) in [
        ("/v1/usage/raw", &[("from", from), ("to", to)][..]),
        ("/v1/usage/aggregated", &[("from", from), ("to", to), ("metric", "llm.requests")]),
        ("/v1/usage/metadata/watermarks", &[]),
        (&record, &[]),
    ] {
        let (status, body) = api.try_get(marked.tenant, path, query).await?;
        assert_eq!(status, 500, "{path}: {body}");
        let problem: serde_json::Value = serde_json::from_str(&body).context("a problem")?;
        assert_eq!((&problem["type"], problem.get("detail")), (&"usage/internal".into(), None), "{body}");
        written.add(&format!("usage-query-api on {path}"), body);
    }
    written.add("usage-query-api's metrics", query_api.metrics()?);
    query_api.terminate()?;
    let log = query_api.log()?;
    assert_eq!(
        (log.matches("fail_points.rs").count(), log.matches("a handler panicked").count()),
        (4, 4),
        "{log}"
    );
    assert!(log.contains("withheld"), "{log}");
    written.add("usage-query-api", log);
    secrets.assert_absent_all(&written, &pipeline)?;
    marked.assert_absent_all(&written);
    Ok(())
}
