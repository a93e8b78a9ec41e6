//! What the owner's thread remembers of the policy point.

use std::time::Instant;

use super::Worker;
use crate::attribution::Permission;
use crate::permissions;

impl Worker {
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
