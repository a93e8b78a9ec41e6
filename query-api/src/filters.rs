//! The filters that aggregates and records share.

use serde::Serialize;
use uuid::Uuid;

use crate::params::Params;

/// Names of the parameters read here, for the list of known ones.
pub const NAMES: [&str; 6] =
    ["metric", "source", "subject_id", "subject_type", "resource_id", "resource_type"];

/// Each is empty (no filter) or means any of its values; sorted, so that equal filters are equal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Filters {
    pub metrics: Vec<String>,
    pub sources: Vec<String>,
    pub subject_ids: Vec<Uuid>,
    pub subject_types: Vec<String>,
    pub resource_ids: Vec<Uuid>,
    pub resource_types: Vec<String>,
}

impl Filters {
    pub fn read(params: &mut Params) -> Self {
        Self {
            // Not checked as names: a metric that can't exist is answered like any that does not, with the nearest one.
            metrics: params.many("metric"),
            sources: params.names("source"),
            subject_ids: params.uuids("subject_id"),
            subject_types: params.names("subject_type"),
            resource_ids: params.uuids("resource_id"),
            resource_types: params.names("resource_type"),
        }
    }
}
