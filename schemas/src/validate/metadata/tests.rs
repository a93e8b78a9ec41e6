use proptest::prelude::*;

use super::*;

#[test]
fn objects_of_all_shapes_pass() {
    let good = [
        "{}",
        " \t\r\n{ } ",
        r#"{"a":1,"a":2}"#,
        r#"{"":{"":[[],[{}],"",null,true,false]}}"#,
        r#"{"n":[0,-0,1.5,-1.5e+10,1E-999,123456789012345678901234567890]}"#,
        r#"{"e":"\"\\\/\b\f\n\r\t\u0000\ud800\uDFff"}"#,
        r#"{"k\u0000":"é漢😀"}"#,
    ];
    for text in good {
        assert_eq!(check_object(text), Ok(()), "{text}");
    }
}

#[test]
fn faults_are_found_where_they_are() {
    let bad = [
        ("{", 1),
        ("{\"a\"", 4),
        ("{\"a\":", 5),
        ("{\"a\":1", 6),
        ("{\"a\":1,", 7),
        ("{\"a\":1,}", 7),
        ("{\"a\" 1}", 5),
        ("{a:1}", 1),
        ("{'a':1}", 1),
        ("{\"a\":1]", 6),
        ("{\"a\":[1}", 7),
        ("{\"a\":[1,]}", 8),
        ("{\"a\":[,]}", 6),
        ("{,}", 1),
        ("{\"a\":01}", 7),
        ("{\"a\":1.}", 7),
        ("{\"a\":.1}", 5),
        ("{\"a\":1e}", 7),
        ("{\"a\":-}", 6),
        ("{\"a\":+1}", 5),
        ("{\"a\":NaN}", 5),
        ("{\"a\":tru}", 5),
        ("{\"a\":truex}", 9),
        ("{\"a\":\"\n\"}", 6),
        ("{\"a\":\"\\x\"}", 7),
        ("{\"a\":\"\\u12g4\"}", 10),
        ("{\"a\":\"\\", 7),
        ("{\"a\":\"", 6),
        ("{}}", 2),
        ("{}//", 2),
        ("{\"a\":\u{a0}1}", 5),
    ];
    for (text, at) in bad {
        assert_eq!(check_object(text), Err(Fault::Syntax(at)), "{text:?}");
    }
}

#[test]
fn depth_is_bounded_and_needs_no_stack() {
    let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(check_object(&nested(127)), Ok(()));
    assert_eq!(check_object(&nested(128)), Err(Fault::TooDeep));
    assert_eq!(check_object(&nested(1_000_000)), Err(Fault::TooDeep));
    let objects = |depth: usize| format!("{}{{}}{}", "{\"a\":".repeat(depth), "}".repeat(depth));
    assert_eq!(check_object(&objects(127)), Ok(()));
    assert_eq!(check_object(&objects(128)), Err(Fault::TooDeep));
}

/// Containers that end are forgotten: their kinds must not leak into what follows.
#[test]
fn kinds_are_told_apart_after_many_siblings() {
    let siblings = "[{},[],{\"a\":[]}],".repeat(1_000);
    assert_eq!(check_object(&format!("{{\"a\":[{siblings}0]}}")), Ok(()));
    assert_eq!(check_object(&format!("{{\"a\":[{siblings}0}}]")), Err(Fault::Syntax(6 + siblings.len() + 1)));
}

/// Texts that are mostly JSON: pieces of it in any order, or a document with one byte changed.
fn texts() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "{", "}", "[", "]", ",", ":", "\"a\"", "\"", "\\", "\\u00", "0", "-", "1.5", "e", "null", "true",
        " ", "\n", "é",
    ]);
    let soup = prop::collection::vec(pieces, 0..12).prop_map(|pieces| pieces.concat());
    let document = (documents(), any::<prop::sample::Index>(), "[ -~]").prop_map(|(text, at, with)| {
        let mut chars: Vec<char> = text.chars().collect();
        let at = at.index(chars.len());
        chars.splice(at..=at, with.chars());
        chars.into_iter().collect()
    });
    prop_oneof![soup.prop_map(|soup| format!("{{\"a\":{soup}}}")), document, documents()]
}

fn documents() -> impl Strategy<Value = String> {
    use serde_json::Value;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(".{0,3}", inner, 0..4).prop_map(Value::from_iter),
        ]
    });
    prop::collection::btree_map(".{0,3}", value, 0..4).prop_map(|map| Value::from_iter(map).to_string())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// serde_json is the reference: it keeps a raw value after checking its grammar only.
    #[test]
    fn agrees_with_serde_json(text in texts()) {
        let reference = serde_json::from_str::<&serde_json::value::RawValue>(&text);
        let is_object = reference.is_ok_and(|raw| raw.get().starts_with('{'));
        prop_assert_eq!(check_object(&text).is_ok(), is_object, "{}", text);
    }
}
