//! Why a record became a dead letter: fixed words (design section 4).

macro_rules! reasons {
    ($($variant:ident $word:literal $meaning:literal)*) => {
        /// Why the consumer refused a record.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason { $(#[doc = $meaning] $variant),* }

        impl Reason {
            pub const ALL: &'static [Reason] = &[$(Reason::$variant),*];

            /// The word in `dlq-reason`, metrics and documentation.
            pub fn as_str(self) -> &'static str {
                match self { $(Reason::$variant => $word),* }
            }
        }
    };
}

reasons! {
    Undecodable "undecodable" "The value is not a framed Avro record, or a required header is missing."
    UnknownSchema "unknown_schema" "The frame names a schema that this program does not know."
    BadSignature "bad_signature" "The signature does not fit the message."
    UnknownSource "unknown_source" "No valid key of the source has this key id."
    WrongPartition "wrong_partition" "Key and tenant differ, or the record was forwarded too often."
    IdMismatch "id_mismatch" "The record id is not the one that its identity gives."
    InvalidRecord "invalid_record" "A field breaks its bound."
    MetadataTooLarge "metadata_too_large" "The metadata is larger than allowed."
    InFuture "in_future" "The timestamp is more than 5 minutes after the broker's."
    TooOld "too_old" "The timestamp is older than the longest retention."
    UnknownUsageType "unknown_usage_type" "The metric is not registered; register it and replay."
    SchemaViolation "schema_violation" "The record contradicts its usage type."
    Conflict "conflict" "The same identity is stored with other content."
    ForbiddenTenant "forbidden_tenant" "The source may not emit for this tenant."
    QuotaExceeded "quota_exceeded" "The quota of source and tenant is used up."
    StorageRefused "storage_refused" "Storage refuses the row for good."
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::Reason;

    /// Fixed words: dashboards, replay filters and stored dead letters have them.
    #[test]
    fn words_are_the_designs_in_its_order() {
        let words: Vec<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        let fixed = "undecodable unknown_schema bad_signature unknown_source wrong_partition id_mismatch invalid_record \
                     metadata_too_large in_future too_old unknown_usage_type schema_violation conflict forbidden_tenant \
                     quota_exceeded storage_refused";
        assert_eq!(words.join(" "), fixed);
        assert_eq!(Reason::TooOld.to_string(), "too_old");
    }
}
