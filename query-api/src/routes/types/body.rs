//! The body of a registration. Every fault is told, not only the first.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use usage_control::NewUsageType;
use usage_schemas::{Kind, Quantity, Rules, Timestamp};
use usage_service::problem::{Problem, kinds};

use crate::body::{Members, pointer};
use crate::failure::Failure;
use crate::hints::nearest;

const MEMBERS: [&str; 7] = ["name", "kind", "unit", "description", "version", "valid_from", "rules"];
const RULES: [&str; 5] = ["min", "max", "integer", "resource_types", "metadata"];

/// Reads the members of a version of a usage type. A member that may be missing may be null too.
pub(super) fn read(members: Members) -> Result<NewUsageType, Failure> {
    let mut faults = Faults::default();
    // What stands here for a member that is missing or wrong has no fault of its own, so that the others' faults are found.
    let mut new = NewUsageType::new("a", Kind::Gauge, "a");
    let mut found = Vec::new();
    for (member, value) in members {
        let place = pointer(&member);
        match (member.as_str(), value) {
            ("name", Value::String(text)) => new.name = text,
            ("unit", Value::String(text)) => new.unit = text,
            ("description", Value::String(text)) => new.description = Some(text),
            ("kind", Value::String(text)) => match text.parse() {
                Ok(kind) => new.kind = kind,
                Err(_) => faults.tell(place, "unknown_value", "`counter` or `gauge`"),
            },
            ("version", Value::Number(number)) => {
                match number.as_i64().and_then(|number| i32::try_from(number).ok()) {
                    Some(number) => new.version = number,
                    None => faults.tell(place, "invalid", "the member must be a whole number from 1 on"),
                }
            }
            ("valid_from", Value::String(text)) => match Timestamp::parse(&text) {
                Ok(from) => new.valid_from = Some(from),
                Err(error) => faults.tell(place, "invalid_time", format!("the member is {error}")),
            },
            ("rules", Value::Object(members)) => new.rules = rules(members, &mut faults),
            ("description" | "version" | "valid_from" | "rules", Value::Null) => continue,
            ("version", _) => faults.tell(place, "wrong_type", "the member must be a number"),
            ("rules", _) => faults.tell(place, "wrong_type", "the member must be an object"),
            (known, _) if MEMBERS.contains(&known) => {
                faults.tell(place, "wrong_type", "the member must be a string");
            }
            (unknown, _) => faults.unknown(place, unknown, &MEMBERS),
        }
        found.push(member);
    }
    for member in ["name", "kind", "unit"] {
        if !found.iter().any(|found| found == member) {
            faults.tell(pointer(member), "missing", "the member is required");
        }
    }
    for fault in new.faults() {
        // Once is enough: a `valid_from` that could not be read is not also missing.
        let by_version = fault.field == "valid_from" && faults.told("/version");
        if !by_version && !faults.told(&fault.pointer) {
            faults.tell(fault.pointer, "invalid", fault.detail);
        }
    }
    faults.end(new)
}

fn rules(members: Map<String, Value>, faults: &mut Faults) -> Rules {
    let mut rules = Rules::default();
    for (member, value) in members {
        let place = format!("/rules{}", pointer(&member));
        match (member.as_str(), value) {
            (bound @ ("min" | "max"), Value::String(text)) => match Quantity::parse(&text) {
                Ok(quantity) if bound == "min" => rules.min = Some(quantity),
                Ok(quantity) => rules.max = Some(quantity),
                Err(error) => faults.tell(place, "invalid", format!("the member is {error}")),
            },
            ("integer", Value::Bool(integer)) => rules.integer = integer,
            ("resource_types", Value::Array(names)) => match resource_types(names) {
                Ok(names) => rules.resource_types = Some(names),
                Err((code, detail)) => faults.tell(place, code, detail),
            },
            ("metadata", schema @ Value::Object(_)) => rules.metadata = Some(schema),
            (known, Value::Null) if RULES.contains(&known) => {}
            ("min" | "max", _) => {
                faults.tell(place, "wrong_type", "the member must be a string that holds a decimal");
            }
            ("integer", _) => faults.tell(place, "wrong_type", "the member must be true or false"),
            ("resource_types", _) => {
                faults.tell(place, "wrong_type", "the member must be an array of strings")
            }
            ("metadata", _) => {
                faults.tell(place, "wrong_type", "the member must be a JSON Schema: an object")
            }
            (unknown, _) => faults.unknown(place, unknown, &RULES),
        }
    }
    rules
}

fn resource_types(names: Vec<Value>) -> Result<BTreeSet<String>, (&'static str, &'static str)> {
    let mut set = BTreeSet::new();
    for name in names {
        let Value::String(name) = name else {
            return Err(("wrong_type", "the member must be an array of strings"));
        };
        if !set.insert(name) {
            return Err(("repeated", "a name stands twice"));
        }
    }
    Ok(set)
}

