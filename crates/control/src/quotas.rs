//! Quotas: how many records of a source a tenant may have kept within a window of the broker's clock (requirements 3.2).

use std::collections::HashMap;

use sqlx::FromRow;
use time::OffsetDateTime;
use usage_service::clock;
use uuid::Uuid;

use crate::{Control, ControlError};

/// Longest window, seconds: 31 days.
pub const LONGEST_WINDOW: i32 = 31 * 86_400;

/// At most `max_records` records in each window of `window_seconds`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    pub max_records: i64,
    pub window_seconds: i32,
}

impl Quota {
    /// Start of the window that a time lies in, both in seconds since the Unix epoch; the time as the broker has it, in milliseconds.
    /// Windows are whole multiples of their length since the epoch.
    pub fn window_start(&self, broker_millis: i64) -> i64 {
        let window = i64::from(self.window_seconds.max(1));
        broker_millis.div_euclid(1_000).div_euclid(window) * window
    }
}

/// Whom a quota holds for; what names more goes before what names less.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QuotaScope {
    /// Every source without a quota of its own.
    EverySource,
    /// Every tenant of the source without a quota of its own.
    Source(String),
    Tenant(String, Uuid),
}

impl QuotaScope {
    fn columns(&self) -> (Option<&str>, Option<Uuid>) {
        match self {
            Self::EverySource => (None, None),
            Self::Source(source) => (Some(source), None),
            Self::Tenant(source, tenant) => (Some(source), Some(*tenant)),
        }
    }
}

impl std::fmt::Display for QuotaScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::EverySource => write!(f, "every source"),
            Self::Source(source) => write!(f, "source {source}"),
            Self::Tenant(source, tenant) => write!(f, "tenant {tenant} of source {source}"),
        }
    }
}

/// What was set for a scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaRule {
    pub scope: QuotaScope,
    /// `None`: no bound, whatever a wider scope says.
    pub quota: Option<Quota>,
    /// Microseconds since the Unix epoch.
    pub updated_at: i64,
}

/// Everything that is set, to be asked what holds.
#[derive(Debug, Clone, Default)]
pub struct Quotas {
    every_source: Option<QuotaRule>,
    sources: HashMap<String, OfSource>,
}

#[derive(Debug, Clone, Default)]
struct OfSource {
    own: Option<QuotaRule>,
    tenants: HashMap<Uuid, QuotaRule>,
}

impl Quotas {
    pub fn new(rules: impl IntoIterator<Item = QuotaRule>) -> Self {
        let mut quotas = Self::default();
        for rule in rules {
            match rule.scope.clone() {
                QuotaScope::EverySource => quotas.every_source = Some(rule),
                QuotaScope::Source(source) => quotas.sources.entry(source).or_default().own = Some(rule),
                QuotaScope::Tenant(source, tenant) => {
                    quotas.sources.entry(source).or_default().tenants.insert(tenant, rule);
                }
            }
        }
        quotas
    }

    /// True if nothing is set.
    pub fn is_empty(&self) -> bool {
        self.every_source.is_none() && self.sources.is_empty()
    }

    /// What holds for a source and tenant; `None` if nothing was set for them.
    pub fn rule_of(&self, source: &str, tenant: Uuid) -> Option<&QuotaRule> {
        let of_source = self.sources.get(source);
        of_source
            .and_then(|of_source| of_source.tenants.get(&tenant).or(of_source.own.as_ref()))
            .or(self.every_source.as_ref())
    }
}

#[derive(FromRow)]
struct Row {
    source: Option<String>,
    tenant_id: Option<Uuid>,
    max_records: Option<i64>,
    window_seconds: Option<i32>,
    updated_at: OffsetDateTime,
}

impl From<Row> for QuotaRule {
    fn from(row: Row) -> Self {
        let scope = match (row.source, row.tenant_id) {
            (None, _) => QuotaScope::EverySource,
            (Some(source), None) => QuotaScope::Source(source),
            (Some(source), Some(tenant)) => QuotaScope::Tenant(source, tenant),
        };
        let quota = row.max_records.zip(row.window_seconds);
        let quota = quota.map(|(max_records, window_seconds)| Quota { max_records, window_seconds });
        Self { scope, quota, updated_at: clock::to_micros(row.updated_at) }
    }
}

fn validate(scope: &QuotaScope, quota: Option<Quota>) -> Result<(), ControlError> {
    if let (Some(source), _) = scope.columns() {
        usage_schemas::validate::name("source", source)
            .map_err(|invalid| ControlError::invalid("source", invalid.detail))?;
    }
    if let QuotaScope::Tenant(_, tenant) = scope
        && tenant.is_nil()
    {
        return Err(ControlError::invalid("tenant_id", "the nil UUID names nobody"));
    }
    let Some(Quota { max_records, window_seconds }) = quota else { return Ok(()) };
    if max_records < 0 {
        return Err(ControlError::invalid("max_records", "must not be negative"));
    }
    if !(1..=LONGEST_WINDOW).contains(&window_seconds) {
        return Err(ControlError::invalid("window_seconds", format!("must be 1 to {LONGEST_WINDOW}")));
    }
    Ok(())
}

