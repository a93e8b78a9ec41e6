//! Bodies that are sent page by page.

use std::io;

use axum::body::{Body, Bytes};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tracing::Instrument as _;
use usage_service::fail_point;

use crate::failure::Failure;

/// A body of `first` and then one piece a step, until a step returns no further state. An error aborts the connection: a
/// body that ends cleanly is complete.
pub fn pages<S, F, A>(first: Bytes, next: Option<S>, step: F) -> Body
where
    S: Send + 'static,
    F: Fn(S) -> A + Clone + Send + 'static,
    A: Future<Output = Result<(Bytes, Option<S>), Failure>> + Send,
{
    let span = tracing::Span::current();
    let rest = stream::try_unfold(next, move |state| {
        let step = step.clone();
        let span = span.clone();
        async move {
            let Some(state) = state else { return Ok(None) };
            fail_point!("query.page");
            Ok::<_, Failure>(Some(step(state).instrument(span).await?))
        }
    });
    let rest = rest.map_err(|failure| {
        tracing::warn!(error = %failure.0, "a stream ends early, its connection is aborted");
        io::Error::other(failure.0.to_string())
    });
    Body::from_stream(stream::once(async { Ok(first) }).chain(rest))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn pieces_follow_one_another_to_the_end() {
        let body = pages(Bytes::from_static(b"0"), Some(1), |at: u8| async move {
            Ok((Bytes::from(at.to_string()), (at < 4).then_some(at + 1)))
        });
        assert_eq!(body.collect().await.unwrap().to_bytes(), "01234");
    }

    #[tokio::test]
    async fn nothing_follows_where_there_is_no_more() {
        let body = pages(Bytes::from_static(b"all"), None::<u8>, |_| async { Err(Failure::overloaded()) });
        assert_eq!(body.collect().await.unwrap().to_bytes(), "all");
    }

    #[tokio::test]
    async fn an_error_midway_is_not_a_clean_end() {
        let body = pages(Bytes::from_static(b"0"), Some(()), |()| async { Err(Failure::overloaded()) });
        assert!(body.collect().await.is_err());
    }
}
