//! Source keys at rest, and whose usage sources emit.

use std::future::Future;

use secrecy::{ExposeSecret as _, SecretString};
use usage_control::testing::{TestDatabase, with_database};
use usage_control::*;
use usage_devstack::testing::control_database_url;
use usage_service::config::DatabaseConfig;
use uuid::Uuid;

const OLD: &str = "0101010101010101010101010101010101010101010101010101010101010101";
const NEW: &str = "0202020202020202020202020202020202020202020202020202020202020202";
const FROM: i64 = 1_700_000_000_000_000;

async fn with_control<F, T>(test: F)
where
    F: FnOnce(Control, TestDatabase) -> T + Send + 'static,
    T: Future<Output = ()> + Send + 'static,
{
    with_database(&control_database_url(), |database| async move {
        let control = database.control().await;
        control.migrate().await.unwrap();
        test(control, database).await;
    })
    .await;
}

fn masters(current: &str, other: Option<&str>) -> MasterKeys {
    MasterKeys::new(&SecretString::from(current), other.map(SecretString::from).as_ref()).unwrap()
}

/// The same database under other master keys.
async fn under(database: &TestDatabase, current: &str, other: Option<&str>) -> Control {
    let control = Control::connect(&DatabaseConfig::new(database.url())).await.unwrap();
    control.with_master_keys(masters(current, other))
}

fn key(source: &str, key_id: &str, byte: u8) -> SourceKey {
    SourceKey {
        source: source.into(),
        key_id: key_id.into(),
        key: vec![byte; 32].into(),
        valid_from: FROM,
        valid_until: None,
    }
}

/// Everything that lies in the table, as its owner sees it.
async fn dump(control: &Control) -> String {
    let rows: Vec<String> = sqlx::query_scalar("SELECT source_keys::text FROM source_keys")
        .fetch_all(control.pool())
        .await
        .unwrap();
    rows.join("\n")
}

fn hex(byte: u8) -> String {
    format!("{byte:02x}").repeat(8)
}

#[tokio::test]
async fn what_lies_in_the_database_opens_only_with_the_master_key() {
    with_control(|_, database| async move {
        let control = under(&database, OLD, None).await;
        control.put_source_key(&key("mail", "m1", 0x5a)).await.unwrap();
        let dumped = dump(&control).await;
        assert!(dumped.contains("m1") && !dumped.contains(&hex(0x5a)), "{dumped}");

        let none = Control::connect(&DatabaseConfig::new(database.url())).await.unwrap();
        for error in [
            none.source_keys().await.unwrap_err(),
            none.put_source_key(&key("mail", "m2", 1)).await.unwrap_err(),
            under(&database, NEW, None).await.source_keys().await.unwrap_err(),
        ] {
            assert!(error.is_about_master_keys() && !error.may_pass(), "{error:?}");
            assert!(error.to_string().contains("control_database.master_key"), "{error}");
        }
        // Whoever only shows keys needs none.
        let infos = none.source_key_infos().await.unwrap();
        assert_eq!(infos[0].master_key_id.as_deref(), Some(masters(OLD, None).current_id()));
    })
    .await;
}

/// One key under another master key would keep every consumer from reading any.
#[tokio::test]
async fn no_key_is_put_beside_others_that_do_not_open() {
    with_control(|_, database| async move {
        let control = under(&database, OLD, None).await;
        control.put_source_key(&key("mail", "m1", 1)).await.unwrap();
        let error = under(&database, NEW, None).await.put_source_key(&key("llm", "l1", 2)).await.unwrap_err();
        assert!(matches!(&error, ControlError::OtherMasterKey { key_id, .. } if key_id == "m1"), "{error:?}");
        under(&database, NEW, Some(OLD)).await.put_source_key(&key("llm", "l1", 2)).await.unwrap();
        control.put_source_key(&key("mail", "m2", 3)).await.unwrap_err();
        assert_eq!(under(&database, OLD, Some(NEW)).await.source_keys().await.unwrap().len(), 2);
    })
    .await;
}

