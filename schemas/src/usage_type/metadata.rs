//! A JSON Schema for a record's metadata.
//!
//! Draft 2020-12, asserted formats included, but only keywords that are known here (a misspelt one would demand nothing) and no
//! references and no `unevaluated…`: both could multiply the work of one check without bound. So a check takes at most the time of each
//! part of the schema with each part of the metadata, and of each state of its patterns with each byte: both are bounded, since one
//! record is judged between those of everybody else.

use jsonschema::error::ValidationErrorKind;
use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::{Map, Value};

use super::RuleFault;
use crate::strict_json;

/// Greatest length of a schema in bytes, written without spaces.
pub const RULE_BYTES: usize = 8 << 10;
/// Greatest depth of schemas within schemas, the outer one included.
pub const RULE_DEPTH: usize = 16;
/// Greatest number of schemas within schemas, the outer one included.
pub const RULE_SCHEMAS: usize = 256;
/// Bytes that all compiled patterns together may take.
const PATTERN_BYTES: usize = 256 << 10;
/// Memory for the automata of all patterns, which are made while they match and make that fast.
const DFA_BYTES: usize = 2 << 20;
/// Parts of the schema times parts of the metadata for which it is still found out where the one breaks the other: each of them may be an
/// error that is made for it.
const PLACED: usize = 10_000;
/// Greatest length of a place within a schema that an error shows.
const PLACE_BYTES: usize = 200;
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// What stands behind a keyword.
#[derive(Clone, Copy)]
enum Holds {
    /// No schema.
    Plain,
    Schema,
    /// An array of schemas.
    List,
    /// An object of schemas.
    Named,
}

#[rustfmt::skip]
const KEYWORDS: [(&str, Holds); 45] = {
    use Holds::{List, Named, Plain, Schema};
    [
        ("$comment", Plain), ("$schema", Plain), ("additionalProperties", Schema), ("allOf", List), ("anyOf", List), ("const", Plain),
        ("contains", Schema), ("default", Plain), ("dependentRequired", Plain), ("dependentSchemas", Named), ("deprecated", Plain),
        ("description", Plain), ("else", Schema), ("enum", Plain), ("examples", Plain), ("exclusiveMaximum", Plain),
        ("exclusiveMinimum", Plain), ("format", Plain), ("if", Schema), ("items", Schema), ("maxContains", Plain), ("maxItems", Plain),
        ("maxLength", Plain), ("maxProperties", Plain), ("maximum", Plain), ("minContains", Plain), ("minItems", Plain),
        ("minLength", Plain), ("minProperties", Plain), ("minimum", Plain), ("multipleOf", Plain), ("not", Schema), ("oneOf", List),
        ("pattern", Plain), ("patternProperties", Named), ("prefixItems", List), ("properties", Named), ("propertyNames", Schema),
        ("readOnly", Plain), ("required", Plain), ("then", Schema), ("title", Plain), ("type", Plain), ("uniqueItems", Plain),
        ("writeOnly", Plain),
    ]
};

/// A schema made ready.
#[derive(Debug)]
pub(super) struct MetadataRule {
    validator: Validator,
    schemas: usize,
}

/// How much a schema has of what a check takes time for.
#[derive(Default)]
struct Size {
    schemas: usize,
    patterns: usize,
}

impl MetadataRule {
    /// # Errors
    /// What keeps it from being a rule, with its place.
    pub(super) fn new(schema: &Value) -> Result<Self, RuleFault> {
        let bad = |detail: String| RuleFault::new("/metadata", detail);
        if !schema.is_object() {
            return Err(bad("is not a JSON object".into()));
        }
        // Before anything recurses into it.
        let Size { schemas, patterns } = walk(schema)?;
        let patterns = patterns.max(1);
        if schema.to_string().len() > RULE_BYTES {
            return Err(bad(format!("has more than {RULE_BYTES} bytes")));
        }
        let validator = jsonschema::options()
            .with_draft(Draft::Draft202012)
            .offline()
            .should_validate_formats(true)
            .should_ignore_unknown_formats(false)
            .with_pattern_options(
                PatternOptions::regex()
                    .size_limit(PATTERN_BYTES / patterns)
                    .dfa_size_limit(DFA_BYTES / patterns),
            )
            .build(schema);
        // The place within the schema is where the error's instance is: the schema was held against its own schema.
        validator.map(|validator| Self { validator, schemas }).map_err(|error| {
            RuleFault::new(format!("/metadata{}", error.instance_path()), shortened(&error.to_string()))
        })
    }