impl Control {
    /// Sets what holds for a scope; `None` is no bound. Workers take it up within their `consumer.quota_refresh`.
    ///
    /// # Errors
    /// [`ControlError::Invalid`]; what the database says.
    pub async fn set_quota(&self, scope: &QuotaScope, quota: Option<Quota>) -> Result<(), ControlError> {
        validate(scope, quota)?;
        let (source, tenant) = scope.columns();
        self.within(async {
            sqlx::query(
                "INSERT INTO quotas (source, tenant_id, max_records, window_seconds) VALUES ($1, $2, $3, $4)
                 ON CONFLICT (source, tenant_id) DO UPDATE
                 SET max_records = excluded.max_records, window_seconds = excluded.window_seconds, updated_at = now()",
            )
            .bind(source)
            .bind(tenant)
            .bind(quota.map(|quota| quota.max_records))
            .bind(quota.map(|quota| quota.window_seconds))
            .execute(&self.pool)
            .await?;
            Ok(())
        })
        .await
    }

    /// Takes away what was set for a scope, so that a wider one holds; false if nothing was. Counters stay.
    ///
    /// # Errors
    /// What the database says.
    pub async fn remove_quota(&self, scope: &QuotaScope) -> Result<bool, ControlError> {
        let (source, tenant) = scope.columns();
        self.within(async {
            let delete = sqlx::query(
                "DELETE FROM quotas WHERE source IS NOT DISTINCT FROM $1 AND tenant_id IS NOT DISTINCT FROM $2",
            );
            Ok(delete.bind(source).bind(tenant).execute(&self.pool).await?.rows_affected() > 0)
        })
        .await
    }

    /// Everything that is set, wide scopes first.
    ///
    /// # Errors
    /// What the database says.
    pub async fn quotas(&self) -> Result<Vec<QuotaRule>, ControlError> {
        self.within(async {
            let rows: Vec<Row> = sqlx::query_as(
                "SELECT source, tenant_id, max_records, window_seconds, updated_at FROM quotas
                 ORDER BY source NULLS FIRST, tenant_id NULLS FIRST",
            )
            .fetch_all(&self.pool)
            .await?;
            Ok(rows.into_iter().map(QuotaRule::from).collect())
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_multiples_of_their_length_also_before_1970() {
        let minute = Quota { max_records: 1, window_seconds: 60 };
        let starts = [0, 59_999, 60_000, 1_700_000_000_000, -1, -60_001].map(|at| minute.window_start(at));
        assert_eq!(starts, [0, 0, 60, 1_699_999_980, -60, -120]);
    }

    #[test]
    fn what_names_more_goes_before_what_names_less() {
        let (tenant, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let rule = |scope, max_records: Option<i64>| QuotaRule {
            scope,
            quota: max_records.map(|max_records| Quota { max_records, window_seconds: 60 }),
            updated_at: 0,
        };
        let mut rules = vec![rule(QuotaScope::Tenant("mail".into(), tenant), None)];
        let of = |rules: &[QuotaRule], source, tenant| {
            let quotas = Quotas::new(rules.iter().cloned());
            assert!(!quotas.is_empty());
            quotas.rule_of(source, tenant).map(|rule| rule.quota.map(|quota| quota.max_records))
        };
        assert_eq!((of(&rules, "mail", tenant), of(&rules, "mail", other)), (Some(None), None));
        rules.push(rule(QuotaScope::EverySource, Some(7)));
        assert_eq!((of(&rules, "mail", other), of(&rules, "disk", tenant)), (Some(Some(7)), Some(Some(7))));
        rules.push(rule(QuotaScope::Source("mail".into()), Some(3)));
        assert_eq!(of(&rules, "mail", tenant), Some(None), "no bound, whatever its source has");
        assert_eq!((of(&rules, "mail", other), of(&rules, "disk", tenant)), (Some(Some(3)), Some(Some(7))));
        assert!(Quotas::default().is_empty());
    }

    #[test]
    fn bounds_name_their_field() {
        let quota = |max_records, window_seconds| Some(Quota { max_records, window_seconds });
        let source = || QuotaScope::Source("mail".into());
        for (scope, quota, field) in [
            (QuotaScope::Source("Mail".into()), None, "source"),
            (QuotaScope::Tenant("mail".into(), Uuid::nil()), None, "tenant_id"),
            (source(), quota(-1, 60), "max_records"),
            (source(), quota(1, 0), "window_seconds"),
            (source(), quota(1, LONGEST_WINDOW + 1), "window_seconds"),
        ] {
            let error = validate(&scope, quota).unwrap_err();
            assert!(matches!(error, ControlError::Invalid { field: found, .. } if found == field), "{error}");
        }
        assert!(validate(&QuotaScope::EverySource, quota(0, LONGEST_WINDOW)).is_ok());
    }
}
