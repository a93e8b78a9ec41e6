//! Usage types: what may be metered, of which kind, in which unit, under which rules.
//!
//! Types and their versions are never changed and never deleted. What a later version may be keeps to one sentence: **a record that was
//! counted is never judged otherwise when it comes again**. So a version that demands more begins after everybody has heard of it
//! and after every timestamp that was acceptable before ([`LEAD`]); one that only allows more may begin at any time, also in the past,
//! which is how records refused by a wrong rule become replayable.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::FromRow;
use time::OffsetDateTime;
use usage_schemas::{
    CompiledType, Kind, RegistryError, Rules, Timestamp, TypeVersion, TypesRegistry, UsageType,
};
use usage_service::clock;

use crate::{Control, ControlError};

/// How long before a version begins that demands more it must be registered: a record's timestamp may lie 5 minutes ahead of the
/// broker's clock, and workers and sources read the registry again within less than that.
pub const LEAD: Duration = Duration::from_secs(600);
/// Greatest length of a unit in characters.
const UNIT_CHARACTERS: usize = 64;
/// Greatest length of a description in characters.
const DESCRIPTION_CHARACTERS: usize = 1_024;
/// Greatest number of versions of a type.
const VERSIONS: i32 = 1_000;
/// 1900-01-01T00:00:00Z and 2200-01-01T00:00:00Z: what `valid_from` may be.
const TIMES: std::ops::Range<i64> = -2_208_988_800_000_000..7_258_118_400_000_000;

/// A version of a usage type as it is to be registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewUsageType {
    /// The `metric` of records.
    pub name: String,
    pub kind: Kind,
    /// What a value of 1 is: `token`, `second`, `byte`.
    pub unit: String,
    pub description: Option<String>,
    /// 1, or the newest one and 1.
    pub version: i32,
    /// From which timestamp on it applies; `None` for version 1.
    pub valid_from: Option<Timestamp>,
    pub rules: Rules,
}

/// A member that can't be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeFault {
    /// Of [`NewUsageType`].
    pub field: &'static str,
    /// JSON pointer from the type: `/unit`, `/rules/metadata/type`.
    pub pointer: String,
    pub detail: String,
}

impl TypeFault {
    fn new(field: &'static str, within: &str, detail: String) -> Self {
        Self { field, pointer: format!("/{field}{within}"), detail }
    }
}

/// What became of a registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registration {
    /// It is new.
    Created(UsageType),
    /// The same was registered before.
    Unchanged(UsageType),
    /// The version is registered with other content: that of the type given. Nothing was changed.
    Different(UsageType),
    /// The version can't follow what is registered. Nothing was changed.
    CannotFollow(Vec<TypeFault>),
}

#[derive(FromRow)]
struct Row {
    name: String,
    version: i32,
    kind: String,
    unit: String,
    description: Option<String>,
    valid_from: Option<OffsetDateTime>,
    rules: String,
    created_at: OffsetDateTime,
    now: OffsetDateTime,
}

const SELECT: &str = "SELECT name, version, kind, unit, description, valid_from, rules::text AS rules, created_at, now() AS now
                      FROM usage_types WHERE name = coalesce($1, name) ORDER BY name, version";

impl Row {
    fn into_version(self) -> Result<TypeVersion, ControlError> {
        let Ok(kind) = self.kind.parse() else {
            return Err(ControlError::Unknown(format!("kind {}", self.kind)));
        };
        let rules = Rules::from_text(&self.rules).map_err(|error| {
            ControlError::Unknown(format!("rules of version {} of {}: {error}", self.version, self.name))
        })?;
        let time = |time| Timestamp::from_micros(clock::to_micros(time));
        Ok(TypeVersion {
            version: self.version,
            valid_from: self.valid_from.map(time),
            kind,
            unit: self.unit,
            description: self.description,
            rules,
            created_at: time(self.created_at),
        })
    }
}

