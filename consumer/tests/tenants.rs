//! Whose usage a source may emit, end to end: its home tenant's freely, another one's by the policy point, which may be away.

mod support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use support::{Pipeline, SOURCE, Totals, eventually, logs};
use usage_access::policy::{
    Action, Constraints, DEFAULT_POLICIES, Decision, EmbeddedPolicies, PolicyDecisionPoint, PolicyError,
    PolicyRequest, Principal,
};
use usage_control::{Attribution, NewUsageType};
use uuid::Uuid;

/// What the policy point does when it is asked about a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Permit,
    Deny,
    Away,
}

/// A policy point that says what a test tells it, and counts questions by tenant.
#[derive(Default)]
struct Policies {
    answers: Mutex<BTreeMap<Uuid, Answer>>,
    asked: Mutex<BTreeMap<Uuid, usize>>,
}

impl Policies {
    fn say(&self, tenant: Uuid, answer: Answer) {
        self.answers.lock().unwrap().insert(tenant, answer);
    }

    fn asked(&self, tenant: Uuid) -> usize {
        self.asked.lock().unwrap().get(&tenant).copied().unwrap_or_default()
    }
}

#[async_trait::async_trait]
impl PolicyDecisionPoint for Policies {
    async fn decide(&self, request: &PolicyRequest<'_>) -> Result<Decision, PolicyError> {
        assert!(matches!(request.principal, Principal::Source { name: SOURCE, any_tenant: false, .. }));
        assert_eq!(request.action, Action::EmitOnBehalf);
        let tenant = request.tenant_id.expect("it is about one tenant");
        *self.asked.lock().unwrap().entry(tenant).or_default() += 1;
        match self.answers.lock().unwrap().get(&tenant).copied().unwrap_or(Answer::Deny) {
            Answer::Permit => Ok(Decision::Permit(Constraints::default())),
            Answer::Deny => Ok(Decision::Deny),
            Answer::Away => Err(PolicyError::Unavailable("the test has cut it off".into())),
        }
    }

    async fn ready(&self) -> Result<(), PolicyError> {
        Ok(())
    }
}

