//! Which representation a caller wants (RFC 9110, 12.5.1).

use axum::http::{HeaderMap, header};

use usage_service::problem::{Problem, kinds};

use crate::failure::Failure;

/// A representation of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Json,
    Csv,
    NdJson,
}

impl Format {
    /// Type and subtype.
    pub fn essence(self) -> (&'static str, &'static str) {
        match self {
            Self::Json => ("application", "json"),
            Self::Csv => ("text", "csv"),
            Self::NdJson => ("application", "x-ndjson"),
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Csv => "text/csv; charset=utf-8; header=present",
            Self::NdJson => "application/x-ndjson",
        }
    }
}

/// The best of `offered` (best first) by the `Accept` headers; the first if there is none.
///
/// # Errors
/// 406 if nothing that is offered is accepted.
pub fn negotiate(headers: &HeaderMap, offered: &[Format]) -> Result<Format, Failure> {
    let accept: Vec<&str> =
        headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    if accept.iter().all(|value| value.trim().is_empty()) {
        return Ok(offered[0]);
    }
    let ranges: Vec<Range<'_>> =
        accept.iter().flat_map(|value| value.split(',')).filter_map(Range::parse).collect();
    let mut best: Option<(u16, Format)> = None;
    for format in offered {
        // The most specific range that fits decides about a type.
        let quality = ranges
            .iter()
            .filter_map(|range| range.specificity(*format).map(|specificity| (specificity, range.quality)))
            .max_by_key(|(specificity, _)| *specificity)
            .map_or(0, |(_, quality)| quality);
        if quality > 0 && best.is_none_or(|(best, _)| quality > best) {
            best = Some((quality, *format));
        }
    }
    best.map(|(_, format)| format).ok_or_else(|| {
        let names: Vec<_> = offered
            .iter()
            .map(|format| format.essence())
            .map(|(kind, sub)| format!("{kind}/{sub}"))
            .collect();
        Problem::new(kinds::NOT_ACCEPTABLE).with_detail(format!("available: {}", names.join(", "))).into()
    })
}

struct Range<'a> {
    kind: &'a str,
    sub: &'a str,
    /// In thousandths.
    quality: u16,
}

impl<'a> Range<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let (kind, sub) = parts.next()?.split_once('/')?;
        let mut quality = 1_000;
        for parameter in parts {
            if let Some((name, value)) = parameter.split_once('=')
                && name.trim().eq_ignore_ascii_case("q")
            {
                quality = thousandths(value.trim())?;
            }
        }
        Some(Self { kind, sub, quality })
    }

    fn specificity(&self, format: Format) -> Option<u8> {
        let (kind, sub) = format.essence();
        if self.kind == "*" && self.sub == "*" {
            Some(0)
        } else if !self.kind.eq_ignore_ascii_case(kind) {
            None
        } else if self.sub == "*" {
            Some(1)
        } else {
            self.sub.eq_ignore_ascii_case(sub).then_some(2)
        }
    }
}

/// "0", "1", "0.5", "0.125" in thousandths.
fn thousandths(text: &str) -> Option<u16> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if fraction.len() > 3 || !matches!(whole, "0" | "1") {
        return None;
    }
    let fraction: u16 = format!("{fraction:0<3}").parse().ok()?;
    let value = if whole == "1" { 1_000 + fraction } else { fraction };
    (value <= 1_000).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &[Format] = &[Format::Json, Format::Csv, Format::NdJson];

    fn chosen(accept: &[&str]) -> Option<Format> {
        let mut headers = HeaderMap::new();
        for value in accept {
            headers.append(header::ACCEPT, value.parse().unwrap());
        }
        negotiate(&headers, ALL).ok()
    }

    #[test]
    fn the_callers_preference_decides() {
        for (accept, format) in [
            (&[][..], Some(Format::Json)),
            (&[""], Some(Format::Json)),
            (&["*/*"], Some(Format::Json)),
            (&["text/csv"], Some(Format::Csv)),
            (&["TEXT/CSV; header=present"], Some(Format::Csv)),
            (&["application/x-ndjson"], Some(Format::NdJson)),
            (&["application/*"], Some(Format::Json)),
            (&["text/html, application/xhtml+xml, */*;q=0.8"], Some(Format::Json)),
            (&["application/json;q=0.5, text/csv;q=0.501"], Some(Format::Csv)),
            (&["application/json;q=0.5", "text/csv; q=0.9"], Some(Format::Csv)),
            (&["*/*, application/json;q=0"], Some(Format::Csv)),
            (&["text/*;q=0, */*;q=0.1, application/json;q=0"], Some(Format::NdJson)),
            (&["application/xml"], None),
            (&["text/csv;q=0"], None),
            (&["text/csv;q=2"], None),
            (&["nonsense"], None),
        ] {
            assert_eq!(chosen(accept), format, "{accept:?}");
        }
    }

    #[test]
    fn a_refusal_lists_what_there_is() {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, "application/xml".parse().unwrap());
        let failure = negotiate(&headers, ALL).unwrap_err();
        assert_eq!(failure.0.kind(), kinds::NOT_ACCEPTABLE);
        assert!(
            failure.0.to_string().ends_with("available: application/json, text/csv, application/x-ndjson")
        );
    }
}
