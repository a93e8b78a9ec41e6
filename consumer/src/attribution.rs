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
}

/// What the policy point said about a source and a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permission {
    pub source: String,
    pub tenant_id: Uuid,
    /// As the question had it: a source that was registered otherwise is another question.
    pub attribution: Attribution,
    /// Of the policies that answered.
    pub generation: u64,
    pub allowed: Allowed,
}

/// Sources and tenants to be asked about, each pair once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pairs(BTreeMap<Uuid, Vec<String>>);

impl Pairs {
    /// Without an allocation for a pair that is there.
    pub fn add(&mut self, source: &str, tenant_id: Uuid) {
        let sources = self.0.entry(tenant_id).or_default();
        if !sources.iter().any(|known| known == source) {
            sources.push(source.into());
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn into_pairs(self) -> Vec<(String, Uuid)> {
        let pairs =
            |(tenant, sources): (Uuid, Vec<String>)| sources.into_iter().map(move |source| (source, tenant));
        self.0.into_iter().flat_map(pairs).collect()
    }
}

#[derive(Debug)]
struct Known {
    attribution: Attribution,
    allowed: Allowed,
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
        answers.iter().for_each(|answer| permissions.put(answer, now));
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
        Some(known.allowed.includes(metric))
    }

    /// Remembers a permission; a refusal makes one forgotten.
    pub fn learn(&mut self, answer: &Permission, now: Instant) {
        if answer.allowed != Allowed::Nothing {
            self.put(answer, now);
        } else if let Some(tenants) = self.by_source.get_mut(&answer.source) {
            tenants.remove(&answer.tenant_id);
        }
    }

    fn put(&mut self, answer: &Permission, now: Instant) {
        let known = Known {
            attribution: answer.attribution,
            allowed: answer.allowed.clone(),
            since: now,
            used: Cell::new(false),
        };
        self.by_source.entry(answer.source.clone()).or_default().insert(answer.tenant_id, known);
    }

    /// Forgets what is older than `age`; returns what is in use and half that old, to be asked again before a batch has to wait.
    pub fn age(&mut self, age: Duration, now: Instant) -> Pairs {
        let mut due = Pairs::default();
        for (source, tenants) in &mut self.by_source {
            tenants.retain(|tenant, known| {
                let old = now.saturating_duration_since(known.since);
                if old < age && old >= age / 2 && known.used.get() {
                    due.add(source, *tenant);
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
            attribution: Attribution::ByPolicy,
            generation: 0,
            allowed,
        }
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
        assert_eq!(due.into_pairs(), [("mail".to_string(), TENANT)]);
        assert_eq!(allows(&permissions), Some(true));
        assert!(permissions.age(AGE, now + AGE).is_empty());
        assert_eq!(allows(&permissions), None);
    }

    #[test]
    fn a_pair_is_asked_about_once() {
        let mut pairs = Pairs::default();
        for (source, tenant) in [("mail", 1), ("mail", 2), ("mail", 1), ("llm", 1)] {
            pairs.add(source, Uuid::from_u128(tenant));
        }
        assert_eq!(pairs.into_pairs().len(), 3);
    }
}
