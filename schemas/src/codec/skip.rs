//! Skipping values of types that this version does not know.

use std::collections::HashMap;

use apache_avro::Schema;
use apache_avro::schema::{FixedSchema, InnerDecimalSchema, Name, UuidSchema};

use super::DecodeError;
use super::cursor::Cursor;
use super::plan::SchemaError;

/// How deep records, arrays, maps and unions may be nested in a value; a schema can refer to itself.
const MAX_DEPTH: u32 = 64;
/// Field name in errors: a decoder cannot hold a borrowed name for ever.
pub(super) const FIELD: &str = "a field that is skipped";

/// Index of a type in [`Types`].
pub(super) type TypeId = usize;

/// The types of a writer schema, flat, so that types that refer to themselves need no pointers.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Types {
    types: Vec<Type>,
}

#[derive(Debug, Clone, PartialEq)]
struct Type {
    skip: Skip,
    /// Its values have no bytes: null, fixed of size 0, records of such.
    empty: bool,
}

/// How to skip a value.
#[derive(Debug, Clone, PartialEq)]
enum Skip {
    Nothing,
    Boolean,
    /// int, with the number of an enum's symbols.
    Int {
        below: Option<usize>,
    },
    Long,
    Fixed(usize),
    Bytes,
    Text,
    Record(Vec<TypeId>),
    Array(TypeId),
    Map(TypeId),
    Union(Vec<TypeId>),
}

/// Builds [`Types`] while a schema is walked in order, as references want it.
#[derive(Default)]
pub(super) struct TypesBuilder {
    types: Types,
    names: HashMap<String, TypeId>,
}

impl TypesBuilder {
    /// Adds a schema and all that it contains.
    pub(super) fn add(&mut self, schema: &Schema, namespace: Option<&str>) -> Result<TypeId, SchemaError> {
        let skip = match schema {
            Schema::Null => Skip::Nothing,
            Schema::Boolean => Skip::Boolean,
            Schema::Int | Schema::Date | Schema::TimeMillis => Skip::Int { below: None },
            Schema::Long
            | Schema::TimeMicros
            | Schema::TimestampMillis
            | Schema::TimestampMicros
            | Schema::TimestampNanos
            | Schema::LocalTimestampMillis
            | Schema::LocalTimestampMicros
            | Schema::LocalTimestampNanos => Skip::Long,
            Schema::Float => Skip::Fixed(4),
            Schema::Double => Skip::Fixed(8),
            Schema::Bytes | Schema::BigDecimal | Schema::Uuid(UuidSchema::Bytes) => Skip::Bytes,
            Schema::String | Schema::Uuid(UuidSchema::String) => Skip::Text,
            Schema::Decimal(decimal) => match &decimal.inner {
                InnerDecimalSchema::Bytes => Skip::Bytes,
                InnerDecimalSchema::Fixed(fixed) => return Ok(self.fixed(fixed, namespace)),
            },
            Schema::Uuid(UuidSchema::Fixed(fixed)) | Schema::Duration(fixed) | Schema::Fixed(fixed) => {
                return Ok(self.fixed(fixed, namespace));
            }
            Schema::Array(array) => Skip::Array(self.add(&array.items, namespace)?),
            Schema::Map(map) => Skip::Map(self.add(&map.types, namespace)?),
            Schema::Union(union) => {
                let variants = union.variants().iter().map(|variant| self.add(variant, namespace));
                Skip::Union(variants.collect::<Result<_, _>>()?)
            }
            Schema::Enum(schema) => {
                let skip = Skip::Int { below: Some(schema.symbols.len()) };
                return Ok(self.named(&schema.name, namespace, skip));
            }
            Schema::Record(record) => {
                // Known before its fields, since they may refer to it. Until they are read it counts as not empty: what
                // contains itself is, unless it can have no value at all.
                let id = self.named(&record.name, namespace, Skip::Union(Vec::new()));
                let inner = record.name.namespace().or(namespace);
                let fields = record.fields.iter().map(|field| self.add(&field.schema, inner));
                let fields: Vec<TypeId> = fields.collect::<Result<_, _>>()?;
                let empty = fields.iter().all(|field| self.types.types[*field].empty);
                self.types.types[id] = Type { skip: Skip::Record(fields), empty };
                return Ok(id);
            }
            Schema::Ref { name } => {
                let name = name.fullname(namespace);
                return self.names.get(&name).copied().ok_or(SchemaError::UnknownName(name));
            }
        };
        Ok(self.push(skip))
    }

