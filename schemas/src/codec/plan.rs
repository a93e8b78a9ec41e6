//! Resolution plans: how values of another writer schema become a record of this version, worked out once per schema.

use apache_avro::Schema;
use apache_avro::schema::{DecimalSchema, InnerDecimalSchema, NamesRef, ResolvedSchema, UuidSchema};
use uuid::Uuid;

use super::DecodeError;
use super::cursor::Cursor;
use super::skip::{TypeId, Types, TypesBuilder};
use crate::{Kind, Quantity, RecordRef, Timestamp, schema};

/// A writer schema that cannot be read without doubt.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    #[error("not an Avro schema")]
    Parse(#[source] Box<apache_avro::Error>),
    #[error("not the record usage.v1.UsageRecord")]
    NotUsageRecord,
    #[error("{field}: {detail}")]
    Field { field: &'static str, detail: &'static str },
    #[error("the schema refers to {0}, which it does not define before")]
    UnknownName(String),
}

/// The fields of a writer schema in order.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    steps: Vec<Step>,
    types: Types,
}

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Read(Target, Shape),
    Skip(TypeId),
}

/// How the writer has a field.
#[derive(Debug, Clone, PartialEq)]
enum Shape {
    Plain(Leaf),
    Union(Vec<Leaf>),
}

/// A type that a field can be read from.
#[derive(Debug, Clone, PartialEq)]
enum Leaf {
    Null,
    /// string, or bytes that must be UTF-8.
    Text,
    Uuid,
    Quantity,
    /// By the writer's symbol.
    Kind(Vec<Option<Kind>>),
    Micros,
    /// A branch of a union that this version cannot read.
    Unreadable,
}

macro_rules! targets {
    ($($target:ident $name:ident $need:ident)*) => {
        /// A field of this version.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        enum Target { $($target),* }

        impl Target {
            const ALL: &'static [Target] = &[$(Target::$target),*];

            fn name(self) -> &'static str {
                match self { $(Target::$target => stringify!($name)),* }
            }

            fn need(self) -> Need {
                match self { $(Target::$target => Need::$need),* }
            }
        }
    };
}

/// What this version does without a field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// There is no record without it.
    Required,
    /// It has a default, but null is none of its values.
    Default,
    /// It may be null and is so by default.
    Nullable,
}

targets! {
    RecordId record_id Required
    TenantId tenant_id Required
    Source source Required
    Metric metric Required
    Kind kind Default
    Value value Required
    Timestamp timestamp Required
    IdempotencyKey idempotency_key Nullable
    ResourceId resource_id Nullable
    ResourceType resource_type Nullable
    SubjectId subject_id Nullable
    SubjectType subject_type Nullable
    Metadata metadata Nullable
}

impl Plan {
    /// Fingerprint and plan of a writer schema.
    pub(super) fn parse(text: &str) -> Result<(u64, Self), SchemaError> {
        let writer = Schema::parse_str(text).map_err(|error| SchemaError::Parse(Box::new(error)))?;
        let Schema::Record(record) = &writer else {
            return Err(SchemaError::NotUsageRecord);
        };
        if record.name.fullname(None) != "usage.v1.UsageRecord" {
            return Err(SchemaError::NotUsageRecord);
        }
        let resolved = ResolvedSchema::new(&writer).map_err(|error| SchemaError::Parse(Box::new(error)))?;
        let names = Names { names: resolved.get_names(), namespace: record.name.namespace() };
        let mut types = TypesBuilder::default();
        let mut steps = Vec::new();
        for field in &record.fields {
            let id = types.add(&field.schema, names.namespace)?;
            let target = Target::ALL.iter().find(|target| target.name() == field.name);
            steps.push(match target {
                Some(target) => Step::Read(*target, names.shape(*target, &field.schema)?),
                None => Step::Skip(id),
            });
        }
        for target in Target::ALL {
            let written = steps.iter().any(|step| matches!(step, Step::Read(other, _) if other == target));
            if !written && target.need() == Need::Required {
                return Err(SchemaError::Field {
                    field: target.name(),
                    detail: "is missing and has no default",
                });
            }
        }
        Ok((schema::fingerprint(&schema::canonical_form(&writer)), Self { steps, types: types.finish() }))
    }

    /// Reads a record by the plan.
    pub(super) fn read<'a>(&self, cursor: &mut Cursor<'a>) -> Result<RecordRef<'a>, DecodeError> {
        // Defaults of fields that the writer does not have; required ones are always read.
        let mut record = RecordRef {
            record_id: Uuid::nil(),
            tenant_id: Uuid::nil(),
            source: "",
            metric: "",
            kind: Kind::Counter,
            value: Quantity::ZERO,
            timestamp: Timestamp::from_micros(0),
            idempotency_key: None,
            resource_id: None,
            resource_type: None,
            subject_id: None,
            subject_type: None,
            metadata: None,
        };
        for step in &self.steps {
            match step {
                Step::Skip(id) => self.types.skip(*id, cursor)?,
                Step::Read(target, shape) => {
                    let leaf = shape.leaf(*target, cursor)?;
                    read_field(&mut record, *target, leaf, cursor)?;
                }
            }
        }
        Ok(record)
    }
}

/// Named types of a writer schema.
struct Names<'a> {
    names: &'a NamesRef<'a>,
    namespace: Option<&'a str>,
}

