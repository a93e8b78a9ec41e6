mod bounded;
mod defaults;
mod faulty;
mod reload;
mod unnamed;

use uuid::Uuid;

use super::*;
use crate::policy::{Action, Constraints, Principal};
use crate::{Scope, Scopes, SecurityContext};

pub(super) const OWN: Uuid = Uuid::from_u128(0xa0);
pub(super) const OTHER: Uuid = Uuid::from_u128(0xb0);

/// Reads policies and entities as if from files `p.cedar` and `e.json`.
pub(super) fn read(policies: &str, entities: Option<&str>) -> Result<CheckedSet, PolicyFolderError> {
    CheckedSet::read(&Contents {
        policies: vec![("p.cedar".into(), policies.into())],
        entities: entities.map(|text| ("e.json".into(), text.into())).into_iter().collect(),
    })
}

pub(super) fn set(policies: &str, entities: Option<&str>) -> CheckedSet {
    read(policies, entities).unwrap()
}

/// The faults of policies that must be refused.
pub(super) fn refused(policies: &str, entities: Option<&str>) -> Vec<Fault> {
    match read(policies, entities) {
        Err(PolicyFolderError::Refused(faults)) => faults,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("taken: {policies}"),
    }
}

pub(super) fn caller(scopes: &[Scope]) -> SecurityContext {
    SecurityContext::for_tenant(OWN, scopes.iter().copied().collect())
}

pub(super) fn ask(context: &SecurityContext, action: Action) -> PolicyRequest<'_> {
    PolicyRequest {
        principal: Principal::Caller(context),
        action,
        tenant_id: None,
        metric: None,
        source: None,
    }
}

pub(super) fn permitted(decision: Decision) -> Constraints {
    match decision {
        Decision::Permit(bounds) => bounds,
        Decision::Deny => panic!("denied"),
    }
}

pub(super) fn all_scopes() -> SecurityContext {
    SecurityContext::for_tenant(OWN, Scopes::all())
}
