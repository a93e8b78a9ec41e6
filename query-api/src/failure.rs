//! Everything that fails, as a problem for the caller. What went wrong inside belongs into the log, under the same trace id.

use std::time::Duration;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use usage_access::policy::Action;
use usage_service::error_chain;
use usage_service::problem::{Problem, kinds};
use usage_storage::StorageError;

use crate::allowances::ReadError;
use crate::cursor::CursorError;
use crate::params::{MORE_FAULTS, ParameterError};
use crate::registry::RegistryError;
use crate::zones::OutOfCalendar;

/// When a caller should ask again after storage, the control database or the policy decision point was away.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// A problem on its way out of a handler; boxed, since answers are what is common.
#[derive(Debug, Clone)]
pub struct Failure(pub Box<Problem>);

impl Failure {
    /// A single faulty query or path parameter.
    pub fn parameter(name: &str, code: &'static str, detail: impl Into<String>) -> Self {
        vec![ParameterError { parameter: name.to_owned(), code, detail: detail.into() }].into()
    }

    /// Too much is under way; the caller should come back.
    pub fn overloaded() -> Self {
        let detail = "the service answers as many questions as it can, try again shortly";
        Problem::unavailable(detail, Duration::from_secs(1)).into()
    }

    /// The topic grew while the answer was made: it may lack rows.
    pub fn grown() -> Self {
        let detail = "the topic of records has grown meanwhile, try again";
        Problem::unavailable(detail, Duration::from_secs(1)).into()
    }

    /// The issuer's keys were never read: nothing can be said of any token.
    pub fn no_token_keys() -> Self {
        let detail = "tokens can't be verified at present, try again";
        Problem::unavailable(detail, RETRY_AFTER).into()
    }

    /// 401 with the challenge of RFC 6750; `error` only if a token was sent.
    pub fn unauthenticated(detail: &str, error: Option<&str>) -> Self {
        let challenge = match error {
            Some(error) => format!("Bearer realm=\"usage\", error=\"{error}\""),
            None => "Bearer realm=\"usage\"".to_owned(),
        };
        challenged(Problem::unauthenticated().with_detail(detail), &challenge)
    }

    /// 403: not this action, or not this part of it. Always in the same words: a caller must not learn policies by asking.
    pub fn refused(action: Action) -> Self {
        let detail = format!("the action `{}` was refused", action.as_str());
        challenged(Problem::forbidden(detail), "Bearer realm=\"usage\", error=\"insufficient_scope\"")
    }

    /// 503: whether the caller may is not known.
    pub fn undecided() -> Self {
        let detail = "whether this is allowed can't be decided at present, try again";
        Problem::unavailable(detail, RETRY_AFTER).into()
    }
}

fn challenged(problem: Problem, challenge: &str) -> Failure {
    match HeaderValue::from_str(challenge) {
        Ok(value) => problem.with_header(header::WWW_AUTHENTICATE, value).into(),
        Err(_) => problem.into(),
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self(Box::new(problem))
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        self.0.into_response()
    }
}

impl From<Vec<ParameterError>> for Failure {
    fn from(errors: Vec<ParameterError>) -> Self {
        let detail = match errors.as_slice() {
            [only] => format!("`{}`: {}", only.parameter, only.detail),
            [listed @ .., last] if last.code == MORE_FAULTS => {
                format!("more than {} parameters are not valid", listed.len())
            }
            all => format!("{} parameters are not valid", all.len()),
        };
        let problem = Problem::new(kinds::INVALID_PARAMETER).with_detail(detail);
        errors
            .into_iter()
            .fold(problem, |problem, error| problem.with_parameter(error.parameter, error.code, error.detail))
            .into()
    }
}

impl From<CursorError> for Failure {
    fn from(error: CursorError) -> Self {
        let code = match error {
            CursorError::Invalid => "invalid_cursor",
            CursorError::OtherQuery => "cursor_of_another_query",
        };
        Problem::new(kinds::INVALID_CURSOR)
            .with_detail(error.to_string())
            .with_parameter("cursor", code, error.to_string())
            .into()
    }
}

impl From<OutOfCalendar> for Failure {
    fn from(error: OutOfCalendar) -> Self {
        Self::parameter("from", "out_of_range", error.to_string())
    }
}

