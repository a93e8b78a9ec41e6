//! Whose usage a source emits.

use sqlx::FromRow;
use uuid::Uuid;

use crate::{Control, ControlError};

/// Whose usage a source emits: its home tenant's freely; any other tenant is a question to the policy point, which is told this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Attribution {
    /// Registered for every tenant; the shipped policies permit it.
    AnyTenant,
    /// Its own tenant.
    HomeTenant(Uuid),
    /// Nobody's without a policy that names it; also what holds for a source of which nothing was said.
    #[default]
    ByPolicy,
}

impl Attribution {
    /// The tenant for whom it emits without anybody being asked.
    pub fn home_tenant(self) -> Option<Uuid> {
        match self {
            Self::HomeTenant(home) => Some(home),
            Self::AnyTenant | Self::ByPolicy => None,
        }
    }

    pub fn any_tenant(self) -> bool {
        self == Self::AnyTenant
    }
}

/// A source of which it was said whose usage it emits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    pub name: String,
    pub attribution: Attribution,
}

#[derive(FromRow)]
struct Row {
    source: String,
    home_tenant: Option<Uuid>,
    any_tenant: bool,
}

impl From<Row> for Source {
    fn from(row: Row) -> Self {
        let attribution = match (row.any_tenant, row.home_tenant) {
            (true, _) => Attribution::AnyTenant,
            (false, Some(home)) => Attribution::HomeTenant(home),
            (false, None) => Attribution::ByPolicy,
        };
        Self { name: row.source, attribution }
    }
}

impl Control {
    /// Says whose usage a source emits, whatever was said before. Workers take it up with their next look at the registry; before they
    /// refuse a record they look.
    ///
    /// # Errors
    /// [`ControlError::Invalid`]; what the database says.
    pub async fn set_source(&self, name: &str, attribution: Attribution) -> Result<(), ControlError> {
        let (home_tenant, any_tenant) = checked(name, attribution)?;
        self.within(async {
            let upsert = sqlx::query(
                "INSERT INTO sources (source, home_tenant, any_tenant) VALUES ($1, $2, $3)
                 ON CONFLICT (source) DO UPDATE
                 SET home_tenant = excluded.home_tenant, any_tenant = excluded.any_tenant, updated_at = now()",
            );
            upsert.bind(name).bind(home_tenant).bind(any_tenant).execute(&self.pool).await?;
            Ok(())
        })
        .await
    }

    /// Says it of a source of which nothing was said yet; false if something was, which stays.
    ///
    /// # Errors
    /// [`ControlError::Invalid`]; what the database says.
    pub async fn add_source(&self, name: &str, attribution: Attribution) -> Result<bool, ControlError> {
        let (home_tenant, any_tenant) = checked(name, attribution)?;
        self.within(async {
            let insert = sqlx::query(
                "INSERT INTO sources (source, home_tenant, any_tenant) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
            );
            let inserted = insert.bind(name).bind(home_tenant).bind(any_tenant).execute(&self.pool).await?;
            Ok(inserted.rows_affected() > 0)
        })
        .await
    }

    /// All sources of which something was said, ascending by name.
    ///
    /// # Errors
    /// What the database says.
    pub async fn sources(&self) -> Result<Vec<Source>, ControlError> {
        self.within(async {
            let select = sqlx::query_as::<_, Row>(
                "SELECT source, home_tenant, any_tenant FROM sources ORDER BY source",
            );
            Ok(select.fetch_all(&self.pool).await?.into_iter().map(Source::from).collect())
        })
        .await
    }
}

fn checked(name: &str, attribution: Attribution) -> Result<(Option<Uuid>, bool), ControlError> {
    check_name(name)?;
    if attribution.home_tenant().is_some_and(|home| home.is_nil()) {
        return Err(ControlError::invalid("home_tenant", "the nil UUID is no tenant"));
    }
    Ok((attribution.home_tenant(), attribution.any_tenant()))
}

pub(crate) fn check_name(name: &str) -> Result<(), ControlError> {
    usage_schemas::validate::name("source", name)
        .map_err(|invalid| ControlError::invalid("source", invalid.detail))
}
