//! Policies with bounds, groups and names.

use std::collections::BTreeSet;

use super::*;

const GROUPS: &str = r#"[
    {"uid": {"type": "Tenant", "id": "00000000-0000-0000-0000-0000000000b0"}, "attrs": {}, "parents": [{"type": "TenantGroup", "id": "eu west"}]},
    {"uid": {"type": "TenantGroup", "id": "eu west"}, "attrs": {}, "parents": [{"type": "TenantGroup", "id": "eu"}]},
    {"uid": {"type": "Metric", "id": "calls"}, "attrs": {}, "parents": [{"type": "MetricGroup", "id": "phone"}]},
    {"uid": {"type": "Source", "id": "mail"}, "attrs": {}, "parents": [{"type": "SourceGroup", "id": "office"}]},
    {"uid": {"type": "Caller", "id": "00000000-0000-0000-0000-0000000000a0/00000000-0000-0000-0000-000000000001"}, "attrs": {}, "parents": [{"type": "CallerGroup", "id": "finance"}]}
]"#;

fn names(names: &[&str]) -> Option<BTreeSet<String>> {
    Some(names.iter().map(|name| (*name).to_owned()).collect())
}

#[test]
fn annotations_become_constraints() {
    let set = set(
        r#"
        @id("some")
        @description("for the auditors")
        @tenants("own, 00000000-0000-0000-0000-0000000000b0")
        @metrics("calls, tokens")
        @sources("mail")
        @elevated("true")
        permit (principal is Caller, action == Action::"backfill", resource);
        "#,
        None,
    );
    let context = caller(&[]);
    let expected = Constraints {
        tenants: Some(BTreeSet::from([OWN, OTHER])),
        metrics: names(&["calls", "tokens"]),
        sources: names(&["mail"]),
        elevated: true,
    };
    assert_eq!(set.decide(&ask(&context, Action::Backfill)), Decision::Permit(expected));
    let outside = PolicyRequest { metric: Some("mails"), ..ask(&context, Action::Backfill) };
    assert_eq!(set.decide(&outside), Decision::Deny);
}

#[test]
fn asked_is_the_tenant_that_is_named_and_nobody_where_none_is() {
    let set = set(
        r#"
        @tenants("asked")
        permit (principal is Caller, action == Action::"read", resource)
        when { principal.scopes.contains(Scope::"usage:admin") };
        "#,
        None,
    );
    let context = all_scopes();
    let named = PolicyRequest { tenant_id: Some(OTHER), ..ask(&context, Action::Read) };
    assert_eq!(permitted(set.decide(&named)).tenants, Some(BTreeSet::from([OTHER])));
    assert_eq!(set.decide(&ask(&context, Action::Read)), Decision::Deny);
    let reader = caller(&[Scope::Read]);
    let named = PolicyRequest { tenant_id: Some(OTHER), ..ask(&reader, Action::Read) };
    assert_eq!(set.decide(&named), Decision::Deny);
}

#[test]
fn groups_are_known_in_conditions_and_in_annotations() {
    let set = set(
        r#"
        @tenants("group eu")
        @metrics("group phone, tokens")
        @sources("group office")
        permit (principal in CallerGroup::"finance", action == Action::"read", resource);
        permit (principal is Source, action == Action::"emit_on_behalf", resource in TenantGroup::"eu")
        when { principal in SourceGroup::"office" && context has metric && context.metric in MetricGroup::"phone" };
        "#,
        Some(GROUPS),
    );
    let finance = SecurityContext { subject_id: Some(Uuid::from_u128(1)), ..caller(&[]) };
    let expected = Constraints {
        tenants: Some(BTreeSet::from([OTHER])),
        metrics: names(&["calls", "tokens"]),
        sources: names(&["mail"]),
        elevated: false,
    };
    assert_eq!(set.decide(&ask(&finance, Action::Read)), Decision::Permit(expected));
    // The same subject in a token of another tenant is somebody else.
    let elsewhere = SecurityContext { tenant_id: OTHER, ..finance.clone() };
    assert_eq!(set.decide(&ask(&elsewhere, Action::Read)), Decision::Deny);
    for (name, tenant, metric, expected) in [
        ("mail", OTHER, Some("calls"), true),
        ("mail", OWN, Some("calls"), false),
        ("mail", OTHER, Some("tokens"), false),
        ("mail", OTHER, None, false),
        ("llm", OTHER, Some("calls"), false),
    ] {
        let principal = Principal::Source { name, home_tenant: None, any_tenant: false };
        let request = PolicyRequest {
            principal,
            tenant_id: Some(tenant),
            metric,
            ..ask(&finance, Action::EmitOnBehalf)
        };
        assert_eq!(matches!(set.decide(&request), Decision::Permit(_)), expected, "{request:?}");
    }
}

