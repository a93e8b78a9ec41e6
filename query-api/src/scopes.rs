//! Decides by the scopes of the token alone.

use usage_access::Scope;
use usage_access::policy::{
    Action, Constraints, Decision, PolicyDecisionPoint, PolicyError, PolicyRequest, Principal,
};

/// Each action needs its scope; nothing is bounded beyond the caller's own tenant.
#[derive(Debug, Clone, Copy, Default)]
pub struct ByScope;

/// The scope that a caller needs; `None`: no caller may.
fn scope(action: Action) -> Option<Scope> {
    match action {
        Action::Read | Action::ReadTypes | Action::ReadAllowances => Some(Scope::Read),
        Action::RegisterType => Some(Scope::Types),
        Action::Emit => Some(Scope::Emit),
        Action::EmitOnBehalf => None,
        Action::Backfill => Some(Scope::Backfill),
        Action::Amend | Action::Deactivate => Some(Scope::Correct),
        Action::Retention => Some(Scope::Retention),
        Action::Operate => Some(Scope::Admin),
    }
}

#[async_trait::async_trait]
impl PolicyDecisionPoint for ByScope {
    async fn decide(&self, request: &PolicyRequest<'_>) -> Result<Decision, PolicyError> {
        let Principal::Caller(context) = request.principal else { return Ok(Decision::Deny) };
        let own = request.tenant_id.is_none_or(|tenant_id| tenant_id == context.tenant_id);
        let held = scope(request.action).is_some_and(|scope| context.has(scope));
        Ok(if own && held { Decision::Permit(Constraints::default()) } else { Decision::Deny })
    }

    async fn ready(&self) -> Result<(), PolicyError> {
        Ok(())
    }
}
