//! What is refused, and what the refusal says.

use super::*;

const PERMIT: &str = r#"permit (principal is Caller, action == Action::"read", resource);"#;

#[test]
fn each_fault_of_a_policy_is_told_with_its_line() {
    for (policy, word) in [
        ("permit (principal, action, resource", "unexpected"),
        (r#"permit (principal, action == Action::"raed", resource);"#, "raed"),
        ("permit (principal is User, action, resource);", "User"),
        (r#"permit (principal is Caller, action, resource) when { principal.tenat == resource };"#, "tenat"),
        (
            r#"permit (principal is Caller, action, resource) when { principal.scopes.contains("usage:read") };"#,
            "Scope",
        ),
        (
            r#"permit (principal is Caller, action, resource) when { principal.scopes.contains(Scope::"usage:raed") };"#,
            "usage:raed",
        ),
        // Without a look whether it is there.
        (r#"permit (principal is Source, action, resource) when { principal.any_tenant };"#, "any_tenant"),
        (
            r#"permit (principal is Caller, action, resource) when { context.metric == Metric::"calls" };"#,
            "metric",
        ),
        // Can never apply.
        (r#"permit (principal is Source, action == Action::"read", resource);"#, "unable to find"),
        ("permit (principal == ?principal, action, resource);", "template"),
        (
            r#"permit (principal, action, resource) when { resource == Tenant::"00000000-0000-0000-0000-0000000000B0" };"#,
            "lower case",
        ),
        (r#"permit (principal is Caller, action, resource in TenantGroup::"eu");"#, "in no entity file"),
        (r#"permit (principal == Caller::"bob", action, resource);"#, "TENANT/SUBJECT"),
        (
            r#"permit (principal is Caller, action, resource) when { context has metric && context.metric == Metric::"Calls" };"#,
            "a-z",
        ),
    ] {
        let faults = refused(&format!("{PERMIT}\n\n{policy}\n"), None);
        let found = faults.iter().find(|fault| fault.line == Some(3) && fault.detail.contains(word));
        assert!(found.is_some_and(|fault| fault.file == "p.cedar"), "{policy}: {faults:?}");
    }
}

#[test]
fn each_fault_of_an_annotation_is_told() {
    for (annotation, word) in [
        (r#"@metric("calls")"#, "unknown annotation @metric"),
        (r#"@metrics("")"#, "@metrics has an empty item"),
        (r#"@metrics("calls,,tokens")"#, "@metrics has an empty item"),
        (r#"@metrics("Calls")"#, "`Calls`"),
        (r#"@metrics("*")"#, "`*`"),
        (r#"@metrics("group phone")"#, "MetricGroup `phone`"),
        (r#"@sources("group office")"#, "SourceGroup `office`"),
        (r#"@sources("mail;llm")"#, "`mail;llm`"),
        (r#"@tenants("any")"#, "`any`"),
        (r#"@tenants("00000000-0000-0000-0000-000000000000")"#, "@tenants"),
        (r#"@tenants("00000000-0000-0000-0000-0000000000B0")"#, "lower case"),
        (r#"@tenants("000000000000000000000000000000b0")"#, "lower case"),
        (r#"@tenants("group eu")"#, "TenantGroup `eu`"),
        (r#"@elevated("false")"#, "@elevated"),
        (r#"@elevated"#, "@elevated"),
        (r#"@id("")"#, "@id"),
    ] {
        let faults = refused(&format!("{annotation}\n{PERMIT}"), None);
        assert_eq!(faults.len(), 1, "{annotation}: {faults:?}");
        assert!(faults[0].detail.contains(word), "{annotation}: {faults:?}");
    }
}

#[test]
fn a_forbid_has_no_bounds() {
    for annotation in
        [r#"@metrics("calls")"#, r#"@tenants("own")"#, r#"@sources("mail")"#, r#"@elevated("true")"#]
    {
        let faults = refused(&format!("{annotation}\nforbid (principal, action, resource);"), None);
        assert!(faults[0].detail.contains("a forbid can't have it"), "{faults:?}");
    }
}

#[test]
fn two_policies_can_not_have_one_id() {
    let faults = refused(&format!("@id(\"a\") {PERMIT}\n@id(\"a\") {PERMIT}"), None);
    assert!(faults[0].detail.contains("\"a\"") && faults[0].line == Some(2), "{faults:?}");
    // Those without one never clash, also on one line.
    read(&format!("{PERMIT} {PERMIT}"), None).unwrap();
}

#[test]
fn each_fault_of_an_entity_file_is_told_with_its_line() {
    let tenant = r#"{"type": "Tenant", "id": "00000000-0000-0000-0000-0000000000b0"}"#;
    for (entities, word) in [
        ("[\n{]".to_owned(), ""),
        ("\n{\"uid\": 1}".to_owned(), "sequence"),
        (format!("[\n{{\"uid\": {tenant}, \"parents\": []}}]"), "attrs"),
        (format!("[\n{{\"uid\": {tenant}, \"attrs\": {{\"plan\": 1}}, \"parents\": []}}]"), "plan"),
        (format!("[\n{{\"uid\": {tenant}, \"attrs\": {{}}, \"parents\": [{{\"type\": \"MetricGroup\", \"id\": \"a\"}}]}}]"), "MetricGroup"),
        ("[\n{\"uid\": {\"type\": \"User\", \"id\": \"a\"}, \"attrs\": {}, \"parents\": []}]".to_owned(), "User"),
        ("[\n{\"uid\": {\"type\": \"Tenant\", \"id\": \"a\"}, \"attrs\": {}, \"parents\": []}]".to_owned(), "lower case"),
        ("[\n{\"uid\": {\"type\": \"Scope\", \"id\": \"usage:read\"}, \"attrs\": {}, \"parents\": []}]".to_owned(), "Scope"),
        ("[\n{\"uid\": {\"type\": \"Source\", \"id\": \"mail\"}, \"attrs\": {\"any_tenant\": true}, \"parents\": []}]".to_owned(), "any_tenant"),
        ("[\n{\"uid\": {\"type\": \"TenantGroup\", \"id\": \"a,b\"}, \"attrs\": {}, \"parents\": []}]".to_owned(), "commas"),
    ] {
        let faults = refused(PERMIT, Some(&entities));
        assert_eq!(faults.len(), 1, "{entities}: {faults:?}");
        assert!(faults[0].file == "e.json" && faults[0].line == Some(2), "{entities}: {faults:?}");
        assert!(faults[0].detail.contains(word), "{entities}: {faults:?}");
    }
    let twice = format!(
        "[{{\"uid\": {tenant}, \"attrs\": {{}}, \"parents\": []}},\n{{\"uid\": {tenant}, \"attrs\": {{}}, \"parents\": []}}]"
    );
    let faults = refused(PERMIT, Some(&twice));
    assert!(faults[0].line == Some(2) && faults[0].detail.contains("line 1"), "{faults:?}");
}

#[test]
fn groups_in_a_circle_are_refused() {
    let group = |id: &str, parent: &str| {
        format!(
            r#"{{"uid": {{"type": "TenantGroup", "id": "{id}"}}, "attrs": {{}}, "parents": [{{"type": "TenantGroup", "id": "{parent}"}}]}}"#
        )
    };
    let faults = refused(PERMIT, Some(&format!("[{},{}]", group("a", "b"), group("b", "a"))));
    assert_eq!(faults[0].file, "e.json");
}

#[test]
fn all_faults_are_told_at_once() {
    let faults = refused(&format!("{PERMIT}\n@x(\"\") {PERMIT}\n@y(\"\") {PERMIT}"), None);
    let lines: Vec<_> = faults.iter().map(|fault| fault.line).collect();
    assert_eq!(lines, [Some(2), Some(3)]);
    let error = PolicyFolderError::Refused(faults).to_string();
    assert!(error.contains("p.cedar, line 2: unknown annotation @x") && error.contains("line 3"), "{error}");
}
