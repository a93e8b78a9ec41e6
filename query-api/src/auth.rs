//! Who asks: a verified token, and nothing else of the request.

use std::sync::{Arc, OnceLock};

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use usage_access::policy::Action;
use usage_access::{SecurityContext, TokenError};
use uuid::Uuid;

use crate::failure::Failure;
use crate::grant::{Grant, Named};
use crate::state::App;

/// The tenant of a request once it is known, for the log line and the metrics of the request.
#[derive(Debug, Clone, Default)]
pub struct SeenTenant(Arc<OnceLock<Uuid>>);

impl SeenTenant {
    pub fn get(&self) -> Option<Uuid> {
        self.0.get().copied()
    }
}

/// The verified caller of an endpoint, who may nothing yet.
#[derive(Debug)]
pub struct Caller {
    context: SecurityContext,
    action: Action,
}

impl Caller {
    /// Asks whether the caller may do what the endpoint is for, and within which bounds.
    ///
    /// # Errors
    /// 403 or 503, see [`Grant::ask`].
    pub async fn may(&self, app: &App, named: Named<'_>) -> Result<Grant, Failure> {
        Grant::ask(app.policy.as_ref(), &self.context, self.action, named).await
    }

    pub fn tenant_id(&self) -> Uuid {
        self.context.tenant_id
    }
}

impl FromRequestParts<App> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Failure> {
        let context = match parts.extensions.get() {
            Some(Verified(outcome)) => outcome.clone()?,
            // Nobody looked: the middleware is not on this route.
            None => return Err(Failure::unauthenticated("the token was not looked at", None)),
        };
        match parts.extensions.get() {
            Some(Asks(action)) => Ok(Self { context, action: *action }),
            None => {
                tracing::error!("a route says of no action what it is for");
                Err(usage_service::problem::Problem::internal().into())
            }
        }
    }
}

/// What an endpoint is for; the router sets it on each of its routes.
#[derive(Debug, Clone, Copy)]
pub struct Asks(pub Action);

/// The caller, or what is wrong with the token, known before the handler: to its rate limits too.
#[derive(Debug, Clone)]
pub struct Verified(pub Result<SecurityContext, Failure>);

/// Axum middleware that verifies the token, once for each request. What is wrong with it the handler tells.
pub async fn remember(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let outcome = verify(request.headers(), &app).await;
    if let (Ok(context), Some(seen)) = (&outcome, request.extensions().get::<SeenTenant>()) {
        // Only here is it set.
        let _ = seen.0.set(context.tenant_id);
    }
    request.extensions_mut().insert(Verified(outcome));
    next.run(request).await
}

async fn verify(headers: &HeaderMap, state: &App) -> Result<SecurityContext, Failure> {
    let token = bearer(headers)?;
    state.verifier.authenticate(token).await.map_err(|error| match error {
        TokenError::NoKeys => Failure::no_token_keys(),
        error => {
            tracing::info!(error = %error, "refused a token");
            Failure::unauthenticated("the token is not valid, or no longer", Some("invalid_token"))
        }
    })
}

/// The token of `Authorization: Bearer …`. Two such headers are a doubt.
pub fn bearer(headers: &HeaderMap) -> Result<&str, Failure> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let missing = || Failure::unauthenticated("send `Authorization: Bearer <token>`", None);
    let value = values.next().ok_or_else(missing)?;
    if values.next().is_some() {
        return Err(Failure::unauthenticated(
            "the request has more than one Authorization header",
            Some("invalid_request"),
        ));
    }
    let (scheme, token) = value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or_else(missing)?;
    let token = token.trim_matches(' ');
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() { Err(missing()) } else { Ok(token) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::AUTHORIZATION, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn the_bearer_scheme_is_read_in_any_case() {
        for value in ["Bearer abc", "bearer abc", "BEARER  abc "] {
            assert_eq!(bearer(&headers(&[value])).unwrap(), "abc", "{value}");
        }
    }

    #[test]
    fn anything_else_is_no_token() {
        for values in
            [&[][..], &["abc"], &["Basic abc"], &["Bearer"], &["Bearer "], &["Bearer a", "Bearer a"]]
        {
            let failure = bearer(&headers(values)).unwrap_err();
            assert_eq!(failure.0.status().as_u16(), 401, "{values:?}");
        }
    }
}
