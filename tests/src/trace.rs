//! A trace of LLM requests: CSV with the columns TIMESTAMP (UTC, up to seven decimals), ContextTokens, GeneratedTokens.

use std::path::Path;

use anyhow::{Context as _, bail};
use usage_schemas::{Quantity, Timestamp};

/// One request of the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub at: Timestamp,
    pub input_tokens: Quantity,
    pub output_tokens: Quantity,
}

/// Reads a whole trace, in file order.
pub fn read(path: &Path) -> anyhow::Result<Vec<Request>> {
    let mut reader =
        csv::Reader::from_path(path).with_context(|| format!("can't read the trace {}", path.display()))?;
    let header = reader.headers()?.clone();
    if header.iter().ne(["TIMESTAMP", "ContextTokens", "GeneratedTokens"]) {
        bail!("the columns of a trace are TIMESTAMP,ContextTokens,GeneratedTokens, not {header:?}");
    }
    let mut requests = Vec::new();
    for (row, record) in reader.records().enumerate() {
        let record = record?;
        let request = parse(&record).with_context(|| format!("row {} of the trace", row + 1))?;
        requests.push(request);
    }
    Ok(requests)
}

fn parse(record: &csv::StringRecord) -> anyhow::Result<Request> {
    // The trace has a space where RFC 3339 wants a T, and no offset: it is UTC.
    let at = format!("{}Z", record[0].replacen(' ', "T", 1));
    Ok(Request {
        at: Timestamp::parse(&at).context("TIMESTAMP")?,
        input_tokens: Quantity::parse(&record[1]).context("ContextTokens")?,
        output_tokens: Quantity::parse(&record[2]).context("GeneratedTokens")?,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn seven_decimals_are_cut_to_microseconds_and_the_last_line_needs_no_newline() {
        let file = file(
            "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109",
        );
        let requests = read(file.path()).unwrap();
        assert_eq!(requests.len(), 2);
        assert_eq!(requests[1].at.to_string(), "2023-11-16T18:15:50.995169Z");
        assert_eq!(requests[1].input_tokens.to_string(), "396");
        assert_eq!(requests[1].output_tokens.to_string(), "109");
    }

    #[test]
    fn a_broken_row_is_named() {
        let file = file("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,4x4\n");
        let error = read(file.path()).unwrap_err();
        assert_eq!(format!("{error:#}"), "row 1 of the trace: GeneratedTokens: not a number");
    }

    #[test]
    fn other_columns_are_refused() {
        let file = file("time,in,out\n");
        assert!(
            read(file.path()).unwrap_err().to_string().contains("TIMESTAMP,ContextTokens,GeneratedTokens")
        );
    }
}
