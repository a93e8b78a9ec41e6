//! Quantities and times are JSON strings, in answers as in markers.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Quantity, Timestamp};

/// A JSON string, borrowed where it has no escapes.
#[derive(Deserialize)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// Reads one JSON object. Without this check serde would also take an array of the members.
pub(crate) fn object<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, serde_json::Error> {
    if json.trim_ascii_start().first() != Some(&b'{') {
        return Err(serde::de::Error::custom("not a JSON object"));
    }
    serde_json::from_slice(json)
}

macro_rules! as_text {
    ($($type:ty)*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = Text::deserialize(deserializer)?;
                Self::parse(&text.0).map_err(serde::de::Error::custom)
            }
        }
    )*};
}

as_text!(Quantity Timestamp);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_go_both_ways() {
        let quantity: Quantity = serde_json::from_str(r#""1.50""#).unwrap();
        assert_eq!(serde_json::to_string(&quantity).unwrap(), r#""1.5""#);
        let time: Timestamp = serde_json::from_str(r#""2024-02-29T13:00:00+01:00""#).unwrap();
        assert_eq!(serde_json::to_string(&time).unwrap(), r#""2024-02-29T12:00:00.000000Z""#);
    }

    /// A JSON number may have been a float on its way; whoever takes one reads its text ([`Quantity::from_raw_json`]).
    #[test]
    fn numbers_are_refused() {
        assert!(serde_json::from_str::<Quantity>("1").is_err());
        assert!(serde_json::from_str::<Timestamp>("1717000000").is_err());
    }
}
