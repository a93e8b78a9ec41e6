//! What a closed batch asks, and what it is told.

use std::collections::HashMap;

use usage_control::{QuotaCounts, QuotaKey};
use usage_storage::IdProbe;

use crate::attribution::{Pairs, Permissions};
use crate::batch::Identity;

/// What a closed batch wants to know.
#[derive(Debug, Default)]
pub struct Question {
    /// Comes back with the answer: one to an earlier question says nothing about a later batch.
    pub number: u64,
    pub probes: Vec<IdProbe>,
    /// True if the registry must be read afresh.
    pub registry: bool,
    /// What the policy point is asked about, after the registry was read afresh.
    pub pairs: Pairs,
    /// The counters of quotas that are not known.
    pub counters: Vec<QuotaKey>,
}

/// What was found out for a question.
#[derive(Debug, Default)]
pub struct Answer {
    pub number: u64,
    /// What storage has of the probes.
    pub stored: HashMap<Identity, [u8; 16]>,
    /// What the policy point said about the pairs.
    pub permissions: Permissions,
    /// The counters that were asked for, in that order.
    pub counters: Vec<QuotaKey>,
    pub counts: QuotaCounts,
}