/// What is wrong with a body.
#[derive(Default)]
struct Faults(Vec<(String, &'static str, String)>);

impl Faults {
    fn tell(&mut self, place: String, code: &'static str, detail: impl Into<String>) {
        self.0.push((place, code, detail.into()));
    }

    fn unknown(&mut self, place: String, member: &str, known: &[&'static str]) {
        let hint = match nearest(member, known.iter().copied()) {
            Some(nearest) => format!("unknown member, did you mean `{nearest}`?"),
            None => format!("unknown member. Known: {}", known.join(", ")),
        };
        self.tell(place, "unknown_member", hint);
    }

    /// Whether something was told about this place or one around or within it.
    fn told(&self, place: &str) -> bool {
        let within = |outer: &str, inner: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.0.iter().any(|(told, _, _)| within(told, place) || within(place, told))
    }

    fn end<T>(self, value: T) -> Result<T, Failure> {
        let detail = match &self.0[..] {
            [] => return Ok(value),
            [(_, _, only)] => only.clone(),
            all => format!("{} members are not valid", all.len()),
        };
        let problem = Problem::new(kinds::INVALID_BODY).with_detail(detail);
        let fold = |problem: Problem, (place, code, detail)| problem.with_pointer(place, code, detail);
        Err(self.0.into_iter().fold(problem, fold).into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use usage_service::problem::Place;

    use super::*;

    fn members(value: Value) -> Members {
        value.as_object().unwrap().iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    fn faults(value: Value) -> Vec<String> {
        let failure = read(members(value)).unwrap_err();
        let place = |error: &usage_service::problem::Detail| match &error.place {
            Place::Pointer(place) => format!("{place}:{}", error.code),
            other => format!("{other:?}"),
        };
        let mut faults: Vec<_> = failure.0.errors().iter().map(place).collect();
        faults.sort();
        faults
    }

    #[test]
    fn a_type_is_read() {
        let body =
            json!({"name": "tokens", "kind": "gauge", "unit": "token", "description": null, "rules": null});
        assert_eq!(read(members(body)).unwrap(), NewUsageType::new("tokens", Kind::Gauge, "token"));
        let body = json!({
            "name": "tokens", "kind": "counter", "unit": "token", "version": 2, "valid_from": "2027-01-01T01:00:00+01:00",
            "rules": {"min": "1", "max": null, "integer": true, "resource_types": ["b", "a"], "metadata": {"required": ["plan"]}},
        });
        let expected = NewUsageType {
            version: 2,
            valid_from: Some(Timestamp::parse("2027-01-01T00:00:00Z").unwrap()),
            rules: Rules {
                min: Some(Quantity::parse("1").unwrap()),
                max: None,
                integer: true,
                resource_types: Some(["a".into(), "b".into()].into()),
                metadata: Some(json!({"required": ["plan"]})),
            },
            ..NewUsageType::new("tokens", Kind::Counter, "token")
        };
        assert_eq!(read(members(body)).unwrap(), expected);
    }

    #[test]
    fn every_fault_of_a_body_is_told() {
        assert_eq!(faults(json!({})), ["/kind:missing", "/name:missing", "/unit:missing"]);
        assert_eq!(
            faults(json!({"name": "Tokens", "kind": "histogram", "unit": " x", "descripton": "d"})),
            ["/descripton:unknown_member", "/kind:unknown_value", "/name:invalid", "/unit:invalid"]
        );
        assert_eq!(
            faults(json!({"name": 1, "kind": "counter", "unit": null})),
            ["/name:wrong_type", "/unit:wrong_type"]
        );
        assert_eq!(faults(json!({"name": "", "kind": "counter", "unit": "x"})), ["/name:invalid"]);
    }

    #[test]
    fn every_fault_of_versions_and_rules_is_told() {
        let with = |more: Value| {
            let mut body = json!({"name": "a", "kind": "counter", "unit": "x"});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            faults(body)
        };
        for (more, expected) in [
            (json!({"version": 2}), vec!["/valid_from:invalid"]),
            (json!({"version": 2, "valid_from": "soon"}), vec!["/valid_from:invalid_time"]),
            (json!({"valid_from": "2027-01-01T00:00:00Z"}), vec!["/valid_from:invalid"]),
            (json!({"version": 0}), vec!["/version:invalid"]),
            (json!({"version": 1.5}), vec!["/version:invalid"]),
            (json!({"version": "2", "valid_from": "2027-01-01T00:00:00Z"}), vec!["/version:wrong_type"]),
            (json!({"rules": []}), vec!["/rules:wrong_type"]),
            (
                json!({"rules": {"min": 1, "max": "1,5", "integer": 1, "resource_types": "vm", "metadata": true, "mim": "0"}}),
                vec![
                    "/rules/integer:wrong_type",
                    "/rules/max:invalid",
                    "/rules/metadata:wrong_type",
                    "/rules/mim:unknown_member",
                    "/rules/min:wrong_type",
                    "/rules/resource_types:wrong_type",
                ],
            ),
            (json!({"rules": {"resource_types": ["vm", "vm"]}}), vec!["/rules/resource_types:repeated"]),
            (json!({"rules": {"min": "2", "max": "1"}}), vec!["/rules/max:invalid"]),
            (
                json!({"rules": {"metadata": {"properties": {"plan": {"typ": "string"}}}}}),
                vec!["/rules/metadata/properties/plan/typ:invalid"],
            ),
        ] {
            assert_eq!(with(more.clone()), expected, "{more}");
        }
    }
}
