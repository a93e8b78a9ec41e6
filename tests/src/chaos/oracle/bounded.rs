//! A tenant that has a quota: which of its records find room is not known outside, but each is stored or a dead letter.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::{Content, Difference, Emission, Fate, Refused, Stored, claimed};

const OVER: &str = "quota_exceeded";
const CONFLICT: &str = "conflict";

/// The one tenant that has a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounded {
    pub tenant: Uuid,
    pub records: usize,
    /// Nothing happened after which a batch may be missing from the count: the topic did not grow, no offset was set back. Then no
    /// record that was refused comes again and finds room, either.
    pub exact: bool,
}

impl Bounded {
    /// Puts the fates of the tenant's records as storage shows them: what is stored had room, so its letters are conflicts or, where it
    /// came again, nothing; all else must be letters. A conflict with what was to be kept by a batch that a growth ended before it was
    /// written, and for which there is no room any more, is a letter of both reasons.
    pub fn settle(self, emissions: &mut [Emission], stored: &[Stored], letters: &mut Vec<Refused>) {
        let own = stored.iter().filter(|row| row.identity.0 == self.tenant);
        let kept: BTreeMap<_, &Content> = own.map(|row| (row.identity, &row.content)).collect();
        for emission in emissions.iter_mut().filter(|emission| emission.identity.0 == self.tenant) {
            if emission.fate == Fate::Kept && !kept.contains_key(&emission.identity) {
                emission.fate = Fate::OverQuota;
            }
        }
        if self.exact {
            return;
        }
        let own = letters.iter().filter(|letter| letter.identity.0 == self.tenant && letter.reason == OVER);
        let over: BTreeSet<_> = own.map(|letter| (letter.identity, letter.content.clone())).collect();
        letters.retain_mut(|letter| match kept.get(&letter.identity) {
            None if letter.reason == CONFLICT => !over.contains(&(letter.identity, letter.content.clone())),
            Some(content) if letter.reason == OVER && **content == letter.content => false,
            Some(_) if letter.reason == OVER => {
                letter.reason = CONFLICT.into();
                true
            }
            _ => true,
        });
    }

    /// Whether as many records were kept as the quota has room for. `emissions` as they were before they were settled.
    pub fn judge(self, emissions: &[Emission], stored: &[Stored]) -> Option<Difference> {
        let own = claimed(emissions)
            .into_iter()
            .filter(|((tenant, _), claimed)| *tenant == self.tenant && !claimed.contents.is_empty());
        let expected = own.count().min(self.records);
        let kept = stored.iter().filter(|row| row.identity.0 == self.tenant).count();
        (self.exact && kept != expected).then(|| {
            Difference::Other(format!("{kept} records are kept of the tenant with a quota, not {expected}"))
        })
    }
}