impl NewUsageType {
    /// Version 1 without rules and description.
    pub fn new(name: impl Into<String>, kind: Kind, unit: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            kind,
            unit: unit.into(),
            description: None,
            version: 1,
            valid_from: None,
            rules: Rules::default(),
        }
    }

    /// Everything that keeps it from being registered, whatever is registered before it; empty if nothing does.
    pub fn faults(&self) -> Vec<TypeFault> {
        let mut faults = Vec::new();
        let mut fault = |field, detail: String| faults.push(TypeFault::new(field, "", detail));
        if let Err(invalid) = usage_schemas::validate::name("name", &self.name) {
            fault("name", invalid.detail);
        }
        let plain = |text: &str, most: usize| {
            (1..=most).contains(&text.chars().count())
                && !text.chars().any(char::is_control)
                && text.trim() == text
        };
        if !plain(&self.unit, UNIT_CHARACTERS) {
            let detail = format!(
                "1 to {UNIT_CHARACTERS} characters, none of them a control character, no space at the ends"
            );
            fault("unit", detail);
        }
        if let Some(text) = &self.description
            && (text.chars().count() > DESCRIPTION_CHARACTERS || text.contains('\0'))
        {
            fault("description", format!("at most {DESCRIPTION_CHARACTERS} characters, no U+0000"));
        }
        if !(1..=VERSIONS).contains(&self.version) {
            fault("version", format!("must be 1 to {VERSIONS}"));
        }
        match self.valid_from {
            Some(_) if self.version == 1 => {
                fault("valid_from", "version 1 applies to all times and has none".into());
            }
            None if self.version > 1 => {
                fault("valid_from", "a version after the first one must have it".into());
            }
            Some(from) if !TIMES.contains(&from.micros()) => {
                fault("valid_from", "must lie between 1900 and 2200".into());
            }
            _ => {}
        }
        let rules = self.rules.faults(self.kind).into_iter();
        faults.extend(rules.map(|fault| TypeFault::new("rules", &fault.pointer, fault.detail)));
        faults
    }

    /// # Errors
    /// [`ControlError::Invalid`] with the first of the faults.
    pub fn validate(&self) -> Result<(), ControlError> {
        match self.faults().into_iter().next() {
            Some(TypeFault { field: "rules", pointer, detail }) => {
                Err(ControlError::invalid("rules", format!("{pointer}: {detail}")))
            }
            Some(fault) => Err(ControlError::invalid(fault.field, fault.detail)),
            None => Ok(()),
        }
    }

    fn is(&self, found: &TypeVersion) -> bool {
        self.kind == found.kind
            && self.unit == found.unit
            && self.description == found.description
            && self.valid_from == found.valid_from
            // By way of the text that is stored, which numbers may not pass unchanged.
            && Rules::from_text(&self.rules.to_text()).is_ok_and(|rules| rules == found.rules)
    }

    /// What registering it comes to where `found` is what its name has, at the database's time `now`; `None` if it can be added.
    pub fn against(&self, found: Option<&UsageType>, now: Timestamp) -> Option<Registration> {
        let same = found.and_then(|found| Some((found.clone(), self.is(found.version(self.version)?))));
        match same {
            Some((found, true)) => Some(Registration::Unchanged(found)),
            Some((found, false)) => Some(Registration::Different(found)),
            None => {
                let faults = self.cannot_follow(found.map(UsageType::newest), now);
                (!faults.is_empty()).then_some(Registration::CannotFollow(faults))
            }
        }
    }

    /// Why it can't be the version after the newest one; empty if it can.
    fn cannot_follow(&self, newest: Option<&TypeVersion>, now: Timestamp) -> Vec<TypeFault> {
        let mut faults = Vec::new();
        let mut fault = |field, detail: String| faults.push(TypeFault::new(field, "", detail));
        let next = newest.map_or(1, |newest| newest.version.saturating_add(1));
        let Some(newest) = newest.filter(|_| self.version == next) else {
            if self.version != next {
                fault("version", format!("the next version to be registered is {next}"));
            }
            return faults;
        };
        if self.kind != newest.kind {
            let kind = newest.kind.as_str();
            fault("kind", format!("{kind} in all versions, or totals would mix: take a new name"));
        }
        if self.unit != newest.unit {
            fault("unit", format!("{} in all versions, or totals would mix: take a new name", newest.unit));
        }
        let heard_of = now.micros().saturating_add(i64::try_from(LEAD.as_micros()).unwrap_or(i64::MAX));
        let soon = self.valid_from.is_some_and(|from| from.micros() < heard_of);
        if self.valid_from <= newest.valid_from {
            fault("valid_from", format!("must lie after that of version {}", newest.version));
        } else if soon && !self.rules.allow_all_of(&newest.rules) {
            let detail = format!(
                "must lie at least {} minutes from now: the rules refuse what version {} takes, or may do so, and no record \
                 that was counted may be judged otherwise when it comes again",
                LEAD.as_secs() / 60,
                newest.version,
            );
            fault("valid_from", detail);
        }
        faults
    }
}