#[tokio::test]
async fn a_sealed_key_that_was_moved_to_another_source_does_not_open() {
    with_control(|control, database| async move {
        control.put_source_key(&key("mail", "k", 1)).await.unwrap();
        control.put_source_key(&key("llm", "k", 2)).await.unwrap();
        database
            .execute(
                "UPDATE source_keys SET sealed = (SELECT sealed FROM source_keys WHERE source = 'mail')
                 WHERE source = 'llm'",
            )
            .await;
        let error = control.source_keys().await.unwrap_err();
        assert!(
            matches!(&error, ControlError::BrokenSeal { source_name, .. } if source_name == "llm"),
            "{error:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn keys_of_an_older_version_are_sealed_by_migrating() {
    with_control(|control, database| async move {
        // As the version before left it.
        for statement in [
            "ALTER TABLE source_keys DROP CONSTRAINT source_keys_sealed",
            "INSERT INTO source_keys (source, key_id, key, valid_from) SELECT 'mail', id, decode(repeat(byte, 32), 'hex'), now()
             FROM (VALUES ('m1', '5a'), ('m2', '5b')) AS v (id, byte)",
            "ALTER TABLE source_keys ADD CONSTRAINT source_keys_sealed
             CHECK (key IS NULL AND sealed IS NOT NULL AND master_key_id IS NOT NULL) NOT VALID",
        ] {
            database.execute(statement).await;
        }
        assert!(dump(&control).await.contains(&hex(0x5a)));
        for error in [
            control.source_key("mail", "m1").await.unwrap_err(),
            control.revoke_source_key("mail", "m2", i64::MAX / 2).await.unwrap_err(),
        ] {
            assert!(matches!(error, ControlError::ClearKey { .. }) && !error.is_about_master_keys(), "{error:?}");
        }
        assert_eq!(control.source_key_infos().await.unwrap()[0].master_key_id, None);

        let none = Control::connect(&DatabaseConfig::new(database.url())).await.unwrap();
        assert!(matches!(none.migrate().await.unwrap_err(), ControlError::NoMasterKey));
        control.migrate().await.unwrap();
        control.migrate().await.unwrap();
        let sealed = dump(&control).await;
        assert!(!sealed.contains(&hex(0x5a)) && !sealed.contains(&hex(0x5b)), "{sealed}");
        assert_eq!(control.source_key("mail", "m2").await.unwrap().unwrap().key.expose_secret(), [0x5b; 32]);
        // And nobody puts one there any more.
        let insert = sqlx::query(
            "INSERT INTO source_keys (source, key_id, key, valid_from) VALUES ('x', 'x', '\\x00', now())",
        );
        assert!(insert.execute(control.pool()).await.is_err());
    })
    .await;
}

#[tokio::test]
async fn a_master_key_is_exchanged_while_everybody_reads() {
    with_control(|_, database| async move {
        let old = under(&database, OLD, None).await;
        for byte in 1..=3 {
            old.put_source_key(&key("mail", &format!("m{byte}"), byte)).await.unwrap();
        }
        let (reader, operator) =
            (under(&database, OLD, Some(NEW)).await, under(&database, NEW, Some(OLD)).await);
        let read = |control: Control| async move {
            let keys = control.source_keys().await.unwrap();
            keys.iter().map(|key| key.key.expose_secret()[0]).collect::<Vec<_>>()
        };
        assert_eq!(read(reader.clone()).await, [1, 2, 3]);
        operator.put_source_key(&key("mail", "m4", 4)).await.unwrap();
        assert_eq!(operator.rewrap_source_keys().await.unwrap(), Rewrapped { rewrapped: 3, kept: 1 });
        assert_eq!(operator.rewrap_source_keys().await.unwrap(), Rewrapped { rewrapped: 0, kept: 4 });
        for control in [reader, operator, under(&database, NEW, None).await] {
            assert_eq!(read(control).await, [1, 2, 3, 4]);
        }
        assert!(old.source_keys().await.unwrap_err().is_about_master_keys());
        // With neither of them nothing is done, not even half of it.
        old.rewrap_source_keys().await.unwrap_err();
        assert_eq!(read(under(&database, NEW, None).await).await, [1, 2, 3, 4]);
    })
    .await;
}

#[tokio::test]
async fn a_revocation_ends_a_key_and_never_prolongs_it() {
    with_control(|control, _| async move {
        control.put_source_key(&key("mail", "m1", 1)).await.unwrap();
        let revoke = |at: i64| control.revoke_source_key("mail", "m1", at);
        assert_eq!(revoke(FROM + 20).await.unwrap(), Revoked::Ends(FROM + 20));
        assert_eq!(revoke(FROM + 30).await.unwrap(), Revoked::HadEnded(FROM + 20));
        assert_eq!(revoke(FROM + 20).await.unwrap(), Revoked::HadEnded(FROM + 20));
        assert_eq!(revoke(FROM + 10).await.unwrap(), Revoked::Ends(FROM + 10));
        let found = control.source_key("mail", "m1").await.unwrap().unwrap();
        assert!(found.is_valid_at(FROM) && found.is_valid_at(FROM + 9) && !found.is_valid_at(FROM + 10));
        assert!(control.restore_source_key("mail", "m1").await.unwrap());
        assert!(!control.restore_source_key("mail", "m1").await.unwrap());
        assert_eq!(control.source_key("mail", "m1").await.unwrap().unwrap().valid_until, None);
        assert_eq!(revoke(FROM).await.unwrap(), Revoked::Removed);
        assert!(control.source_key("mail", "m1").await.unwrap().is_none());
        assert!(matches!(revoke(FROM).await.unwrap_err(), ControlError::NoSourceKey { .. }));
    })
    .await;
}

#[tokio::test]
async fn it_is_said_whose_usage_a_source_emits() {
    with_control(|control, _| async move {
        let home = Uuid::from_u128(7);
        assert_eq!(control.sources().await.unwrap(), []);
        assert!(control.add_source("mail", Attribution::HomeTenant(home)).await.unwrap());
        assert!(!control.add_source("mail", Attribution::AnyTenant).await.unwrap(), "what was said stays");
        control.set_source("llm", Attribution::AnyTenant).await.unwrap();
        let said = || async {
            let sources = control.sources().await.unwrap().into_iter();
            sources.map(|source| (source.name, source.attribution)).collect::<Vec<_>>()
        };
        let expected =
            [("llm".to_string(), Attribution::AnyTenant), ("mail".into(), Attribution::HomeTenant(home))];
        assert_eq!(said().await, expected);
        control.set_source("mail", Attribution::ByPolicy).await.unwrap();
        assert_eq!(said().await[1].1, Attribution::ByPolicy);
        for (name, attribution, field) in [
            ("Mail", Attribution::AnyTenant, "source"),
            ("mail", Attribution::HomeTenant(Uuid::nil()), "home_tenant"),
        ] {
            let error = control.set_source(name, attribution).await.unwrap_err();
            assert!(
                matches!(&error, ControlError::Invalid { field: found, .. } if *found == field),
                "{error:?}"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn sources_that_were_there_before_may_emit_for_any_tenant() {
    with_database(&control_database_url(), |database| async move {
        let control = database.control().await;
        control.migrate().await.unwrap();
        // The state before that migration, with a key.
        for statement in [
            "DROP TABLE sources",
            "ALTER TABLE source_keys DROP COLUMN sealed, DROP COLUMN master_key_id",
            "DELETE FROM _sqlx_migrations WHERE description = 'sources'",
            "INSERT INTO source_keys (source, key_id, key, valid_from)
             VALUES ('mail', 'm1', '\\x5a5a', now()), ('mail', 'm2', '\\x5b5b', now())",
        ] {
            database.execute(statement).await;
        }
        control.migrate().await.unwrap();
        let expected = Source { name: "mail".into(), attribution: Attribution::AnyTenant };
        assert_eq!(control.sources().await.unwrap(), [expected]);
        assert_eq!(control.source_keys().await.unwrap().len(), 2);
    })
    .await;
}
