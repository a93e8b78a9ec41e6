//! The annotations of a policy that bound what it permits.

use std::collections::BTreeSet;

use cedar_policy::{Effect, EntityId, EntityTypeName, EntityUid, Policy};
use uuid::Uuid;

use super::entities::Groups;
use crate::policy::{Constraints, PolicyRequest};

/// What a permit is bounded to, before it is known who asks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Bounds {
    tenants: Option<Tenants>,
    metrics: Option<BTreeSet<String>>,
    sources: Option<BTreeSet<String>>,
    elevated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Tenants {
    /// `own`: the caller's.
    own: bool,
    /// `asked`: the one that the request names.
    asked: bool,
    listed: BTreeSet<Uuid>,
}

impl Bounds {
    /// The constraints for one request.
    pub fn resolve(&self, request: &PolicyRequest<'_>) -> Constraints {
        let tenants = self.tenants.as_ref().map(|tenants| {
            let own = request.own_tenant().filter(|_| tenants.own);
            let asked = request.tenant_id.filter(|_| tenants.asked);
            tenants.listed.iter().copied().chain(own).chain(asked).collect()
        });
        Constraints {
            tenants,
            metrics: self.metrics.clone(),
            sources: self.sources.clone(),
            elevated: self.elevated,
        }
    }
}

/// Reads the annotations of a policy; the error says what is wrong.
pub(super) fn read(policy: &Policy, groups: &Groups) -> Result<Bounds, String> {
    let mut bounds = Bounds::default();
    for (name, value) in policy.annotations() {
        match name {
            "id" => {
                if value.is_empty() || value.len() > 128 || value.chars().any(char::is_control) {
                    return Err("@id must be 1 to 128 characters".into());
                }
            }
            "description" => {}
            "tenants" | "metrics" | "sources" | "elevated" if policy.effect() == Effect::Forbid => {
                return Err(format!("@{name} bounds what is permitted; a forbid can't have it"));
            }
            "tenants" => bounds.tenants = Some(tenants(value, groups)?),
            "metrics" => bounds.metrics = Some(names("metrics", value, "Metric", "MetricGroup", groups)?),
            "sources" => bounds.sources = Some(names("sources", value, "Source", "SourceGroup", groups)?),
            "elevated" if value == "true" => bounds.elevated = true,
            "elevated" => return Err("@elevated can only be \"true\"; leave it out otherwise".into()),
            _ => {
                return Err(format!(
                    "unknown annotation @{name}: known are @id, @description, @tenants, @metrics, @sources and @elevated"
                ));
            }
        }
    }
    Ok(bounds)
}

/// The items of a list with commas; none of them empty, and at least one.
fn items(value: &str) -> Option<Vec<&str>> {
    let items: Vec<_> = value.split(',').map(str::trim).collect();
    items.iter().all(|item| !item.is_empty()).then_some(items)
}

fn tenants(value: &str, groups: &Groups) -> Result<Tenants, String> {
    let mut tenants = Tenants::default();
    for item in items(value).ok_or("@tenants has an empty item")? {
        match item {
            "own" => tenants.own = true,
            "asked" => tenants.asked = true,
            _ if item.starts_with("group ") => {
                let members = members("tenants", item, "Tenant", "TenantGroup", groups)?;
                tenants.listed.extend(members.iter().filter_map(|id| super::entities::tenant(id)));
            }
            _ => {
                let tenant = super::entities::tenant(item);
                tenants.listed.insert(tenant.ok_or_else(|| {
                    format!(
                        "@tenants: `{item}` is not `own`, `asked`, `group NAME` or a tenant's UUID in lower case"
                    )
                })?);
            }
        }
    }
    Ok(tenants)
}

fn names(
    annotation: &str,
    value: &str,
    member: &str,
    group: &str,
    groups: &Groups,
) -> Result<BTreeSet<String>, String> {
    let mut names = BTreeSet::new();
    for item in items(value).ok_or_else(|| format!("@{annotation} has an empty item"))? {
        if item.starts_with("group ") {
            names.extend(members(annotation, item, member, group, groups)?);
        } else if usage_schemas::validate::is_name(item) {
            names.insert(item.to_owned());
        } else {
            return Err(format!("@{annotation}: `{item}` is neither a name nor `group NAME`"));
        }
    }
    Ok(names)
}

/// The ids of the members of `group NAME`.
fn members(
    annotation: &str,
    item: &str,
    member: &str,
    group: &str,
    groups: &Groups,
) -> Result<Vec<String>, String> {
    let name = item.trim_start_matches("group ").trim();
    let wrong = |detail: &str| format!("@{annotation}: {group} `{name}` {detail}");
    let type_name: EntityTypeName = group.parse().map_err(|_| wrong("has no type"))?;
    let found = groups.members(&EntityUid::from_type_name_and_id(type_name, EntityId::new(name)), member);
    if found.is_empty() { Err(wrong("has no members in the entity files")) } else { Ok(found) }
}
