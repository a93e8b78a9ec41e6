//! Allowances that other services spend, read from their database.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use usage_limits::{Allowance, AllowanceError, Counter, Period, PeriodUse, Zone};
use usage_service::postgres::may_pass;

use crate::config::{AllowancesConfig, MeterConfig};

const CONNECTIONS: u32 = 4;
/// How long one reading may take, with the wait for a connection.
const WITHIN: Duration = Duration::from_secs(5);

/// A meter that can be read.
#[derive(Debug, Clone)]
pub struct Meter {
    pub name: String,
    pub period: Period,
    pub limit: Option<i64>,
}

/// What the configuration says of allowances.
#[derive(Debug)]
pub struct Spending {
    database: PgConnectOptions,
    allowance: Allowance,
    meters: Vec<Meter>,
}

/// A table of allowances and its meters.
#[derive(Debug)]
pub struct Allowances {
    pool: PgPool,
    allowance: Allowance,
    meters: Vec<Meter>,
}

/// Why allowances could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Allowance(#[from] AllowanceError),
    #[error("the allowances' database did not answer within {WITHIN:?}")]
    Timeout,
}

impl ReadError {
    /// True when the same question may be answered later.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Timeout => true,
            Self::Allowance(AllowanceError::Database(error)) => may_pass(error),
            Self::Allowance(_) => false,
        }
    }
}

impl Spending {
    /// None where no database is configured.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub fn read(config: &AllowancesConfig) -> Result<Option<Self>, String> {
        let Some(database) = config.database() else {
            return if config.meters.is_empty() {
                Ok(None)
            } else {
                Err("allowances.meters needs allowances.database_url".to_owned())
            };
        };
        let database = database.options().map_err(|error| format!("allowances.database_url {error}"))?;
        let allowance =
            Allowance::new(&config.table).map_err(|error| format!("allowances.table: {error}"))?;
        let meters = config.meters.iter().map(meter).collect::<Result<_, _>>()?;
        Ok(Some(Self { database, allowance, meters }))
    }
}

impl Allowances {
    /// Connects when first asked.
    pub fn connect_lazy(spending: Spending) -> Self {
        let Spending { database, allowance, meters } = spending;
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(WITHIN)
            .connect_lazy_with(database.application_name("usage-query-api"));
        Self { pool, allowance, meters }
    }

    pub fn meters(&self) -> &[Meter] {
        &self.meters
    }

    /// What `subject` used of the meter in the last `periods` periods, the present one first.
    ///
    /// # Errors
    /// The database, or a time limit.
    pub async fn history(
        &self,
        subject: &str,
        meter: &Meter,
        periods: u32,
    ) -> Result<Vec<PeriodUse>, ReadError> {
        let counter =
            Counter { subject, meter: &meter.name, period: &meter.period, now: usage_service::clock::now() };
        let read = async {
            let mut connection = self.pool.acquire().await.map_err(AllowanceError::from)?;
            Ok(self.allowance.history(&mut connection, counter, periods).await?)
        };
        tokio::time::timeout(WITHIN, read).await.map_err(|_| ReadError::Timeout)?
    }
}

fn meter(config: &MeterConfig) -> Result<Meter, String> {
    let MeterConfig { name, limit, .. } = config;
    let period = period(config).map_err(|error| format!("allowances.meters[].{error}"))?;
    if limit.is_some_and(|limit| limit < 0) {
        return Err("allowances.meters[].limit must not be negative".to_owned());
    }
    if name.is_empty() || name.contains('\0') {
        return Err("allowances.meters[].name must name a meter".to_owned());
    }
    Ok(Meter { name: name.clone(), period, limit: *limit })
}

/// The error begins with the field's name.
fn period(config: &MeterConfig) -> Result<Period, String> {
    let MeterConfig { period, zone, anchor, every_months, .. } = config;
    if period == "anchored" {
        return anchored(config);
    }
    if anchor.is_some() || every_months.is_some() {
        let field = if anchor.is_some() { "anchor" } else { "every_months" };
        return Err(format!("{field} is for `period = \"anchored\"` only"));
    }
    let zone = zone.as_deref().map(Zone::parse).transpose().map_err(|error| format!("zone: {error}"))?;
    match (period.as_str(), zone) {
        ("month", None) => Ok(Period::CalendarMonthUtc),
        ("month", Some(zone)) => Ok(Period::CalendarMonth { zone }),
        ("day", None) => Ok(Period::Day),
        ("day", Some(zone)) => Ok(Period::LocalDay { zone }),
        (other, _) => Err(format!("period: `{other}` is neither `month`, `day` nor `anchored`")),
    }
}

