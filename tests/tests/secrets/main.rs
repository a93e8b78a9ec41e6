//! Every program on real servers, with marked secrets and marked records: nothing of them is in what the programs write.

mod program;
mod run;

use std::time::Duration;

use futures::future::try_join_all;
use program::{checked, failing, panicking};
use run::{Marked, Secrets, Written};
use usage_tests::pipeline::{Options, Pipeline, Servers};
use usage_tests::topic;

const PATIENCE: Duration = Duration::from_secs(300);
/// Everything that our own crates can say.
const TRACE: &str = "info,usage_consumer=trace,usage_producer=trace,usage_relay=trace,usage_query_api=trace,usage_storage=trace,\
                     usage_control=trace,usage_access=trace,usage_service=trace,usage_limits=trace,usage_schemas=trace";

async fn prepared(secrets: &Secrets) -> anyhow::Result<Pipeline> {
    let servers = Servers {
        kafka_brokers: usage_devstack::testing::kafka_brokers(),
        clickhouse_url: usage_devstack::testing::clickhouse_url(),
        // The server trusts loopback, whatever the password is.
        control_database_url: secrets.in_url(&usage_devstack::testing::control_database_url()),
        source_database_url: secrets.in_url(&usage_devstack::testing::source_database_url()),
        source_tablespace: None,
    };
    let env = [
        ("USAGE_TELEMETRY_FILTER", TRACE.to_owned()),
        ("USAGE_KAFKA_SECURITY_SASL_MECHANISM", "PLAIN".to_owned()),
        ("USAGE_KAFKA_SECURITY_SASL_USERNAME", "usage".to_owned()),
        ("USAGE_KAFKA_SECURITY_SASL_PASSWORD", secrets.sasl.clone()),
        ("USAGE_KAFKA_CLIENT_KEY_PASSWORD", secrets.key_password.clone()),
    ];
    Pipeline::prepare(Options {
        partitions: Some(1),
        servers: Some(servers),
        env: env.into(),
        ..Options::default()
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_and_what_records_hold_are_never_written() -> anyhow::Result<()> {
    let secrets = Secrets::new();
    let pipeline = prepared(&secrets).await?;
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
        &["verify", "--set", &format!("clickhouse.reader_password={}", secrets.clickhouse)],
        &["storage", "migrate", "--set", &format!("clickhouse.maintenance_password={}", secrets.clickhouse)],
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
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_of_every_program_name_no_secret() -> anyhow::Result<()> {
    let secrets = Secrets::new();
    let pipeline = prepared(&secrets).await?;
    let mut written = Written::default();
    let broken = secrets.broken_files();
    for program in ["usage-consumer", "usage-relay", "usage-query-api"] {
        let config = match program {
            "usage-relay" => pipeline.relay_config(),
            "usage-query-api" => pipeline.api_config(usage_devstack::ports::free()?),
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
        written.add(&format!("{program} --check-config"), checked);
    }
    secrets.assert_absent_all(&written, &pipeline)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_that_quotes_every_secret_says_where_it_was_and_no_more() -> anyhow::Result<()> {
    let secrets = Secrets::new();
    let pipeline = prepared(&secrets).await?;
    let marked = Marked::new();
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
    secrets.assert_absent_all(&written, &pipeline)?;
    marked.assert_absent_all(&written);
    Ok(())
}
