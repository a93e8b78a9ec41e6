use proptest::prelude::*;

use super::*;

/// Counted day by day, against the arithmetic, both ways.
#[test]
fn every_day_of_ten_thousand_years() {
    let mut days = days_from_civil(0, 1, 1);
    assert_eq!(days, -719_528);
    for year in 0..10_000 {
        for month in 1..=12 {
            for day in 1..=days_in_month(year, month) {
                assert_eq!(days_from_civil(year, month, day), days);
                assert_eq!(civil_from_days(days), (year, month, day));
                days += 1;
            }
        }
    }
    assert_eq!(days, 2_932_897, "10000-01-01");
}

#[test]
fn leap_days_follow_the_calendar() {
    for (year, leap) in [(2024, true), (2023, false), (1900, false), (2000, true), (2100, false), (0, true)] {
        let parsed = Timestamp::parse(&format!("{year:04}-02-29T00:00:00Z"));
        assert_eq!(parsed.is_ok(), leap, "{year}");
    }
}

#[test]
fn the_ends_of_the_calendar() {
    let first = Timestamp::parse("0000-01-01T00:00:00Z").unwrap();
    assert_eq!(first.micros(), -62_167_219_200_000_000);
    let last = Timestamp::parse("9999-12-31T23:59:59.999999Z").unwrap();
    assert_eq!(last.micros(), 253_402_300_799_999_999);
    // An offset may lead out of the four digits.
    let beyond = Timestamp::parse("9999-12-31T23:59:59-00:01").unwrap();
    assert_eq!(beyond.to_string(), "+10000-01-01T00:00:59.000000Z");
    let before = Timestamp::parse("0000-01-01T00:00:00+00:01").unwrap();
    assert_eq!(before.to_string(), "-0001-12-31T23:59:00.000000Z");
    assert_eq!(Timestamp::from_micros(i64::MAX).to_string(), "+294247-01-10T04:00:54.775807Z");
    assert_eq!(Timestamp::from_micros(i64::MIN).to_string(), "-290308-12-21T19:59:05.224192Z");
}

#[test]
fn digits_beyond_microseconds_are_cut_off() {
    let cut = Timestamp::parse("1969-12-31T23:59:59.9999999999999999Z").unwrap();
    assert_eq!(cut, Timestamp::from_micros(-1));
    let text = format!("2024-01-01T00:00:00.123456{}Z", "9".repeat(10_000));
    assert_eq!(Timestamp::parse(&text).unwrap().to_string(), "2024-01-01T00:00:00.123456Z");
}

#[test]
fn leap_seconds_are_named_as_such_wherever_they_are() {
    for text in [
        "2016-12-31T23:59:60Z",
        "2017-01-01T05:29:60+05:30",
        "2016-12-31T15:59:60.5-08:00",
        "2015-06-30t23:59:60z",
    ] {
        assert_eq!(Timestamp::parse(text), Err(TimestampError::LeapSecond), "{text}");
    }
    for text in
        ["2016-12-31T12:00:60Z", "2016-12-31T23:59:60+01:00", "2016-12-31T23:59:61Z", "2016-12-31T23:59:60"]
    {
        assert_eq!(Timestamp::parse(text), Err(TimestampError::NotRfc3339), "{text}");
    }
}

#[test]
fn only_rfc_3339_is_taken() {
    let refused = [
        "2024-02-29 12:00:00Z",
        "2024-02-29T12:00Z",
        "2024-2-29T12:00:00Z",
        "24-02-29T12:00:00Z",
        "+2024-02-29T12:00:00Z",
        "2024-02-29T12:00:00.Z",
        "2024-02-29T12:00:00,5Z",
        "2024-02-29T12:00:00 Z",
        "2024-02-29T12:00:00+0100",
        "2024-02-29T12:00:00+01",
        "2024-02-29T12:00:00+01:60",
        "2024-02-29T12:00:00+24:00",
        "2024-02-29T12:00:00 01:00",
        "2024-02-29T12:00:00UTC",
        "2024-02-29T12:60:00Z",
        "2024-00-10T12:00:00Z",
        "2024-01-00T12:00:00Z",
        "2024-04-31T12:00:00Z",
        "2024-02-29T12:00:00Z\n",
        "2024-02-29T12:00:00Z[UTC]",
        "２024-02-29T12:00:00Z",
        "2024-W09-4T12:00:00Z",
    ];
    for text in refused {
        assert_eq!(Timestamp::parse(text), Err(TimestampError::NotRfc3339), "{text:?}");
    }
    assert!(Timestamp::parse("2024-02-29T12:00:00-00:00").is_ok());
    assert!(Timestamp::parse("2024-02-29T12:00:00+23:59").is_ok());
}

proptest! {
    #[test]
    fn what_is_printed_is_parsed(micros in -62_167_219_200_000_000i64..=253_402_300_799_999_999) {
        let time = Timestamp::from_micros(micros);
        let text = time.to_string();
        prop_assert_eq!(text.len(), 27);
        prop_assert_eq!(Timestamp::parse(&text), Ok(time));
    }

    #[test]
    fn texts_sort_as_their_times(a in 0i64..=253_402_300_799_999_999, b in 0i64..=253_402_300_799_999_999) {
        let (a, b) = (Timestamp::from_micros(a), Timestamp::from_micros(b));
        prop_assert_eq!(a.to_string().cmp(&b.to_string()), a.cmp(&b));
    }

    /// The same moment, as a clock elsewhere shows it.
    #[test]
    fn offsets_only_shift(micros in 0i64..=4_102_444_800_000_000, offset in -1_439i64..=1_439) {
        let local = Timestamp::from_micros(micros + offset * 60 * MICROS).to_string();
        let (sign, minutes) = (if offset < 0 { '-' } else { '+' }, offset.abs());
        let text = format!("{}{sign}{:02}:{:02}", local.trim_end_matches('Z'), minutes / 60, minutes % 60);
        prop_assert_eq!(Timestamp::parse(&text), Ok(Timestamp::from_micros(micros)), "{}", text);
    }

    #[test]
    fn any_text_is_judged(text in "[0-9:TZtz.+-]{0,40}|.{0,40}") {
        if let Ok(time) = Timestamp::parse(&text) {
            let printed = time.to_string();
            prop_assert_eq!(printed.parse(), Ok(time));
        }
    }
}
