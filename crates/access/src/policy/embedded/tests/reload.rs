//! Folders, and what becomes of changes to them.

use std::fs;

use super::*;

const READ: &str = r#"permit (principal is Caller, action == Action::"read", resource);"#;
const EMIT: &str = r#"permit (principal is Caller, action == Action::"emit", resource);"#;
const BAD: &str = "permit (principal, action";

fn folder(policy: &str) -> (tempfile::TempDir, EmbeddedPolicies) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("p.cedar"), policy).unwrap();
    let policies = EmbeddedPolicies::open(folder.path()).unwrap();
    (folder, policies)
}

/// Whether reading and emitting are permitted.
async fn permits(policies: &EmbeddedPolicies) -> (bool, bool) {
    let context = all_scopes();
    let mut found = Vec::new();
    for action in [Action::Read, Action::Emit] {
        let decision = policies.decide(&ask(&context, action)).await.unwrap();
        found.push(matches!(decision, Decision::Permit(_)));
    }
    (found[0], found[1])
}

#[tokio::test]
async fn a_change_is_taken_when_two_looks_saw_the_same() {
    let (folder, policies) = folder(READ);
    assert_eq!(policies.look(), Look::Unchanged);
    fs::write(folder.path().join("p.cedar"), EMIT).unwrap();
    assert_eq!(policies.look(), Look::Changing);
    assert_eq!((permits(&policies).await, policies.generation()), ((true, false), 0));
    // Still being written.
    fs::write(folder.path().join("p.cedar"), format!("{EMIT}\n{READ}")).unwrap();
    assert_eq!(policies.look(), Look::Changing);
    assert_eq!(policies.look(), Look::Taken);
    assert_eq!((permits(&policies).await, policies.generation()), ((true, true), 1));
    assert_eq!(policies.look(), Look::Unchanged);
    fs::write(folder.path().join("q.cedar"), "forbid (principal, action == Action::\"read\", resource);")
        .unwrap();
    assert_eq!([policies.look(), policies.look()], [Look::Changing, Look::Taken]);
    assert_eq!((permits(&policies).await, policies.generation()), ((false, true), 2));
}

#[tokio::test]
async fn a_folder_with_one_fault_is_refused_as_a_whole_and_the_policies_before_hold_on() {
    let (folder, policies) = folder(READ);
    // Good by itself, but it came with a bad one.
    fs::write(folder.path().join("p.cedar"), EMIT).unwrap();
    fs::write(folder.path().join("q.cedar"), BAD).unwrap();
    assert_eq!(
        [policies.look(), policies.look(), policies.look()],
        [Look::Changing, Look::Refused, Look::Refused]
    );
    assert_eq!((permits(&policies).await, policies.generation()), ((true, false), 0));
    assert!(policies.refused());
    policies.ready().await.unwrap();
    fs::remove_file(folder.path().join("q.cedar")).unwrap();
    assert_eq!([policies.look(), policies.look()], [Look::Changing, Look::Taken]);
    assert_eq!((permits(&policies).await, policies.generation()), ((false, true), 1));
    assert!(!policies.refused());
}

#[tokio::test]
async fn a_fault_that_is_taken_back_leaves_everything_as_it_was() {
    let (folder, policies) = folder(READ);
    fs::write(folder.path().join("p.cedar"), BAD).unwrap();
    assert_eq!([policies.look(), policies.look()], [Look::Changing, Look::Refused]);
    fs::write(folder.path().join("p.cedar"), READ).unwrap();
    assert_eq!(policies.look(), Look::Unchanged);
    assert_eq!((policies.refused(), policies.generation()), (false, 0));
}

#[tokio::test]
async fn a_folder_that_is_gone_or_empty_changes_nothing() {
    let (folder, policies) = folder(READ);
    fs::remove_file(folder.path().join("p.cedar")).unwrap();
    assert_eq!([policies.look(), policies.look()], [Look::Changing, Look::Refused]);
    let path = folder.path().to_owned();
    drop(folder);
    assert!(!path.exists());
    assert_eq!([policies.look(), policies.look()], [Look::Changing, Look::Refused]);
    assert_eq!(permits(&policies).await, (true, false));
}

