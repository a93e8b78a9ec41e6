//! Where usage types are registered: the control database itself, or the query-api for those who don't reach it.

use std::error::Error;
use std::sync::Arc;

use async_trait::async_trait;

use crate::usage_type::CompiledType;

/// A registry did not say whether a type is registered. Whoever gets this refuses, or asks again.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// Asking again may help.
    #[error("the types registry is unavailable")]
    Unavailable(#[source] Box<dyn Error + Send + Sync>),
    /// It answers what this program does not understand, or refuses to answer it: asking again does not help.
    #[error("the types registry gave no answer that can be used")]
    Unusable(#[source] Box<dyn Error + Send + Sync>),
}

/// Knows the registered usage types.
#[async_trait]
pub trait TypesRegistry: Send + Sync {
    /// The usage type of this name, ready to judge records; `None` if no such name is registered.
    ///
    /// # Errors
    /// The registry can't say.
    async fn usage_type(&self, name: &str) -> Result<Option<Arc<CompiledType>>, RegistryError>;
}
