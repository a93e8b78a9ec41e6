//! Why a record became a dead letter: fixed words (design section 4).

/// Whether somebody has to do something about a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// Something is broken: a source, its clock, its configuration, or the collector.
    Error,
    /// Refused on purpose, by a rule that somebody set.
    Info,
}

impl Severity {
    /// The word in metrics and documentation.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Info => "info",
        }
    }
}

macro_rules! reasons {
    ($($variant:ident $word:literal $severity:ident $meaning:literal)*) => {
        /// Why the consumer refused a record.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason { $(#[doc = $meaning] $variant),* }

        impl Reason {
            pub const ALL: &'static [Reason] = &[$(Reason::$variant),*];

            /// The word in `dlq-reason`, metrics and documentation.
            pub fn as_str(self) -> &'static str {
                match self { $(Reason::$variant => $word),* }
            }

            /// Whether something is broken or the record was refused on purpose.
            pub fn severity(self) -> Severity {
                match self { $(Reason::$variant => Severity::$severity),* }
            }

            /// One sentence for people.
            pub fn meaning(self) -> &'static str {
                match self { $(Reason::$variant => $meaning),* }
            }

            /// The reason of a word, if there is one.
            pub fn parse(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|reason| reason.as_str() == word)
            }
        }
    };
}

reasons! {
    Undecodable "undecodable" Error "The value is not a framed Avro record, or a required header is missing."
    UnknownSchema "unknown_schema" Error "The frame names a schema that this program does not know."
    BadSignature "bad_signature" Error "The signature does not fit the message."
    UnknownSource "unknown_source" Error "No valid key of the source has this key id."
    WrongPartition "wrong_partition" Error "Key and tenant differ, or the record was forwarded too often."
    IdMismatch "id_mismatch" Error "The record id is not the one that its identity gives."
    InvalidRecord "invalid_record" Error "A field breaks its bound."
    MetadataTooLarge "metadata_too_large" Error "The metadata is larger than allowed."
    InFuture "in_future" Error "The timestamp is more than 5 minutes after the broker's."
    TooOld "too_old" Info "The timestamp is older than the longest retention."
    UnknownUsageType "unknown_usage_type" Error "The metric is not registered; register it and replay."
    SchemaViolation "schema_violation" Error "The record contradicts its usage type."
    Conflict "conflict" Error "The same identity is stored with other content."
    ForbiddenTenant "forbidden_tenant" Info "The source may not emit for this tenant."
    QuotaExceeded "quota_exceeded" Info "The quota of source and tenant is used up."
    StorageRefused "storage_refused" Error "Storage refuses the row for good."
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::{Reason, Severity};

    /// Fixed words: dashboards, replay filters and stored dead letters have them.
    #[test]
    fn words_are_the_designs_in_its_order() {
        let words: Vec<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        let fixed = "undecodable unknown_schema bad_signature unknown_source wrong_partition id_mismatch invalid_record \
                     metadata_too_large in_future too_old unknown_usage_type schema_violation conflict forbidden_tenant \
                     quota_exceeded storage_refused";
        assert_eq!(words.join(" "), fixed);
        assert_eq!(Reason::TooOld.to_string(), "too_old");
        for reason in Reason::ALL {
            assert_eq!(Reason::parse(reason.as_str()), Some(*reason));
        }
        assert_eq!(Reason::parse("Conflict"), None);
    }

    #[test]
    fn what_a_rule_refuses_is_no_fault() {
        let info = Reason::ALL.iter().filter(|reason| reason.severity() == Severity::Info);
        let info: Vec<&str> = info.map(|reason| reason.as_str()).collect();
        assert_eq!(info, ["too_old", "forbidden_tenant", "quota_exceeded"]);
    }

    /// Each reason has a row `| `word` | severity | meaning | what to do |` in the operators' page, and no other has one.
    #[test]
    fn the_document_explains_every_reason() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/dead-letters.md");
        let document = std::fs::read_to_string(path).unwrap();
        let (_, rest) = document.split_once("<!-- reasons -->\n").expect("the document marks its table");
        let (table, _) = rest.split_once("<!-- end -->").expect("and where it ends");
        let rows: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(rows.len(), Reason::ALL.len(), "one row a reason");
        for (row, reason) in rows.iter().zip(Reason::ALL) {
            let expected = format!("| `{reason}` | {} | {} | ", reason.severity().as_str(), reason.meaning());
            let to_do = row.strip_prefix(expected.as_str());
            let to_do = to_do.unwrap_or_else(|| panic!("docs/dead-letters.md: {row:?} is not {expected:?}…"));
            assert!(to_do.trim_end_matches('|').trim().len() > 20, "{reason}: what to do?");
        }
    }
}
