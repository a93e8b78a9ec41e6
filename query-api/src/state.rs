//! What every request shares.

use std::sync::Arc;

use usage_access::TokenVerifier;
use usage_access::policy::PolicyDecisionPoint;
use usage_limits::http::RateLimitLayer;

use crate::allowances::Allowances;
use crate::cursor::Cursors;
use crate::registry::Catalog;
use crate::store::Store;

/// Bounds of what one request may ask for.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Rows of a page of aggregates.
    pub aggregated_rows: usize,
    /// Longest range that is cut into windows.
    pub window_days: u32,
    /// Largest body in bytes.
    pub body_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { aggregated_rows: 10_000, window_days: 3_660, body_bytes: 64 << 10 }
    }
}

/// Cheap to clone.
#[derive(Clone)]
pub struct App {
    pub verifier: Arc<TokenVerifier>,
    /// Asked by every endpoint.
    pub policy: Arc<dyn PolicyDecisionPoint>,
    pub store: Store,
    pub catalog: Arc<Catalog>,
    pub cursors: Cursors,
    pub limits: Limits,
    /// Of requests; without rules unless configured.
    pub rates: RateLimitLayer,
    /// Where allowances can be read.
    pub allowances: Option<Arc<Allowances>>,
}
