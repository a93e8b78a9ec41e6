//! What becomes of a message that is not kept.

use usage_schemas::Reason;

use crate::dead_letter::Action;
use crate::judge::Refusal;
use crate::plan::NotKept;

pub(super) enum Fate {
    Duplicate,
    Marker,
    Forward { partition: i32, hops: u32 },
    Refused(Refusal),
}

impl Fate {
    pub(super) fn not_kept(&self) -> NotKept {
        match self {
            Self::Duplicate => NotKept::Duplicate,
            Self::Marker => NotKept::Marker,
            Self::Forward { .. } => NotKept::Forwarded,
            Self::Refused(refusal) => NotKept::Refused(refusal.reason),
        }
    }

    pub(super) fn action(self) -> Option<Action> {
        match self {
            Self::Duplicate | Self::Marker => None,
            Self::Forward { partition, hops } => Some(Action::Forward { partition, hops }),
            Self::Refused(Refusal { reason, error, .. }) => Some(Action::DeadLetter { reason, error }),
        }
    }
}

/// An identity that is kept already: the same content is a duplicate, other content a conflict.
pub(super) fn repeated(kept: [u8; 16], now: [u8; 16]) -> Fate {
    if kept == now {
        return Fate::Duplicate;
    }
    let error = "the identity is stored with other content".to_string();
    Fate::Refused(Refusal { reason: Reason::Conflict, error, by_registry: false })
}

/// The policy point said no.
pub(super) fn forbidden() -> Refusal {
    let error = "the policy does not permit the source to emit this metric for this tenant".to_string();
    Refusal { reason: Reason::ForbiddenTenant, error, by_registry: false }
}
