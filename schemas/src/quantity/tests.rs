use proptest::prelude::*;

use super::*;

fn quantities() -> impl Strategy<Value = Quantity> {
    let whole = -Quantity::MAX_UNSCALED..=Quantity::MAX_UNSCALED;
    // Most usage is small or round, where the texts are short.
    let small = -1_000_000i128..1_000_000;
    let round = (-1_000i128..1_000, 0u32..35).prop_map(|(digits, zeros)| digits * 10i128.pow(zeros));
    prop_oneof![whole, small, round].prop_map(|unscaled| Quantity::from_unscaled(unscaled).unwrap())
}

#[test]
fn bounds_are_38_nines() {
    for sign in [1, -1] {
        let last = sign * Quantity::MAX_UNSCALED;
        assert_eq!(Quantity::from_unscaled(last).map(Quantity::unscaled), Ok(last));
        assert_eq!(Quantity::from_unscaled(last + sign), Err(QuantityError::OutOfRange));
    }
    assert_eq!(Quantity::from_unscaled(i128::MIN), Err(QuantityError::OutOfRange));
    assert_eq!(Quantity::from_unscaled(i128::MAX), Err(QuantityError::OutOfRange));
}

#[test]
fn the_first_fault_is_the_range() {
    assert_eq!(Quantity::parse("100000000000000000000.0000000000000000001"), Err(QuantityError::OutOfRange));
    assert_eq!(Quantity::parse("0.0000000000000000001"), Err(QuantityError::TooPrecise));
}

#[test]
fn exponents_of_any_size_cost_nothing() {
    let nines = "9".repeat(5_000);
    assert_eq!(Quantity::parse(&format!("0e{nines}")), Ok(Quantity::ZERO));
    assert_eq!(Quantity::parse(&format!("0.000E-{nines}")), Ok(Quantity::ZERO));
    assert_eq!(Quantity::parse(&format!("1e{nines}")), Err(QuantityError::OutOfRange));
    assert_eq!(Quantity::parse(&format!("-1e+{nines}")), Err(QuantityError::OutOfRange));
    assert_eq!(Quantity::parse(&format!("1e-{nines}")), Err(QuantityError::TooPrecise));
    assert_eq!(Quantity::parse("1e-9223372036854775808"), Err(QuantityError::TooPrecise));
    assert_eq!(Quantity::parse("1e9223372036854775807"), Err(QuantityError::OutOfRange));
}

/// The exponent may make up for what the mantissa's length takes.
#[test]
fn long_mantissas_are_exact() {
    let zeros = "0".repeat(3_000);
    assert_eq!(Quantity::parse(&format!("12{zeros}e-3000")).unwrap().to_string(), "12");
    assert_eq!(Quantity::parse(&format!("0.{zeros}12e3002")).unwrap().to_string(), "12");
    assert_eq!(Quantity::parse(&format!("1.5{zeros}")).unwrap().to_string(), "1.5");
    assert_eq!(Quantity::parse(&format!("1{zeros}1e-3001")), Err(QuantityError::TooPrecise));
}

#[test]
fn grammar_has_no_holes() {
    let refused = [
        "",
        "-",
        "+1",
        "--1",
        "00",
        "-01",
        "1.",
        ".1",
        "-.1",
        "1.e1",
        "1e",
        "1e+",
        "1e1.5",
        "1e 1",
        "1 ",
        "1e1e1",
        "1.1.1",
        "0x1",
        "1\0",
        "１",
        "Infinity",
        "-Infinity",
        "nan",
        "null",
        "\"1\"",
    ];
    for text in refused {
        assert_eq!(Quantity::parse(text), Err(QuantityError::NotANumber), "{text:?}");
    }
}

#[test]
fn json_values_are_numbers_or_strings_of_numbers() {
    assert_eq!(Quantity::from_json("null"), Err(QuantityError::Missing));
    assert_eq!(Quantity::from_json(r#""1\u002e5""#).unwrap().to_string(), "1.5");
    for json in [r#""null""#, r#""1"#, r#""\ud800""#, r#""1""2""#, "nul", "false", "[]", "\"\"1\"\""] {
        assert_eq!(Quantity::from_json(json), Err(QuantityError::NotANumber), "{json}");
    }
}

#[test]
fn formatting_obeys_width() {
    let quantity = Quantity::parse("-1.50").unwrap();
    assert_eq!(format!("[{quantity:>8}] [{quantity:<8}]"), "[    -1.5] [-1.5    ]");
    let mut text = String::from("= ");
    quantity.write(&mut text);
    assert_eq!(text, "= -1.5");
}

proptest! {
    #[test]
    fn what_is_printed_is_parsed(quantity in quantities()) {
        let text = quantity.to_string();
        prop_assert_eq!(Quantity::parse(&text), Ok(quantity));
        prop_assert!(!text.contains('.') || !text.ends_with('0'), "{} has trailing zeros", text);
        prop_assert!(!text.ends_with('.') && text != "-0");
    }

    /// The same number with its point moved by the exponent, and zeros on both ends of the fraction.
    #[test]
    fn all_spellings_are_one_value(quantity in quantities(), shift in 0usize..60, zeros in 0usize..30) {
        let digits = quantity.unscaled().unsigned_abs().to_string();
        let sign = if quantity.is_negative() { "-" } else { "" };
        let padding = "0".repeat(zeros);
        let as_fraction = format!("{sign}0.{padding}{digits}{padding}e{}", (digits.len() + zeros) as i64 - 18);
        prop_assert_eq!(Quantity::parse(&as_fraction), Ok(quantity));
        let as_integer = format!("{sign}{digits}{}E-{}", "0".repeat(shift), shift + 18);
        if digits != "0" || shift == 0 {
            prop_assert_eq!(Quantity::parse(&as_integer), Ok(quantity));
        } else {
            prop_assert_eq!(Quantity::parse(&as_integer), Err(QuantityError::NotANumber), "00 is no number");
        }
    }

    /// serde_json is the reference for the grammar: it takes a number's text as it stands, without a value.
    #[test]
    fn the_grammar_is_jsons(text in "-?[0-9]{0,3}(\\.[0-9]{0,2})?([eE][+-]?[0-9]{0,3})?.{0,1}") {
        let is_json_number = serde_json::from_str::<&serde_json::value::RawValue>(&text)
            .is_ok_and(|raw| raw.get() == text && text.starts_with(|first: char| first == '-' || first.is_ascii_digit()));
        let parsed = Quantity::parse(&text);
        prop_assert_eq!(parsed != Err(QuantityError::NotANumber), is_json_number, "{:?}", parsed);
    }
}
