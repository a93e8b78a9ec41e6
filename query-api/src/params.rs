//! Query parameters, strictly: nothing is lost or guessed silently, and all faults of a request are told at once.

use std::collections::BTreeMap;

use usage_schemas::Timestamp;
use uuid::Uuid;

use crate::hints::nearest;

/// More values of one parameter than anybody types; keeps questions to storage bounded.
pub const MOST_VALUES: usize = 100;
/// More `name=value` pairs than a question with every filter full has.
const MOST_PAIRS: usize = 1_000;
/// Faults that are listed one by one; nobody reads more.
const MOST_FAULTS: usize = 50;
/// Code of the entry that stands for the faults that are not listed.
pub const MORE_FAULTS: &str = "more_faults";
/// 1900-01-01: what every backend can represent.
const EARLIEST: i64 = -2_208_988_800_000_000;
/// 2200-01-01.
const LATEST: i64 = 7_258_118_400_000_000;

/// Names that other metering systems use, and ours for the same thing.
const ALIASES: &[(&str, &[&str])] = &[
    (
        "from",
        &[
            "start_time",
            "start",
            "starts_at",
            "starting_on",
            "timeframe_start",
            "timestamp_from",
            "since",
            "after",
            "date_from",
            "gte",
        ],
    ),
    (
        "to",
        &[
            "end_time",
            "end",
            "ends_at",
            "ending_before",
            "timeframe_end",
            "timestamp_to",
            "until",
            "before",
            "date_to",
            "lt",
        ],
    ),
    (
        "window_size",
        &[
            "windowsize",
            "granularity",
            "value_grouping_window",
            "bucket",
            "bucket_width",
            "interval",
            "resolution",
            "window",
        ],
    ),
    ("window_time_zone", &["windowtimezone", "time_zone", "timezone", "tz", "zone"]),
    ("metric", &["meter", "meters", "metrics", "usage_type", "event_name", "billable_metric_id", "code"]),
    (
        "group_by",
        &["groupby", "group_key", "group", "dimensions", "dimension_group_by_keys", "group_by_dimensions"],
    ),
    (
        "subject_id",
        &["subject", "customer", "customer_id", "external_customer_id", "external_subscription_id"],
    ),
    ("resource_id", &["resource"]),
    ("source", &["sources", "source_module", "module"]),
    ("aggregation", &["agg", "function", "aggregate", "operation"]),
    ("cursor", &["page", "page_token", "next_page", "next_cursor", "starting_after", "offset"]),
    ("limit", &["page_size", "per_page", "pagesize", "size", "count"]),
    ("status", &["state", "active"]),
    ("fill", &["fill_mode", "zero_fill", "gap_fill"]),
];

/// One fault of a request, in the terms of `errors[]` of a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterError {
    pub parameter: String,
    pub code: &'static str,
    pub detail: String,
}

/// The decoded parameters of a request and the faults found so far.
#[derive(Debug)]
pub struct Params {
    values: BTreeMap<&'static str, Vec<String>>,
    errors: Vec<ParameterError>,
    /// Faults beyond those that are listed.
    unlisted: usize,
    /// Set if the whole query was refused: what it lacks is not told.
    refused: bool,
}

