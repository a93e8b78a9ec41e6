//! What several permissions allow together.
//!
//! A permission is a box: a set of tenants, a set of metrics, a set of sources, and whether it is elevated. What is allowed is the
//! union of the boxes, but an answer holds one box only, and a box around all of them would allow what none of them does: "metric
//! `a` of tenant 1" and "metric `b` of tenant 2" don't make "metric `b` of tenant 1". So two boxes are joined only where their
//! union is a box again: one lies within the other, or they differ in a single dimension. Of what is left the widest is the answer.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use uuid::Uuid;

use super::{Constraints, Decision, PolicyRequest, Principal};

impl Principal<'_> {
    /// The tenant that a permission without tenants is for: a caller's own one; for a source the one that was asked for, else its home.
    pub fn own_tenant(&self, asked: Option<Uuid>) -> Option<Uuid> {
        match self {
            Self::Caller(context) => Some(context.tenant_id),
            Self::Source { home_tenant, .. } => asked.or(*home_tenant),
        }
    }
}

impl PolicyRequest<'_> {
    /// The tenant that a permission without tenants is for.
    pub fn own_tenant(&self) -> Option<Uuid> {
        self.principal.own_tenant(self.tenant_id)
    }
}

impl Constraints {
    /// Whether a set allows nothing, and so the whole.
    fn is_empty(&self) -> bool {
        let none = |set: &Option<BTreeSet<String>>| set.as_ref().is_some_and(BTreeSet::is_empty);
        self.tenants.as_ref().is_some_and(BTreeSet::is_empty) || none(&self.metrics) || none(&self.sources)
    }

    /// Whether the request names nothing that lies outside. What it leaves open the caller has to bound by the constraints.
    pub fn admit(&self, request: &PolicyRequest<'_>) -> bool {
        let tenant = match (request.tenant_id, &self.tenants) {
            (None, _) => true,
            (Some(asked), Some(tenants)) => tenants.contains(&asked),
            (Some(asked), None) => request.own_tenant() == Some(asked),
        };
        tenant && holds(&self.metrics, request.metric) && holds(&self.sources, request.source)
    }
}

fn holds(allowed: &Option<BTreeSet<String>>, named: Option<&str>) -> bool {
    match (allowed, named) {
        (Some(allowed), Some(named)) => allowed.contains(named),
        _ => true,
    }
}

/// The answer to `request` of all permissions that apply to it. One that does not admit the request does not apply.
pub(crate) fn decide(
    permits: impl IntoIterator<Item = Constraints>,
    request: &PolicyRequest<'_>,
) -> Decision {
    let own = request.own_tenant();
    let mut boxes: Vec<_> =
        permits.into_iter().filter(|permit| !permit.is_empty() && permit.admit(request)).collect();
    for permit in &mut boxes {
        // The own tenant by its id, so that it can be compared with tenants that are listed.
        permit.tenants = only(request.tenant_id).or_else(|| permit.tenants.take()).or_else(|| only(own));
    }
    cut(&mut boxes, |bounds| &mut bounds.metrics, request.metric);
    cut(&mut boxes, |bounds| &mut bounds.sources, request.source);
    match widest(join_all(boxes)) {
        None => Decision::Deny,
        Some(mut bounds) => {
            if own.is_some() && bounds.tenants == only(own) {
                bounds.tenants = None;
            }
            Decision::Permit(bounds)
        }
    }
}

/// Of what the request names the boxes keep just that, so that they don't differ in what does not matter to it.
fn cut(
    boxes: &mut [Constraints],
    dimension: impl Fn(&mut Constraints) -> &mut Option<BTreeSet<String>>,
    named: Option<&str>,
) {
    let Some(named) = named else { return };
    if boxes.iter_mut().any(|bounds| dimension(bounds).is_some()) {
        for bounds in boxes {
            *dimension(bounds) = Some(BTreeSet::from([named.to_owned()]));
        }
    }
}