#[test]
fn a_group_that_only_policies_reach_by_name_is_seen() {
    // Neither the caller nor the tenant of the request: the policies name the tenant themselves.
    let set = set(
        r#"
        permit (principal is Caller, action == Action::"read", resource);
        forbid (principal, action, resource)
        when { Tenant::"00000000-0000-0000-0000-0000000000b0" in TenantGroup::"eu" };
        "#,
        Some(GROUPS),
    );
    assert_eq!(set.decide(&ask(&all_scopes(), Action::Read)), Decision::Deny);
}

#[test]
fn a_forbid_goes_over_every_permit() {
    let set = set(
        r#"
        @id("everything")
        permit (principal is Caller, action, resource);
        @id("no-llm")
        forbid (principal, action, resource) when { context has source && context.source == Source::"llm" };
        "#,
        None,
    );
    let context = caller(&[]);
    let source = |name| PolicyRequest { source: Some(name), ..ask(&context, Action::Emit) };
    assert!(matches!(set.decide(&source("mail")), Decision::Permit(_)));
    assert_eq!(set.decide(&source("llm")), Decision::Deny);
    assert_eq!(set.explain(&source("mail")).1, ["everything"]);
    assert_eq!(set.explain(&source("llm")), (Decision::Deny, vec!["no-llm".to_owned()]));
}

#[test]
fn a_policy_that_fails_denies_also_what_others_permit() {
    // The sum overflows: Cedar would leave the forbid out.
    let set = set(
        r#"
        permit (principal is Caller, action == Action::"read", resource);
        forbid (principal is Caller, action == Action::"read", resource)
        when { principal has subject_type && 9223372036854775807 + 1 > 0 };
        "#,
        None,
    );
    let context = all_scopes();
    assert!(matches!(set.decide(&ask(&context, Action::Read)), Decision::Permit(_)));
    let typed = SecurityContext { subject_type: Some("user".into()), ..context };
    assert_eq!(set.decide(&ask(&typed, Action::Read)), Decision::Deny);
    let (_, by) = set.explain(&ask(&typed, Action::Read));
    assert!(by.len() == 1 && by[0].starts_with("p.cedar:3:"), "{by:?}");
}

#[test]
fn several_permits_allow_together_only_what_one_of_them_allows() {
    let set = set(
        r#"
        @metrics("calls")
        permit (principal is Caller, action == Action::"read", resource);
        @metrics("tokens")
        permit (principal is Caller, action == Action::"read", resource);
        @metrics("mails")
        @sources("mail")
        permit (principal is Caller, action == Action::"read", resource);
        "#,
        None,
    );
    let found = permitted(set.decide(&ask(&caller(&[]), Action::Read)));
    assert_eq!(found, Constraints { metrics: names(&["calls", "tokens"]), ..Constraints::default() });
}

#[test]
fn the_type_of_a_subject_can_be_asked_for() {
    let set = set(
        r#"
        permit (principal is Caller, action == Action::"read", resource)
        when { principal has subject_type && principal.subject_type == "service" };
        "#,
        None,
    );
    for (subject_type, expected) in [(Some("service"), true), (Some("user"), false), (None, false)] {
        let context = SecurityContext { subject_type: subject_type.map(str::to_owned), ..caller(&[]) };
        let found = matches!(set.decide(&ask(&context, Action::Read)), Decision::Permit(_));
        assert_eq!(found, expected, "{subject_type:?}");
    }
}