impl Names<'_> {
    /// How a field is read; refuses what this version could misread or could never read.
    fn shape(&self, target: Target, schema: &Schema) -> Result<Shape, SchemaError> {
        let field = target.name();
        if let Schema::Union(union) = schema {
            let leaves = union.variants().iter().map(|variant| self.leaf(target, variant));
            let leaves: Vec<Leaf> = leaves.collect::<Result<_, _>>()?;
            if leaves.iter().all(|leaf| matches!(leaf, Leaf::Unreadable)) {
                return Err(SchemaError::Field { field, detail: "has no type that can be read" });
            }
            return Ok(Shape::Union(leaves));
        }
        match self.leaf(target, schema)? {
            Leaf::Unreadable => Err(SchemaError::Field { field, detail: "has another type" }),
            leaf => Ok(Shape::Plain(leaf)),
        }
    }

    fn leaf(&self, target: Target, schema: &Schema) -> Result<Leaf, SchemaError> {
        let fault = |detail| Err(SchemaError::Field { field: target.name(), detail });
        let schema = match schema {
            Schema::Ref { name } => {
                let name = name.fully_qualified_name(self.namespace);
                self.names.get(&*name).copied().ok_or_else(|| SchemaError::UnknownName(name.to_string()))?
            }
            schema => schema,
        };
        Ok(match (target, schema) {
            (_, Schema::Null) if target.need() == Need::Nullable => Leaf::Null,
            (
                Target::RecordId | Target::TenantId | Target::ResourceId | Target::SubjectId,
                Schema::Uuid(UuidSchema::Fixed(fixed)) | Schema::Fixed(fixed),
            ) if fixed.size == 16 && fixed.name.name() == "Uuid" => Leaf::Uuid,
            (Target::Kind, Schema::Enum(kinds)) if kinds.name.name() == "Kind" => {
                Leaf::Kind(kinds.symbols.iter().map(|symbol| symbol.parse().ok()).collect())
            }
            (
                Target::Value,
                Schema::Decimal(DecimalSchema { scale, inner: InnerDecimalSchema::Bytes, .. }),
            ) => {
                // The same bytes under another scale are another value.
                if *scale != Quantity::SCALE as usize {
                    return fault("has another scale than 18");
                }
                Leaf::Quantity
            }
            (Target::Timestamp, Schema::TimestampMicros) => Leaf::Micros,
            (
                Target::Source
                | Target::Metric
                | Target::IdempotencyKey
                | Target::ResourceType
                | Target::SubjectType
                | Target::Metadata,
                Schema::String | Schema::Bytes,
            ) => Leaf::Text,
            _ => Leaf::Unreadable,
        })
    }
}

impl Shape {
    /// The type of the next value.
    fn leaf(&self, target: Target, cursor: &mut Cursor<'_>) -> Result<&Leaf, DecodeError> {
        match self {
            Shape::Plain(leaf) => Ok(leaf),
            Shape::Union(leaves) => {
                let index = usize::try_from(cursor.long(target.name())?).ok();
                let leaf = index.and_then(|index| leaves.get(index));
                leaf.ok_or(DecodeError::Field { field: target.name(), detail: "no such union branch" })
            }
        }
    }
}

/// Reads one value into its field.
fn read_field<'a>(
    record: &mut RecordRef<'a>,
    target: Target,
    leaf: &Leaf,
    cursor: &mut Cursor<'a>,
) -> Result<(), DecodeError> {
    let unreadable =
        DecodeError::Field { field: target.name(), detail: "a value that this version cannot read" };
    let field = target.name();
    let value = match leaf {
        Leaf::Null => Value::Null,
        Leaf::Text => Value::Text(cursor.text(field)?),
        Leaf::Uuid => Value::Uuid(cursor.uuid()?),
        Leaf::Quantity => Value::Quantity(cursor.quantity(field)?),
        Leaf::Micros => Value::Timestamp(cursor.timestamp(field)?),
        Leaf::Kind(kinds) => {
            let index = usize::try_from(cursor.int(field)?).ok();
            let kind = index.and_then(|index| kinds.get(index).copied().flatten());
            Value::Kind(kind.ok_or(DecodeError::Field { field, detail: "no such kind" })?)
        }
        Leaf::Unreadable => return Err(unreadable),
    };
    match (target, value) {
        (Target::RecordId, Value::Uuid(id)) => record.record_id = id,
        (Target::TenantId, Value::Uuid(id)) => record.tenant_id = id,
        (Target::Source, Value::Text(text)) => record.source = text,
        (Target::Metric, Value::Text(text)) => record.metric = text,
        (Target::Kind, Value::Kind(kind)) => record.kind = kind,
        (Target::Value, Value::Quantity(quantity)) => record.value = quantity,
        (Target::Timestamp, Value::Timestamp(time)) => record.timestamp = time,
        (Target::IdempotencyKey, Value::Text(text)) => record.idempotency_key = Some(text),
        (Target::ResourceId, Value::Uuid(id)) => record.resource_id = Some(id),
        (Target::ResourceType, Value::Text(text)) => record.resource_type = Some(text),
        (Target::SubjectId, Value::Uuid(id)) => record.subject_id = Some(id),
        (Target::SubjectType, Value::Text(text)) => record.subject_type = Some(text),
        (Target::Metadata, Value::Text(text)) => record.metadata = Some(text),
        (target, Value::Null) if target.need() == Need::Nullable => {}
        _ => return Err(unreadable),
    }
    Ok(())
}

/// A value that was read.
enum Value<'a> {
    Null,
    Text(&'a str),
    Uuid(Uuid),
    Quantity(Quantity),
    Kind(Kind),
    Timestamp(Timestamp),
}

#[cfg(test)]
mod tests;