    /// Holds metadata against the schema; the error says how it breaks it, in the words of the schema only.
    pub(super) fn check(&self, metadata: Option<&str>) -> Result<(), String> {
        let value = match metadata {
            None => Value::Object(Map::new()),
            Some(text) => strict(text).map_err(str::to_owned)?,
        };
        if self.schemas.saturating_mul(parts(&value)) > PLACED {
            return if self.validator.is_valid(&value) { Ok(()) } else { Err("breaks the schema".into()) };
        }
        let Err(error) = self.validator.validate(&value) else { return Ok(()) };
        let place = shortened(error.schema_path().as_str());
        Err(match error.kind() {
            ValidationErrorKind::Required { property: Value::String(name) } => {
                format!("lacks the member `{}`, by the schema at {place}", shortened(name))
            }
            _ => format!("breaks the schema at {place}"),
        })
    }
}

/// Values within a value, itself included.
fn parts(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(parts).sum(),
        Value::Object(members) => members.values().map(parts).sum(),
        _ => 0,
    }
}

/// Checks keywords, depth and number of schemas.
fn walk(schema: &Value) -> Result<Size, RuleFault> {
    let mut size = Size::default();
    let mut todo = vec![(schema, "/metadata".to_owned(), 1)];
    while let Some((schema, place, depth)) = todo.pop() {
        size.schemas += 1;
        if size.schemas > RULE_SCHEMAS {
            let detail = format!("has more than {RULE_SCHEMAS} schemas");
            return Err(RuleFault::new("/metadata", detail));
        }
        if depth > RULE_DEPTH {
            return Err(RuleFault::new(place, format!("is more than {RULE_DEPTH} schemas deep")));
        }
        // true and false are schemas; of anything else the compiler says what it must be.
        let Value::Object(members) = schema else { continue };
        for (name, value) in members {
            let place = format!("{place}/{}", name.replace('~', "~0").replace('/', "~1"));
            let Ok(at) = KEYWORDS.binary_search_by(|(keyword, _)| (*keyword).cmp(name)) else {
                let detail = match name.as_str() {
                    "$ref" | "$dynamicRef" | "$recursiveRef" | "$defs" | "definitions" | "$id"
                    | "$anchor" | "$dynamicAnchor" => "a rule has no references: write it out",
                    _ => "is no keyword that is known here, and would demand nothing",
                };
                return Err(RuleFault::new(place, detail));
            };
            size.patterns += match (name.as_str(), value) {
                ("pattern", _) => 1,
                ("patternProperties", Value::Object(patterns)) => patterns.len(),
                _ => 0,
            };
            match (KEYWORDS[at].1, value) {
                (Holds::Schema, value) => todo.push((value, place, depth + 1)),
                (Holds::List, Value::Array(schemas)) => {
                    let schemas = schemas.iter().enumerate();
                    todo.extend(schemas.map(|(at, value)| (value, format!("{place}/{at}"), depth + 1)));
                }
                (Holds::Named, Value::Object(schemas)) => {
                    let name = |name: &str| name.replace('~', "~0").replace('/', "~1");
                    let schemas = schemas.iter();
                    todo.extend(
                        schemas.map(|(key, value)| (value, format!("{place}/{}", name(key)), depth + 1)),
                    );
                }
                (Holds::Plain, value) if name == "$schema" && value.as_str() != Some(DIALECT) => {
                    return Err(RuleFault::new(place, format!("only {DIALECT} is understood")));
                }
                _ => {}
            }
        }
    }
    Ok(size)
}

fn shortened(text: &str) -> String {
    if text.len() <= PLACE_BYTES {
        return text.to_owned();
    }
    let end = (0..=PLACE_BYTES).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}…", &text[..end])
}

/// Reads metadata for judging. What two readers could take for different things (a member that stands twice, a lone surrogate, a
/// number that no reader holds) is refused, though a type without such a rule keeps it: nobody could say what was judged.
fn strict(text: &str) -> Result<Value, &'static str> {
    strict_json::parse(text)
        .map_err(|_| "has a repeated member, a text, a number or a depth that a schema can't be held against")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keywords_ascend_since_they_are_searched_by_halves() {
        assert!(KEYWORDS.is_sorted_by(|(one, _), (next, _)| one < next));
    }
}
