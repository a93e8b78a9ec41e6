//! The right to commit and write for a partition, from its assignment to its revocation.

use tokio_util::sync::CancellationToken;

/// One assignment of a partition. Clones share its fate.
///
/// The broker fences a member that was evicted, but takes a commit for a partition that the member no longer owns once it has
/// rejoined (measured): so the fence is completed here, by a ticket that the owner's thread revokes.
#[derive(Debug, Clone)]
pub struct Ticket {
    pub partition: i32,
    /// Distinguishes assignments of the same partition.
    pub number: u64,
    revoked: CancellationToken,
}

impl Ticket {
    pub fn new(partition: i32, number: u64) -> Self {
        Self { partition, number, revoked: CancellationToken::new() }
    }

    pub fn is_valid(&self) -> bool {
        !self.revoked.is_cancelled()
    }

    /// Ends the assignment; whatever still runs for it is abandoned.
    pub fn revoke(&self) {
        self.revoked.cancel();
    }

    /// Returns when the ticket is revoked.
    pub async fn revoked(&self) {
        self.revoked.cancelled().await;
    }
}

impl PartialEq for Ticket {
    fn eq(&self, other: &Self) -> bool {
        (self.partition, self.number) == (other.partition, other.number)
    }
}
