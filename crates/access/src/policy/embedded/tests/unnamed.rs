//! A request that leaves something open is given nothing that it would be denied by name.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const THIRD: Uuid = Uuid::from_u128(0xc0);

const GROUPS: &str = r#"[
    {"uid": {"type": "Metric", "id": "salaries"}, "attrs": {}, "parents": [{"type": "MetricGroup", "id": "private"}]},
    {"uid": {"type": "Metric", "id": "bonuses"}, "attrs": {}, "parents": [{"type": "MetricGroup", "id": "private"}]},
    {"uid": {"type": "Source", "id": "mail"}, "attrs": {}, "parents": [{"type": "SourceGroup", "id": "office"}]},
    {"uid": {"type": "Tenant", "id": "00000000-0000-0000-0000-0000000000b0"}, "attrs": {}, "parents": [{"type": "TenantGroup", "id": "eu"}]}
]"#;

fn names(names: &[&str]) -> Option<BTreeSet<String>> {
    Some(names.iter().map(|name| (*name).to_owned()).collect())
}

fn read_with(rest: &str) -> Decision {
    let policies = format!("{rest}\npermit (principal is Caller, action == Action::\"emit\", resource);");
    set(&policies, Some(GROUPS)).decide(&ask(&all_scopes(), Action::Read))
}

#[test]
fn a_forbidden_metric_can_not_be_had_by_naming_none() {
    let permit = r#"permit (principal is Caller, action == Action::"read", resource);"#;
    for forbid in [
        r#"forbid (principal, action, resource) when { context has metric && context.metric == Metric::"secret" };"#,
        r#"forbid (principal, action, resource) when { context has metric && context.metric in MetricGroup::"private" };"#,
        r#"forbid (principal, action, resource) when { context has metric } unless { context.metric == Metric::"calls" };"#,
        r#"forbid (principal, action, resource) when { context has source && context.source in SourceGroup::"office" };"#,
        r#"forbid (principal, action, resource)
           when { context has metric && context.metric == Metric::"secret" && context has source && context.source == Source::"llm" };"#,
    ] {
        assert_eq!(read_with(&format!("{permit}\n{forbid}")), Decision::Deny, "{forbid}");
        // A list without it is given as it is, a list with it without it.
        let listed =
            format!("@metrics(\"calls, secret, salaries\") @sources(\"llm, mail\") {permit}\n{forbid}");
        let found = permitted(read_with(&listed));
        assert!(
            found.metrics != names(&["calls", "secret", "salaries"])
                || found.sources != names(&["llm", "mail"])
        );
    }
    let group = r#"forbid (principal, action, resource) when { context has metric && context.metric in MetricGroup::"private" };"#;
    let listed = format!("@metrics(\"calls, salaries, bonuses\") {permit}\n{group}");
    assert_eq!(permitted(read_with(&listed)).metrics, names(&["calls"]));
}

#[test]
fn a_permit_that_leaves_a_metric_out_leaves_it_out_of_what_is_open_too() {
    let permit = r#"permit (principal is Caller, action == Action::"read", resource)
        unless { context has metric && context.metric == Metric::"secret" };"#;
    assert_eq!(read_with(permit), Decision::Deny);
    let found = permitted(read_with(&format!("@metrics(\"calls, secret\") {permit}")));
    assert_eq!(found.metrics, names(&["calls"]));
}

/// By name such a metric is denied without its source, so a request that names neither must not have it.
#[test]
fn what_has_to_be_named_together_is_not_had_by_naming_nothing() {
    let permit = r#"permit (principal is Caller, action == Action::"read", resource);"#;
    let secret = r#"forbid (principal, action, resource)
        when { context has metric && context.metric == Metric::"secret" } unless { context has source };"#;
    assert_eq!(read_with(&format!("{permit}\n{secret}")), Decision::Deny);
    let found = permitted(read_with(&format!("@metrics(\"calls, secret\") {permit}\n{secret}")));
    assert_eq!((found.metrics, found.sources), (names(&["calls"]), None));
    let source = r#"forbid (principal, action, resource)
        when { context has source && context.source == Source::"mail" } unless { context has metric };"#;
    assert_eq!(read_with(&format!("{permit}\n{source}")), Decision::Deny);
    let listed = format!("@metrics(\"calls\") @sources(\"llm, mail\") {permit}\n{source}");
    let found = permitted(read_with(&listed));
    assert_eq!((found.metrics, found.sources), (names(&["calls"]), names(&["llm"])));
    // The same of any source, and of each by the other.
    let neither =
        r#"forbid (principal, action, resource) when { context has source } unless { context has metric };"#;
    assert_eq!(read_with(&format!("{permit}\n{neither}")), Decision::Deny);
    let both =
        r#"forbid (principal, action, resource) when { (context has source) != (context has metric) };"#;
    assert_eq!(read_with(&format!("{permit}\n{both}")), Decision::Deny);
}

