//! JSON in which no member stands twice: of two that do, one reader takes the first and another the last.

use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Reads one value with nothing behind it.
///
/// # Errors
/// No JSON, a member that stands twice, a text with half a surrogate pair, a number beyond all bounds, more than 127 levels.
pub fn parse(text: &str) -> Result<Value, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_str(text);
    let value = Strict.deserialize(&mut json)?;
    json.end()?;
    Ok(value)
}

/// A seed for one value in the midst of others.
pub struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        serde_json::Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("no number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(Strict)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            let value = access.next_value_seed(Strict)?;
            if members.insert(name, value).is_some() {
                return Err(de::Error::custom("a member stands twice"));
            }
        }
        Ok(Value::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_read_as_serde_reads_it() {
        for text in [
            "null",
            " true ",
            "-1",
            "18446744073709551615",
            "1.5e3",
            r#""a\u0000\u00e4""#,
            "[]",
            r#"[{"b":[1,null],"a":{}},"x"]"#,
        ] {
            assert_eq!(parse(text).unwrap(), serde_json::from_str::<Value>(text).unwrap(), "{text}");
        }
    }

    #[test]
    fn what_readers_take_for_different_things_is_refused() {
        for text in [
            r#"{"a":1,"a":1}"#,
            r#"[{"a":{"b":1,"\u0062":2}}]"#,
            r#""\ud800""#,
            "1e400",
            "{} {}",
            "",
            &"[".repeat(200),
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
