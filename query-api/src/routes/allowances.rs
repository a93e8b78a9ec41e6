//! `GET /v1/usage/allowances/{subject}`

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;
use usage_limits::{PeriodUse, Window};
use usage_service::problem::Problem;

use super::json;
use crate::accept::{Format, negotiate};
use crate::allowances::Meter;
use crate::auth::Caller;
use crate::failure::Failure;
use crate::grant::{Grant, Named};
use crate::params::{Params, unknown_value};
use crate::state::App;
use crate::zones::Zone;

const MOST_PERIODS: u32 = 100;
const PERIODS: u32 = 12;

#[derive(Serialize)]
struct Answer<'a> {
    subject: &'a str,
    allowances: Vec<AllowanceAnswer<'a>>,
}

#[derive(Serialize)]
struct AllowanceAnswer<'a> {
    meter: &'a str,
    used: String,
    limit: Option<String>,
    /// Null without a limit.
    remaining: Option<String>,
    period: PeriodAnswer,
    /// The present period first.
    history: Vec<Past>,
}

#[derive(Serialize)]
struct PeriodAnswer {
    start: String,
    end: String,
}

#[derive(Serialize)]
struct Past {
    #[serde(flatten)]
    period: PeriodAnswer,
    used: String,
}

/// What a subject of the tenant used of each meter: the tenant's id itself, or what begins with it and a colon.
pub async fn get(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    RawQuery(raw): RawQuery,
    subject: Result<Path<String>, PathRejection>,
) -> Result<Response, Failure> {
    let grant = caller.may(&app, Named::NOTHING).await?;
    negotiate(&headers, &[Format::Json])?;
    let Some(allowances) = &app.allowances else {
        return Err(Problem::not_found("this service was given no table of allowances").into());
    };
    let (wanted, periods) = read(raw.as_deref(), allowances.meters(), &grant)?;
    let subject = subject.map(|Path(subject)| subject).unwrap_or_default();
    if !is_own(&subject, &grant.tenant_id().to_string()) {
        return Err(Problem::not_found("the tenant has no allowances under this subject").into());
    }
    let mut answers = Vec::new();
    for meter in wanted {
        let history = allowances.history(&subject, meter, periods).await?;
        answers.extend(answer(meter, &history));
    }
    json(&Answer { subject: &subject, allowances: answers })
}

/// The meters that are asked for, all that the caller may see by default, and how many periods. A meter is bounded as a metric is.
fn read<'a>(raw: Option<&str>, meters: &'a [Meter], grant: &Grant) -> Result<(Vec<&'a Meter>, u32), Failure> {
    let mut params = Params::parse(raw, &["meter", "periods"]);
    let names = params.many("meter");
    names.iter().try_for_each(|name| grant.metric(name))?;
    let visible = || meters.iter().filter(|meter| grant.has_metric(&meter.name));
    let known: Vec<&str> = visible().map(|meter| meter.name.as_str()).collect();
    for name in names.iter().filter(|name| !known.contains(&name.as_str())) {
        params.reject("meter", "unknown_value", unknown_value(name, &known));
    }
    let periods = params.one("periods").map_or(Ok(PERIODS), |text| text.parse());
    if !matches!(periods, Ok(1..=MOST_PERIODS)) {
        params.reject("periods", "out_of_range", format!("a whole number from 1 to {MOST_PERIODS}"));
    }
    let wanted = visible().filter(|meter| names.is_empty() || names.contains(&meter.name)).collect();
    Ok(params.finish(periods.ok().map(|periods| (wanted, periods)))?)
}

fn is_own(subject: &str, tenant: &str) -> bool {
    let below = |rest: &str| rest.is_empty() || (rest.starts_with(':') && !rest.contains('\0'));
    subject.strip_prefix(tenant).is_some_and(below)
}

fn answer<'a>(meter: &'a Meter, history: &[PeriodUse]) -> Option<AllowanceAnswer<'a>> {
    let present = history.first()?;
    let past = history.iter().map(|past| Past { period: bounds(past.window), used: past.used.to_string() });
    Some(AllowanceAnswer {
        meter: &meter.name,
        used: present.used.to_string(),
        limit: meter.limit.map(|limit| limit.to_string()),
        remaining: meter.limit.map(|limit| limit.saturating_sub(present.used).max(0).to_string()),
        period: bounds(present.window),
        history: past.collect(),
    })
}

fn bounds(window: Window) -> PeriodAnswer {
    let text = |instant: time::OffsetDateTime| Zone::utc().format(instant.unix_timestamp() * 1_000_000);
    PeriodAnswer { start: text(window.start), end: text(window.end) }
}