#[test]
fn a_listed_tenant_that_is_forbidden_is_not_in_the_answer() {
    let permit = format!(
        r#"@tenants("own, {OTHER}, {THIRD}") permit (principal is Caller, action == Action::"read", resource)"#
    );
    for (rest, expected) in [
        (";".to_owned(), Some(BTreeSet::from([OWN, OTHER, THIRD]))),
        (
            format!("; forbid (principal, action, resource == Tenant::\"{THIRD}\");"),
            Some(BTreeSet::from([OWN, OTHER])),
        ),
        (
            "; forbid (principal, action, resource in TenantGroup::\"eu\");".to_owned(),
            Some(BTreeSet::from([OWN, THIRD])),
        ),
        ("when { resource == principal.tenant };".to_owned(), None),
        (
            "; forbid (principal is Caller, action, resource) unless { resource == principal.tenant };"
                .to_owned(),
            None,
        ),
    ] {
        assert_eq!(permitted(read_with(&format!("{permit} {rest}"))).tenants, expected, "{rest}");
    }
}

#[test]
fn a_policy_that_fails_for_one_of_what_is_open_takes_it_out() {
    let permit =
        r#"@metrics("calls, secret") permit (principal is Caller, action == Action::"read", resource);"#;
    let fails = r#"forbid (principal, action, resource)
        when { context has metric && context.metric == Metric::"secret" && 9223372036854775807 + 1 > 0 };"#;
    assert_eq!(permitted(read_with(&format!("{permit}\n{fails}"))).metrics, names(&["calls"]));
}

const CONDITIONS: &[&str] = &[
    "true",
    r#"resource == principal.tenant"#,
    r#"resource in TenantGroup::"eu""#,
    r#"context has metric"#,
    r#"(context has metric && context.metric == Metric::"calls")"#,
    r#"(context has metric && context.metric in MetricGroup::"private")"#,
    r#"(context has source && context.source == Source::"llm")"#,
    r#"(context has source && context.source in SourceGroup::"office")"#,
];

fn condition() -> impl Strategy<Value = String> {
    let one = || {
        (proptest::sample::select(CONDITIONS), any::<bool>())
            .prop_map(|(text, not)| if not { format!("!({text})") } else { text.to_owned() })
    };
    (one(), one(), any::<bool>()).prop_map(|(a, b, and)| format!("{a} {} {b}", if and { "&&" } else { "||" }))
}

fn policy() -> impl Strategy<Value = String> {
    let bounds = (
        proptest::sample::select(
            &[
                "",
                "@tenants(\"own, 00000000-0000-0000-0000-0000000000b0, 00000000-0000-0000-0000-0000000000c0\")",
            ][..],
        ),
        proptest::sample::select(
            &["", "@metrics(\"calls\")", "@metrics(\"calls, salaries, bonuses, other\")"][..],
        ),
        proptest::sample::select(&["", "@sources(\"mail, llm, other\")"][..]),
    );
    (proptest::bool::weighted(0.7), bounds, condition()).prop_map(
        |(permit, (tenants, metrics, sources), condition)| {
            let head =
                if permit { format!("{tenants} {metrics} {sources} permit") } else { "forbid".to_owned() };
            format!(
                "{head} (principal is Caller, action == Action::\"read\", resource) when {{ {condition} }};"
            )
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Every tenant, metric and source of an answer is permitted as well when the request names them.
    #[test]
    fn what_an_answer_allows_is_permitted_by_name(policies in proptest::collection::vec(policy(), 1..4)) {
        // A policy that can never apply is refused at load; such a set has nothing to say here.
        let Ok(set) = read(&policies.join("\n"), Some(GROUPS)) else { return Ok(()) };
        let context = all_scopes();
        let Decision::Permit(bounds) = set.decide(&ask(&context, Action::Read)) else { return Ok(()) };
        for tenant in [OWN, OTHER, THIRD] {
            // Naming none asks for no more than what is left of it.
            for metric in [Some("calls"), Some("salaries"), Some("bonuses"), Some("other"), Some("unheard"), None] {
                for source in [Some("mail"), Some("llm"), Some("other"), Some("unheard"), None] {
                    let within = |set: &Option<BTreeSet<String>>, named: Option<&str>| match (set, named) {
                        (Some(set), Some(named)) => set.contains(named),
                        _ => true,
                    };
                    let allowed = bounds.tenants.as_ref().map_or(tenant == OWN, |set| set.contains(&tenant))
                        && within(&bounds.metrics, metric)
                        && within(&bounds.sources, source);
                    let named =
                        PolicyRequest { tenant_id: Some(tenant), metric, source, ..ask(&context, Action::Read) };
                    let permitted = matches!(set.decide(&named), Decision::Permit(_));
                    prop_assert!(
                        permitted || !allowed,
                        "{tenant} {metric:?} {source:?}\n{}",
                        policies.join("\n")
                    );
                }
            }
        }
    }
}
