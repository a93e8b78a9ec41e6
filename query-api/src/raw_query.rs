//! `GET /v1/usage/raw`: what was asked.

use usage_storage::{RawQuery as StorageQuery, StatusFilter};
use uuid::Uuid;

use crate::cursor::QueryHash;
use crate::filters::Filters;
use crate::grant::Grant;
use crate::params::{ParameterError, Params};

/// Every parameter of the path.
pub const PARAMETERS: &[&str] = &[
    "from",
    "to",
    "metric",
    "source",
    "subject_id",
    "subject_type",
    "resource_id",
    "resource_type",
    "status",
    "limit",
    "cursor",
];

const DEFAULT_LIMIT: usize = 100;
const MOST: usize = 1_000;

/// Where a page of records begins: after this (timestamp, id).
pub type Position = (i64, Uuid);

/// A question for records, valid in itself.
#[derive(Debug, Clone)]
pub struct RawQuery {
    pub from: i64,
    pub to: i64,
    pub filters: Filters,
    pub status: StatusFilter,
    /// As it was given; a stream takes none.
    pub limit: Option<usize>,
    pub cursor: Option<String>,
}

impl RawQuery {
    /// Reads the raw query string. A stream has the whole range, so it takes no `limit`.
    ///
    /// # Errors
    /// Every fault of the request.
    pub fn read(raw: Option<&str>, streamed: bool) -> Result<Self, Vec<ParameterError>> {
        let mut params = Params::parse(raw, PARAMETERS);
        let range = params.range();
        let filters = Filters::read(&mut params);
        let words = [
            ("active", StatusFilter::Active),
            ("inactive", StatusFilter::Inactive),
            ("all", StatusFilter::All),
        ];
        let status = params.word("status", &words).unwrap_or_default();
        let limit = read_limit(&mut params);
        if streamed && limit.is_some() {
            let detail = "CSV and NDJSON have the whole range: leave `limit` out, or accept application/json";
            params.reject("limit", "not_applicable", detail);
        }
        let cursor = params.one("cursor");
        let query = range.map(|(from, to)| Self { from, to, filters, status, limit, cursor });
        params.finish(query)
    }

    /// Records of a page.
    pub fn page_rows(&self) -> usize {
        self.limit.unwrap_or(DEFAULT_LIMIT)
    }

    /// What a cursor of this query is bound to. The limit is not part of it: a caller may go on in other steps.
    pub fn hash(&self, grant: &Grant) -> QueryHash {
        let status = match self.status {
            StatusFilter::Active => 0,
            StatusFilter::Inactive => 1,
            StatusFilter::All => 2,
        };
        QueryHash::of("raw", &(grant, self.from, self.to, status, &self.filters))
    }

    /// The question in storage's terms, with filters that were narrowed to what the caller may see.
    pub fn question(
        &self,
        tenant_id: Uuid,
        narrowed: &Filters,
        after: Option<Position>,
        limit: usize,
    ) -> StorageQuery {
        StorageQuery {
            tenant_id,
            metrics: narrowed.metrics.clone(),
            from: self.from,
            to: self.to,
            status: self.status,
            sources: narrowed.sources.clone(),
            subject_ids: narrowed.subject_ids.clone(),
            subject_types: narrowed.subject_types.clone(),
            resource_ids: narrowed.resource_ids.clone(),
            resource_types: narrowed.resource_types.clone(),
            after,
            limit,
        }
    }
}

fn read_limit(params: &mut Params) -> Option<usize> {
    let text = params.one("limit")?;
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(limit) if digits && (1..=MOST).contains(&limit) => Some(limit),
        _ => {
            params.reject("limit", "out_of_range", format!("a whole number from 1 to {MOST}"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: &str = "from=2026-01-01T00:00:00Z&to=2026-02-01T00:00:00Z";

    fn read(rest: &str) -> Result<RawQuery, Vec<ParameterError>> {
        RawQuery::read(Some(&format!("{RANGE}&{rest}")), false)
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let query = read("").unwrap();
        assert_eq!((query.page_rows(), query.status), (100, StatusFilter::Active));
        assert_eq!(query.filters, Filters::default());
    }

    #[test]
    fn limits_are_never_clamped() {
        assert_eq!(read("limit=1").unwrap().page_rows(), 1);
        assert_eq!(read("limit=1000").unwrap().page_rows(), 1_000);
        for wrong in ["0", "1001", "-1", "%2B5", "5.0", "1e2", "ten", "99999999999999999999999"] {
            let errors = read(&format!("limit={wrong}")).unwrap_err();
            assert_eq!((errors[0].parameter.as_str(), errors[0].code), ("limit", "out_of_range"), "{wrong}");
        }
    }

    #[test]
    fn a_stream_takes_no_limit() {
        let errors = RawQuery::read(Some(&format!("{RANGE}&limit=5")), true).unwrap_err();
        assert_eq!(errors[0].code, "not_applicable");
        assert!(RawQuery::read(Some(RANGE), true).is_ok());
    }

    #[test]
    fn windows_are_not_for_records() {
        for stranger in ["window_size=DAY", "fill=zero", "group_by=source", "aggregation=sum"] {
            assert_eq!(read(stranger).unwrap_err()[0].code, "unknown_parameter", "{stranger}");
        }
        assert_eq!(read("status=deleted").unwrap_err()[0].code, "unknown_value");
    }

    #[test]
    fn a_cursor_is_bound_to_everything_but_the_limit() {
        let of = |tenant| Grant::unbounded(Uuid::from_u128(tenant));
        let hash = |rest: &str| read(rest).unwrap().hash(&of(1));
        assert_eq!(hash("limit=5"), hash("limit=7"));
        assert_ne!(hash(""), hash("status=all"));
        assert_ne!(hash(""), hash("metric=a"));
        assert_ne!(hash("resource_type=a"), hash("subject_type=a"));
        assert_ne!(hash(""), read("").unwrap().hash(&of(2)));
    }
}
