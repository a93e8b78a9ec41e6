use proptest::prelude::*;

use super::*;
use crate::{Scopes, SecurityContext};

const OWN: Uuid = Uuid::from_u128(1);
const TENANTS: [Uuid; 3] = [OWN, Uuid::from_u128(2), Uuid::from_u128(3)];
/// The last one stands for every metric that no policy names.
const METRICS: [&str; 3] = ["calls", "tokens", "zzz"];
const SOURCES: [&str; 3] = ["mail", "llm", "zzz"];

fn names(names: &[&str]) -> Option<BTreeSet<String>> {
    Some(names.iter().map(|name| (*name).to_owned()).collect())
}

fn tenants(ids: &[u128]) -> Option<BTreeSet<Uuid>> {
    Some(ids.iter().copied().map(Uuid::from_u128).collect())
}

fn caller() -> SecurityContext {
    SecurityContext::for_tenant(OWN, Scopes::all())
}

fn open(context: &SecurityContext) -> PolicyRequest<'_> {
    PolicyRequest {
        principal: Principal::Caller(context),
        action: super::super::Action::Read,
        tenant_id: None,
        metric: None,
        source: None,
    }
}

fn answer(permits: Vec<Constraints>) -> Constraints {
    let context = caller();
    match decide(permits, &open(&context)) {
        Decision::Permit(bounds) => bounds,
        Decision::Deny => panic!("denied"),
    }
}

#[test]
fn no_permission_is_a_denial() {
    assert_eq!(decide([], &open(&caller())), Decision::Deny);
}

#[test]
fn a_bound_that_holds_not_what_was_asked_for_denies() {
    let context = caller();
    let permit = Constraints {
        tenants: tenants(&[1, 2]),
        metrics: names(&["calls"]),
        sources: names(&["mail"]),
        elevated: false,
    };
    let asked = |tenant, metric, source| PolicyRequest {
        tenant_id: Some(Uuid::from_u128(tenant)),
        metric: Some(metric),
        source: Some(source),
        ..open(&context)
    };
    assert!(matches!(decide([permit.clone()], &asked(2, "calls", "mail")), Decision::Permit(_)));
    for request in [asked(3, "calls", "mail"), asked(1, "tokens", "mail"), asked(1, "calls", "llm")] {
        assert_eq!(decide([permit.clone()], &request), Decision::Deny, "{request:?}");
    }
}

#[test]
fn an_empty_set_permits_nothing_at_all() {
    for empty in [
        Constraints { tenants: Some(BTreeSet::new()), ..Constraints::default() },
        Constraints { metrics: Some(BTreeSet::new()), ..Constraints::default() },
        Constraints { sources: Some(BTreeSet::new()), ..Constraints::default() },
    ] {
        assert_eq!(decide([empty], &open(&caller())), Decision::Deny);
    }
}

#[test]
fn without_tenants_a_caller_gets_its_own_and_a_source_the_one_it_asked_for() {
    let context = caller();
    let other = Some(TENANTS[1]);
    let permit = Constraints::default();
    assert_eq!(
        decide([permit.clone()], &PolicyRequest { tenant_id: other, ..open(&context) }),
        Decision::Deny
    );
    let own = PolicyRequest { tenant_id: Some(OWN), ..open(&context) };
    assert_eq!(decide([permit.clone()], &own), Decision::Permit(permit.clone()));
    let source = Principal::Source { name: "mail", home_tenant: Some(OWN), any_tenant: true };
    let asked = PolicyRequest { principal: source, tenant_id: other, ..open(&context) };
    assert_eq!(decide([permit.clone()], &asked), Decision::Permit(permit));
}

#[test]
fn boxes_that_differ_in_one_dimension_are_joined() {
    let metric = |name| Constraints { metrics: names(&[name]), ..Constraints::default() };
    assert_eq!(answer(vec![metric("calls"), metric("tokens")]).metrics, names(&["calls", "tokens"]));
    let tenant = |id| Constraints { tenants: tenants(&[id]), ..Constraints::default() };
    assert_eq!(answer(vec![tenant(2), Constraints::default()]).tenants, tenants(&[1, 2]));
}

#[test]
fn boxes_that_differ_in_two_dimensions_are_not_joined() {
    let first = Constraints { tenants: tenants(&[2]), metrics: names(&["calls"]), ..Constraints::default() };
    let second =
        Constraints { tenants: tenants(&[3]), metrics: names(&["tokens"]), ..Constraints::default() };
    let found = answer(vec![first.clone(), second.clone()]);
    assert!(found == first || found == second, "{found:?}");
}

#[test]
fn an_elevated_permission_of_less_does_not_elevate_the_rest() {
    let all = Constraints::default();
    let some = Constraints { metrics: names(&["calls"]), elevated: true, ..Constraints::default() };
    assert_eq!(answer(vec![all.clone(), some]), all);
    let elevated = Constraints { elevated: true, ..Constraints::default() };
    assert_eq!(answer(vec![all, elevated.clone()]), elevated);
}

#[test]
fn what_the_request_names_makes_no_difference_between_permissions() {
    let context = caller();
    let calls = PolicyRequest { metric: Some("calls"), ..open(&context) };
    let some = Constraints { metrics: names(&["calls"]), elevated: true, ..Constraints::default() };
    let Decision::Permit(found) = decide([Constraints::default(), some.clone()], &calls) else {
        panic!("denied")
    };
    assert_eq!(found, some);
}

