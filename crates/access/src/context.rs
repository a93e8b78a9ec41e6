//! What a verified token says.

use uuid::Uuid;

/// One thing a caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// Ask for totals, records and metadata.
    Read,
    /// Emit records.
    Emit,
    /// Register usage types.
    Types,
    /// Load records of the past.
    Backfill,
    /// Amend and deactivate records.
    Correct,
    /// Set retention policies.
    Retention,
    /// Operate the collector.
    Admin,
}

impl Scope {
    pub const ALL: [Self; 7] =
        [Self::Read, Self::Emit, Self::Types, Self::Backfill, Self::Correct, Self::Retention, Self::Admin];

    /// The word in the claim `scope`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "usage:read",
            Self::Emit => "usage:emit",
            Self::Types => "usage:types",
            Self::Backfill => "usage:backfill",
            Self::Correct => "usage:correct",
            Self::Retention => "usage:retention",
            Self::Admin => "usage:admin",
        }
    }

    /// The scope of a word, if it is one of ours.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == word)
    }
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of scopes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Scopes(u8);

impl Scopes {
    /// No scope: may do nothing.
    pub const NONE: Self = Self(0);

    /// Every scope.
    pub fn all() -> Self {
        Scope::ALL.into_iter().collect()
    }

    /// The scopes of a claim: words with spaces between. Words that are not ours belong to other services and are left out.
    pub fn parse_claim(text: &str) -> Self {
        text.split(' ').filter_map(Scope::parse).collect()
    }

    pub fn contains(self, scope: Scope) -> bool {
        self.0 & Self::bit(scope) != 0
    }

    pub fn with(self, scope: Scope) -> Self {
        Self(self.0 | Self::bit(scope))
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL.into_iter().filter(move |scope| self.contains(*scope))
    }

    fn bit(scope: Scope) -> u8 {
        1 << scope as u8
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<T: IntoIterator<Item = Scope>>(scopes: T) -> Self {
        scopes.into_iter().fold(Self::NONE, Self::with)
    }
}

impl std::fmt::Display for Scopes {
    /// As in the claim.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, scope) in self.iter().enumerate() {
            if index > 0 {
                f.write_str(" ")?;
            }
            f.write_str(scope.as_str())?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Scopes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{self}]")
    }
}

/// A verified identity.
#[derive(Clone, PartialEq, Eq)]
pub struct SecurityContext {
    /// Never the nil UUID.
    pub tenant_id: Uuid,
    pub subject_id: Option<Uuid>,
    pub subject_type: Option<String>,
    pub scopes: Scopes,
    /// The claim `jti`.
    pub token_id: Option<String>,
}

impl SecurityContext {
    /// A context without a subject: for a source that acts for a tenant on its own behalf, and for tests.
    pub fn for_tenant(tenant_id: Uuid, scopes: Scopes) -> Self {
        Self { tenant_id, subject_id: None, subject_type: None, scopes, token_id: None }
    }

    pub fn has(&self, scope: Scope) -> bool {
        self.scopes.contains(scope)
    }
}

impl std::fmt::Debug for SecurityContext {
    /// Without the subject, which must not come into logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecurityContext")
            .field("tenant_id", &self.tenant_id)
            .field("scopes", &self.scopes)
            .field("token_id", &self.token_id)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_go_through_the_claim() {
        let scopes: Scopes = [Scope::Types, Scope::Read].into_iter().collect();
        assert_eq!(scopes.to_string(), "usage:read usage:types");
        assert_eq!(Scopes::parse_claim("usage:types usage:read"), scopes);
        assert_eq!(Scopes::parse_claim(&Scopes::all().to_string()), Scopes::all());
        assert_eq!(Scopes::all().iter().count(), 7);
    }

    #[test]
    fn foreign_and_misspelt_words_give_nothing() {
        for text in
            ["", " ", "openid profile", "usage:*", "USAGE:READ", "usage:read,usage:emit", "usage:reads"]
        {
            assert!(Scopes::parse_claim(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn each_scope_is_its_own() {
        for scope in Scope::ALL {
            let only = Scopes::NONE.with(scope);
            assert_eq!(
                Scope::ALL.into_iter().filter(|other| only.contains(*other)).collect::<Vec<_>>(),
                [scope]
            );
        }
    }

    #[test]
    fn the_subject_stays_out_of_debug_output() {
        let subject = Uuid::new_v4();
        let context = SecurityContext {
            subject_id: Some(subject),
            ..SecurityContext::for_tenant(Uuid::new_v4(), Scopes::all())
        };
        assert!(!format!("{context:?}").contains(&subject.to_string()));
    }
}
