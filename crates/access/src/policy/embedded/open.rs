//! What a request leaves open.
//!
//! A policy can look at the metric, the source and the tenant that a request names. A request that names none would pass by a
//! `forbid` of one metric and be given all of them. So a permission holds only for what the same policy would permit if the request named it.
//!
//! Policies tell two metrics apart only by name or by group, so one of each kind is tried, not all of them; likewise sources and tenants.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use cedar_policy::{EntityUid, PolicyId};
use uuid::Uuid;

use super::entities::Groups;
use super::set::CheckedSet;
use super::words::Words;
use crate::policy::{Constraints, PolicyRequest, Principal};

/// Combinations that are tried for one permission; one that needs more does not hold.
const TRIED: usize = 10_000;

/// One of each kind of metric and of source that the policies tell apart.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    metrics: Vec<String>,
    sources: Vec<String>,
}

impl Kinds {
    /// Nothing where no policy looks at what a request names.
    pub fn of(look: bool, literals: &HashSet<EntityUid>, groups: &Groups) -> Self {
        let kinds = |type_name: &str| {
            let known = groups.known().chain(literals).filter(|uid| uid.type_name().basename() == type_name);
            let by_kind: BTreeMap<_, _> =
                known.map(|uid| (kind(uid, groups, |uid| literals.contains(uid)), uid)).collect();
            let one_of_each = by_kind.into_values().map(|uid| uid.id().unescaped().to_owned());
            // And one that no policy and no group knows: no metric has this name.
            one_of_each.chain([String::new()]).collect()
        };
        if look { Self { metrics: kinds("Metric"), sources: kinds("Source") } } else { Self::default() }
    }

    fn look(&self) -> bool {
        !self.metrics.is_empty()
    }
}

/// Those that policies name are kinds of their own, the others are what their groups are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Itself(String),
    In(BTreeSet<String>),
}

fn kind(uid: &EntityUid, groups: &Groups, special: impl Fn(&EntityUid) -> bool) -> Kind {
    match special(uid) {
        true => Kind::Itself(uid.to_string()),
        false => Kind::In(groups.of(uid).iter().map(EntityUid::to_string).collect()),
    }
}

/// What is tried of metrics, sources or tenants.
struct Axis {
    /// One of each kind; none: as the request has it.
    tried: Vec<Option<String>>,
    /// Of each kind what the permission lists of it; nothing where it does not list.
    listed: Vec<Vec<String>>,
}

impl Axis {
    fn as_asked(named: Option<String>) -> Self {
        Self { tried: vec![named], listed: Vec::new() }
    }

    fn one_of_each(kinds: impl IntoIterator<Item = String>) -> Self {
        Self { tried: kinds.into_iter().map(Some).collect(), listed: Vec::new() }
    }

    fn listed(items: impl Iterator<Item = (Kind, String)>) -> Self {
        let mut by_kind: BTreeMap<Kind, Vec<String>> = BTreeMap::new();
        for (kind, item) in items {
            by_kind.entry(kind).or_default().push(item);
        }
        let listed: Vec<_> = by_kind.into_values().collect();
        Self { tried: listed.iter().map(|items| items.first().cloned()).collect(), listed }
    }

    /// And that nothing is named: a policy can ask for one name where there is another.
    fn or_none(mut self) -> Self {
        self.tried.push(None);
        self
    }

    /// What is left of the list without the kinds that were refused; nothing where it was refused to name none.
    fn without(&self, refused: &BTreeSet<usize>) -> Option<Vec<String>> {
        if refused.iter().any(|index| *index >= self.listed.len()) {
            return None;
        }
        let kept = self.listed.iter().enumerate().filter(|(index, _)| !refused.contains(index));
        let kept: Vec<_> = kept.flat_map(|(_, items)| items.iter().cloned()).collect();
        (!kept.is_empty()).then_some(kept)
    }
}

