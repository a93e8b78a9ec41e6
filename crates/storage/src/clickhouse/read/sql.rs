//! SQL text with its parameters. Texts from outside only ever travel as parameters; numbers, times and ids are formatted here.

use std::fmt::Write as _;

use time::OffsetDateTime;
use uuid::Uuid;

/// First and last instant (microseconds) that a `DateTime64(6)` holds: 1900-01-01 and the end of 2299.
const TIME_RANGE: (i64, i64) = (-2_208_988_800_000_000, 10_413_791_999_999_999);

/// A statement under construction.
#[derive(Debug, Clone, Default)]
pub(super) struct Sql {
    text: String,
    params: Vec<(String, String)>,
}

impl Sql {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Appends SQL of our own.
    pub(super) fn push(&mut self, sql: &str) -> &mut Self {
        self.text.push_str(sql);
        self
    }

    /// Appends formatted SQL of our own; never texts from outside.
    pub(super) fn push_fmt(&mut self, arguments: std::fmt::Arguments<'_>) -> &mut Self {
        self.text.write_fmt(arguments).expect("writing to a String does not fail");
        self
    }

    /// Appends a text as a bound parameter; equal texts share one.
    pub(super) fn text(&mut self, value: &str) -> &mut Self {
        let escaped = escape_parameter(value);
        let index = self.params.iter().position(|(_, known)| *known == escaped).unwrap_or_else(|| {
            self.params.push((format!("param_t{}", self.params.len()), escaped));
            self.params.len() - 1
        });
        self.push_fmt(format_args!("{{t{index}:String}}"))
    }

    /// Appends an id as a text that is comparable with a `UUID` column.
    pub(super) fn uuid(&mut self, id: Uuid) -> &mut Self {
        self.push_fmt(format_args!("'{}'", id.hyphenated()))
    }

    /// Appends an id comparable with `UUIDToNum(column)`: by its bytes, as ids are ordered everywhere but in a UUID column.
    pub(super) fn ordered_uuid(&mut self, id: Uuid) -> &mut Self {
        self.push_fmt(format_args!("UUIDToNum(toUUID('{}'))", id.hyphenated()))
    }

    /// Appends an instant in microseconds as a text that is comparable with the `DateTime64(6, 'UTC')` of a column (a function
    /// call costs a millisecond each when a statement with many legs is planned). Instants beyond that type's range become
    /// its bounds.
    pub(super) fn instant(&mut self, micros: i64) -> &mut Self {
        let micros = micros.clamp(TIME_RANGE.0, TIME_RANGE.1);
        let fraction = micros.rem_euclid(1_000_000);
        self.push("'").push_seconds(micros.div_euclid(1_000_000));
        self.push_fmt(format_args!(".{fraction:06}'"))
    }

    /// Appends an instant in seconds as a text that is comparable with the `DateTime('UTC')` of a column.
    pub(super) fn instant_of_seconds(&mut self, seconds: i64) -> &mut Self {
        self.push("'").push_seconds(seconds).push("'")
    }

    fn push_seconds(&mut self, seconds: i64) -> &mut Self {
        let at = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        let (date, time) = (at.date(), at.time());
        self.push_fmt(format_args!(
            "{:04}-{:02}-{:02} {:02}:{:02}:{:02}",
            date.year(),
            u8::from(date.month()),
            date.day(),
            time.hour(),
            time.minute(),
            time.second()
        ))
    }

    /// Appends ` AND from <= timestamp < to`.
    pub(super) fn and_span(&mut self, from: i64, to: i64) -> &mut Self {
        self.push(" AND timestamp >= ").instant(from).push(" AND timestamp < ").instant(to)
    }

    /// Appends ` AND column IN (…)` unless there is nothing to choose from.
    pub(super) fn and_texts(&mut self, column: &str, values: &[String]) -> &mut Self {
        self.and_any(column, values, |sql, value| {
            sql.text(value);
        })
    }

    /// Appends ` AND column IN (…)` unless there is nothing to choose from.
    pub(super) fn and_uuids(&mut self, column: &str, values: &[Uuid]) -> &mut Self {
        self.and_any(column, values, |sql, value| {
            sql.uuid(*value);
        })
    }

    fn and_any<T>(&mut self, column: &str, values: &[T], mut each: impl FnMut(&mut Self, &T)) -> &mut Self {
        if values.is_empty() {
            return self;
        }
        self.push_fmt(format_args!(" AND {column} IN ("));
        for (index, value) in values.iter().enumerate() {
            if index > 0 {
                self.push(", ");
            }
            each(self, value);
        }
        self.push(")")
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Parameters as names (`param_…`) and escaped values.
    pub(super) fn params(&self) -> &[(String, String)] {
        &self.params
    }
}

/// Values of HTTP parameters are read like fields of a TSV file.
fn escape_parameter(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for character in value.chars() {
        match character {
            '\\' => escaped.push_str("\\\\"),
            '\t' => escaped.push_str("\\t"),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\0' => escaped.push_str("\\0"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_never_enter_the_statement() {
        let hostile = "x') OR 1=1 --";
        let mut sql = Sql::new();
        sql.push("SELECT 1 WHERE 1").and_texts("source", &[hostile.into(), "b".into()]);
        assert_eq!(sql.as_str(), "SELECT 1 WHERE 1 AND source IN ({t0:String}, {t1:String})");
        assert_eq!(sql.params()[0], ("param_t0".into(), hostile.into()));
    }

    #[test]
    fn no_values_no_condition() {
        let mut sql = Sql::new();
        sql.and_texts("source", &[]).and_uuids("subject_id", &[]);
        assert_eq!(sql.as_str(), "");
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(escape_parameter("a\tb\\c\nd\re\0"), "a\\tb\\\\c\\nd\\re\\0");
    }

    #[test]
    fn instants_beyond_the_type_become_its_bounds() {
        let mut sql = Sql::new();
        sql.instant(i64::MIN).push(" ").instant(-1).push(" ").instant(1_500_000).push(" ").instant(i64::MAX);
        assert_eq!(
            sql.as_str(),
            "'1900-01-01 00:00:00.000000' '1969-12-31 23:59:59.999999' '1970-01-01 00:00:01.500000' \
             '2299-12-31 23:59:59.999999'"
        );
    }
}
