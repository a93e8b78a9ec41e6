//! What is allowed: named quotas over windows.

use std::time::Duration;

/// One window of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Units that the window lets through.
    pub limit: i32,
    /// Whole seconds, at most 366 days.
    pub length: Duration,
}

impl Quota {
    pub const fn new(limit: i32, length: Duration) -> Self {
        Self { limit, length }
    }

    pub(crate) fn seconds(&self) -> i64 {
        i64::try_from(self.length.as_secs()).unwrap_or(i64::MAX)
    }

    pub(crate) fn micros(&self) -> i64 {
        self.seconds().saturating_mul(1_000_000)
    }
}

/// How the windows lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// Windows at whole multiples of their length since 1970. Up to two times the limit passes around an edge.
    #[default]
    Fixed,
    /// The window before counts as well, with the part of it that the last `length` still covers. No edge to gather at.
    Sliding,
}

/// What happens to a request while the database can't be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnError {
    /// It is let through: for limits that keep bursts out.
    #[default]
    Open,
    /// It is refused: for limits that protect something, like tries of a password.
    Closed,
}

/// A named limit with one or more windows, all of which must have room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    name: String,
    quotas: Vec<Quota>,
    algorithm: Algorithm,
    on_error: OnError,
}

/// A rule that can't be meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRule {
    #[error("the name of a rule is 1 to 64 letters, digits, _ . or -, not {0:?}")]
    Name(String),
    #[error("a rule has 1 to 8 windows, not {0}")]
    Windows(usize),
    #[error("a limit is at least 1, not {0}")]
    Limit(i32),
    #[error("a window is whole seconds from 1 s to 366 days, not {0:?}")]
    Length(Duration),
    #[error("two windows of one rule have the same length {0:?}")]
    SameLength(Duration),
}

const LONGEST_NAME: usize = 64;
const MOST_QUOTAS: usize = 8;
const LONGEST_WINDOW: Duration = Duration::from_secs(366 * 86_400);

impl Rule {
    /// A rule of fixed windows that fails open; see [`Rule::sliding`] and [`Rule::fail_closed`]. The name is the scope of its
    /// counters: two rules of one name share them.
    ///
    /// # Errors
    /// [`InvalidRule`].
    pub fn new(name: &str, quotas: &[Quota]) -> Result<Self, InvalidRule> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(plain) {
            return Err(InvalidRule::Name(name.to_owned()));
        }
        if quotas.is_empty() || quotas.len() > MOST_QUOTAS {
            return Err(InvalidRule::Windows(quotas.len()));
        }
        for quota in quotas {
            if quota.limit < 1 {
                return Err(InvalidRule::Limit(quota.limit));
            }
            let whole = quota.length.subsec_nanos() == 0 && !quota.length.is_zero();
            if !whole || quota.length > LONGEST_WINDOW {
                return Err(InvalidRule::Length(quota.length));
            }
        }
        let mut quotas = quotas.to_vec();
        // Everybody takes the rows of a subject in this order, so that no two statements wait for each other.
        quotas.sort_by_key(|quota| quota.length);
        if let Some(pair) = quotas.windows(2).find(|pair| pair[0].length == pair[1].length) {
            return Err(InvalidRule::SameLength(pair[0].length));
        }
        Ok(Self {
            name: name.to_owned(),
            quotas,
            algorithm: Algorithm::default(),
            on_error: OnError::default(),
        })
    }

    #[must_use]
    pub fn sliding(mut self) -> Self {
        self.algorithm = Algorithm::Sliding;
        self
    }

    #[must_use]
    pub fn fail_closed(mut self) -> Self {
        self.on_error = OnError::Closed;
        self
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The shortest window first.
    pub fn quotas(&self) -> &[Quota] {
        &self.quotas
    }

    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    pub fn on_error(&self) -> OnError {
        self.on_error
    }

    /// The quotas as callers are told of them; with several windows each has a name of its own, `rule-60s`.
    pub fn policies(&self) -> Vec<Policy> {
        let name = |quota: &Quota| match self.quotas.as_slice() {
            [_] => self.name.clone(),
            _ => format!("{}-{}s", self.name, quota.seconds()),
        };
        self.quotas.iter().map(|quota| Policy { name: name(quota), quota: *quota }).collect()
    }
}

/// A quota under the name that callers see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    pub name: String,
    pub quota: Quota,
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn quota(limit: i32, seconds: u64) -> Quota {
        Quota::new(limit, Duration::from_secs(seconds))
    }

    #[test]
    fn windows_are_kept_shortest_first_and_named_when_several() {
        let rule = Rule::new("api.call", &[quota(1_000, 3_600), quota(10, 1)]).unwrap();
        assert_eq!(rule.quotas(), [quota(10, 1), quota(1_000, 3_600)]);
        let names: Vec<_> = rule.policies().into_iter().map(|policy| policy.name).collect();
        assert_eq!(names, ["api.call-1s", "api.call-3600s"]);
        assert_eq!(Rule::new("login", &[quota(5, 60)]).unwrap().policies()[0].name, "login");
    }

    #[test]
    fn rules_that_cant_be_meant_are_refused() {
        let one = [quota(1, 1)];
        for name in ["", "a b", "a:b", "a\"b", "ä", &"a".repeat(65)] {
            assert_eq!(Rule::new(name, &one), Err(InvalidRule::Name(name.to_owned())));
        }
        assert_eq!(Rule::new("a", &[]), Err(InvalidRule::Windows(0)));
        let many: Vec<_> = (1..=9).map(|seconds| quota(1, seconds)).collect();
        assert_eq!(Rule::new("a", &many), Err(InvalidRule::Windows(9)));
        for limit in [0, -1, i32::MIN] {
            assert_eq!(Rule::new("a", &[quota(limit, 1)]), Err(InvalidRule::Limit(limit)));
        }
        for length in [Duration::ZERO, Duration::from_millis(1_500), Duration::from_secs(366 * 86_400 + 1)] {
            assert_eq!(Rule::new("a", &[Quota::new(1, length)]), Err(InvalidRule::Length(length)));
        }
        assert_eq!(
            Rule::new("a", &[quota(1, 60), quota(2, 60)]),
            Err(InvalidRule::SameLength(Duration::from_secs(60)))
        );
    }
}
