//! Usage types: what may be metered, of which kind, in which unit.

use sqlx::FromRow;
use time::OffsetDateTime;
use usage_schemas::Kind;
use usage_service::clock;

use crate::{Control, ControlError};

/// Greatest length of a unit in characters.
const UNIT_CHARACTERS: usize = 64;
/// Greatest length of a description in characters.
const DESCRIPTION_CHARACTERS: usize = 1_024;

/// A usage type as it is to be registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewUsageType {
    /// The `metric` of records.
    pub name: String,
    pub kind: Kind,
    /// What a value of 1 is: `token`, `second`, `byte`.
    pub unit: String,
    pub description: Option<String>,
}

/// A registered usage type, in its newest version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageType {
    pub name: String,
    /// 1 for the first.
    pub version: i32,
    pub kind: Kind,
    pub unit: String,
    pub description: Option<String>,
    /// From which timestamp the version applies, in microseconds since the Unix epoch; `None` for version 1, which applies to
    /// all times.
    pub valid_from: Option<i64>,
    /// Microseconds since the Unix epoch.
    pub created_at: i64,
}

/// What became of a registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registration {
    /// It is new.
    Created(UsageType),
    /// The same was registered before.
    Unchanged(UsageType),
    /// Another one has this name: the one given. Nothing was changed.
    Different(UsageType),
}

impl Registration {
    /// The type that is registered now.
    pub fn usage_type(&self) -> &UsageType {
        let (Self::Created(found) | Self::Unchanged(found) | Self::Different(found)) = self;
        found
    }
}

#[derive(FromRow)]
struct Row {
    name: String,
    version: i32,
    kind: String,
    unit: String,
    description: Option<String>,
    valid_from: Option<OffsetDateTime>,
    created_at: OffsetDateTime,
}

impl Row {
    fn into_type(self) -> Result<UsageType, ControlError> {
        let kind = match self.kind.as_str() {
            "counter" => Kind::Counter,
            "gauge" => Kind::Gauge,
            other => return Err(ControlError::Unknown(format!("kind {other}"))),
        };
        Ok(UsageType {
            name: self.name,
            version: self.version,
            kind,
            unit: self.unit,
            description: self.description,
            valid_from: self.valid_from.map(clock::to_micros),
            created_at: clock::to_micros(self.created_at),
        })
    }
}

impl NewUsageType {
    /// Checks name, unit and description.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] with the field's name.
    pub fn validate(&self) -> Result<(), ControlError> {
        usage_schemas::validate::name("name", &self.name)
            .map_err(|invalid| ControlError::invalid("name", invalid.detail))?;
        let plain = |text: &str, most: usize| {
            (1..=most).contains(&text.chars().count())
                && !text.chars().any(char::is_control)
                && text.trim() == text
        };
        if !plain(&self.unit, UNIT_CHARACTERS) {
            let detail = format!(
                "1 to {UNIT_CHARACTERS} characters, none of them a control character, no space at the ends"
            );
            return Err(ControlError::invalid("unit", detail));
        }
        if let Some(text) = &self.description
            && (text.chars().count() > DESCRIPTION_CHARACTERS || text.contains('\0'))
        {
            let detail = format!("at most {DESCRIPTION_CHARACTERS} characters, no U+0000");
            return Err(ControlError::invalid("description", detail));
        }
        Ok(())
    }

    fn is(&self, other: &UsageType) -> bool {
        self.kind == other.kind && self.unit == other.unit && self.description == other.description
    }
}

impl Control {
    /// Registers a usage type. The same content again is [`Registration::Unchanged`].
    ///
    /// # Errors
    /// [`ControlError::Invalid`] for a field that breaks its bound; what the database says.
    pub async fn register_type(&self, new: &NewUsageType) -> Result<Registration, ControlError> {
        new.validate()?;
        let insert = async {
            let row: Option<Row> = sqlx::query_as(
                "INSERT INTO usage_types (name, kind, unit, description) VALUES ($1, $2, $3, $4)
                 ON CONFLICT (name, version) DO NOTHING
                 RETURNING name, version, kind, unit, description, valid_from, created_at",
            )
            .bind(&new.name)
            .bind(new.kind.as_str())
            .bind(&new.unit)
            .bind(&new.description)
            .fetch_optional(&self.pool)
            .await?;
            row.map(Row::into_type).transpose()
        };
        if let Some(created) = self.within(insert).await? {
            return Ok(Registration::Created(created));
        }
        // Types are never deleted, so what was in the way is there to be read.
        let found =
            self.usage_type(&new.name).await?.ok_or(ControlError::Database(sqlx::Error::RowNotFound))?;
        Ok(if new.is(&found) { Registration::Unchanged(found) } else { Registration::Different(found) })
    }

    /// All usage types in their newest version, ascending by name.
    ///
    /// # Errors
    /// What the database says.
    pub async fn usage_types(&self) -> Result<Vec<UsageType>, ControlError> {
        self.within(async {
            let rows: Vec<Row> = sqlx::query_as(
                "SELECT DISTINCT ON (name) name, version, kind, unit, description, valid_from, created_at
                 FROM usage_types ORDER BY name, version DESC",
            )
            .fetch_all(&self.pool)
            .await?;
            rows.into_iter().map(Row::into_type).collect()
        })
        .await
    }

    /// One usage type in its newest version; `None` if no such name is registered.
    ///
    /// # Errors
    /// What the database says.
    pub async fn usage_type(&self, name: &str) -> Result<Option<UsageType>, ControlError> {
        self.within(async {
            let row: Option<Row> = sqlx::query_as(
                "SELECT name, version, kind, unit, description, valid_from, created_at
                 FROM usage_types WHERE name = $1 ORDER BY version DESC LIMIT 1",
            )
            .bind(name)
            .fetch_optional(&self.pool)
            .await?;
            row.map(Row::into_type).transpose()
        })
        .await
    }
}
