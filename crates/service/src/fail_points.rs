//! Points of the protocol at which a test may end or freeze this process: `fail_point!("relay.acked")` in the code, and in the
//! environment of the process `USAGE_FAIL_POINT=relay.acked=kill`.
//!
//! They exist only with the feature `failpoints`; a shipped program has none and ignores the variable.

/// Variable that arms points: `name=kill` or `name=stop` (SIGKILL or SIGSTOP of this process, at that point), or `name=panic` (a
/// panic that quotes the environment), with `@N` at its Nth visit only; several separated by `;`.
pub const VARIABLE: &str = "USAGE_FAIL_POINT";

/// Arms what the environment says. Call it first in `main`.
#[cfg(not(feature = "failpoints"))]
pub fn arm() {}

#[cfg(feature = "failpoints")]
pub use armed::arm;

#[cfg(feature = "failpoints")]
mod armed {
    use std::sync::atomic::{AtomicU64, Ordering};

    use nix::sys::signal::{Signal, raise};

    use super::VARIABLE;

    /// Arms what the environment says. Call it first in `main`.
    ///
    /// # Panics
    /// When the variable can't be read: a test that arms nothing would pass without proving anything.
    pub fn arm() {
        let Ok(text) = std::env::var(VARIABLE) else { return };
        for point in text.split(';').filter(|point| !point.is_empty()) {
            let Point { name, action, visit } = parse(point).unwrap_or_else(|| panic!("{VARIABLE}: {point}"));
            let visits = AtomicU64::new(0);
            let hit = move || {
                let now = visits.fetch_add(1, Ordering::Relaxed) + 1;
                if visit.is_some_and(|visit| visit != now) {
                    return;
                }
                match action {
                    // SIGKILL does not return; after SIGSTOP this thread goes on with the others at SIGCONT.
                    Action::Signal(signal) => drop(raise(signal)),
                    // As bad as a panic can be: it quotes every secret of the process.
                    Action::Panic => panic!("{:?}", std::env::vars_os().collect::<Vec<_>>()),
                }
            };
            fail::cfg_callback(name, hit).unwrap_or_else(|error| panic!("{VARIABLE}: {point}: {error}"));
        }
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Action {
        Signal(Signal),
        Panic,
    }

    #[derive(Debug, PartialEq, Eq)]
    struct Point<'a> {
        name: &'a str,
        action: Action,
        visit: Option<u64>,
    }

    fn parse(text: &str) -> Option<Point<'_>> {
        let (name, action) = text.split_once('=')?;
        let (action, visit) = match action.split_once('@') {
            Some((action, visit)) => (action, Some(visit.parse().ok().filter(|visit| *visit > 0)?)),
            None => (action, None),
        };
        let action = match action {
            "kill" => Action::Signal(Signal::SIGKILL),
            "stop" => Action::Signal(Signal::SIGSTOP),
            "panic" => Action::Panic,
            _ => return None,
        };
        Some(Point { name, action, visit })
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn points_are_read() {
            let kill = Point { name: "relay.acked", action: Action::Signal(Signal::SIGKILL), visit: None };
            assert_eq!(parse("relay.acked=kill"), Some(kill));
            let third =
                Point { name: "relay.acked", action: Action::Signal(Signal::SIGSTOP), visit: Some(3) };
            assert_eq!(parse("relay.acked=stop@3"), Some(third));
            let panic = Point { name: "relay.acked", action: Action::Panic, visit: None };
            assert_eq!(parse("relay.acked=panic"), Some(panic));
            for broken in ["relay.acked", "relay.acked=pause", "relay.acked=kill@0", "relay.acked=kill@x"] {
                assert_eq!(parse(broken), None, "{broken}");
            }
        }
    }
}