    /// The types, once all have been added.
    pub(super) fn finish(self) -> Types {
        self.types
    }

    fn fixed(&mut self, fixed: &FixedSchema, namespace: Option<&str>) -> TypeId {
        self.named(&fixed.name, namespace, Skip::Fixed(fixed.size))
    }

    fn named(&mut self, name: &Name, namespace: Option<&str>, skip: Skip) -> TypeId {
        let id = self.push(skip);
        self.names.insert(name.fullname(namespace), id);
        id
    }

    fn push(&mut self, skip: Skip) -> TypeId {
        let empty = matches!(skip, Skip::Nothing | Skip::Fixed(0));
        self.types.types.push(Type { skip, empty });
        self.types.types.len() - 1
    }
}

impl Types {
    /// Skips a value, checking it as strictly as if it were read.
    pub(super) fn skip(&self, id: TypeId, cursor: &mut Cursor<'_>) -> Result<(), DecodeError> {
        self.skip_within(id, cursor, MAX_DEPTH)
    }

    fn skip_within(&self, id: TypeId, cursor: &mut Cursor<'_>, depth: u32) -> Result<(), DecodeError> {
        let Type { skip, empty } = &self.types[id];
        // Whatever is gone through takes at least a byte, so that the value's length bounds the work.
        if *empty {
            return Ok(());
        }
        let depth = depth.checked_sub(1).ok_or(fault("nested too deep"))?;
        match skip {
            Skip::Nothing => {}
            Skip::Boolean => match cursor.take(1)? {
                [0 | 1] => {}
                _ => return Err(fault("a boolean is 0 or 1")),
            },
            Skip::Int { below } => {
                let int = cursor.int(FIELD)?;
                if below.is_some_and(|below| usize::try_from(int).map_or(true, |int| int >= below)) {
                    return Err(fault("no such enum symbol"));
                }
            }
            Skip::Long => {
                cursor.long(FIELD)?;
            }
            Skip::Fixed(size) => {
                cursor.take(*size)?;
            }
            Skip::Bytes => {
                cursor.bytes(FIELD)?;
            }
            Skip::Text => {
                cursor.text(FIELD)?;
            }
            Skip::Record(fields) => {
                for field in fields {
                    self.skip_within(*field, cursor, depth)?;
                }
            }
            Skip::Array(items) => self.skip_blocks(cursor, self.types[*items].empty, |cursor| {
                self.skip_within(*items, cursor, depth)
            })?,
            Skip::Map(values) => self.skip_blocks(cursor, false, |cursor| {
                cursor.text(FIELD)?;
                self.skip_within(*values, cursor, depth)
            })?,
            Skip::Union(variants) => {
                let index = usize::try_from(cursor.long(FIELD)?).ok();
                let variant = index.and_then(|index| variants.get(index));
                self.skip_within(*variant.ok_or(fault("no such union branch"))?, cursor, depth)?;
            }
        }
        Ok(())
    }

    /// Blocks of an array or map. Items without bytes are not gone through: a great number of them costs the writer nothing.
    fn skip_blocks<'a>(
        &self,
        cursor: &mut Cursor<'a>,
        items_are_empty: bool,
        skip_item: impl Fn(&mut Cursor<'a>) -> Result<(), DecodeError>,
    ) -> Result<(), DecodeError> {
        loop {
            let count = cursor.long(FIELD)?;
            if count == 0 {
                return Ok(());
            }
            // A negative count is followed by the block's size in bytes.
            let size = if count < 0 { Some(cursor.long(FIELD)?) } else { None };
            let before = cursor.remaining();
            if !items_are_empty {
                for _ in 0..count.unsigned_abs() {
                    skip_item(cursor)?;
                }
            }
            if size.is_some_and(|size| u64::try_from(size).ok() != Some((before - cursor.remaining()) as u64))
            {
                return Err(fault("a block of another size than it says"));
            }
        }
    }
}

fn fault(detail: &'static str) -> DecodeError {
    DecodeError::Field { field: FIELD, detail }
}
