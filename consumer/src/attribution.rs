//! Whose usage a source may emit: its home tenant's freely, another one's if the policy point permits it.
//!
//! A worker remembers permissions, never refusals: what is refused is asked again with the next batch, so that a record that is
//! replayed right after the policy was changed is judged by the new one.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use usage_access::policy::Decision;
use usage_control::Attribution;
use uuid::Uuid;

/// Of what metrics a source may emit a tenant's usage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowed {
    Nothing,
    Everything,
    Metrics(BTreeSet<String>),
}

impl Allowed {
    /// What an answer allows a source for the tenant that was asked about.
    pub fn by(decision: Decision, source: &str, tenant_id: Uuid) -> Self {
        let Decision::Permit(constraints) = decision else { return Self::Nothing };
        let tenant = constraints.tenants.is_none_or(|tenants| tenants.contains(&tenant_id));
        let source = constraints.sources.is_none_or(|sources| sources.contains(source));
        match constraints.metrics {
            _ if !tenant || !source => Self::Nothing,
            None => Self::Everything,
            Some(metrics) => Self::Metrics(metrics),
        }
    }

    pub fn includes(&self, metric: &str) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::Metrics(metrics) => metrics.contains(metric),
        }
    }

    /// Allows one more metric.
    pub fn permit(&mut self, metric: &str) {
        match self {
            Self::Nothing => *self = Self::Metrics(BTreeSet::from([metric.into()])),
            Self::Everything => {}
            Self::Metrics(metrics) => {
                metrics.insert(metric.into());
            }
        }
    }
}

/// What the policy point said about a source and a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permission {
    pub source: String,
    pub tenant_id: Uuid,
    /// The metrics that were asked about: one that is not allowed is refused. Nothing is known of others that are not allowed.
    pub asked: BTreeSet<String>,
    /// As the question had it: a source that was registered otherwise is another question.
    pub attribution: Attribution,
    /// Of the policies that answered.
    pub generation: u64,
    pub allowed: Allowed,
}

/// A source and a tenant to be asked about, and the metrics that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    pub source: String,
    pub tenant_id: Uuid,
    pub metrics: BTreeSet<String>,
}

/// Sources and tenants to be asked about, each pair once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pairs(BTreeMap<Uuid, Vec<Pair>>);

impl Pairs {
    /// Without an allocation for what is there.
    pub fn add(&mut self, source: &str, tenant_id: Uuid, metric: &str) {
        let metrics = self.metrics(source, tenant_id);
        if !metrics.contains(metric) {
            metrics.insert(metric.into());
        }
    }

    fn metrics(&mut self, source: &str, tenant_id: Uuid) -> &mut BTreeSet<String> {
        let pairs = self.0.entry(tenant_id).or_default();
        let at = pairs.iter().position(|pair| pair.source == source).unwrap_or_else(|| {
            pairs.push(Pair { source: source.into(), tenant_id, metrics: BTreeSet::new() });
            pairs.len() - 1
        });
        &mut pairs[at].metrics
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn into_pairs(self) -> Vec<Pair> {
        self.0.into_values().flatten().collect()
    }
}

#[derive(Debug)]
struct Known {
    attribution: Attribution,
    allowed: Allowed,
    asked: BTreeSet<String>,
    since: Instant,
    used: Cell<bool>,
}

/// Permissions by source and tenant.
#[derive(Debug, Default)]
pub struct Permissions {
    by_source: HashMap<String, HashMap<Uuid, Known>>,
}

impl Permissions {
    /// Answers as they came, refusals too: for the batch that asked.
    pub fn of(answers: &[Permission], now: Instant) -> Self {
        let mut permissions = Self::default();
        answers.iter().for_each(|answer| permissions.put(answer.clone(), now));
        permissions
    }

    /// Whether the source may emit this; `None` if nothing is known.
    pub fn allows(
        &self,
        source: &str,
        attribution: Attribution,
        tenant_id: Uuid,
        metric: &str,
    ) -> Option<bool> {
        let known = self.by_source.get(source)?.get(&tenant_id)?;
        if known.attribution != attribution {
            return None;
        }
        known.used.set(true);
        match known.allowed.includes(metric) {
            true => Some(true),
            false => known.asked.contains(metric).then_some(false),
        }
    }

