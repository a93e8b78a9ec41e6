//! What a version of a usage type demands of a record beyond its kind.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::metadata::MetadataRule;
use crate::{Kind, Quantity, validate};

/// Greatest number of resource types that a rule may list.
pub const RESOURCE_TYPES: usize = 100;
/// 1 in units of 10^-18.
const ONE: i128 = 10i128.pow(Quantity::SCALE);

/// What a version of a usage type demands of a record; the default demands nothing.
///
/// As JSON: `{"min": "0.5", "max": "100", "integer": true, "resource_types": ["vm"], "metadata": {…}}`, each member optional. Another
/// member is an error, so that no rule of a newer program is passed over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rules {
    /// The least value, inclusive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<Quantity>,
    /// The greatest value, inclusive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<Quantity>,
    /// Only whole numbers; 1.0 is one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub integer: bool,
    /// If given, a record must name one of them as its `resource_type`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_types: Option<BTreeSet<String>>,
    /// A JSON Schema (2020-12, without references) for the metadata object; a record without metadata is judged as `{}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
}

/// A rule that can't be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{pointer}: {detail}")]
pub struct RuleFault {
    /// JSON pointer (RFC 6901) from the rules' object.
    pub pointer: String,
    pub detail: String,
}

impl RuleFault {
    pub(super) fn new(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { pointer: pointer.into(), detail: detail.into() }
    }
}

impl Rules {
    /// Whether nothing is demanded.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Everything that keeps these rules from being taken for a type of this kind; empty if they can be.
    pub fn faults(&self, kind: Kind) -> Vec<RuleFault> {
        let mut faults = self.faults_without_metadata(kind);
        faults.extend(self.metadata.as_ref().and_then(|schema| MetadataRule::new(schema).err()));
        faults
    }

    pub(super) fn faults_without_metadata(&self, kind: Kind) -> Vec<RuleFault> {
        let mut faults = Vec::new();
        if let (Some(min), Some(max)) = (self.min, self.max)
            && min > max
        {
            faults.push(RuleFault::new("/max", "is less than min: no value could pass"));
        } else if self.integer && !self.has_whole_number() {
            faults.push(RuleFault::new("/integer", "no whole number lies between min and max"));
        }
        if kind == Kind::Counter && self.max.is_some_and(Quantity::is_negative) {
            faults.push(RuleFault::new("/max", "is negative, and a counter never is: no value could pass"));
        }
        if let Some(types) = &self.resource_types {
            if !(1..=RESOURCE_TYPES).contains(&types.len()) {
                let detail = format!("must list 1 to {RESOURCE_TYPES} resource types");
                faults.push(RuleFault::new("/resource_types", detail));
            }
            let bad = types.iter().find_map(|name| validate::name("resource_types", name).err());
            faults.extend(bad.map(|bad| RuleFault::new("/resource_types", format!("a name {}", bad.detail))));
        }
        faults
    }

    fn has_whole_number(&self) -> bool {
        match (self.min, self.max) {
            (Some(min), Some(max)) => {
                let (min, max) = (min.unscaled(), max.unscaled());
                // The least whole number that is not below min.
                let least = min.div_euclid(ONE) + i128::from(min.rem_euclid(ONE) != 0);
                least <= max.div_euclid(ONE)
            }
            _ => true,
        }
    }

    /// Whether every record that passes `older` surely passes these rules too. Of two schemas for metadata only equal ones are
    /// known to be so.
    pub fn allow_all_of(&self, older: &Self) -> bool {
        let min = self.min.is_none_or(|min| older.min.is_some_and(|older| min <= older));
        let max = self.max.is_none_or(|max| older.max.is_some_and(|older| max >= older));
        let integer = !self.integer || older.integer;
        let resource_types = match (&self.resource_types, &older.resource_types) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(types), Some(older)) => types.is_superset(older),
        };
        let metadata = self.metadata.is_none() || self.metadata == older.metadata;
        min && max && integer && resource_types && metadata
    }

    /// One text for equal rules, whatever the order of their members: what is stored and compared.
    ///
    /// # Panics
    /// Never: rules can be written as JSON.
    pub fn to_text(&self) -> String {
        let sorted = Self { metadata: self.metadata.as_ref().map(sorted), ..self.clone() };
        serde_json::to_string(&sorted).expect("rules are JSON")
    }

    /// Reads [`Rules::to_text`].
    ///
    /// # Errors
    /// No JSON object, a member that this program does not know or of the wrong type.
    pub fn from_text(text: &str) -> Result<Self, serde_json::Error> {
        crate::serde_text::object(text.as_bytes())
    }
}

/// Whether a value has nothing behind the point.
pub(super) fn is_whole(value: Quantity) -> bool {
    value.unscaled() % ONE == 0
}

/// The same value with the members of all objects in ascending order; whether a map keeps another one depends on serde_json's features.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(sorted).collect(),
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| *name);
            let members = members.into_iter().map(|(name, value)| (name.clone(), sorted(value)));
            Value::Object(members.collect::<Map<_, _>>())
        }
        other => other.clone(),
    }
}
