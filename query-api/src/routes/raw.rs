//! `GET /v1/usage/raw`

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{RawQuery as RawQueryString, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Serialize;
use usage_storage::StoredRecord;

use super::{internal, json, registered, streamed};
use crate::accept::{Format, negotiate};
use crate::auth::Caller;
use crate::csv::Writer;
use crate::failure::Failure;
use crate::filters::Filters;
use crate::grant::{Grant, Named};
use crate::raw_query::{Position, RawQuery};
use crate::records::{JsonRecord, csv_header, csv_record};
use crate::state::App;
use crate::store::Store;
use crate::stream;
use crate::zones::Zone;

/// Records that a stream asks for at once: a page of them stays below 10 MiB with the largest metadata.
const STREAM_ROWS: usize = 1_000;

#[derive(Serialize)]
struct Answer<'a> {
    from: String,
    to: String,
    data: Vec<JsonRecord<'a>>,
    next_cursor: Option<String>,
}

/// JSON: one page. CSV and NDJSON: the whole rest of the range.
pub async fn get(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    RawQueryString(raw): RawQueryString,
) -> Result<Response, Failure> {
    // Faults are told to those who may ask at all.
    let format = negotiate(&headers, &[Format::Json, Format::Csv, Format::NdJson]);
    let streamed_whole = format.as_ref().is_ok_and(|format| *format != Format::Json);
    let query = RawQuery::read(raw.as_deref(), streamed_whole);
    let named = Named::filters(query.as_ref().ok().map(|query| &query.filters));
    let grant = caller.may(&app, named).await?;
    let (format, query) = (format?, Arc::new(query?));
    let narrowed = grant.narrow(&query.filters)?;
    registered(&app, &caller, &grant, "metric", &query.filters.metrics).await?;
    let hash = query.hash(&grant);
    let after: Option<Position> =
        query.cursor.as_deref().map(|cursor| app.cursors.open(hash, cursor)).transpose()?;
    let limit = if format == Format::Json { query.page_rows() } else { STREAM_ROWS };
    let store = app.store.clone();
    let pages = Pages { store, grant, narrowed, query: query.clone(), format, limit };
    // The first page comes before the head of the answer, so that what fails at once is a problem.
    let (records, next) = pages.page(after).await?;
    if format != Format::Json {
        let first = pages.text(&records, true)?;
        let rest = next.map(|next| (Pages { store: pages.store.for_stream(), ..pages }, next));
        return Ok(streamed(format, stream::pages(first, rest, next_piece)));
    }
    let zone = Zone::utc();
    json(&Answer {
        from: zone.format(query.from),
        to: zone.format(query.to),
        data: records.iter().map(JsonRecord::new).collect(),
        next_cursor: next.map(|next| app.cursors.sign(hash, &next)),
    })
}

struct Pages {
    store: Store,
    grant: Grant,
    /// Those of the query, narrowed to what the caller may see.
    narrowed: Filters,
    query: Arc<RawQuery>,
    format: Format,
    limit: usize,
}

async fn next_piece(
    (pages, after): (Pages, Position),
) -> Result<(Bytes, Option<(Pages, Position)>), Failure> {
    let (records, next) = pages.page(Some(after)).await?;
    Ok((pages.text(&records, false)?, next.map(|next| (pages, next))))
}

impl Pages {
    /// The records after a position, and where the next page begins: a full page may be the last one, then the next is empty.
    async fn page(&self, after: Option<Position>) -> Result<(Vec<StoredRecord>, Option<Position>), Failure> {
        if self.query.from == self.query.to {
            return Ok((Vec::new(), None));
        }
        let question = self.query.question(self.grant.tenant_id(), &self.narrowed, after, self.limit);
        let records = self.store.raw(&self.grant, &question).await?;
        let full = records.len() >= self.limit;
        let next = records.last().filter(|_| full).map(|record| (record.timestamp, record.record_id));
        Ok((records, next))
    }

    fn text(&self, records: &[StoredRecord], with_header: bool) -> Result<Bytes, Failure> {
        if self.format == Format::NdJson {
            let mut text = Vec::new();
            for record in records {
                serde_json::to_writer(&mut text, &JsonRecord::one_line(record))
                    .map_err(|error| internal(&error))?;
                text.push(b'\n');
            }
            return Ok(text.into());
        }
        let mut writer = Writer::new();
        if with_header {
            csv_header(&mut writer).map_err(|error| internal(&error))?;
        }
        for record in records {
            csv_record(&mut writer, record).map_err(|error| internal(&error))?;
        }
        writer.take().map_err(|error| internal(&error))
    }
}