    /// Remembers a permission; a refusal makes one forgotten. Metrics that were permitted before and not asked about now stay
    /// permitted, for as long as they would have.
    pub fn learn(&mut self, answer: &Permission, now: Instant) {
        let (mut answer, mut since) = (answer.clone(), now);
        let known =
            self.by_source.get_mut(&answer.source).and_then(|tenants| tenants.remove(&answer.tenant_id));
        if let Some(Known { attribution, allowed: Allowed::Metrics(mut before), since: began, .. }) = known
            && attribution == answer.attribution
        {
            before.retain(|metric| !answer.asked.contains(metric) && !answer.allowed.includes(metric));
            if !before.is_empty() && answer.allowed != Allowed::Everything {
                since = began;
                if let Allowed::Metrics(metrics) = &answer.allowed {
                    before.extend(metrics.iter().cloned());
                }
                answer.allowed = Allowed::Metrics(before);
            }
        }
        if answer.allowed != Allowed::Nothing {
            // Refusals are not remembered.
            answer.asked.clear();
            self.put(answer, since);
        }
    }

    fn put(&mut self, answer: Permission, since: Instant) {
        let Permission { source, tenant_id, asked, attribution, generation: _, allowed } = answer;
        let known = Known { attribution, allowed, asked, since, used: Cell::new(false) };
        self.by_source.entry(source).or_default().insert(tenant_id, known);
    }

    /// Forgets what is older than `age`; returns what is in use and half that old, to be asked again before a batch has to wait.
    pub fn age(&mut self, age: Duration, now: Instant) -> Pairs {
        let mut due = Pairs::default();
        for (source, tenants) in &mut self.by_source {
            tenants.retain(|tenant, known| {
                let old = now.saturating_duration_since(known.since);
                if old < age && old >= age / 2 && known.used.get() {
                    let metrics = due.metrics(source, *tenant);
                    if let Allowed::Metrics(known) = &known.allowed {
                        metrics.extend(known.iter().cloned());
                    }
                }
                old < age
            });
        }
        self.by_source.retain(|_, tenants| !tenants.is_empty());
        due
    }

    /// The policies have changed: nothing of what they said holds.
    pub fn clear(&mut self) {
        self.by_source.clear();
    }
}

#[cfg(test)]
mod tests {
    use usage_access::policy::Constraints;

    use super::*;

    const TENANT: Uuid = Uuid::from_u128(7);
    const AGE: Duration = Duration::from_secs(10);

    fn permission(allowed: Allowed) -> Permission {
        Permission {
            source: "mail".into(),
            tenant_id: TENANT,
            asked: BTreeSet::from(["sent".into()]),
            attribution: Attribution::ByPolicy,
            generation: 0,
            allowed,
        }
    }

    fn pair(metrics: &[&str]) -> Pair {
        let metrics = metrics.iter().map(|name| (*name).to_string()).collect();
        Pair { source: "mail".into(), tenant_id: TENANT, metrics }
    }

    fn allows(permissions: &Permissions) -> Option<bool> {
        permissions.allows("mail", Attribution::ByPolicy, TENANT, "sent")
    }

    #[test]
    fn constraints_bound_a_permission() {
        let by = |constraints: Constraints| {
            Allowed::by(Decision::Permit(constraints), "mail", TENANT).includes("sent")
        };
        let none = Constraints::default;
        assert!(by(none()));
        assert!(!Allowed::by(Decision::Deny, "mail", TENANT).includes("sent"));
        let tenants = |id: u128| Some(BTreeSet::from([Uuid::from_u128(id)]));
        assert!(by(Constraints { tenants: tenants(7), ..none() }));
        assert!(!by(Constraints { tenants: tenants(8), ..none() }));
        assert!(!by(Constraints { tenants: Some(BTreeSet::new()), ..none() }));
        let names = |name: &str| Some(BTreeSet::from([name.to_string()]));
        assert!(by(Constraints { sources: names("mail"), ..none() }));
        assert!(!by(Constraints { sources: names("llm"), ..none() }));
        assert!(by(Constraints { metrics: names("sent"), ..none() }));
        assert!(!by(Constraints { metrics: names("lost"), ..none() }));
    }

