//! Completeness markers (protocol section 8): "every record that this source emitted through this outbox before T is in front
//! of this message or already delivered".

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Timestamp;
use crate::serde_text::object;

/// Value of a message with payload type `usage-collector.marker.v1`; its key is the source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    pub source: String,
    /// The outbox's own id, made by its migration.
    pub outbox: Uuid,
    /// Exclusive, on the source database's clock.
    pub complete_until: Timestamp,
}

/// A value that is no marker.
#[derive(Debug, thiserror::Error)]
#[error("not a marker")]
pub struct MarkerError(#[from] serde_json::Error);

impl Marker {
    /// One JSON object in UTF-8, the members in order.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a marker has nothing that JSON refuses")
    }

    /// Members that this version does not know are ignored, so that a later relay can say more.
    pub fn decode(value: &[u8]) -> Result<Self, MarkerError> {
        Ok(object(value)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marker() -> Marker {
        Marker {
            source: "llm-gateway".into(),
            outbox: Uuid::from_u128(0x0190_f3c2_6f1e_7a44_9d3b_5a1f_0c2e_7b10),
            complete_until: Timestamp::from_micros(1_767_323_045_000_006),
        }
    }

    const TEXT: &str = r#"{"source":"llm-gateway","outbox":"0190f3c2-6f1e-7a44-9d3b-5a1f0c2e7b10","complete_until":"2026-01-02T03:04:05.000006Z"}"#;

    #[test]
    fn text_is_as_the_protocol_says() {
        assert_eq!(String::from_utf8(marker().encode()).unwrap(), TEXT);
        assert_eq!(Marker::decode(TEXT.as_bytes()).unwrap(), marker());
    }

    #[test]
    fn members_of_a_later_version_are_ignored() {
        let later = TEXT.replacen('{', r#"{"rows":17,"#, 1);
        assert_eq!(Marker::decode(later.as_bytes()).unwrap(), marker());
    }

    #[test]
    fn anything_else_is_refused() {
        let broken = [
            String::new(),
            "null".into(),
            r#"["s","0190f3c2-6f1e-7a44-9d3b-5a1f0c2e7b10","2026-01-02T03:04:05Z"]"#.into(),
            TEXT.replace("source", "origin"),
            TEXT.replace("2026-01-02T", "2026-01-02 "),
            TEXT.replace("0190f3c2", "0190f3c"),
            TEXT.replace(r#""2026-01-02T03:04:05.000006Z""#, "1767323045000006"),
            format!("{TEXT}{TEXT}"),
        ];
        for text in broken {
            let error = Marker::decode(text.as_bytes()).expect_err(&text);
            assert_eq!(error.to_string(), "not a marker");
        }
    }
}