impl Params {
    /// Decodes a raw query string; only `known` names are taken. A query with far too many pairs is not looked into.
    pub fn parse(raw: Option<&str>, known: &'static [&'static str]) -> Self {
        let mut params = Self { values: BTreeMap::new(), errors: Vec::new(), unlisted: 0, refused: false };
        let pairs = || raw.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        if let Some(pair) = pairs().nth(MOST_PAIRS) {
            let name = pair.split_once('=').map_or(pair, |(name, _)| name);
            params.reject(name, "too_many", format!("a query has at most {MOST_PAIRS} parameters"));
            params.refused = true;
            return params;
        }
        for pair in pairs() {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Ok(name) = decode(name) else {
                params.reject(name, "invalid_encoding", "the name is not percent-encoded UTF-8");
                continue;
            };
            let Some(known_name) = known.iter().find(|known| **known == name) else {
                params.reject(&name, "unknown_parameter", unknown_parameter(&name, known));
                continue;
            };
            match decode(value) {
                Err(why) => params.reject(known_name, "invalid_encoding", why),
                Ok(value) if value.is_empty() => {
                    params.reject(known_name, "empty", "the parameter has no value")
                }
                Ok(value) => params.values.entry(known_name).or_default().push(value),
            }
        }
        params
    }

    /// Notes a fault; of very many only the first are listed.
    pub fn reject(&mut self, parameter: &str, code: &'static str, detail: impl Into<String>) {
        if self.refused {
            return;
        }
        if self.errors.len() >= MOST_FAULTS {
            self.unlisted += 1;
            return;
        }
        self.errors.push(ParameterError { parameter: shortened(parameter), code, detail: detail.into() });
    }

    /// A parameter that may be given once.
    pub fn one(&mut self, name: &'static str) -> Option<String> {
        let mut values = self.values.remove(name)?;
        if values.len() > 1 {
            self.reject(
                name,
                "repeated",
                format!("the parameter takes one value, {} were given", values.len()),
            );
        }
        values.pop()
    }

    /// A parameter that may be repeated: distinct values, ascending, so that their order makes no other query.
    pub fn many(&mut self, name: &'static str) -> Vec<String> {
        let values = self.values.remove(name).unwrap_or_default();
        let mut values = self.bounded(name, values);
        values.sort_unstable();
        values.dedup();
        values
    }

    /// A parameter that may be repeated and may hold comma lists, in the order given.
    pub fn list(&mut self, name: &'static str) -> Vec<String> {
        let values = self.values.remove(name).unwrap_or_default();
        let words = values.iter().flat_map(|value| value.split(',')).map(|value| value.trim().to_owned());
        let words = words.collect();
        self.bounded(name, words)
    }

    /// At most the number of values that a parameter may have; more are a fault.
    fn bounded(&mut self, name: &'static str, mut values: Vec<String>) -> Vec<String> {
        if values.len() > MOST_VALUES {
            let detail = format!("at most {MOST_VALUES} values, {} were given", values.len());
            self.reject(name, "too_many", detail);
            values.truncate(MOST_VALUES);
        }
        values
    }

    /// A required time with an offset, in microseconds since the Unix epoch.
    pub fn time(&mut self, name: &'static str) -> Option<i64> {
        if !self.values.contains_key(name) {
            // A value that could not be decoded was told already.
            if !self.errors.iter().any(|error| error.parameter == name) {
                self.reject(name, "missing", "the parameter is required: an RFC 3339 time with an offset");
            }
            return None;
        }
        let text = self.one(name)?;
        if text.contains(' ') {
            let detail = "a space stands in the time: `+` means a space in a query, write it as `%2B` (and `T` between date and time)";
            self.reject(name, "space_in_time", detail);
            return None;
        }
        let micros = match Timestamp::parse(&text) {
            Ok(time) => time.micros(),
            Err(error) => {
                self.reject(
                    name,
                    "invalid_time",
                    format!("{error}: write it like 2026-01-31T00:00:00Z or 2026-01-31T00:00:00%2B01:00"),
                );
                return None;
            }
        };
        if !(EARLIEST..=LATEST).contains(&micros) {
            self.reject(name, "out_of_range", "the time must lie between the years 1900 and 2200");
            return None;
        }
        Some(micros)
    }

    /// The required half-open range `from`, `to`.
    pub fn range(&mut self) -> Option<(i64, i64)> {
        let (from, to) = (self.time("from"), self.time("to"));
        let (from, to) = (from?, to?);
        if from > to {
            self.reject("from", "from_after_to", "`from` lies after `to`");
            return None;
        }
        Some((from, to))
    }

    /// A repeatable parameter of ids.
    pub fn uuids(&mut self, name: &'static str) -> Vec<Uuid> {
        let mut ids = Vec::new();
        for text in self.many(name) {
            match parse_uuid(&text) {
                Ok(id) => ids.push(id),
                Err((code, detail)) => self.reject(name, code, detail),
            }
        }
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// A repeatable parameter of names (1 to 128 of `a-z 0-9 _ . -`, first a letter).
    pub fn names(&mut self, name: &'static str) -> Vec<String> {
        let names = self.many(name);
        for text in &names {
            if !is_name(text) {
                self.reject(
                    name,
                    "invalid_name",
                    "a name has 1 to 128 of `a-z 0-9 _ . -` and begins with a letter",
                );
            }
        }
        names
    }

    /// One of a few words.
    pub fn word<T: Copy>(&mut self, name: &'static str, words: &[(&'static str, T)]) -> Option<T> {
        let text = self.one(name)?;
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        if found.is_none() {
            let known: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            self.reject(name, "unknown_value", unknown_value(&text, &known));
        }
        found
    }

    /// True if nothing is wrong so far.
    pub fn is_clean(&self) -> bool {
        self.errors.is_empty()
    }

    /// The value, unless something was wrong.
    ///
    /// # Errors
    /// All faults that were noted.
    pub fn finish<T>(mut self, value: Option<T>) -> Result<T, Vec<ParameterError>> {
        match value {
            Some(value) if self.errors.is_empty() => Ok(value),
            _ => {
                if let (1.., Some(last)) = (self.unlisted, self.errors.last()) {
                    let detail = format!("{} more faults are not listed", self.unlisted);
                    let parameter = last.parameter.clone();
                    self.errors.push(ParameterError { parameter, code: MORE_FAULTS, detail });
                }
                Err(self.errors)
            }
        }
    }
}

