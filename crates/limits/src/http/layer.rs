//! Rate limits around a service.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::response::Response;
use http::request::Parts;
use http::{HeaderValue, Request};
use tower::{Layer, Service};

use super::refused::Refused;
use super::spread::spread;
use super::{RATE_LIMIT, RATE_LIMIT_POLICY, fields, problem};
use crate::rate::{Decision, Policy, RateLimiter, Reason, Rule};

/// What a rule does about a request that its key can't be taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingKey {
    /// The rule does not apply to it.
    Skip,
    /// All such requests together are one subject.
    Share,
}

type Key = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;
type Refusal = Arc<dyn Fn(&Decision) -> Response + Send + Sync>;
type Observer = Arc<dyn Fn(&Rule, &Decision) + Send + Sync>;

#[derive(Clone)]
struct Keyed {
    limiter: RateLimiter,
    key: Key,
    missing: MissingKey,
    refused: Arc<Refused>,
}

/// One rule for one request.
struct Asked {
    limiter: RateLimiter,
    refused: Arc<Refused>,
    subject: String,
    digest: [u8; 32],
}

/// Lets requests through that all its rules allow, and tells callers of their limits. Rules are asked in the order in which they
/// were added, up to the first that refuses: put the one first that refuses most.
///
/// A refusal for too many requests is kept in memory until its reset, as a bounded number of them: until then further requests of
/// that subject are refused without a question to the database, and no other rule counts them.
///
/// What callers are told to wait is up to a tenth of the window longer than that, at most a minute, and another time for each
/// subject: or all would come back in the moment in which a window ends.
#[derive(Clone)]
pub struct RateLimitLayer {
    rules: Arc<[Keyed]>,
    policies: Option<HeaderValue>,
    refusal: Refusal,
    observer: Observer,
}

/// The subject of requests without a key under [`MissingKey::Share`]. No key can be it: it has a zero character.
const NOBODY: &str = "\0nobody";

impl Default for RateLimitLayer {
    fn default() -> Self {
        Self {
            rules: Arc::new([]),
            policies: None,
            refusal: Arc::new(problem::rate_limited),
            observer: Arc::new(|_, _| {}),
        }
    }
}

impl RateLimitLayer {
    /// Without rules: lets everything through.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a rule. `key` takes the subject from the head of the request; it must be something that a caller can't choose
    /// freely, or it chooses a fresh limit each time.
    #[must_use]
    pub fn rule(
        mut self,
        limiter: RateLimiter,
        missing: MissingKey,
        key: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        let mut rules = self.rules.to_vec();
        rules.push(Keyed { limiter, key: Arc::new(key), missing, refused: Arc::default() });
        let policies: Vec<Policy> = rules.iter().flat_map(|keyed| keyed.limiter.rule().policies()).collect();
        self.policies = fields::policies(&policies);
        self.rules = rules.into();
        self
    }

    /// Builds the refusals in the application's own way; the default is [`problem::rate_limited`](super::rate_limited). The fields are
    /// added to either.
    #[must_use]
    pub fn refuse_with(mut self, refusal: impl Fn(&Decision) -> Response + Send + Sync + 'static) -> Self {
        self.refusal = Arc::new(refusal);
        self
    }

    /// Tells every decision, with the rule that made it: for metrics. Refusals from memory are told like others.
    #[must_use]
    pub fn observe_with(mut self, observer: impl Fn(&Rule, &Decision) + Send + Sync + 'static) -> Self {
        self.observer = Arc::new(observer);
        self
    }

    /// Which rules apply to the request, with its subject in each.
    fn asked(&self, head: &Parts) -> Vec<Asked> {
        let subject = |keyed: &Keyed| match ((keyed.key)(head), keyed.missing) {
            (Some(key), _) if !key.is_empty() => Some(key),
            (_, MissingKey::Share) => Some(NOBODY.to_owned()),
            (_, MissingKey::Skip) => None,
        };
        let asked = |keyed: &Keyed| {
            let (subject, limiter) = (subject(keyed)?, keyed.limiter.clone());
            let digest = limiter.digest(&subject);
            Some(Asked { limiter, refused: keyed.refused.clone(), subject, digest })
        };
        self.rules.iter().filter_map(asked).collect()
    }

    /// What the rules say, up to the first that refuses; those that refused before are known without a question.
    async fn decide(&self, asked: &[Asked]) -> Vec<Decision> {
        let now = Instant::now();
        let known = |rule: &Asked| Some(self.told(rule, rule.refused.decision(&rule.digest, now)?));
        if let Some(known) = asked.iter().find_map(known) {
            return vec![known];
        }
        let mut decisions = Vec::new();
        for rule in asked {
            let before = Instant::now();
            // A subject is never empty here, and 1 is a cost.
            let Ok(decision) = rule.limiter.check(&rule.subject, 1).await else { continue };
            let allowed = decision.allowed;
            if !allowed {
                rule.refused.remember(rule.digest, &decision, before);
            }
            decisions.push(self.told(rule, decision));
            if !allowed {
                break;
            }
        }
        decisions
    }

    /// The decision as the caller sees it.
    fn told(&self, rule: &Asked, decision: Decision) -> Decision {
        (self.observer)(rule.limiter.rule(), &decision);
        spread(decision, &rule.digest)
    }

    fn tell(&self, response: &mut Response, decisions: &[Decision]) {
        if decisions.is_empty() {
            return;
        }
        let fields = [(RATE_LIMIT_POLICY, self.policies.clone()), (RATE_LIMIT, fields::remaining(decisions))];
        for (name, value) in fields {
            if let Some(value) = value {
                response.headers_mut().insert(name, value);
            }
        }
    }
}

impl std::fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rules: Vec<_> = self.rules.iter().map(|keyed| keyed.limiter.rule()).collect();
        f.debug_struct("RateLimitLayer").field("rules", &rules).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimitService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimitService { layer: self.clone(), inner }
    }
}

/// A service behind a [`RateLimitLayer`].
#[derive(Debug, Clone)]
pub struct RateLimitService<S> {
    layer: RateLimitLayer,
    inner: S,
}

impl<S, B> Service<Request<B>> for RateLimitService<S>
where
    S: Service<Request<B>, Response = Response> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    type Response = Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let layer = self.layer.clone();
        // The one that was polled ready goes along; its clone is polled anew.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let decisions = layer.decide(&layer.asked(&head)).await;
            let mut response = match decisions.last() {
                Some(decision) if !decision.allowed => {
                    if decision.reason == Reason::Exceeded {
                        tracing::debug!(policy = decision.policy.name, "refused by a rate limit");
                    }
                    (layer.refusal)(decision)
                }
                _ => inner.call(Request::from_parts(head, body)).await?,
            };
            layer.tell(&mut response, &decisions);
            Ok(response)
        })
    }
}
