//! `GET /v1/usage/aggregated`: what was asked.

use serde::Serialize;
use usage_storage::{GroupBy, Measure};

use crate::cursor::QueryHash;
use crate::filters::Filters;
use crate::grant::Grant;
use crate::params::{ParameterError, Params, unknown_value};
use crate::windows::{Cut, WindowSize};
use crate::zones::Zone;

/// Every parameter of the path.
pub const PARAMETERS: &[&str] = &[
    "from",
    "to",
    "metric",
    "aggregation",
    "window_size",
    "window_time_zone",
    "group_by",
    "source",
    "subject_id",
    "subject_type",
    "resource_id",
    "resource_type",
    "fill",
    "cursor",
];

const DAY: i64 = 86_400_000_000;

/// What is computed from the values of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Aggregation {
    Sum,
    Count,
    Min,
    Max,
    Avg,
    Latest,
}

impl Aggregation {
    const WORDS: [(&'static str, Self); 6] = [
        ("sum", Self::Sum),
        ("count", Self::Count),
        ("min", Self::Min),
        ("max", Self::Max),
        ("avg", Self::Avg),
        ("latest", Self::Latest),
    ];

    pub fn as_str(self) -> &'static str {
        Self::WORDS.iter().find(|(_, aggregation)| *aggregation == self).map_or("sum", |(word, _)| word)
    }

    /// What storage must compute beyond count and sum.
    pub fn measure(self) -> Measure {
        Measure { min_max: matches!(self, Self::Min | Self::Max), latest: self == Self::Latest }
    }
}

/// Whether windows without records have rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fill {
    None,
    Zero,
}

/// A question for aggregates, valid in itself.
#[derive(Debug, Clone)]
pub struct AggregatedQuery {
    pub from: i64,
    pub to: i64,
    pub aggregation: Aggregation,
    /// As it was written, for the answer.
    pub window_size: Option<String>,
    pub zone: Zone,
    pub group_by: GroupBy,
    pub filters: Filters,
    pub fill: Fill,
    pub cursor: Option<String>,
    /// How the range is cut; `None` if it is empty.
    pub cut: Option<Cut>,
    size: Option<WindowSize>,
}

impl AggregatedQuery {
    /// Reads the raw query string. A range cut into windows may be `longest_days` long.
    ///
    /// # Errors
    /// Every fault of the request.
    pub fn read(raw: Option<&str>, longest_days: u32) -> Result<Self, Vec<ParameterError>> {
        let mut params = Params::parse(raw, PARAMETERS);
        let range = params.range();
        let aggregation = params.word("aggregation", &Aggregation::WORDS).unwrap_or(Aggregation::Sum);
        let window_size = params.one("window_size");
        let size = window_size.as_deref().and_then(|text| read_size(&mut params, text));
        let zone = read_zone(&mut params);
        let group_by = read_group_by(&mut params);
        let fill = params.word("fill", &[("none", Fill::None), ("zero", Fill::Zero)]).unwrap_or(Fill::None);
        let filters = Filters::read(&mut params);
        let cursor = params.one("cursor");
        if filters.metrics.is_empty() && !group_by.metric {
            let detail = "without `metric` the answer covers all metrics, whose units don't add: give a `metric` or add `group_by=metric`";
            params.reject("metric", "needs_group_by", detail);
        }
        let cut = range.and_then(|(from, to)| read_cut(&mut params, size, &zone, from, to, longest_days));
        let query = range.map(|(from, to)| Self {
            from,
            to,
            aggregation,
            window_size,
            zone,
            group_by,
            filters,
            fill,
            cursor,
            cut,
            size,
        });
        params.finish(query)
    }

    /// What a cursor of this query is bound to.
    pub fn hash(&self, grant: &Grant) -> QueryHash {
        let group_by =
            [self.group_by.metric, self.group_by.source, self.group_by.subject, self.group_by.resource];
        let size = self.size.map(|size| size as u8);
        QueryHash::of(
            "aggregated",
            &(
                grant,
                (self.from, self.to),
                (self.aggregation, size, self.zone.name()),
                group_by,
                &self.filters,
                self.fill,
            ),
        )
    }
}

fn read_size(params: &mut Params, text: &str) -> Option<WindowSize> {
    let size = WindowSize::parse(text);
    if size.is_none() {
        let known: Vec<_> = WindowSize::NAMES.iter().map(|(name, _)| *name).collect();
        params.reject("window_size", "unknown_value", unknown_value(text, &known));
    }
    size
}

fn read_zone(params: &mut Params) -> Zone {
    let Some(name) = params.one("window_time_zone") else { return Zone::utc() };
    Zone::parse(&name).unwrap_or_else(|nearest| {
        let plus =
            if name.contains(' ') { " A `+` means a space in a query, write it as `%2B`." } else { "" };
        let hint = nearest.map(|nearest| format!(", did you mean `{nearest}`?")).unwrap_or_default();
        let detail = format!("not an IANA time zone{hint}{plus}");
        params.reject("window_time_zone", "unknown_zone", detail);
        Zone::utc()
    })
}

fn read_group_by(params: &mut Params) -> GroupBy {
    let mut group_by = GroupBy::default();
    for word in params.list("group_by") {
        match word.as_str() {
            "metric" => group_by.metric = true,
            "source" => group_by.source = true,
            "subject" => group_by.subject = true,
            "resource" => group_by.resource = true,
            other => {
                let detail = unknown_value(other, &["metric", "source", "subject", "resource"]);
                params.reject("group_by", "unknown_value", detail);
            }
        }
    }
    group_by
}

fn read_cut(
    params: &mut Params,
    size: Option<WindowSize>,
    zone: &Zone,
    from: i64,
    to: i64,
    longest_days: u32,
) -> Option<Cut> {
    if from == to {
        return None;
    }
    let Some(size) = size else { return Some(Cut::Total { from, to }) };
    if to - from > i64::from(longest_days) * DAY {
        let detail = format!(
            "a range that is cut into windows may be at most {longest_days} days long: ask for parts of it"
        );
        params.reject("to", "range_too_long", detail);
        return None;
    }
    match Cut::new(size, zone, from, to) {
        Ok(cut) => Some(cut),
        Err(error) => {
            params.reject("from", "out_of_range", error.to_string());
            None
        }
    }
}

#[cfg(test)]
#[path = "query/tests.rs"]
mod tests;
