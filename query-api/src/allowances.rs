//! Allowances that other services spend, read from their database.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use usage_limits::{Allowance, AllowanceError, Counter, Period, PeriodUse, Zone};

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
    let MeterConfig { name, period, zone, limit } = config;
    let zone = zone.as_deref().map(Zone::parse).transpose();
    let zone = zone.map_err(|error| format!("allowances.meters[].zone: {error}"))?;
    let period = match (period.as_str(), zone) {
        ("month", None) => Period::CalendarMonthUtc,
        ("month", Some(zone)) => Period::CalendarMonth { zone },
        ("day", None) => Period::Day,
        ("day", Some(zone)) => Period::LocalDay { zone },
        (other, _) => return Err(format!("allowances.meters[].period: `{other}` is neither month nor day")),
    };
    if limit.is_some_and(|limit| limit < 0) {
        return Err("allowances.meters[].limit must not be negative".to_owned());
    }
    if name.is_empty() || name.contains('\0') {
        return Err("allowances.meters[].name must name a meter".to_owned());
    }
    Ok(Meter { name: name.clone(), period, limit: *limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(period: &str, zone: Option<&str>, limit: Option<i64>) -> AllowancesConfig {
        let meter = MeterConfig {
            name: "mail_sent".to_owned(),
            period: period.to_owned(),
            zone: zone.map(str::to_owned),
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
