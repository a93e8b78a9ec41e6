//! ClickHouse's exception codes, sorted by what they mean for a write.

/// `throwIf` fired: a higher epoch exists.
pub(crate) const FENCED: u32 = 395;
/// `max_execution_time` of a read has passed.
pub(crate) const TIMEOUT_EXCEEDED: u32 = 159;
pub(crate) const UNKNOWN_TABLE: u32 = 60;
pub(crate) const UNKNOWN_DATABASE: u32 = 81;
/// No such user, or another password.
pub(crate) const AUTHENTICATION_FAILED: u32 = 516;

/// Codes that say "this very data is refused": sent again, it would be refused again. Whatever is not listed may pass
/// and is retried; a truncated body (33) and a changed column type (53) are not the data's fault.
const FINAL: &[u32] = &[
    6,   // CANNOT_PARSE_TEXT
    38,  // CANNOT_PARSE_DATE
    41,  // CANNOT_PARSE_DATETIME
    69,  // ARGUMENT_OUT_OF_BOUND
    70,  // CANNOT_CONVERT_TYPE
    72,  // CANNOT_PARSE_NUMBER
    117, // INCORRECT_DATA
    128, // TOO_LARGE_ARRAY_SIZE
    131, // TOO_LARGE_STRING_SIZE
    321, // VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE
    349, // CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN
    376, // CANNOT_PARSE_UUID
    407, // DECIMAL_OVERFLOW
    469, // VIOLATED_CONSTRAINT
    691, // UNKNOWN_ELEMENT_OF_ENUM
];

/// Our own finding before anything is sent: a value that the table's column can't hold (ClickHouse would clamp it).
pub(crate) const OUT_OF_BOUND: u32 = 69;

pub(crate) fn is_final(code: u32) -> bool {
    FINAL.contains(&code)
}

/// The number in "Code: 395. DB::Exception: …".
pub(crate) fn parse(message: &str) -> Option<u32> {
    let digits = message.split("Code: ").nth(1)?;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// The last "(NAME)" of a message, as the server ends it before its version.
pub(crate) fn name(message: &str) -> &str {
    let plain = |name: &&str| {
        name.len() > 3
            && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
    };
    let names = message.rsplit('(').filter_map(|rest| rest.split_once(')')).map(|(name, _)| name);
    names.into_iter().find(plain).filter(|name| name.len() <= 80).unwrap_or("see the server's log")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_code() {
        assert_eq!(
            parse("Code: 395. DB::Exception: fenced (FUNCTION_THROW_IF_VALUE_IS_NON_ZERO)"),
            Some(395)
        );
        assert_eq!(parse("Code: 241"), Some(241));
        assert_eq!(parse("bad response: Code: 60. DB::Exception: no Code: 7."), Some(60));
        assert_eq!(parse("502 Bad Gateway"), None);
        assert_eq!(parse("Code: x"), None);
    }

    #[test]
    fn reads_the_name() {
        let message = "Code: 241. DB::Exception: (total) exceeded: (SECRET) x (MEMORY_LIMIT_EXCEEDED) (version 26.7.1 (official))";
        assert_eq!(name(message), "MEMORY_LIMIT_EXCEEDED");
        assert_eq!(name("502 Bad Gateway (nginx)"), "see the server's log");
    }

    #[test]
    fn what_may_pass_is_not_final() {
        // Memory, too many parts, too many queries, killed, truncated, unknown: none is the data's fault.
        for code in [FENCED, 241, 252, 202, 394, 33, 53, 60, 159, 999, 1001, 99_999] {
            assert!(!is_final(code), "{code}");
        }
        assert!(is_final(469));
    }
}