impl Control {
    /// Registers a version of a usage type. The same content again is [`Registration::Unchanged`].
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for a field that breaks its bound; what the database says.
    pub async fn register_type(&self, new: &NewUsageType) -> Result<Registration, ControlError> {
        new.validate()?;
        let (found, now) = self.type_and_time(&new.name).await?;
        // What is registered stays as it is, so that nothing read here can have changed below.
        if let Some(decided) = new.against(found.as_ref(), now) {
            return Ok(decided);
        }
        let created = self
            .within(async {
                let insert = sqlx::query(
                    "INSERT INTO usage_types (name, version, kind, unit, description, valid_from, rules)
                     VALUES ($1, $2, $3, $4, $5, $6, $7::json) ON CONFLICT (name, version) DO NOTHING",
                )
                .bind(&new.name)
                .bind(new.version)
                .bind(new.kind.as_str())
                .bind(&new.unit)
                .bind(&new.description)
                .bind(new.valid_from.map(|from| clock::from_micros(from.micros())))
                .bind(new.rules.to_text());
                Ok(insert.execute(&self.pool).await?.rows_affected() > 0)
            })
            .await?;
        // Types are never deleted, so what was in the way is there to be read.
        let (found, now) = self.type_and_time(&new.name).await?;
        match (new.against(found.as_ref(), now), found) {
            (Some(Registration::Unchanged(found)), _) if created => Ok(Registration::Created(found)),
            (Some(decided), Some(_)) => Ok(decided),
            _ => Err(ControlError::Database(sqlx::Error::RowNotFound)),
        }
    }

    /// All usage types with all their versions, ascending by name.
    ///
    /// # Errors
    /// What the database says; [`ControlError::Unknown`] for a rule of a newer program.
    pub async fn usage_types(&self) -> Result<Vec<UsageType>, ControlError> {
        let rows = self.type_rows(None).await?;
        let mut types: Vec<UsageType> = Vec::new();
        for row in rows {
            let name = row.name.clone();
            let version = row.into_version()?;
            match types.last_mut().filter(|last| last.name == name) {
                Some(last) => last.versions.push(version),
                None => types.push(UsageType { name, versions: vec![version] }),
            }
        }
        Ok(types)
    }

    /// One usage type with all its versions; `None` if no such name is registered.
    ///
    /// # Errors
    /// As [`Control::usage_types`].
    pub async fn usage_type(&self, name: &str) -> Result<Option<UsageType>, ControlError> {
        Ok(self.type_and_time(name).await?.0)
    }

    /// The type of a name, and the database's time if there is one.
    async fn type_and_time(&self, name: &str) -> Result<(Option<UsageType>, Timestamp), ControlError> {
        let rows = self.type_rows(Some(name)).await?;
        let now = rows.first().map_or(0, |row| clock::to_micros(row.now));
        let versions = rows.into_iter().map(Row::into_version).collect::<Result<Vec<_>, _>>()?;
        let found = (!versions.is_empty()).then(|| UsageType { name: name.into(), versions });
        Ok((found, Timestamp::from_micros(now)))
    }

    async fn type_rows(&self, name: Option<&str>) -> Result<Vec<Row>, ControlError> {
        self.within(async { Ok(sqlx::query_as(SELECT).bind(name).fetch_all(&self.pool).await?) }).await
    }
}

/// Reads at every call: for those who remember it themselves, or ask seldom.
#[async_trait]
impl TypesRegistry for Control {
    async fn usage_type(&self, name: &str) -> Result<Option<Arc<CompiledType>>, RegistryError> {
        let found = Control::usage_type(self, name).await.map_err(|error| match error.may_pass() {
            true => RegistryError::Unavailable(error.into()),
            false => RegistryError::Unusable(error.into()),
        })?;
        let compiled = found.map(CompiledType::new).transpose();
        compiled.map(|found| found.map(Arc::new)).map_err(|error| RegistryError::Unusable(error.into()))
    }
}
