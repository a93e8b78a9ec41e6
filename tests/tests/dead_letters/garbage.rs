//! Whatever lies in the topics, nothing stops.

use usage_tests::topic;

use crate::support::*;

/// Key, value and headers.
type Raw<'a> = (Option<&'a [u8]>, Option<&'a [u8]>, &'a [(&'a str, &'a str)]);

/// The tools for dead letters must not fail at what lies among them (lago-api PR 5440).
#[tokio::test(flavor = "multi_thread")]
async fn problem_22_garbage_among_the_letters_stops_no_tool() -> anyhow::Result<()> {
    let pipeline = desk().await?;
    let garbage: [Raw<'_>; 6] = [
        (None, None, &[]),
        (Some(b"3600.0"), Some(b"3600.0"), &[]),
        (Some(b"k"), Some(b"\x1b[2J"), &[("dlq-reason", "conflict")]),
        (
            None,
            None,
            &[("dlq-reason", ""), ("dlq-topic", ""), ("dlq-partition", "3600.0"), ("dlq-offset", "-")],
        ),
        (None, None, &[("payload-type", "usage-collector.dead-letter-mark.v1")]),
        (None, Some(b"[1]"), &[("payload-type", "usage-collector.dead-letter-mark.v1")]),
    ];
    write_letter(&pipeline, 1, "conflict", &[]).await?;
    for (key, value, headers) in garbage {
        topic::write(pipeline.dead_letters_topic(), Some(0), key, value, headers).await?;
    }
    write_letter(&pipeline, 2, "conflict", &[("dlq-attempt", "often"), ("dlq-error", "\u{1b}[2J")]).await?;
    write_letter(&pipeline, 3, "a_word_of_a_later_version", &[]).await?;
    // The log ends with a control record, which nobody gets to see.
    topic::write_in_transaction(pipeline.dead_letters_topic(), 0, b"somebody's").await?;

    let count = ask(&pipeline, &["count"])?;
    assert_eq!((count["letters"].as_u64(), count["foreign"].as_u64()), (Some(3), Some(7)));
    let list = pipeline.usagectl(&["dead-letters", "list"])?;
    assert!(list.lines().count() == 4 && !list.contains('\u{1b}'), "{list}");
    for place in ["0:1", "0:2", "0:3", "0:4", "0:5", "0:6"] {
        let shown = pipeline.usagectl(&["dead-letters", "show", place])?;
        assert!(shown.contains("no letter") && !shown.contains('\u{1b}'), "{place}: {shown}");
    }
    let shown = ask(&pipeline, &["show", "0:0"])?;
    assert_eq!((shown[0]["key"].as_str(), shown[0]["value"]["hex"].as_str()), (Some("key"), Some("ff0031")));
    assert_eq!(settled(&ask(&pipeline, &["replay", "--reason", "conflict"])?), 2);
    assert_eq!(settled(&ask(&pipeline, &["discard", "--all"])?), 1);
    assert_eq!(open(&pipeline, &[])?, 0);
    assert_eq!(replayed(&pipeline)?, [1, 2]);
    Ok(())
}

/// A message that nobody can read is set aside at once and can be seen, instead of being tried for ever (graphql-hive PR 8492).
#[tokio::test(flavor = "multi_thread")]
async fn problem_54_poison_is_set_aside_seen_and_never_in_the_way() -> anyhow::Result<()> {
    let (pipeline, running, tenants) = refused(0).await?;
    let headers = [
        ("payload-type", "usage-collector.record.v1"),
        ("usage-source", "demo"),
        ("usage-key-id", "demo-1"),
        ("usage-signature", "00"),
    ];
    let unknown_schema = [&[0xc3, 0x01][..], &[7; 30]].concat();
    let poison: [(&[u8], &str); 2] =
        [(b"\x00\x00\x00\x00\x01 another frame", "undecodable"), (&unknown_schema, "unknown_schema")];
    for partition in 0..3 {
        for (value, _) in poison {
            topic::write(pipeline.records_topic(), Some(partition), Some(b"k"), Some(value), &headers)
                .await?;
        }
    }
    // What comes behind the poison is counted.
    judge(&pipeline, &running, &tenants).await?;
    for (_, reason) in poison {
        assert_eq!(open(&pipeline, &["--reason", reason])?, 3, "{reason}");
    }
    // A replay does not loop: each attempt is a new letter, and nothing else changes.
    assert_eq!(settled(&ask(&pipeline, &["replay"])?), 6);
    judge(&pipeline, &running, &tenants).await?;
    let list = ask(&pipeline, &["list"])?;
    let attempts: Vec<_> =
        list.as_array().into_iter().flatten().map(|letter| letter["attempt"].as_u64()).collect();
    assert_eq!(attempts, [Some(2); 6]);
    assert_eq!(settled(&ask(&pipeline, &["discard", "--all"])?), 6);
    judge(&pipeline, &running, &tenants).await?;
    assert_eq!(open(&pipeline, &[])?, 0);
    Ok(())
}

/// A record of a schema that nobody here knows yet waits, byte for byte, for a program that knows it (schema-registry 437, 1975).
#[tokio::test(flavor = "multi_thread")]
async fn problem_94_a_record_of_a_newer_schema_waits_as_it_was_sent() -> anyhow::Result<()> {
    let (pipeline, running, tenants) = refused(0).await?;
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../schemas/tests/corpus");
    let newer = std::fs::read(format!("{corpus}/good-newer.bin"))?;
    let headers = [
        ("payload-type", "usage-collector.record.v1"),
        ("usage-source", "demo"),
        ("usage-key-id", "demo-1"),
        ("usage-signature", "00"),
    ];
    topic::write(pipeline.records_topic(), Some(0), Some(b"k"), Some(&newer), &headers).await?;
    topic::await_letters(pipeline.dead_letters_topic(), 1, PATIENCE).await?;
    // Tried again too early it comes back, and is still what it was.
    assert_eq!(settled(&ask(&pipeline, &["replay", "--reason", "unknown_schema"])?), 1);
    let messages = topic::await_letters(pipeline.dead_letters_topic(), 2, PATIENCE).await?;
    let letters: Vec<_> =
        messages.iter().filter(|message| message.header("dlq-reason") == "unknown_schema").collect();
    // The replay goes where the key belongs, which is another partition: by place the second letter may come first.
    let mut attempts: Vec<_> =
        letters.iter().map(|letter| (letter.header("dlq-attempt"), letter.header("dlq-partition"))).collect();
    attempts.sort_unstable();
    attempts.dedup();
    assert_eq!(attempts, [("1", "0"), ("2", "2")]);
    let decoder = usage_schemas::codec::Decoder::with_schemas(&[&std::fs::read_to_string(format!(
        "{corpus}/newer.avsc"
    ))?])?;
    for letter in letters {
        assert_eq!(letter.value.as_deref(), Some(newer.as_slice()));
        assert!(decoder.decode(&newer).is_ok());
    }
    assert_eq!(open(&pipeline, &["--reason", "unknown_schema"])?, 1);
    judge(&pipeline, &running, &tenants).await
}
