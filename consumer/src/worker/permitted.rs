//! What the owner's thread remembers of the registry and of the policy point.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Worker;
use crate::attribution::Permission;
use crate::judge::Registry;
use crate::permissions;

/// So many times `consumer.registry_refresh` a registry that can't be read again is gone by.
const REGISTRY_SERVES: u32 = 4;
/// At least: it is looked at once a second, and one reading may take a while.
const REGISTRY_SERVES_LEAST: Duration = Duration::from_secs(10);

impl Worker {
    pub(super) fn registry_is(&mut self, registry: Arc<Registry>) {
        self.judge.refresh(registry);
        self.registry_read = Instant::now();
        self.judge.stale = false;
    }

    /// What is known of sources, keys and types is gone by for a while without an answer, not for ever: a key may have been revoked.
    pub(super) fn age_registry(&mut self, now: Instant) {
        let age = now.duration_since(self.registry_read);
        let serves =
            self.settings.registry_refresh.saturating_mul(REGISTRY_SERVES).max(REGISTRY_SERVES_LEAST);
        let stale = age >= serves;
        if stale && !self.judge.stale {
            let seconds = age.as_secs();
            tracing::error!(
                seconds,
                "the registry can't be read any more: records wait, since keys may have been revoked"
            );
        }
        self.judge.stale = stale;
    }

    pub(super) fn asked_again(&mut self, permissions: &[Permission]) {
        self.permissions_run = false;
        self.learn(permissions);
    }

    /// Takes answers of the policy point, unless the policies have changed since.
    pub(super) fn learn(&mut self, permissions: &[Permission]) {
        let (now, generation) = (Instant::now(), self.services.policy.generation());
        let fresh = permissions.iter().filter(|permission| permission.generation == generation);
        fresh.for_each(|permission| self.judge.permissions.learn(permission, now));
    }

    /// Permissions end with their age and with the policies that gave them; those in use are asked for again before.
    pub(super) fn age_permissions(&mut self, now: Instant) {
        let generation = self.services.policy.generation();
        if generation != self.policy_generation {
            self.policy_generation = generation;
            self.judge.permissions.clear();
        }
        let due = self.judge.permissions.age(self.settings.policy_refresh, now);
        if !self.permissions_run && !due.is_empty() {
            self.permissions_run = true;
            let registry = self.judge.registry.clone();
            self.runtime.spawn(permissions::refresh(self.services.clone(), registry, due));
        }
    }
}
