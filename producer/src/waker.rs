//! The wake-up of a relay that runs in the same process as the emitter.

use tokio::sync::watch;

/// Tells relays of this process that a transaction with records has committed, so that they need not find out by polling.
///
/// Cheap to clone; all clones are one. A wake-up that nobody waits for is kept until the next poll, and any number of them are one.
#[derive(Debug, Clone)]
pub struct Waker(watch::Sender<u64>);

impl Waker {
    pub fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    /// Call it after the commit: a row is visible to the relay only then.
    pub fn wake(&self) {
        self.0.send_modify(|count| *count = count.wrapping_add(1));
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

impl Default for Waker {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_wake_up_before_the_wait_is_not_lost() {
        let waker = Waker::new();
        let mut woken = waker.subscribe();
        assert!(woken.changed().now_or_never().is_none());
        waker.clone().wake();
        waker.wake();
        assert!(woken.changed().now_or_never().is_some());
        assert!(woken.changed().now_or_never().is_none(), "two wake-ups before a poll are one");
    }
}
