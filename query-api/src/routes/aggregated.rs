//! `GET /v1/usage/aggregated`

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use usage_storage::RowKey;

use super::{internal, json, registered, streamed};
use crate::accept::{Format, negotiate};
use crate::answer::{Answer, csv_header, csv_rows};
use crate::auth::Caller;
use crate::csv::Writer;
use crate::failure::Failure;
use crate::grant::Named;
use crate::pages::Pages;
use crate::query::{AggregatedQuery, Aggregation};
use crate::registry::Types;
use crate::state::App;
use crate::stream;

/// JSON: one page. CSV: the whole rest of the range.
pub async fn get(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    RawQuery(raw): RawQuery,
) -> Result<Response, Failure> {
    // Faults are told to those who may ask at all.
    let query = AggregatedQuery::read(raw.as_deref(), app.limits.window_days);
    let named = Named::filters(query.as_ref().ok().map(|query| &query.filters));
    let grant = caller.may(&app, named).await?;
    let format = negotiate(&headers, &[Format::Json, Format::Csv])?;
    let query = Arc::new(query?);
    let narrowed = grant.narrow(&query.filters)?;
    let types = registered(&app, &caller, &grant, "metric", &query.filters.metrics).await?;
    same_unit(&query, &types)?;
    let hash = query.hash(&grant);
    let after: Option<RowKey> =
        query.cursor.as_deref().map(|cursor| app.cursors.open(hash, cursor)).transpose()?;
    let sources = narrowed.sources.clone();
    let mut pages = Pages::new(
        app.store.clone(),
        app.catalog.clone(),
        (grant, narrowed),
        query.clone(),
        types,
        app.limits.aggregated_rows,
    );
    // CSV has rows only. Progress comes before the rows: what it says is complete is among them.
    let complete_until = match format {
        Format::Csv => None,
        _ => app.catalog.completeness().await?.complete_until(&sources),
    };
    // The first page comes before the head of the answer, so that what fails at once is a problem.
    let page = pages.page(after).await?;
    if format == Format::Csv {
        let mut writer = Writer::new();
        csv_header(&mut writer, query.group_by).map_err(|error| internal(&error))?;
        csv_rows(&mut writer, &query, &page.rows).map_err(|error| internal(&error))?;
        let first = writer.take().map_err(|error| internal(&error))?;
        let rest = page.next.map(|next| (pages.for_stream(), query, next));
        return Ok(streamed(format, stream::pages(first, rest, csv_page)));
    }
    let next_cursor = page.next.as_ref().map(|next| app.cursors.sign(hash, next));
    json(&Answer { query: &query, page: &page, complete_until, next_cursor })
}

type Rest = (Pages, Arc<AggregatedQuery>, RowKey);

async fn csv_page((mut pages, query, after): Rest) -> Result<(axum::body::Bytes, Option<Rest>), Failure> {
    let page = pages.page(Some(after)).await?;
    let mut writer = Writer::new();
    csv_rows(&mut writer, &query, &page.rows).map_err(|error| internal(&error))?;
    let piece = writer.take().map_err(|error| internal(&error))?;
    Ok((piece, page.next.map(|next| (pages, query, next))))
}

/// Several metrics in one row must share their unit; only a count adds up over units.
fn same_unit(query: &AggregatedQuery, types: &Types) -> Result<(), Failure> {
    let metrics = &query.filters.metrics;
    if query.group_by.metric || query.aggregation == Aggregation::Count {
        return Ok(());
    }
    let units: std::collections::BTreeSet<_> =
        metrics.iter().filter_map(|metric| types.get(metric)).map(|found| &found.newest().unit).collect();
    if units.len() <= 1 {
        return Ok(());
    }
    let units: Vec<_> = units.into_iter().map(String::as_str).collect();
    let detail = format!(
        "the metrics have different units ({}), which don't add: add `group_by=metric`",
        units.join(", ")
    );
    Err(Failure::parameter("metric", "needs_group_by", detail))
}
