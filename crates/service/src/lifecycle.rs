//! Start and stop of a process.

use std::future::Future;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// How long a process may take to stop after it was asked to.
pub const STOP_WITHIN: Duration = Duration::from_secs(10);

/// The work did not end in the time it had after the stop was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("did not stop within {0:?}")]
pub struct NotStopped(pub Duration);

/// A token that SIGTERM or SIGINT cancels. Call it once, early in `main`: from then on the signals no longer end the process.
///
/// # Errors
/// When the handlers can't be installed.
pub fn shutdown_on_signals() -> std::io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!(signal = name, "stopping");
        cancelled.cancel();
    });
    Ok(token)
}

/// Runs `work` to its end. Once `shutdown` is cancelled, `work` has `bound` left (it must watch the token itself) and is dropped
/// after that.
///
/// # Errors
/// [`NotStopped`] when the bound was reached.
pub async fn graceful<F: Future>(
    shutdown: &CancellationToken,
    bound: Duration,
    work: F,
) -> Result<F::Output, NotStopped> {
    let late = async {
        shutdown.cancelled().await;
        tokio::time::sleep(bound).await;
    };
    tokio::select! {
        biased;
        output = work => Ok(output),
        () = late => Err(NotStopped(bound)),
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn work_that_ends_is_never_cut() {
        let shutdown = CancellationToken::new();
        assert_eq!(graceful(&shutdown, Duration::ZERO, async { 7 }).await, Ok(7));
    }

    #[tokio::test]
    async fn work_that_obeys_gives_its_result() {
        let shutdown = CancellationToken::new();
        let work = async {
            shutdown.cancelled().await;
            "drained"
        };
        shutdown.cancel();
        assert_eq!(graceful(&shutdown, STOP_WITHIN, work).await, Ok("drained"));
    }

    #[tokio::test]
    async fn work_that_hangs_is_cut_at_the_bound() {
        let shutdown = CancellationToken::new();
        shutdown.cancel();
        let bound = Duration::from_millis(20);
        assert_eq!(graceful(&shutdown, bound, pending::<()>()).await, Err(NotStopped(bound)));
    }

    #[tokio::test]
    async fn a_signal_cancels_the_token() {
        let token = shutdown_on_signals().unwrap();
        assert!(!token.is_cancelled());
        // To this process alone; tokio's handler is installed, so it survives.
        let status = tokio::process::Command::new("kill")
            .args(["-TERM", &std::process::id().to_string()])
            .status()
            .await
            .unwrap();
        assert!(status.success());
        tokio::time::timeout(STOP_WITHIN, token.cancelled()).await.unwrap();
    }
}