const SETTINGS: [&str; 2] = ["consumer.batch_age=20ms", "consumer.retry_max=200ms"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_home_tenant_is_kept_unasked_and_others_are_forbidden_or_permitted() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let [home, permitted, forbidden] = [(); 3].map(|()| pipeline.tenant_of(0));
    pipeline.control.set_source(SOURCE, Attribution::HomeTenant(home)).await.unwrap();
    let policies = Arc::new(Policies::default());
    policies.say(permitted, Answer::Permit);
    let worker = pipeline.worker_under(policies.clone(), &SETTINGS);
    let records: Vec<_> = (0..30)
        .flat_map(|i| {
            [home, permitted, forbidden].map(|tenant| pipeline.record(tenant, &format!("key-{i}"), 1))
        })
        .collect();
    pipeline.send_records(&records).await;
    pipeline.settled().await;
    assert_eq!(pipeline.totals(home).await, Totals::exactly(30, 30));
    assert_eq!(pipeline.totals(permitted).await, Totals::exactly(30, 30));
    assert_eq!(pipeline.stored(forbidden).await.len(), 0);
    let letters = pipeline.dead_letters().await;
    assert!(letters.iter().all(|letter| letter.reason() == "forbidden_tenant"));
    assert_eq!(letters.len(), 30);
    assert_eq!(policies.asked(home), 0);
    assert!((1..=30).contains(&policies.asked(permitted)), "{}", policies.asked(permitted));

    // Said or permitted a moment ago, and known at once: nobody waits for a refresh.
    policies.say(forbidden, Answer::Permit);
    pipeline.send_records(&[pipeline.record(forbidden, "late", 1)]).await;
    pipeline.settled().await;
    assert_eq!(pipeline.totals(forbidden).await, Totals::exactly(1, 1));
    let moved = pipeline.tenant_of(0);
    pipeline.control.set_source(SOURCE, Attribution::HomeTenant(moved)).await.unwrap();
    pipeline.send_records(&[pipeline.record(moved, "moved", 1)]).await;
    pipeline.settled().await;
    assert_eq!((pipeline.totals(moved).await, policies.asked(moved)), (Totals::exactly(1, 1), 0));
    worker.stop().await;
    pipeline.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_point_that_is_away_holds_its_partition_and_nobody_else() {
    logs();
    let pipeline = Pipeline::start(2).await;
    let [waiting, home] = [pipeline.tenant_of(0), pipeline.tenant_of(1)];
    pipeline.control.set_source(SOURCE, Attribution::HomeTenant(home)).await.unwrap();
    let policies = Arc::new(Policies::default());
    policies.say(waiting, Answer::Away);
    let worker = pipeline.worker_under(policies.clone(), &SETTINGS);
    let records = |tenant, from: usize| {
        (from..from + 20).map(|i| pipeline.record(tenant, &format!("key-{i}"), 1)).collect::<Vec<_>>()
    };
    let held = records(waiting, 0);
    pipeline.send_records(&held).await;
    pipeline.send_records(&records(home, 0)).await;
    eventually("it has been asked again and again", || async { policies.asked(waiting) >= 3 }).await;
    // The other partition goes on meanwhile, for as long as it takes.
    pipeline.send_records(&records(home, 20)).await;
    eventually("the other partition goes on", || async { pipeline.rows(&[home]).await == 40 }).await;
    pipeline.send_records(&held).await;
    assert_eq!(pipeline.rows(&[waiting]).await, 0);
    let passed = pipeline.committed(0).await.is_some_and(|(offset, _)| offset > 0);
    assert!(!passed, "its offset passes nothing");
    assert_eq!(pipeline.dead_letters().await.len(), 0);

    // A worker that takes over meanwhile waits too, and what is answered then is stored once.
    worker.stop().await;
    let worker = pipeline.worker_under(policies.clone(), &SETTINGS);
    let asked = policies.asked(waiting);
    eventually("the next owner asks", || async { policies.asked(waiting) > asked }).await;
    assert_eq!(pipeline.rows(&[waiting]).await, 0);
    policies.say(waiting, Answer::Permit);
    pipeline.settled().await;
    assert_eq!(pipeline.totals(waiting).await, Totals::exactly(20, 20));
    assert_eq!(pipeline.totals(home).await, Totals::exactly(40, 40));
    assert_eq!(pipeline.dead_letters().await.len(), 0);
    worker.stop().await;
    pipeline.end().await;
}

/// Policies that tell metrics apart by a condition can't answer for all of them at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_about_one_metric_neither_lets_it_through_nor_holds_up_the_others() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let tenant = pipeline.tenant_of(0);
    pipeline.control.set_source(SOURCE, Attribution::AnyTenant).await.unwrap();
    let mut mails = pipeline.record(tenant, "mails", 1);
    mails.metric = "mails".into();
    let registered = NewUsageType::new("mails", mails.kind, "mail");
    pipeline.control.register_type(&registered).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in DEFAULT_POLICIES {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    // As in docs/policies.md.
    let mails_by_mail_only = r#"
        forbid (principal, action in [Action::"emit", Action::"emit_on_behalf"], resource)
        when { context has metric && context.metric == Metric::"mails" }
        unless { context has source && context.source == Source::"mail" };"#;
    std::fs::write(folder.path().join("mails.cedar"), mails_by_mail_only).unwrap();
    let policies = Arc::new(EmbeddedPolicies::open(folder.path()).unwrap());
    let worker = pipeline.worker_under(policies, &SETTINGS);
    for round in 0..2 {
        let mut forbidden = mails.clone();
        forbidden.idempotency_key = Some(format!("mails-{round}"));
        forbidden.record_id = usage_schemas::ids::record_id(tenant, &format!("mails-{round}"));
        pipeline.send_records(&[pipeline.record(tenant, &format!("{round}"), 1), forbidden]).await;
        pipeline.settled().await;
    }
    assert_eq!(pipeline.totals(tenant).await, Totals::exactly(2, 2));
    let letters = pipeline.dead_letters().await;
    assert!(letters.iter().all(|letter| letter.reason() == "forbidden_tenant"));
    assert_eq!(letters.len(), 2);
    worker.stop().await;
    pipeline.end().await;
}

/// A plan is carried out to the letter: what its batch was permitted stays, whatever is permitted now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_carries_a_plan_out_without_asking_again() {
    logs();
    let pipeline = Pipeline::start(1).await;
    let [kept, refused] = [(); 2].map(|()| pipeline.tenant_of(0));
    pipeline.control.set_source(SOURCE, Attribution::AnyTenant).await.unwrap();
    // It dies right after its plan is committed, before anything is written.
    pipeline.send_records(&[pipeline.record(kept, "a", 1), pipeline.record(refused, "a", 1)]).await;
    support::Process::armed(&pipeline, "consumer.planned=kill", &["consumer.batch_age=1s"]).died().await;
    assert_eq!(pipeline.rows(&[kept, refused]).await, 0);
    pipeline.control.set_source(SOURCE, Attribution::HomeTenant(kept)).await.unwrap();
    let policies = Arc::new(Policies::default());
    let worker = pipeline.worker_under(policies.clone(), &SETTINGS);
    pipeline.settled().await;
    assert_eq!(pipeline.totals(refused).await, Totals::exactly(1, 1));
    assert_eq!((policies.asked(refused), pipeline.dead_letters().await.len()), (0, 0));
    // The next record is another batch: asked about without its metric, and with it.
    pipeline.send_records(&[pipeline.record(refused, "b", 1)]).await;
    pipeline.settled().await;
    assert_eq!((policies.asked(refused), pipeline.dead_letters().await.len()), (2, 1));
    worker.stop().await;
    pipeline.end().await;
}