/// A billing cycle, the same for all subjects of the meter.
fn anchored(config: &MeterConfig) -> Result<Period, String> {
    if config.zone.is_some() {
        return Err("zone: an anchored period keeps the anchor's UTC time of day and has no zone".to_owned());
    }
    let text = config.anchor.as_deref().ok_or("anchor is missing: where does the first period start?")?;
    let anchor = OffsetDateTime::parse(text, &Rfc3339)
        .map_err(|_| format!("anchor: `{text}` is not like 2026-01-31T00:00:00Z"))?;
    let period = Period::anchored(anchor, config.every_months.unwrap_or(1))
        .map_err(|error| format!("every_months: {error}"))?;
    // A cycle that leaves the calendar could never be read.
    period
        .window_at(usage_service::clock::now())
        .map_err(|error| format!("anchor, every_months: {error}"))?;
    Ok(period)
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;

    fn config(period: &str, zone: Option<&str>, limit: Option<i64>) -> AllowancesConfig {
        let meter = MeterConfig {
            name: "mail_sent".to_owned(),
            period: period.to_owned(),
            zone: zone.map(str::to_owned),
            anchor: None,
            every_months: None,
            limit,
        };
        AllowancesConfig {
            database_url: Some("postgres://usage:secret@127.0.0.1/mails".into()),
            table: "mail_usage".to_owned(),
            meters: vec![meter],
            allow_plaintext: false,
            ca_file: None,
            client_certificate: None,
            client_key: None,
        }
    }

    #[test]
    fn meters_have_periods_by_their_words() {
        let allowances = Spending::read(&config("month", None, Some(0))).unwrap().unwrap();
        assert_eq!(allowances.meters[0].period, Period::CalendarMonthUtc);
        let local = Spending::read(&config("day", Some("europe/budapest"), None)).unwrap().unwrap();
        let zone = Zone::parse("Europe/Budapest").unwrap();
        assert_eq!(local.meters[0].period, Period::LocalDay { zone });
    }

    /// An anchored meter.
    fn cycle(anchor: Option<&str>, every_months: Option<u32>) -> AllowancesConfig {
        let mut config = config("anchored", None, None);
        config.meters[0].anchor = anchor.map(str::to_owned);
        config.meters[0].every_months = every_months;
        config
    }

    #[test]
    fn anchored_meters_have_an_anchor_and_a_cycle() {
        let period = |config| Spending::read(&config).unwrap().unwrap().meters[0].period.clone();
        let monthly = period(cycle(Some("2025-01-31T09:00:00Z"), None));
        assert_eq!(monthly, Period::anchored(datetime!(2025-01-31 09:00 UTC), 1).unwrap());
        let window = monthly.window_at(datetime!(2025-03-01 00:00 UTC)).unwrap();
        assert_eq!(window.start, datetime!(2025-02-28 09:00 UTC));
        let quarterly = period(cycle(Some("2025-01-31T10:00:00+01:00"), Some(3)));
        assert_eq!(quarterly, Period::anchored(datetime!(2025-01-31 09:00 UTC), 3).unwrap());
        let zoned = |mut config: AllowancesConfig| {
            config.meters[0].zone = Some("Europe/Budapest".to_owned());
            config
        };
        let kind = |mut config: AllowancesConfig, period: &str| {
            config.meters[0].period = period.to_owned();
            config
        };
        let anchor = Some("2025-01-31T09:00:00Z");
        for (config, field) in [
            (cycle(None, Some(1)), "anchor is missing"),
            (cycle(Some("2025-01-31"), None), "anchor: `2025-01-31`"),
            (cycle(Some("2025-02-30T00:00:00Z"), None), "anchor: "),
            (cycle(anchor, Some(0)), "every_months: "),
            (cycle(anchor, Some(u32::MAX)), "anchor, every_months: the period reaches beyond"),
            (zoned(cycle(anchor, None)), "zone: "),
            (kind(cycle(anchor, None), "month"), "anchor is for"),
            (kind(cycle(None, Some(2)), "day"), "every_months is for"),
        ] {
            let error = Spending::read(&config).unwrap_err();
            assert!(error.contains(&format!("allowances.meters[].{field}")), "{field}: {error}");
        }
    }

    #[test]
    fn what_cant_be_meant_is_refused_by_the_settings_name() {
        for (config, setting) in [
            (config("week", None, None), "allowances.meters[].period"),
            (config("day", Some("Europe/Budapset"), None), "allowances.meters[].zone"),
            (config("day", None, Some(-1)), "allowances.meters[].limit"),
            (AllowancesConfig { table: "a b".to_owned(), ..config("day", None, None) }, "allowances.table"),
            (AllowancesConfig { database_url: None, ..config("day", None, None) }, "allowances.database_url"),
            (
                AllowancesConfig { database_url: Some("secret".into()), ..config("day", None, None) },
                "allowances.database_url",
            ),
        ] {
            let error = Spending::read(&config).unwrap_err();
            assert!(error.contains(setting) && !error.contains("secret"), "{error}");
        }
    }
}
