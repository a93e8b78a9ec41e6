use super::*;

fn form(schema: &str) -> String {
    canonical_form(&Schema::parse_str(schema).unwrap())
}

/// From the Avro project's share/test/data/schema-tests.txt.
#[test]
fn fingerprints_are_the_specifications() {
    let cases = [
        ("null", 7_195_948_357_588_979_594i64),
        ("boolean", -6_970_731_678_124_411_036),
        ("int", 8_247_732_601_305_521_295),
        ("long", -3_434_872_931_120_570_953),
        ("float", 5_583_340_709_985_441_680),
        ("double", -8_181_574_048_448_539_266),
        ("bytes", 5_746_618_253_357_095_269),
        ("string", -8_142_146_995_180_207_161),
    ];
    for (name, expected) in cases {
        let form = form(&format!(r#"{{"type":"{name}"}}"#));
        assert_eq!(form, format!(r#""{name}""#));
        assert_eq!(fingerprint(&form) as i64, expected, "{name}");
    }
}

#[test]
fn logical_types_and_attributes_are_stripped() {
    let cases = [
        (r#"{"type":"bytes","logicalType":"decimal","precision":38,"scale":18}"#, r#""bytes""#),
        (r#"{"type":"long","logicalType":"timestamp-micros"}"#, r#""long""#),
        (r#"{"type":"int","logicalType":"date"}"#, r#""int""#),
        (r#"{"type":"string","logicalType":"uuid"}"#, r#""string""#),
        (
            r#"{"type":"fixed","name":"a.D","size":16,"logicalType":"decimal","precision":38,"scale":18}"#,
            r#"{"name":"a.D","type":"fixed","size":16}"#,
        ),
        (
            r#"{"size":12,"name":"D","namespace":"a.b","type":"fixed","logicalType":"duration"}"#,
            r#"{"name":"a.b.D","type":"fixed","size":12}"#,
        ),
        (
            r#"{"type":"enum","doc":"d","default":"A","aliases":["X"],"symbols":["A","B"],"name":"E"}"#,
            r#"{"name":"E","type":"enum","symbols":["A","B"]}"#,
        ),
        (r#"{"items":{"type":"int"},"type":"array","extra":1}"#, r#"{"type":"array","items":"int"}"#),
        (r#"{"values":["null","long"],"type":"map"}"#, r#"{"type":"map","values":["null","long"]}"#),
    ];
    for (schema, expected) in cases {
        assert_eq!(form(schema), expected, "{schema}");
    }
}

#[test]
fn names_take_the_namespace_around_them() {
    let schema = r#"{"type":"record","name":"R","namespace":"a.b","fields":[
        {"name":"f","default":[],"order":"ignore","type":{"type":"array","items":{"type":"record","name":"S","fields":[
            {"name":"again","type":["null","R","S"]}]}}},
        {"name":"g","type":{"type":"fixed","name":"x.F","size":2}},
        {"name":"h","type":"x.F"}]}"#;
    let expected = r#"{"name":"a.b.R","type":"record","fields":[{"name":"f","type":{"type":"array","items":{"name":"a.b.S","type":"record","fields":[{"name":"again","type":["null","a.b.R","a.b.S"]}]}}},{"name":"g","type":{"name":"x.F","type":"fixed","size":2}},{"name":"h","type":"x.F"}]}"#;
    assert_eq!(form(schema), expected);
    assert_eq!(form(expected), expected, "a canonical form is its own");
}

/// The reason for an own canonical form; when this fails, apache-avro's can be used.
#[test]
fn apache_avro_still_keeps_precision_and_scale() {
    let theirs = current().canonical_form();
    assert!(theirs.contains(r#""precision":38"#) && theirs.contains(r#""scale":18"#), "{theirs}");
}
