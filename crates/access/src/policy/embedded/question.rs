//! A request in the words of the policies.

use std::collections::{HashMap, HashSet};

use cedar_policy::{Context, Entities, Entity, EntityUid, Request, RestrictedExpression};

use super::set::CheckedSet;
use crate::SecurityContext;
use crate::policy::{PolicyRequest, Principal};

pub(super) struct Question {
    pub request: Request,
    pub entities: Entities,
}

impl Question {
    /// None where the question can't be put: an action that is not for this kind of principal, or nobody's tenant.
    pub fn new(set: &CheckedSet, request: &PolicyRequest<'_>) -> Option<Self> {
        let words = &set.words;
        let resource = words.tenant(request.tenant_id.or_else(|| request.own_tenant())?);
        let principal = principal(set, &request.principal)?;
        let who = principal.uid();
        let metric = request.metric.map(|name| words.metric(name));
        let source = request.source.map(|name| words.source(name));
        let named = [("metric", &metric), ("source", &source)].into_iter().filter_map(|(name, uid)| {
            Some((name.to_owned(), RestrictedExpression::new_entity_uid(uid.clone()?)))
        });
        let context = Context::from_pairs(named).ok()?;
        let action = words.action(request.action.as_str());
        let home = match request.principal {
            Principal::Caller(context) => Some(context.tenant_id),
            Principal::Source { home_tenant, .. } => home_tenant,
        };
        let home = home.map(|tenant| words.tenant(tenant));
        // Of all entities these are the ones that a policy can reach: what the request names and what policies name.
        let mut seen = HashSet::from([who.clone()]);
        let mut entities = vec![principal];
        let named = [Some(resource.clone()), home, metric, source].into_iter().flatten();
        for uid in named.chain(set.literals.iter().cloned()) {
            if seen.insert(uid.clone()) {
                let groups = set.groups.of(&uid);
                entities.push(Entity::new_no_attrs(uid, groups));
            }
        }
        Some(Self {
            request: Request::new(who, action, resource, context, Some(&words.schema)).ok()?,
            entities: Entities::from_entities(entities, None).ok()?,
        })
    }
}

fn principal(set: &CheckedSet, principal: &Principal<'_>) -> Option<Entity> {
    let words = &set.words;
    let tenant = |id| RestrictedExpression::new_entity_uid(words.tenant(id));
    let (uid, attributes): (EntityUid, HashMap<String, RestrictedExpression>) = match principal {
        Principal::Caller(context) => {
            let scopes = context.scopes.iter().map(|scope| words.scope(scope.as_str()));
            let scopes = scopes.map(RestrictedExpression::new_entity_uid);
            let mut attributes = HashMap::from([
                ("tenant".to_owned(), tenant(context.tenant_id)),
                ("scopes".to_owned(), RestrictedExpression::new_set(scopes)),
            ]);
            if let Some(subject_type) = &context.subject_type {
                let subject_type = RestrictedExpression::new_string(subject_type.clone());
                attributes.insert("subject_type".to_owned(), subject_type);
            }
            (words.caller(&caller_id(context)), attributes)
        }
        Principal::Source { name, home_tenant, any_tenant } => {
            let mut attributes =
                HashMap::from([("any_tenant".to_owned(), RestrictedExpression::new_bool(*any_tenant))]);
            if let Some(home) = home_tenant {
                attributes.insert("home_tenant".to_owned(), tenant(*home));
            }
            (words.source(name), attributes)
        }
    };
    let groups = set.groups.of(&uid);
    Entity::new(uid, attributes, groups).ok()
}

/// With the tenant, so that a subject's id means nothing in another tenant's token.
fn caller_id(context: &SecurityContext) -> String {
    match context.subject_id {
        Some(subject) => format!("{}/{subject}", context.tenant_id),
        None => context.tenant_id.to_string(),
    }
}