    #[test]
    fn only_permissions_are_remembered_and_a_refusal_ends_one() {
        let now = Instant::now();
        let mut permissions = Permissions::default();
        permissions.learn(&permission(Allowed::Nothing), now);
        assert_eq!(allows(&permissions), None);
        permissions.learn(&permission(Allowed::Everything), now);
        assert_eq!(allows(&permissions), Some(true));
        permissions.learn(&permission(Allowed::Nothing), now);
        assert_eq!(allows(&permissions), None);
        // The batch that asked must know a refusal from what it has not asked.
        assert_eq!(allows(&Permissions::of(&[permission(Allowed::Nothing)], now)), Some(false));
        permissions.learn(&permission(Allowed::Everything), now);
        permissions.clear();
        assert_eq!(allows(&permissions), None);
    }

    #[test]
    fn an_answer_holds_for_the_source_as_it_was_asked_about() {
        let permissions = Permissions::of(&[permission(Allowed::Everything)], Instant::now());
        let home = Attribution::HomeTenant(Uuid::from_u128(9));
        for (source, attribution, tenant) in [
            ("mail", home, TENANT),
            ("mail", Attribution::AnyTenant, TENANT),
            ("llm", Attribution::ByPolicy, TENANT),
            ("mail", Attribution::ByPolicy, Uuid::from_u128(8)),
        ] {
            assert_eq!(permissions.allows(source, attribution, tenant, "sent"), None);
        }
    }

    #[test]
    fn what_is_in_use_is_asked_again_before_it_ends() {
        let now = Instant::now();
        let mut permissions = Permissions::default();
        permissions.learn(&permission(Allowed::Everything), now);
        assert!(permissions.age(AGE, now + AGE / 2).is_empty(), "nobody uses it");
        assert_eq!(allows(&permissions), Some(true));
        assert!(permissions.age(AGE, now + AGE / 4).is_empty(), "it is young");
        let due = permissions.age(AGE, now + AGE / 2);
        assert_eq!(due.into_pairs(), [pair(&[])]);
        assert_eq!(allows(&permissions), Some(true));
        assert!(permissions.age(AGE, now + AGE).is_empty());
        assert_eq!(allows(&permissions), None);
    }

    #[test]
    fn a_pair_is_asked_about_once() {
        let mut pairs = Pairs::default();
        for (source, tenant, metric) in [
            ("mail", 7, "sent"),
            ("mail", 2, "sent"),
            ("mail", 7, "lost"),
            ("llm", 7, "sent"),
            ("mail", 7, "sent"),
        ] {
            pairs.add(source, Uuid::from_u128(tenant), metric);
        }
        let pairs = pairs.into_pairs();
        assert_eq!(pairs.len(), 3);
        assert!(pairs.contains(&pair(&["lost", "sent"])));
    }

    #[test]
    fn metrics_that_were_permitted_by_name_are_remembered_together() {
        let now = Instant::now();
        let mut permissions = Permissions::default();
        let named = |asked: &[&str], allowed: &[&str]| {
            let names =
                |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect::<BTreeSet<_>>();
            let allowed =
                if allowed.is_empty() { Allowed::Nothing } else { Allowed::Metrics(names(allowed)) };
            Permission { asked: names(asked), ..permission(allowed) }
        };
        let of = |permissions: &Permissions| {
            ["sent", "lost"].map(|metric| permissions.allows("mail", Attribution::ByPolicy, TENANT, metric))
        };
        permissions.learn(&named(&["sent"], &["sent"]), now);
        assert_eq!(of(&permissions), [Some(true), None], "nobody was asked about the other one");
        permissions.learn(&named(&["lost"], &["lost"]), now + AGE / 2);
        assert_eq!(of(&permissions), [Some(true), Some(true)]);
        let due = permissions.age(AGE, now + AGE / 2);
        assert_eq!(due.into_pairs(), [pair(&["lost", "sent"])]);
        // What is refused now is allowed no more, and what was asked about first ends first.
        permissions.learn(&named(&["lost"], &[]), now + AGE / 2);
        assert_eq!(of(&permissions), [Some(true), None]);
        permissions.learn(&named(&["lost"], &["lost"]), now + AGE / 2);
        assert!(permissions.age(AGE, now + AGE).is_empty());
        assert_eq!(of(&permissions), [None, None]);
        // For the batch that asked a refusal is one of the metrics that it asked about.
        assert_eq!(
            of(&Permissions::of(&[named(&["sent", "lost"], &["lost"])], now)),
            [Some(false), Some(true)]
        );
        assert_eq!(of(&Permissions::of(&[named(&["lost"], &["lost"])], now)), [None, Some(true)]);
    }
}