#[test]
fn an_own_tenant_that_is_listed_reads_as_own() {
    let listed = Constraints { tenants: tenants(&[1]), ..Constraints::default() };
    assert_eq!(answer(vec![listed]), Constraints::default());
}

#[test]
fn a_source_without_any_tenant_joins_nothing_to_it() {
    let context = caller();
    let nobody = Principal::Source { name: "mail", home_tenant: None, any_tenant: false };
    let request = PolicyRequest { principal: nobody, ..open(&context) };
    let listed = Constraints { tenants: tenants(&[2]), ..Constraints::default() };
    let Decision::Permit(found) = decide([Constraints::default(), listed.clone()], &request) else {
        panic!("denied")
    };
    assert!(found == listed || found == Constraints::default());
}

/// Everything that can be asked: a tenant, a metric, a source, and whether beyond the usual bounds.
fn points() -> impl Iterator<Item = (Uuid, &'static str, &'static str, bool)> {
    TENANTS.into_iter().flat_map(|tenant| {
        METRICS.into_iter().flat_map(move |metric| {
            SOURCES
                .into_iter()
                .flat_map(move |source| [(tenant, metric, source, false), (tenant, metric, source, true)])
        })
    })
}

fn allows(bounds: &Constraints, point: (Uuid, &str, &str, bool)) -> bool {
    let (tenant, metric, source, elevated) = point;
    bounds.tenants.as_ref().map_or(tenant == OWN, |tenants| tenants.contains(&tenant))
        && bounds.metrics.as_ref().is_none_or(|metrics| metrics.contains(metric))
        && bounds.sources.as_ref().is_none_or(|sources| sources.contains(source))
        && (bounds.elevated || !elevated)
}

fn some_of(names: &'static [&'static str]) -> impl Strategy<Value = Option<BTreeSet<String>>> {
    let set = proptest::sample::subsequence(&names[..2], 0..=2);
    proptest::option::of(set.prop_map(|set| set.into_iter().map(str::to_owned).collect()))
}

fn constraints() -> impl Strategy<Value = Constraints> {
    let tenants = proptest::option::of(
        proptest::sample::subsequence(&TENANTS[..], 0..=3).prop_map(|set| set.into_iter().collect()),
    );
    (tenants, some_of(&METRICS), some_of(&SOURCES), any::<bool>())
        .prop_map(|(tenants, metrics, sources, elevated)| Constraints { tenants, metrics, sources, elevated })
}

fn named() -> impl Strategy<Value = (Option<Uuid>, Option<&'static str>, Option<&'static str>)> {
    (
        proptest::option::of(proptest::sample::select(&TENANTS[..])),
        proptest::option::of(proptest::sample::select(&METRICS[..])),
        proptest::option::of(proptest::sample::select(&SOURCES[..])),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn nothing_is_allowed_that_no_single_permission_allows(
        permits in proptest::collection::vec(constraints(), 0..6),
        (tenant_id, metric, source) in named(),
    ) {
        let context = caller();
        let request = PolicyRequest { tenant_id, metric, source, ..open(&context) };
        if let Decision::Permit(bounds) = decide(permits.clone(), &request) {
            prop_assert!(bounds.admit(&request));
            for point in points().filter(|point| allows(&bounds, *point)) {
                prop_assert!(permits.iter().any(|permit| allows(permit, point)), "{point:?}");
            }
            // Of what was asked for, nor less than at least one of them alone.
            let asked = |point: &(Uuid, &str, &str, bool)| {
                tenant_id.is_none_or(|tenant| tenant == point.0)
                    && metric.is_none_or(|metric| metric == point.1)
                    && source.is_none_or(|source| source == point.2)
            };
            let whole = |permit: &Constraints| {
                permit.admit(&request)
                    && !permit.is_empty()
                    && points().filter(asked).all(|point| !allows(permit, point) || allows(&bounds, point))
            };
            prop_assert!(permits.iter().any(whole));
        } else {
            prop_assert!(!permits.iter().any(|permit| permit.admit(&request) && !permit.is_empty()));
        }
    }

    #[test]
    fn the_order_of_policies_does_not_matter(
        permits in proptest::collection::vec(constraints(), 0..6),
        turn in 0_usize..6,
    ) {
        let context = caller();
        let mut turned = permits.clone();
        turned.rotate_left(turn.min(permits.len()));
        let mut reversed = permits.clone();
        reversed.reverse();
        let expected = decide(permits, &open(&context));
        prop_assert_eq!(&decide(turned, &open(&context)), &expected);
        prop_assert_eq!(&decide(reversed, &open(&context)), &expected);
    }

    #[test]
    fn a_request_that_names_everything_gets_what_any_permission_gives(
        permits in proptest::collection::vec(constraints(), 0..6),
        tenant in proptest::sample::select(&TENANTS[..]),
        metric in proptest::sample::select(&METRICS[..]),
        source in proptest::sample::select(&SOURCES[..]),
    ) {
        let context = caller();
        let request =
            PolicyRequest { tenant_id: Some(tenant), metric: Some(metric), source: Some(source), ..open(&context) };
        let allowed = |elevated| permits.iter().any(|permit| allows(permit, (tenant, metric, source, elevated)));
        let expected = allowed(false).then(|| allowed(true));
        let found = match decide(permits.clone(), &request) {
            Decision::Permit(bounds) => Some(bounds.elevated),
            Decision::Deny => None,
        };
        prop_assert_eq!(found, expected);
    }
}