#[tokio::test]
async fn a_group_is_read_again_too() {
    let entities = |group: &str| {
        format!(
            r#"[{{"uid": {{"type": "Tenant", "id": "{OWN}"}}, "attrs": {{}}, "parents": [{{"type": "TenantGroup", "id": "{group}"}}]}},
               {{"uid": {{"type": "TenantGroup", "id": "eu"}}, "attrs": {{}}, "parents": []}}]"#
        )
    };
    let folder = tempfile::tempdir().unwrap();
    let policy = r#"permit (principal is Caller, action == Action::"read", resource in TenantGroup::"eu");"#;
    fs::write(folder.path().join("p.cedar"), policy).unwrap();
    fs::write(folder.path().join("e.json"), entities("eu")).unwrap();
    let policies = EmbeddedPolicies::open(folder.path()).unwrap();
    assert_eq!(permits(&policies).await, (true, false));
    fs::write(folder.path().join("e.json"), entities("us")).unwrap();
    assert_eq!([policies.look(), policies.look()], [Look::Changing, Look::Taken]);
    assert_eq!(permits(&policies).await, (false, false));
}

#[test]
fn a_bad_folder_is_an_error_at_the_start_that_names_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let open = || EmbeddedPolicies::open(folder.path()).unwrap_err();
    assert!(matches!(open(), PolicyFolderError::Empty { .. }));
    fs::write(folder.path().join("p.cedar"), format!("{READ}\n{BAD}")).unwrap();
    assert!(open().to_string().starts_with("p.cedar, line 2: "), "{}", open());
    let nowhere = folder.path().join("nowhere");
    let error = EmbeddedPolicies::open(&nowhere).unwrap_err();
    assert!(error_chain(&error).contains("nowhere"), "{error}");
}

#[test]
fn a_file_that_is_neither_policy_nor_entities_is_refused_and_hidden_ones_are_not_seen() {
    let (folder, policies) = folder(READ);
    for name in [".p.cedar.swp", "README.md", "schema.cedarschema"] {
        fs::write(folder.path().join(name), BAD).unwrap();
    }
    // As Kubernetes mounts a ConfigMap.
    fs::create_dir(folder.path().join("..data")).unwrap();
    assert_eq!(policies.look(), Look::Unchanged);
    for name in ["forbid.ceder", "forbid.cedar.bak", "policies"] {
        fs::write(folder.path().join(name), READ).unwrap();
        let error = EmbeddedPolicies::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    fs::create_dir(folder.path().join("more")).unwrap();
    assert!(EmbeddedPolicies::open(folder.path()).unwrap_err().to_string().contains("more"));
}

/// A pipe has no end before somebody has written it: the look would never come back.
#[test]
fn what_is_no_file_is_refused_and_holds_nobody_up() {
    let (dir, policies) = folder(READ);
    let pipe = dir.path().join("pipe.cedar");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (done, looked) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send([policies.look(), policies.look()]));
    assert_eq!(looked.recv_timeout(std::time::Duration::from_secs(10)), Ok([Look::Changing, Look::Refused]));
    let error = EmbeddedPolicies::open(dir.path()).unwrap_err().to_string();
    assert_eq!(error, "pipe.cedar: is not a file");
}

#[tokio::test(start_paused = true)]
async fn a_watched_folder_is_read_again_without_being_asked() {
    let (folder, policies) = folder(READ);
    let policies = Arc::new(policies);
    EmbeddedPolicies::watch(&policies);
    fs::write(folder.path().join("p.cedar"), EMIT).unwrap();
    let mut tick = tokio::time::interval(LOOK_EVERY);
    while policies.generation() == 0 {
        tick.tick().await;
    }
    assert_eq!(permits(&policies).await, (false, true));
}

#[tokio::test(start_paused = true)]
async fn the_watch_ends_with_the_policies() {
    let (_folder, policies) = folder(READ);
    let policies = Arc::new(policies);
    let weak = Arc::downgrade(&policies);
    let watch = tokio::spawn(watch(weak));
    drop(policies);
    watch.await.unwrap();
}