impl From<StorageError> for Failure {
    fn from(error: StorageError) -> Self {
        let chain = error_chain(&error);
        match error {
            StorageError::Timeout => {
                tracing::warn!(error = %chain, "storage did not answer in time");
                let detail =
                    "storage did not answer in time: ask for a shorter range or fewer groups, or try again";
                Problem::new(kinds::TIMEOUT).with_detail(detail).into()
            }
            StorageError::Unavailable(_) | StorageError::Unknown(_) => {
                tracing::warn!(error = %chain, "storage is unavailable");
                Problem::unavailable("storage is not reachable at present, try again", RETRY_AFTER).into()
            }
            StorageError::Open { retry_after } => {
                let detail = "storage has failed repeatedly and is not asked for a while, try again later";
                Problem::unavailable(detail, retry_after).into()
            }
            StorageError::Fenced { .. }
            | StorageError::Final { .. }
            | StorageError::Inconsistent(_)
            | StorageError::Schema(_)
            | StorageError::Config(_) => {
                tracing::error!(error = %chain, "storage failed");
                let detail = "storage cannot answer this; the log has the cause under this trace id";
                Problem::internal().with_detail(detail).into()
            }
        }
    }
}

impl From<RegistryError> for Failure {
    fn from(error: RegistryError) -> Self {
        let chain = error_chain(&error);
        match error {
            RegistryError::Unavailable(_) => {
                tracing::warn!(error = %chain, "the control database is unavailable");
                Problem::unavailable(
                    "the control database is not reachable at present, try again",
                    RETRY_AFTER,
                )
                .into()
            }
            RegistryError::Failed(_) => {
                tracing::error!(error = %chain, "the control database failed");
                let detail =
                    "the control database refused a statement; the log has the cause under this trace id";
                Problem::internal().with_detail(detail).into()
            }
        }
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        let chain = error_chain(&error);
        if error.may_pass() {
            tracing::warn!(error = %chain, "allowances could not be read");
            let detail = "the allowances' database is not reachable at present, try again";
            return Problem::unavailable(detail, RETRY_AFTER).into();
        }
        tracing::error!(error = %chain, "allowances failed: see `allowances.database_url` and `allowances.table`");
        let detail =
            "the allowances' database refused a statement; the log has the cause under this trace id";
        Problem::internal().with_detail(detail).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken() -> Box<dyn std::error::Error + Send + Sync> {
        Box::new(std::io::Error::other("connection refused"))
    }

    /// `docs/errors.md` and the constants name the same types with the same statuses.
    #[test]
    fn the_documentation_has_a_heading_for_each_type() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/errors.md");
        let text = std::fs::read_to_string(path).unwrap();
        let mut documented: Vec<_> =
            text.lines().filter_map(|line| line.strip_prefix("## ")).map(str::trim).collect();
        let mut declared: Vec<_> =
            kinds::ALL.iter().map(|kind| format!("usage/{} ({})", kind.slug, kind.status.as_u16())).collect();
        documented.sort_unstable();
        declared.sort_unstable();
        assert_eq!(documented, declared);
    }

    #[test]
    fn storage_errors_are_told_by_what_the_caller_can_do() {
        for (error, status, retry) in [
            (StorageError::Timeout, 504, false),
            (StorageError::Unavailable(broken()), 503, true),
            (StorageError::Unknown(broken()), 503, true),
            (StorageError::Open { retry_after: Duration::from_millis(29_100) }, 503, true),
            (StorageError::Final { code: 42, message: "no such column".to_owned() }, 500, false),
            (StorageError::Inconsistent("two horizons".to_owned()), 500, false),
        ] {
            let response = Failure::from(error).into_response();
            assert_eq!(response.status().as_u16(), status);
            assert_eq!(response.headers().contains_key(header::RETRY_AFTER), retry);
        }
    }

    #[test]
    fn the_control_database_is_told_apart_from_a_refusal() {
        assert_eq!(
            Failure::from(RegistryError::Unavailable(broken().into())).into_response().status().as_u16(),
            503
        );
        assert_eq!(
            Failure::from(RegistryError::Failed(broken().into())).into_response().status().as_u16(),
            500
        );
    }

    #[test]
    fn a_refusal_names_the_action_and_nothing_else() {
        let failure = Failure::refused(Action::RegisterType);
        assert!(failure.0.to_string().ends_with("the action `register_type` was refused"));
        assert_eq!(failure.0.errors(), []);
        let response = failure.into_response();
        assert_eq!(response.status().as_u16(), 403);
        assert!(response.headers()["www-authenticate"].to_str().unwrap().contains("insufficient_scope"));
    }

    #[test]
    fn what_is_not_decided_may_be_asked_again() {
        let response = Failure::undecided().into_response();
        assert_eq!(
            (response.status().as_u16(), &response.headers()["retry-after"]),
            (503, &"5".parse().unwrap())
        );
    }
}
