//! The schema, and the names of its types.

use cedar_policy::{EntityId, EntityTypeName, EntityUid, Schema};

use super::PolicyFolderError;

/// The words of policies.
pub const SCHEMA: &str = include_str!("../../../policies/schema.cedarschema");

/// What entity files may say: who belongs to which group. The attributes of callers and sources come with each request.
const MEMBERS: &str = "
    entity CallerGroup in [CallerGroup];
    entity Caller in [CallerGroup];
    entity SourceGroup in [SourceGroup];
    entity Source in [SourceGroup];
    entity TenantGroup in [TenantGroup];
    entity Tenant in [TenantGroup];
    entity MetricGroup in [MetricGroup];
    entity Metric in [MetricGroup];
";

/// The schema, read.
#[derive(Debug)]
pub(super) struct Words {
    pub schema: Schema,
    /// The schema of entity files.
    pub members: Schema,
    caller: EntityTypeName,
    scope: EntityTypeName,
    source: EntityTypeName,
    tenant: EntityTypeName,
    metric: EntityTypeName,
    action: EntityTypeName,
}

impl Words {
    pub fn read() -> Result<Self, PolicyFolderError> {
        let schema = |text: &str| match Schema::from_cedarschema_str(text) {
            Ok((schema, _)) => Ok(schema),
            Err(error) => Err(PolicyFolderError::Schema { detail: error.to_string() }),
        };
        let name = |text: &str| -> Result<EntityTypeName, _> {
            text.parse().map_err(|error: cedar_policy::ParseErrors| PolicyFolderError::Schema {
                detail: error.to_string(),
            })
        };
        Ok(Self {
            schema: schema(SCHEMA)?,
            members: schema(MEMBERS)?,
            caller: name("Caller")?,
            scope: name("Scope")?,
            source: name("Source")?,
            tenant: name("Tenant")?,
            metric: name("Metric")?,
            action: name("Action")?,
        })
    }

    pub fn caller(&self, id: &str) -> EntityUid {
        uid(&self.caller, id)
    }

    pub fn scope(&self, id: &str) -> EntityUid {
        uid(&self.scope, id)
    }

    pub fn source(&self, id: &str) -> EntityUid {
        uid(&self.source, id)
    }

    pub fn tenant(&self, id: uuid::Uuid) -> EntityUid {
        uid(&self.tenant, id.as_hyphenated().encode_lower(&mut uuid::Uuid::encode_buffer()))
    }

    pub fn metric(&self, id: &str) -> EntityUid {
        uid(&self.metric, id)
    }

    pub fn action(&self, id: &str) -> EntityUid {
        uid(&self.action, id)
    }
}

fn uid(type_name: &EntityTypeName, id: &str) -> EntityUid {
    EntityUid::from_type_name_and_id(type_name.clone(), EntityId::new(id))
}
