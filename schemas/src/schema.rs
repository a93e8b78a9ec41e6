//! The Avro schema of a usage record, canonical forms and fingerprints.
//!
//! apache-avro 0.22 leaves `precision` and `scale` in its canonical form, against the specification's STRIP rule, and so gives
//! other fingerprints than every other implementation: the form is made here.

use std::sync::LazyLock;

use apache_avro::Schema;
use apache_avro::schema::{FixedSchema, InnerDecimalSchema, Name, UuidSchema};

/// The current schema, `usage.v1.UsageRecord`.
pub const USAGE_RECORD: &str = include_str!("../avro/usage_record.avsc");

static CURRENT: LazyLock<Schema> =
    LazyLock::new(|| Schema::parse_str(USAGE_RECORD).expect("the schema file is valid"));
static CURRENT_FINGERPRINT: LazyLock<u64> = LazyLock::new(|| fingerprint(&canonical_form(&CURRENT)));

/// The current schema, parsed.
pub fn current() -> &'static Schema {
    &CURRENT
}

/// The current schema's fingerprint, as it stands in the frame (little-endian there).
pub fn current_fingerprint() -> u64 {
    *CURRENT_FINGERPRINT
}

/// CRC-64-AVRO (Rabin) of a canonical form.
pub fn fingerprint(canonical_form: &str) -> u64 {
    const EMPTY: u64 = 0xc15d_213a_a4d7_a795;
    canonical_form.bytes().fold(EMPTY, |fingerprint, byte| {
        (0..8).fold(fingerprint ^ u64::from(byte), |bits, _| {
            // All ones if the bit that falls out is set.
            let carry = (bits & 1).wrapping_neg();
            (bits >> 1) ^ (EMPTY & carry)
        })
    })
}

/// Parsing canonical form as the Avro specification defines it.
pub fn canonical_form(schema: &Schema) -> String {
    let mut out = String::new();
    write_schema(schema, None, &mut out);
    out
}

fn write_schema(schema: &Schema, namespace: Option<&str>, out: &mut String) {
    match schema {
        Schema::Null => out.push_str(r#""null""#),
        Schema::Boolean => out.push_str(r#""boolean""#),
        Schema::Int | Schema::Date | Schema::TimeMillis => out.push_str(r#""int""#),
        Schema::Long
        | Schema::TimeMicros
        | Schema::TimestampMillis
        | Schema::TimestampMicros
        | Schema::TimestampNanos
        | Schema::LocalTimestampMillis
        | Schema::LocalTimestampMicros
        | Schema::LocalTimestampNanos => out.push_str(r#""long""#),
        Schema::Float => out.push_str(r#""float""#),
        Schema::Double => out.push_str(r#""double""#),
        Schema::Bytes | Schema::BigDecimal | Schema::Uuid(UuidSchema::Bytes) => out.push_str(r#""bytes""#),
        Schema::String | Schema::Uuid(UuidSchema::String) => out.push_str(r#""string""#),
        Schema::Decimal(decimal) => match &decimal.inner {
            InnerDecimalSchema::Bytes => out.push_str(r#""bytes""#),
            InnerDecimalSchema::Fixed(fixed) => write_fixed(fixed, namespace, out),
        },
        Schema::Uuid(UuidSchema::Fixed(fixed)) | Schema::Duration(fixed) | Schema::Fixed(fixed) => {
            write_fixed(fixed, namespace, out);
        }
        Schema::Array(array) => {
            out.push_str(r#"{"type":"array","items":"#);
            write_schema(&array.items, namespace, out);
            out.push('}');
        }
        Schema::Map(map) => {
            out.push_str(r#"{"type":"map","values":"#);
            write_schema(&map.types, namespace, out);
            out.push('}');
        }
        Schema::Union(union) => {
            write_list(union.variants(), out, |variant, out| write_schema(variant, namespace, out));
        }
        Schema::Ref { name } => write_quoted(&name.fullname(namespace), out),
        Schema::Enum(schema) => {
            write_named(&schema.name, "enum", "symbols", namespace, out);
            write_list(&schema.symbols, out, |symbol, out| write_quoted(symbol, out));
            out.push('}');
        }
        Schema::Record(record) => {
            write_named(&record.name, "record", "fields", namespace, out);
            let inner = record.name.namespace().or(namespace);
            write_list(&record.fields, out, |field, out| {
                out.push_str(r#"{"name":"#);
                write_quoted(&field.name, out);
                out.push_str(r#","type":"#);
                write_schema(&field.schema, inner, out);
                out.push('}');
            });
            out.push('}');
        }
    }
}

fn write_fixed(fixed: &FixedSchema, namespace: Option<&str>, out: &mut String) {
    write_named(&fixed.name, "fixed", "size", namespace, out);
    out.push_str(&fixed.size.to_string());
    out.push('}');
}

/// The start of a named type, up to the value of its last attribute.
fn write_named(name: &Name, kind: &str, last: &str, namespace: Option<&str>, out: &mut String) {
    out.push_str(r#"{"name":"#);
    write_quoted(&name.fullname(namespace), out);
    out.push_str(r#","type":"#);
    write_quoted(kind, out);
    out.push(',');
    write_quoted(last, out);
    out.push(':');
}

fn write_list<T>(items: &[T], out: &mut String, write: impl Fn(&T, &mut String)) {
    out.push('[');
    for (position, item) in items.iter().enumerate() {
        if position > 0 {
            out.push(',');
        }
        write(item, out);
    }
    out.push(']');
}

/// Names and symbols are letters, digits, `_` and `.`: nothing to escape.
fn write_quoted(text: &str, out: &mut String) {
    out.push('"');
    out.push_str(text);
    out.push('"');
}

#[cfg(test)]
mod tests;
