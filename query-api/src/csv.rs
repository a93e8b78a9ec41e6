//! RFC 4180 text: CRLF, quotes where needed, a header always.

use axum::body::Bytes;

/// Writes records into memory, to be sent piece by piece.
pub struct Writer {
    inner: csv::Writer<Vec<u8>>,
}

/// A cell: text is guarded against being taken for a formula by a spreadsheet, everything else is left alone.
#[derive(Debug, Clone, Copy)]
pub enum Cell<'a> {
    Text(&'a str),
    /// Numbers, times, ids, words of ours.
    Plain(&'a str),
    Empty,
}

impl<'a> Cell<'a> {
    pub fn text(value: Option<&'a str>) -> Self {
        value.map_or(Self::Empty, Self::Text)
    }

    pub fn plain(value: Option<&'a str>) -> Self {
        value.map_or(Self::Empty, Self::Plain)
    }
}

impl Writer {
    pub fn new() -> Self {
        let inner = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(Vec::new());
        Self { inner }
    }

    /// Appends one record.
    ///
    /// # Errors
    /// A record of another length than the first: a mistake of the caller.
    pub fn record<'a>(&mut self, cells: impl IntoIterator<Item = Cell<'a>>) -> Result<(), std::io::Error> {
        for cell in cells {
            match cell {
                Cell::Text(text) if text.starts_with(['=', '+', '-', '@']) => {
                    self.inner.write_field(format!("'{text}"))
                }
                Cell::Text(text) | Cell::Plain(text) => self.inner.write_field(text),
                Cell::Empty => self.inner.write_field(""),
            }
            .map_err(std::io::Error::other)?;
        }
        self.inner.write_record(None::<&[u8]>).map_err(std::io::Error::other)
    }

    /// Takes what was written so far.
    ///
    /// # Errors
    /// None: the text goes into memory.
    pub fn take(&mut self) -> Result<Bytes, std::io::Error> {
        let written = std::mem::take(self);
        Ok(written.inner.into_inner().map_err(|error| std::io::Error::other(error.to_string()))?.into())
    }
}

impl Default for Writer {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(records: &[&[Cell<'_>]]) -> String {
        let mut writer = Writer::new();
        for record in records {
            writer.record(record.iter().copied()).unwrap();
        }
        String::from_utf8(writer.take().unwrap().to_vec()).unwrap()
    }

    #[test]
    fn text_that_looks_like_a_formula_is_defused_and_numbers_are_not() {
        let text = written(&[&[
            Cell::Text("=1+1"),
            Cell::Text("+x"),
            Cell::Text("-x"),
            Cell::Text("@x"),
            Cell::Text("x=1"),
            Cell::Plain("-1.5"),
            Cell::Empty,
        ]]);
        assert_eq!(text, "'=1+1,'+x,'-x,'@x,x=1,-1.5,\r\n");
    }

    #[test]
    fn quotes_commas_and_line_ends_are_quoted() {
        let text = written(&[&[Cell::Text("a\"b"), Cell::Text("a,b"), Cell::Text("a\nb"), Cell::Text("ü")]]);
        assert_eq!(text, "\"a\"\"b\",\"a,b\",\"a\nb\",ü\r\n");
    }

    #[test]
    fn records_follow_one_another_over_takes() {
        let mut writer = Writer::new();
        writer.record([Cell::Plain("h")]).unwrap();
        assert_eq!(writer.take().unwrap(), "h\r\n");
        writer.record([Cell::Plain("1")]).unwrap();
        writer.record([Cell::Plain("2")]).unwrap();
        assert_eq!(writer.take().unwrap(), "1\r\n2\r\n");
        assert_eq!(writer.take().unwrap(), "");
    }
}
