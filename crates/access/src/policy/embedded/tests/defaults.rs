//! What the shipped policies allow.

use super::*;

/// The actions that one scope alone allows.
fn allowed(scope: Scope) -> &'static [Action] {
    match scope {
        Scope::Read => &[Action::Read, Action::ReadTypes, Action::ReadAllowances],
        Scope::Emit => &[Action::Emit],
        Scope::Types => &[Action::RegisterType],
        Scope::Backfill => &[Action::Backfill],
        Scope::Correct => &[Action::Amend, Action::Deactivate],
        Scope::Retention => &[Action::Retention],
        Scope::Admin => &[Action::Operate],
    }
}

fn shipped() -> CheckedSet {
    CheckedSet::read(&Contents::shipped()).unwrap()
}

fn source(home_tenant: Option<Uuid>, any_tenant: bool) -> Principal<'static> {
    Principal::Source { name: "mail", home_tenant, any_tenant }
}

#[test]
fn each_scope_allows_its_actions_for_the_own_tenant_and_nothing_else() {
    let shipped = shipped();
    for scope in Scope::ALL {
        let context = caller(&[scope]);
        for action in Action::ALL {
            for tenant_id in [None, Some(OWN)] {
                for (metric, source) in [(None, None), (Some("calls"), Some("mail"))] {
                    let request = PolicyRequest { tenant_id, metric, source, ..ask(&context, action) };
                    let expected = match allowed(scope).contains(&action) {
                        true => Decision::Permit(Constraints::default()),
                        false => Decision::Deny,
                    };
                    assert_eq!(shipped.decide(&request), expected, "{scope} {}", action.as_str());
                }
            }
            let foreign = PolicyRequest { tenant_id: Some(OTHER), ..ask(&context, action) };
            assert_eq!(shipped.decide(&foreign), Decision::Deny, "{scope} {}", action.as_str());
        }
    }
}

#[test]
fn no_scope_allows_nothing() {
    let (shipped, context) = (shipped(), caller(&[]));
    for action in Action::ALL {
        assert_eq!(shipped.decide(&ask(&context, action)), Decision::Deny, "{}", action.as_str());
    }
}

#[test]
fn all_scopes_allow_every_action_of_callers() {
    let (shipped, context) = (shipped(), all_scopes());
    for action in Action::ALL {
        let decision = shipped.decide(&ask(&context, action));
        let permitted = matches!(decision, Decision::Permit(_));
        assert_eq!(permitted, action != Action::EmitOnBehalf, "{}", action.as_str());
        if let Decision::Permit(bounds) = decision {
            let elevated = matches!(action, Action::Backfill | Action::Retention);
            assert_eq!(bounds, Constraints { elevated, ..Constraints::default() }, "{}", action.as_str());
        }
    }
}

#[test]
fn only_with_usage_admin_is_anything_elevated() {
    let shipped = shipped();
    for (scope, action) in [(Scope::Backfill, Action::Backfill), (Scope::Retention, Action::Retention)] {
        let alone = caller(&[scope]);
        assert!(!permitted(shipped.decide(&ask(&alone, action))).elevated, "{scope}");
        let both = caller(&[scope, Scope::Admin]);
        assert!(permitted(shipped.decide(&ask(&both, action))).elevated, "{scope}");
        let admin = caller(&[Scope::Admin]);
        assert_eq!(shipped.decide(&ask(&admin, action)), Decision::Deny, "{scope}");
    }
}

#[test]
fn a_source_emits_for_its_home_and_only_if_registered_so_for_others() {
    let (shipped, context) = (shipped(), caller(&[]));
    for (home, any, tenant, action, expected) in [
        (Some(OWN), false, OWN, Action::Emit, true),
        (Some(OWN), false, OWN, Action::EmitOnBehalf, true),
        (Some(OWN), false, OTHER, Action::Emit, false),
        (Some(OWN), false, OTHER, Action::EmitOnBehalf, false),
        (Some(OWN), true, OTHER, Action::EmitOnBehalf, true),
        (None, true, OTHER, Action::EmitOnBehalf, true),
        (None, false, OTHER, Action::EmitOnBehalf, false),
        (None, false, OTHER, Action::Emit, false),
    ] {
        let request = PolicyRequest {
            principal: source(home, any),
            tenant_id: Some(tenant),
            metric: Some("calls"),
            source: Some("mail"),
            ..ask(&context, action)
        };
        let found = matches!(shipped.decide(&request), Decision::Permit(_));
        assert_eq!(found, expected, "{request:?}");
    }
}

#[test]
fn a_source_does_nothing_but_emit() {
    let (shipped, context) = (shipped(), caller(&[]));
    for action in Action::ALL {
        let principal = source(Some(OWN), true);
        let request = PolicyRequest { principal, tenant_id: Some(OWN), ..ask(&context, action) };
        let emits = matches!(action, Action::Emit | Action::EmitOnBehalf);
        assert_eq!(matches!(shipped.decide(&request), Decision::Permit(_)), emits, "{}", action.as_str());
    }
}

#[test]
fn a_source_of_nobody_that_names_no_tenant_is_denied() {
    let (shipped, context) = (shipped(), caller(&[]));
    let request = PolicyRequest { principal: source(None, true), ..ask(&context, Action::EmitOnBehalf) };
    assert_eq!(shipped.decide(&request), Decision::Deny);
}

/// The schema, the code and the documentation name the same things.
#[test]
fn the_schema_knows_every_action_and_every_scope() {
    let words = super::words::Words::read().unwrap();
    let actions: Vec<String> = words.schema.actions().map(|uid| uid.id().unescaped().to_owned()).collect();
    assert_eq!(actions.len(), Action::ALL.len());
    for action in Action::ALL {
        assert!(actions.iter().any(|name| name == action.as_str()), "{}", action.as_str());
    }
    for scope in Scope::ALL {
        assert!(SCHEMA.contains(&format!("\"{scope}\"")), "{scope}");
    }
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/policies.md");
    let document = std::fs::read_to_string(document).unwrap();
    for (_, text) in DEFAULT_POLICIES {
        for line in text.lines().filter(|line| line.starts_with("@id")) {
            let id = line.split('"').nth(1).unwrap();
            assert!(document.contains(&format!("`{id}`")), "docs/policies.md says nothing about {id}");
        }
    }
}

#[test]
fn the_folder_of_the_shipped_policies_holds_no_others() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("policies/default");
    assert_eq!(Contents::read(&folder).unwrap(), Contents::shipped());
}
