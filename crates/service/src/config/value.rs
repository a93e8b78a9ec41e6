//! Values by kind: from text (environment, flags, defaults) and from the file.

use toml::Value;

use super::{Kind, Setting};

/// Reads the text of a variable, flag or default.
pub(super) fn from_text(kind: Kind, text: &str) -> Result<Value, String> {
    match kind {
        Kind::Text => Ok(Value::String(text.into())),
        Kind::Integer => text
            .trim()
            .replace('_', "")
            .parse()
            .map(Value::Integer)
            .map_err(|_| "expected a whole number of at most 64 bits".into()),
        Kind::Bool => match text.trim() {
            "true" => Ok(Value::Boolean(true)),
            "false" => Ok(Value::Boolean(false)),
            _ => Err("expected true or false".into()),
        },
        Kind::Duration => duration(text.trim()),
        Kind::Size => size(text.trim()).map(Value::Integer),
        Kind::List => Ok(Value::Array(
            text.split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty())
                .map(|item| Value::String(item.into()))
                .collect(),
        )),
        Kind::Tables => Err("can only be given in the file".into()),
    }
}

/// Checks a value of the file and brings it to the form that the struct reads.
pub(super) fn from_file(kind: Kind, value: Value) -> Result<Value, String> {
    match (kind, value) {
        (Kind::Text, value @ Value::String(_))
        | (Kind::Integer, value @ Value::Integer(_))
        | (Kind::Bool, value @ Value::Boolean(_)) => Ok(value),
        (Kind::Duration, Value::String(text)) => duration(&text),
        (Kind::Size, Value::String(text)) => size(&text).map(Value::Integer),
        (Kind::Size, Value::Integer(bytes)) if bytes >= 0 => Ok(Value::Integer(bytes)),
        (Kind::List, Value::Array(items)) if items.iter().all(Value::is_str) => Ok(Value::Array(items)),
        (kind, value) => Err(format!("expected {}, found {}", expected(kind), value.type_str())),
    }
}

/// Refuses what no process can work with: a text without a character, unless that is the default, and 0 where it must be above.
pub(super) fn permitted(setting: &Setting, value: Value) -> Result<Value, String> {
    let zero = match &value {
        Value::String(text) if setting.kind == Kind::Duration => {
            humantime_serde::re::humantime::parse_duration(text).is_ok_and(|duration| duration.is_zero())
        }
        Value::String(text) if text.trim().is_empty() && setting.default != Some("") => {
            return Err("must not be empty".into());
        }
        Value::Integer(number) => *number <= 0,
        _ => false,
    };
    if zero && setting.positive { Err("must be more than 0".into()) } else { Ok(value) }
}

fn expected(kind: Kind) -> &'static str {
    match kind {
        Kind::Text => "a string",
        Kind::Integer => "an integer",
        Kind::Bool => "true or false",
        Kind::Duration => "a string like \"10s\"",
        Kind::Size => "a number of bytes or a string like \"64MiB\"",
        Kind::List => "an array of strings",
        Kind::Tables => "an array of tables",
    }
}

fn duration(text: &str) -> Result<Value, String> {
    humantime_serde::re::humantime::parse_duration(text)
        .map(|_| Value::String(text.into()))
        // Without the parser's error, which repeats a part of the text.
        .map_err(|_| "expected a duration like 250ms, 10s or 14d".into())
}

/// Bytes of `512`, `64KiB`, `10 MB`: a whole number and perhaps a unit, decimal or binary.
pub(super) fn size(text: &str) -> Result<i64, String> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit() && letter != '_').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim() {
        "" | "B" => 1,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return Err("expected a size like 512, 64KiB or 1GiB".into()),
    };
    let number: i64 =
        number.replace('_', "").parse().map_err(|_| "expected a size like 512, 64KiB or 1GiB".to_string())?;
    number.checked_mul(factor).ok_or_else(|| "is more than 64 bits can hold".into())
}
