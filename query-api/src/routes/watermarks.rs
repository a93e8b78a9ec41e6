//! `GET /v1/usage/metadata/watermarks`

use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;
use usage_schemas::Timestamp;

use super::{json, no_parameters};
use crate::accept::{Format, negotiate};
use crate::auth::Caller;
use crate::failure::Failure;
use crate::filters::Filters;
use crate::grant::Named;
use crate::state::App;

#[derive(Serialize)]
struct Answer {
    /// Of all sources that the caller may see and that are not retired, whether they have records of the tenant or not.
    complete_until: Option<String>,
    sources: Vec<Source>,
}

#[derive(Serialize)]
struct Source {
    source: String,
    records: String,
    latest_timestamp: String,
    latest_ingested_at: String,
    complete_until: Option<String>,
}

/// Counts, latest times and completeness of each source of the tenant, as far as the caller may see them.
pub async fn get(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    RawQuery(raw): RawQuery,
) -> Result<Response, Failure> {
    let grant = caller.may(&app, Named::NOTHING).await?;
    negotiate(&headers, &[Format::Json])?;
    no_parameters(raw.as_deref())?;
    let visible = grant.narrow(&Filters::default())?.sources;
    // Progress first: what it says is complete is stored.
    let known = app.catalog.completeness().await?;
    let complete = |sources: &[String]| {
        known.complete_until(sources).map(|until| Timestamp::from_micros(until).to_string())
    };
    let sources = app.store.watermarks(&grant).await?;
    let sources = sources
        .into_iter()
        .map(|found| Source {
            complete_until: complete(std::slice::from_ref(&found.source)),
            source: found.source,
            records: found.records.to_string(),
            latest_timestamp: Timestamp::from_micros(found.latest_timestamp).to_string(),
            latest_ingested_at: Timestamp::from_micros(found.latest_ingested_at).to_string(),
        })
        .collect();
    json(&Answer { complete_until: complete(&visible), sources })
}
