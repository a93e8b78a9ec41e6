//! Questions and answers as JSON.

use std::collections::BTreeSet;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::invalid;
use crate::policy::{Constraints, PolicyError, PolicyRequest, Principal};

#[derive(Debug, Serialize)]
pub(super) struct Question<'a> {
    subject: Subject<'a>,
    action: ActionName,
    resource: Resource<'a>,
}

#[derive(Debug, Serialize)]
struct Subject<'a> {
    /// `caller`, or `source`.
    r#type: &'static str,
    id: String,
    properties: SubjectProperties<'a>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum SubjectProperties<'a> {
    Caller {
        tenant_id: Uuid,
        #[serde(skip_serializing_if = "Option::is_none")]
        subject_id: Option<Uuid>,
        #[serde(skip_serializing_if = "Option::is_none")]
        subject_type: Option<&'a str>,
        scopes: Vec<&'static str>,
    },
    Source {
        #[serde(skip_serializing_if = "Option::is_none")]
        home_tenant: Option<Uuid>,
        any_tenant: bool,
    },
}

#[derive(Debug, Serialize)]
struct ActionName {
    name: &'static str,
}

#[derive(Debug, Serialize)]
struct Resource<'a> {
    r#type: &'static str,
    id: Uuid,
    properties: ResourceProperties<'a>,
}

#[derive(Debug, Serialize)]
struct ResourceProperties<'a> {
    /// Whether the request names this tenant; else it is the caller's own, and the answer's constraints say which others may be.
    named: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    metric: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'a str>,
}

/// None where there is no tenant to speak of.
pub(super) fn question<'a>(request: &PolicyRequest<'a>) -> Option<Question<'a>> {
    let subject = match request.principal {
        Principal::Caller(context) => Subject {
            r#type: "caller",
            // With the tenant, so that a subject's id means nothing in another tenant's token.
            id: match context.subject_id {
                Some(subject) => format!("{}/{subject}", context.tenant_id),
                None => context.tenant_id.to_string(),
            },
            properties: SubjectProperties::Caller {
                tenant_id: context.tenant_id,
                subject_id: context.subject_id,
                subject_type: context.subject_type.as_deref(),
                scopes: context.scopes.iter().map(|scope| scope.as_str()).collect(),
            },
        },
        Principal::Source { name, home_tenant, any_tenant } => Subject {
            r#type: "source",
            id: name.to_owned(),
            properties: SubjectProperties::Source { home_tenant, any_tenant },
        },
    };
    let properties = ResourceProperties {
        named: request.tenant_id.is_some(),
        metric: request.metric,
        source: request.source,
    };
    let id = request.tenant_id.or_else(|| request.own_tenant())?;
    Some(Question {
        subject,
        action: ActionName { name: request.action.as_str() },
        resource: Resource { r#type: "tenant", id, properties },
    })
}

/// What is not known could be a bound, so it is refused, on all levels.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    decision: bool,
    #[serde(default)]
    context: Object<Context>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Context {
    #[serde(default)]
    constraints: Object<Bounds>,
    /// These explain; they bound nothing.
    #[serde(default, rename = "id")]
    _id: Option<IgnoredAny>,
    #[serde(default, rename = "reason_admin")]
    _reason_admin: Option<IgnoredAny>,
    #[serde(default, rename = "reason_user")]
    _reason_user: Option<IgnoredAny>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Bounds {
    #[serde(default, deserialize_with = "given")]
    tenants: Option<BTreeSet<Uuid>>,
    #[serde(default, deserialize_with = "given")]
    metrics: Option<BTreeSet<String>>,
    #[serde(default, deserialize_with = "given")]
    sources: Option<BTreeSet<String>>,
    #[serde(default)]
    elevated: bool,
}

/// A JSON object. serde alone would take a list for a struct as well, and read `"constraints": []` as constraints without any bound.
#[derive(Default)]
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
            type Value = T;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }

        deserializer.deserialize_map(Members(PhantomData)).map(Object)
    }
}

/// A member that is there must have a value: `null` could mean no bound as well as nothing allowed.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// A denial says only that it is one.
#[derive(Deserialize)]
struct Verdict {
    decision: bool,
}

/// What an answer permits; none for a denial.
pub(super) fn constraints(body: &[u8]) -> Result<Option<Constraints>, PolicyError> {
    // Of serde's message only where: it can repeat what was sent.
    let unread = |error: &serde_json::Error| {
        invalid(format!("line {}, column {}: {:?} error", error.line(), error.column(), error.classify()))
    };
    let Object(verdict): Object<Verdict> = serde_json::from_slice(body).map_err(|error| unread(&error))?;
    if !verdict.decision {
        return Ok(None);
    }
    let Object(answer): Object<Answer> = serde_json::from_slice(body).map_err(|error| unread(&error))?;
    debug_assert!(answer.decision);
    let Object(Context { constraints: Object(bounds), .. }) = answer.context;
    if bounds.tenants.iter().flatten().any(Uuid::is_nil) {
        return Err(invalid("constraints.tenants holds the nil UUID"));
    }
    for (name, set) in [("metrics", &bounds.metrics), ("sources", &bounds.sources)] {
        if !set.iter().flatten().all(|item| usage_schemas::validate::is_name(item)) {
            return Err(invalid(format!("constraints.{name} holds something that is not a name")));
        }
    }
    let Bounds { tenants, metrics, sources, elevated } = bounds;
    Ok(Some(Constraints { tenants, metrics, sources, elevated }))
}
