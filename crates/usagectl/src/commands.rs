//! What each command does.

mod dead_letters;
mod gaps;
mod keys;
mod migrate;
mod outbox;
mod quota;
mod restored;
mod source;
mod source_key;
mod topics;
mod types;
mod verify;

use std::path::PathBuf;

use secrecy::SecretString;
use usage_control::{Control, ControlError, MasterKeys};
use usage_service::config::{DatabaseConfig, Resolved};
use usage_service::error_chain::error_chain;

use crate::WrongInput;
use crate::arguments::{
    Arguments, Command, Gaps, Keys, Migrate, Quota, Source, SourceKeys, Storage, Topics, Types,
};
use crate::settings::SETTINGS;

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let cli = arguments.configuration();
    let config = Resolved::partial(SETTINGS, &cli)?;
    if cli.check_config {
        config.check_addresses()?;
        check_master_keys(&config)?;
        print!("{config}");
        return Ok(());
    }
    let missing = || WrongInput { argument: "COMMAND", detail: "none given; see usagectl --help".into() };
    match arguments.command.ok_or_else(missing)? {
        Command::Topics(Topics::Create(options)) => topics::create(&config, &options).await,
        Command::Topics(Topics::Grow(options)) => topics::grow(&config, &options).await,
        Command::Control(Migrate::Migrate) => migrate::control(&config).await,
        Command::Storage(Storage::Migrate) => migrate::storage(&config).await,
        Command::Storage(Storage::Restored(options)) => restored::run(&config, &options).await,
        Command::Verify(options) => verify::run(&config, options).await,
        Command::Outbox(command) => outbox::run(&config, command).await,
        Command::DeadLetters(command) => dead_letters::run(&config, command).await,
        Command::Source(Source::Add(options)) => source::add(&config, options).await,
        Command::Source(Source::Set(options)) => source::set(&config, &options).await,
        Command::Source(Source::List(options)) => source::list(&config, &options).await,
        Command::Source(Source::Retire(options)) => source::retire(&config, &options).await,
        Command::Quota(Quota::Set(options)) => quota::set(&config, &options).await,
        Command::Quota(Quota::List(options)) => quota::list(&config, &options).await,
        Command::Quota(Quota::Show(options)) => quota::show(&config, &options).await,
        Command::Quota(Quota::Remove(options)) => quota::remove(&config, &options).await,
        Command::SourceKey(SourceKeys::Create(options)) => source_key::create(&config, options).await,
        Command::SourceKey(SourceKeys::List(options)) => source_key::list(&config, &options).await,
        Command::SourceKey(SourceKeys::Revoke(options)) => source_key::revoke(&config, &options).await,
        Command::SourceKey(SourceKeys::Rewrap) => source_key::rewrap(&config).await,
        Command::Gaps(Gaps::List(options)) => gaps::list(&config, &options).await,
        Command::Gaps(Gaps::Accept(options)) => gaps::accept(&config, &options).await,
        Command::Types(Types::Add(options)) => types::add(&config, *options).await,
        Command::Types(Types::List(options)) => types::list(&config, &options).await,
        Command::Types(Types::Show(options)) => types::show(&config, &options).await,
        Command::Keys(Keys::Generate { dir }) => keys::generate(&dir),
        Command::Token(options) => keys::token(&config, options),
    }
}

/// Looks at the master keys that are given, also where the database is not.
fn check_master_keys(config: &Resolved) -> anyhow::Result<()> {
    let secret = |path: &str| config.text(path).map(SecretString::from);
    let file = |path: &str| config.text(path).map(PathBuf::from);
    let database = DatabaseConfig {
        master_key: secret("control_database.master_key"),
        master_key_file: file("control_database.master_key_file"),
        other_master_key: secret("control_database.other_master_key"),
        other_master_key_file: file("control_database.other_master_key_file"),
        ..DatabaseConfig::new(String::new())
    };
    MasterKeys::configured(&database).map(drop).map_err(wrong_setting)
}

/// The control database of the configuration.
async fn control(config: &Resolved) -> anyhow::Result<Control> {
    let database: DatabaseConfig = config.section("control_database")?;
    let master_keys = MasterKeys::configured(&database).map_err(wrong_setting)?;
    let control = Control::connect(&database).await.map_err(wrong_setting)?;
    Ok(match master_keys {
        Some(master_keys) => control.with_master_keys(master_keys),
        None => control,
    })
}

/// What another configuration mends.
fn wrong_setting(error: ControlError) -> anyhow::Error {
    match error {
        ControlError::Address(error) => {
            WrongInput { argument: "control_database.url", detail: error.to_string() }.into()
        }
        ControlError::Invalid { field, detail } if field.starts_with("control_database.") => {
            WrongInput { argument: field, detail }.into()
        }
        error if error.is_about_master_keys() => {
            WrongInput { argument: "control_database.master_key", detail: error_chain(&error) }.into()
        }
        other => other.into(),
    }
}