fn only(tenant: Option<Uuid>) -> Option<BTreeSet<Uuid>> {
    tenant.map(|tenant| BTreeSet::from([tenant]))
}

/// Joins pairs as long as there is one that may be joined. The order is fixed first: the answer depends on the permissions only.
fn join_all(mut boxes: Vec<Constraints>) -> Vec<Constraints> {
    boxes.sort_by_cached_key(order);
    let mut first = 0;
    while first < boxes.len() {
        let joined =
            (first + 1..boxes.len()).find_map(|second| Some((second, join(&boxes[first], &boxes[second])?)));
        match joined {
            // The wider box may now be joined with one that was passed over.
            Some((second, joined)) => {
                boxes.swap_remove(second);
                boxes[first] = joined;
                boxes.sort_by_cached_key(order);
                first = 0;
            }
            None => first += 1,
        }
    }
    boxes
}

/// The union of two boxes, if it is a box.
fn join(one: &Constraints, other: &Constraints) -> Option<Constraints> {
    if within(one, other) {
        return Some(other.clone());
    }
    if within(other, one) {
        return Some(one.clone());
    }
    // Neither contains the other, so elevation alone is not what they differ in.
    let same = [
        one.tenants == other.tenants,
        one.metrics == other.metrics,
        one.sources == other.sources,
        one.elevated == other.elevated,
    ];
    if same.iter().filter(|same| !**same).count() != 1 {
        return None;
    }
    Some(Constraints {
        tenants: tenants_of_both(one, other)?,
        metrics: both(&one.metrics, &other.metrics),
        sources: both(&one.sources, &other.sources),
        elevated: one.elevated,
    })
}

/// No tenants means a tenant that is not known here: that can be joined with nothing but itself.
fn tenants_of_both(one: &Constraints, other: &Constraints) -> Option<Option<BTreeSet<Uuid>>> {
    match (&one.tenants, &other.tenants) {
        (None, None) => Some(None),
        (Some(one), Some(other)) => Some(Some(one | other)),
        _ => None,
    }
}

fn both(one: &Option<BTreeSet<String>>, other: &Option<BTreeSet<String>>) -> Option<BTreeSet<String>> {
    Some(one.as_ref()? | other.as_ref()?)
}

fn within(inner: &Constraints, outer: &Constraints) -> bool {
    let tenants = match (&inner.tenants, &outer.tenants) {
        (None, None) => true,
        (Some(inner), Some(outer)) => inner.is_subset(outer),
        _ => false,
    };
    let set = |inner: &Option<BTreeSet<String>>, outer: &Option<BTreeSet<String>>| match (inner, outer) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(inner), Some(outer)) => inner.is_subset(outer),
    };
    tenants
        && set(&inner.metrics, &outer.metrics)
        && set(&inner.sources, &outer.sources)
        && (outer.elevated || !inner.elevated)
}

/// The box with the fewest bounds, then an elevated one, then the one with the most tenants, metrics, sources, then the first by name.
fn widest(boxes: Vec<Constraints>) -> Option<Constraints> {
    boxes.into_iter().min_by_key(order)
}

type Order = (usize, bool, Reverse<[usize; 3]>, [Vec<String>; 3]);

fn order(bounds: &Constraints) -> Order {
    let count =
        [bounds.metrics.is_some(), bounds.sources.is_some()].into_iter().filter(|bound| *bound).count();
    let size = |set: &Option<BTreeSet<String>>| set.as_ref().map_or(usize::MAX, BTreeSet::len);
    let sizes =
        [bounds.tenants.as_ref().map_or(0, BTreeSet::len), size(&bounds.metrics), size(&bounds.sources)];
    let words = |set: &Option<BTreeSet<String>>| set.iter().flatten().cloned().collect();
    let tenants = bounds.tenants.iter().flatten().map(Uuid::to_string).collect();
    (count, !bounds.elevated, Reverse(sizes), [tenants, words(&bounds.metrics), words(&bounds.sources)])
}

#[cfg(test)]
mod tests;
