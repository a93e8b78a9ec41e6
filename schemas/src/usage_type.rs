//! Usage types: what may be metered, in versions, and what each version demands of a record.
//!
//! Version 1 applies to all times, a later one to timestamps from its `valid_from` on (inclusive), until the next one begins. A record
//! is held against the version of its own timestamp, whenever it arrives. Kind and unit are the same in all versions, else totals
//! would mix.

mod metadata;
mod rules;

use serde::{Deserialize, Serialize};

use crate::{Kind, Quantity, RecordRef, Timestamp};
use metadata::MetadataRule;
pub use metadata::{RULE_BYTES, RULE_DEPTH};
pub use rules::{RESOURCE_TYPES, RuleFault, Rules};

/// A usage type with all its versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageType {
    /// The `metric` of records.
    pub name: String,
    /// Ascending, from version 1; never empty.
    pub versions: Vec<TypeVersion>,
}

/// One version of a usage type. It never changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeVersion {
    /// 1 for the first.
    pub version: i32,
    /// From which timestamp on it applies; `None` for version 1, which applies to all times before version 2 too.
    pub valid_from: Option<Timestamp>,
    pub kind: Kind,
    /// What a value of 1 is: `token`, `second`, `byte`.
    pub unit: String,
    pub description: Option<String>,
    pub rules: Rules,
    /// When it was registered.
    pub created_at: Timestamp,
}

impl UsageType {
    /// The version that was registered last.
    ///
    /// # Panics
    /// A type without versions is none.
    pub fn newest(&self) -> &TypeVersion {
        self.versions.last().expect("a usage type has a version")
    }

    /// The version of this number.
    pub fn version(&self, version: i32) -> Option<&TypeVersion> {
        self.versions.iter().find(|found| found.version == version)
    }
}

/// Why a usage type can't be used to judge records.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("usage type {name}: {detail}")]
pub struct BadUsageType {
    pub name: String,
    pub detail: String,
}

/// What a record breaks: its field, and how, without any of the record's values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct Violation {
    pub field: &'static str,
    pub detail: String,
}

/// A usage type made ready for judging many records.
#[derive(Debug)]
pub struct CompiledType {
    usage_type: UsageType,
    /// Newest first: most records are of the newest version. Empty if no record can be judged.
    versions: Box<[Compiled]>,
}

#[derive(Debug)]
struct Compiled {
    version: i32,
    /// The first timestamp that it applies to.
    from: Timestamp,
    kind: Kind,
    /// `None` if it has no rule, as most have.
    rules: Option<Box<CompiledRules>>,
}

#[derive(Debug)]
struct CompiledRules {
    min: Option<Quantity>,
    max: Option<Quantity>,
    integer: bool,
    /// Ascending.
    resource_types: Option<Box<[String]>>,
    metadata: Option<MetadataRule>,
}

impl CompiledType {
    /// Makes a type ready.
    ///
    /// # Errors
    /// Versions that are not 1, 2, 3 … in ascending times, or rules that break their bounds: what was registered by this program has
    /// neither.
    pub fn new(usage_type: UsageType) -> Result<Self, BadUsageType> {
        let bad = |detail: String| BadUsageType { name: usage_type.name.clone(), detail };
        let mut versions: Vec<Compiled> = Vec::with_capacity(usage_type.versions.len());
        for (found, number) in usage_type.versions.iter().zip(1..) {
            let from = match found.valid_from {
                None if number == 1 => Timestamp::from_micros(i64::MIN),
                Some(from) if number > 1 && versions.last().is_some_and(|last| last.from < from) => from,
                _ => return Err(bad(format!("version {} begins at no time of its own", found.version))),
            };
            if found.version != number {
                return Err(bad(format!("version {} stands where version {number} must be", found.version)));
            }
            let faulty = |fault: RuleFault| bad(format!("rules of version {number}: {fault}"));
            let rules = CompiledRules::new(&found.rules, found.kind).map_err(faulty)?;
            versions.push(Compiled { version: number, from, kind: found.kind, rules });
        }
        if versions.is_empty() {
            return Err(bad("has no version".into()));
        }
        versions.reverse();
        Ok(Self { usage_type, versions: versions.into() })
    }

    /// A type that can't be made ready and refuses every record, so that it keeps nobody from judging by the others.
    pub fn refusing(usage_type: UsageType) -> Self {
        Self { usage_type, versions: Box::default() }
    }

    /// What it was made of.
    pub fn usage_type(&self) -> &UsageType {
        &self.usage_type
    }

    /// The version that judges records of this timestamp: there is one for each, since version 1 begins at the least.
    fn at(&self, timestamp: Timestamp) -> Option<&Compiled> {
        self.versions.iter().find(|version| version.from <= timestamp)
    }

    /// Holds a record of this metric against the version of its timestamp. The bounds that all records have are for
    /// [`crate::validate`].
    ///
    /// # Errors
    /// The first thing that it breaks: kind, value, resource type, metadata.
    pub fn check(&self, record: &RecordRef<'_>) -> Result<(), Violation> {
        let Some(version) = self.at(record.timestamp) else {
            return Err(violation(
                "metric",
                "the usage type can't be read by this version of the program".into(),
            ));
        };
        if version.kind != record.kind {
            return Err(violation("kind", format!("the usage type is a {}", version.kind.as_str())));
        }
        match &version.rules {
            None => Ok(()),
            Some(rules) => rules.check(record, version.version),
        }
    }
}

impl CompiledRules {
    fn new(rules: &Rules, kind: Kind) -> Result<Option<Box<Self>>, RuleFault> {
        if rules.is_empty() {
            return Ok(None);
        }
        if let Some(fault) = rules.faults_without_metadata(kind).into_iter().next() {
            return Err(fault);
        }
        Ok(Some(Box::new(Self {
            min: rules.min,
            max: rules.max,
            integer: rules.integer,
            resource_types: rules.resource_types.as_ref().map(|types| types.iter().cloned().collect()),
            metadata: rules.metadata.as_ref().map(MetadataRule::new).transpose()?,
        })))
    }

    fn check(&self, record: &RecordRef<'_>, version: i32) -> Result<(), Violation> {
        if self.min.is_some_and(|min| record.value < min) {
            return Err(broken("value", "is less than the minimum", version));
        }
        if self.max.is_some_and(|max| record.value > max) {
            return Err(broken("value", "is greater than the maximum", version));
        }
        if self.integer && !rules::is_whole(record.value) {
            return Err(broken("value", "is not a whole number", version));
        }
        if let Some(allowed) = &self.resource_types {
            let Some(given) = record.resource_type else {
                return Err(broken("resource_type", "is missing", version));
            };
            if allowed.binary_search_by(|one| one.as_str().cmp(given)).is_err() {
                return Err(broken("resource_type", "is none of those that are allowed", version));
            }
        }
        match &self.metadata {
            None => Ok(()),
            Some(rule) => rule.check(record.metadata).map_err(|how| broken("metadata", &how, version)),
        }
    }
}

#[cold]
fn violation(field: &'static str, detail: String) -> Violation {
    Violation { field, detail }
}

#[cold]
fn broken(field: &'static str, how: &str, version: i32) -> Violation {
    violation(field, format!("{how} (version {version} of the usage type)"))
}

#[cfg(test)]
mod tests;
