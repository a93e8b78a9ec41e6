//! `GET /v1/usage/records/{id}`

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use usage_service::problem::Problem;

use super::{json, no_parameters};
use crate::accept::{Format, negotiate};
use crate::auth::Caller;
use crate::failure::Failure;
use crate::grant::Named;
use crate::params::parse_uuid;
use crate::records::JsonRecord;
use crate::state::App;

/// One record of the caller's tenant, whatever its status. Another tenant's record, or one beyond the caller's bounds, is not there.
pub async fn get(
    State(app): State<App>,
    caller: Caller,
    headers: HeaderMap,
    RawQuery(raw): RawQuery,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Failure> {
    let grant = caller.may(&app, Named::NOTHING).await?;
    negotiate(&headers, &[Format::Json])?;
    no_parameters(raw.as_deref())?;
    let id = id.map(|Path(id)| id).unwrap_or_default();
    let record_id = parse_uuid(&id).map_err(|(code, detail)| Failure::parameter("id", code, detail))?;
    match app.store.record(&grant, record_id).await? {
        Some(record) => json(&JsonRecord::new(&record)),
        None => Err(Problem::not_found("the tenant has no record with this id").into()),
    }
}