/// What of a permission holds, if anything.
pub(super) fn hold(
    set: &CheckedSet,
    request: &PolicyRequest<'_>,
    permit: &PolicyId,
    mut bounds: Constraints,
) -> Option<Constraints> {
    let axes =
        [metrics(set, request, &bounds), sources(set, request, &bounds), tenants(set, request, &bounds)];
    let [metrics, sources, tenants] = &axes;
    if axes.iter().all(|axis| axis.tried.len() == 1 && axis.listed.is_empty()) && !set.kinds.look() {
        return Some(bounds);
    }
    if axes
        .iter()
        .map(|axis| axis.tried.len())
        .try_fold(1, usize::checked_mul)
        .is_none_or(|tried| tried > TRIED)
    {
        tracing::error!(policy = %permit, "a permission is open in too many ways to be tried: it does not hold");
        return None;
    }
    let mut refused: [BTreeSet<usize>; 3] = Default::default();
    for (at_metric, metric) in metrics.tried.iter().enumerate() {
        for (at_source, source) in sources.tried.iter().enumerate() {
            for (at_tenant, tenant) in tenants.tried.iter().enumerate() {
                let named = PolicyRequest {
                    tenant_id: tenant.as_deref().and_then(|id| Uuid::try_parse(id).ok()),
                    metric: metric.as_deref(),
                    source: source.as_deref(),
                    ..*request
                };
                if !set.permits(&named, permit) {
                    refused[0].insert(at_metric);
                    refused[1].insert(at_source);
                    refused[2].insert(at_tenant);
                }
            }
        }
    }
    if refused[0].is_empty() {
        return Some(bounds);
    }
    // Every refused combination has a refused kind of each axis: without those of one axis none is left.
    if let Some(kept) = metrics.without(&refused[0]) {
        bounds.metrics = Some(kept.into_iter().collect());
    } else if let Some(kept) = sources.without(&refused[1]) {
        bounds.sources = Some(kept.into_iter().collect());
    } else {
        let kept = tenants.without(&refused[2])?;
        bounds.tenants = Some(kept.iter().filter_map(|id| Uuid::try_parse(id).ok()).collect());
    }
    Some(bounds)
}

fn metrics(set: &CheckedSet, request: &PolicyRequest<'_>, bounds: &Constraints) -> Axis {
    let special = |uid: &EntityUid| set.literals.contains(uid);
    match (request.metric, &bounds.metrics) {
        (Some(named), _) => Axis::as_asked(Some(named.to_owned())),
        (None, _) if !set.kinds.look() => Axis::as_asked(None),
        (None, Some(listed)) => names(set, listed, Words::metric, special).or_none(),
        (None, None) => Axis::one_of_each(set.kinds.metrics.iter().cloned()).or_none(),
    }
}

fn sources(set: &CheckedSet, request: &PolicyRequest<'_>, bounds: &Constraints) -> Axis {
    let own = match request.principal {
        Principal::Source { name, .. } => Some(name),
        Principal::Caller(_) => None,
    };
    let own_uid = own.map(|name| set.words.source(name));
    let special = |uid: &EntityUid| set.literals.contains(uid) || own_uid.as_ref() == Some(uid);
    match (request.source, &bounds.sources) {
        (Some(named), _) => Axis::as_asked(Some(named.to_owned())),
        (None, _) if !set.kinds.look() => Axis::as_asked(None),
        (None, Some(listed)) => names(set, listed, Words::source, special).or_none(),
        (None, None) => {
            let kinds = set.kinds.sources.iter().cloned().chain(own.map(str::to_owned));
            Axis::one_of_each(kinds).or_none()
        }
    }
}

fn names(
    set: &CheckedSet,
    listed: &BTreeSet<String>,
    uid: impl Fn(&Words, &str) -> EntityUid,
    special: impl Fn(&EntityUid) -> bool,
) -> Axis {
    Axis::listed(
        listed.iter().map(|name| (kind(&uid(&set.words, name), &set.groups, &special), name.clone())),
    )
}

fn tenants(set: &CheckedSet, request: &PolicyRequest<'_>, bounds: &Constraints) -> Axis {
    if let Some(named) = request.tenant_id {
        return Axis::as_asked(Some(named.to_string()));
    }
    let Some(listed) = &bounds.tenants else { return Axis::as_asked(None) };
    let own = request.own_tenant().map(|tenant| set.words.tenant(tenant));
    let special = |uid: &EntityUid| set.literals.contains(uid) || own.as_ref() == Some(uid);
    Axis::listed(
        listed
            .iter()
            .map(|tenant| (kind(&set.words.tenant(*tenant), &set.groups, special), tenant.to_string())),
    )
}
