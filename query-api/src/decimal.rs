//! Exact sums and averages as text: plain notation, no trailing zeros.

use ethnum::I256;
use usage_schemas::Quantity;

const SCALE: usize = Quantity::SCALE as usize;

/// A decimal in units of 10^-18 in plain notation ("-0.5", "12", "340282366920938463463.374607431768211456").
pub fn plain(units: I256) -> String {
    let digits = units.unsigned_abs().to_string();
    // At least one digit before the point.
    let digits = format!("{digits:0>width$}", width = SCALE + 1);
    let (whole, fraction) = digits.split_at(digits.len() - SCALE);
    let fraction = fraction.trim_end_matches('0');
    let sign = if units.is_negative() { "-" } else { "" };
    if fraction.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") }
}

/// `sum` (units of 10^-18) divided by `count`, to 18 decimals, half to even; `None` if there is nothing to divide by.
pub fn average(sum: I256, count: u64) -> Option<I256> {
    let count = ethnum::U256::from(count);
    let magnitude = sum.unsigned_abs();
    let quotient = magnitude.checked_div(count)?;
    let remainder = magnitude.checked_rem(count)?;
    // Compare twice the remainder with the divisor; the divisor has 64 bits, so nothing overflows.
    let rounded = match (remainder * 2).cmp(&count) {
        std::cmp::Ordering::Less => quotient,
        std::cmp::Ordering::Greater => quotient + 1,
        std::cmp::Ordering::Equal => quotient + (quotient & 1),
    };
    let rounded = I256::try_from(rounded).ok()?;
    Some(if sum.is_negative() { -rounded } else { rounded })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn units(text: &str) -> I256 {
        text.parse().unwrap()
    }

    #[test]
    fn prints_without_trailing_zeros() {
        for (value, text) in [
            ("0", "0"),
            ("1", "0.000000000000000001"),
            ("-1", "-0.000000000000000001"),
            ("500000000000000000", "0.5"),
            ("1000000000000000000", "1"),
            ("10000000000000000000", "10"),
            ("-12345600000000000000000", "-12345.6"),
        ] {
            assert_eq!(plain(units(value)), text);
        }
    }

    #[test]
    fn problem_38_sums_of_76_digits_print_exactly() {
        let nines = "9".repeat(76);
        assert_eq!(plain(units(&nines)), format!("{}.{}", "9".repeat(58), "9".repeat(18)));
        assert_eq!(plain(units(&format!("-{nines}"))), format!("-{}.{}", "9".repeat(58), "9".repeat(18)));
        // Past the greatest 128-bit value.
        assert_eq!(plain(I256::from(i128::MAX) + 1), "170141183460469231731.687303715884105728");
    }

    #[test]
    fn averages_round_half_to_even() {
        for (sum, count, average_units) in [
            ("5", 2, "2"),
            ("7", 2, "4"),
            ("-5", 2, "-2"),
            ("-7", 2, "-4"),
            ("1", 3, "0"),
            ("2", 3, "1"),
            ("-2", 3, "-1"),
            ("10000000000000000000", 3, "3333333333333333333"),
            ("0", 9, "0"),
        ] {
            assert_eq!(average(units(sum), count), Some(units(average_units)), "{sum}/{count}");
        }
        assert_eq!(average(units("5"), 0), None);
        let nines = units(&"9".repeat(76));
        assert_eq!(average(nines, 1), Some(nines));
        let by_most = units("542101086242752217033113759205528043413702130341688594223");
        assert_eq!(average(nines, u64::MAX), Some(by_most));
    }

    proptest! {
        #[test]
        fn an_average_is_within_half_a_unit(sum in any::<i128>(), count in 1_u64..) {
            let average = average(I256::from(sum), count).unwrap();
            let back = average * I256::from(count);
            let error = (back - I256::from(sum)).abs();
            prop_assert!(error * 2 <= I256::from(count));
        }

        #[test]
        fn plain_text_reads_back(unscaled in -Quantity::MAX_UNSCALED..=Quantity::MAX_UNSCALED) {
            let text = plain(I256::from(unscaled));
            prop_assert_eq!(Quantity::parse(&text).unwrap().unscaled(), unscaled);
        }
    }
}