/// A non-nil UUID in its hyphenated text form.
///
/// # Errors
/// Code and detail of the fault.
pub fn parse_uuid(text: &str) -> Result<Uuid, (&'static str, String)> {
    match Uuid::try_parse(text) {
        Ok(id) if text.len() != 36 => Err(("invalid_uuid", format!("write the UUID as {id}"))),
        Ok(id) if id.is_nil() => Err(("nil_uuid", "the nil UUID names nothing".to_owned())),
        Ok(id) => Ok(id),
        Err(_) => Err(("invalid_uuid", "not a UUID".to_owned())),
    }
}

/// "unknown; did you mean …" for a word that must be one of a few.
pub fn unknown_value(text: &str, known: &[&str]) -> String {
    hinted("unknown value", nearest(text, known.iter().copied()), known)
}

fn hinted(what: &str, nearest: Option<&str>, known: &[&str]) -> String {
    let hint = nearest.map(|nearest| format!(", did you mean `{nearest}`?"));
    format!("{what}{} Known: {}", hint.as_deref().unwrap_or("."), known.join(", "))
}

/// True for a name by the bound of design section 4.
pub fn is_name(text: &str) -> bool {
    let rest = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.-".contains(byte);
    text.len() <= 128
        && text.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase())
        && text.as_bytes().iter().all(rest)
}

/// At most 128 characters of what a caller sent, for use in an answer.
pub fn shortened(text: &str) -> String {
    text.chars().take(128).collect()
}

fn unknown_parameter(name: &str, known: &'static [&'static str]) -> String {
    if known.is_empty() {
        return "this path takes no parameters".to_owned();
    }
    let plain = shortened(name).trim_end_matches("[]").to_ascii_lowercase();
    let joined = plain.replace('_', "");
    let alias = ALIASES
        .iter()
        .find(|(ours, theirs)| {
            known.contains(ours) && theirs.iter().any(|theirs| theirs.replace('_', "") == joined)
        })
        .map(|(ours, _)| *ours);
    hinted("unknown parameter", alias.or_else(|| nearest(&plain, known.iter().copied())), known)
}

/// Decodes `application/x-www-form-urlencoded` text.
fn decode(text: &str) -> Result<String, &'static str> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        rest = match byte {
            b'+' => {
                bytes.push(b' ');
                tail
            }
            b'%' => {
                let digit = |at: usize| tail.get(at).and_then(|byte| char::from(*byte).to_digit(16));
                let (Some(high), Some(low)) = (digit(0), digit(1)) else {
                    return Err("`%` must be followed by two hexadecimal digits");
                };
                bytes.push(u8::try_from(high * 16 + low).unwrap_or_default());
                &tail[2..]
            }
            byte => {
                bytes.push(*byte);
                tail
            }
        };
    }
    let text = String::from_utf8(bytes).map_err(|_| "the value is not UTF-8")?;
    if text.contains('\0') { Err("the value holds a zero character") } else { Ok(text) }
}

#[cfg(test)]
#[path = "params/tests.rs"]
mod tests;
