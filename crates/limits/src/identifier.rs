//! Names of tables: checked once, quoted always.

/// Not a name that a table can be made under.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a table's name: lower-case letters, digits and _, first no digit, at most {LONGEST}; a schema may stand before it"
)]
pub struct InvalidName(pub String);

/// Postgres cuts names at 63 bytes; what is longer than this has no room for the names of its index and constraint.
pub const LONGEST: usize = 48;

/// `table` or `schema.table`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableName {
    schema: Option<String>,
    table: String,
}

impl TableName {
    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        let (schema, table) = match text.split_once('.') {
            Some((schema, table)) => (Some(schema), table),
            None => (None, text),
        };
        if !schema.into_iter().chain([table]).all(is_name) {
            return Err(InvalidName(text.to_owned()));
        }
        Ok(Self { schema: schema.map(str::to_owned), table: table.to_owned() })
    }

    /// As it stands in a statement.
    pub fn quoted(&self) -> String {
        self.beside(&format!("\"{}\"", self.table))
    }

    /// Something of the same schema.
    pub fn beside(&self, name: &str) -> String {
        self.schema.as_ref().map_or_else(|| name.to_owned(), |schema| format!("\"{schema}\".{name}"))
    }

    /// Without the schema: what names of indexes begin with.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// Whether an error that Postgres reports is about this table.
    pub fn is(&self, schema: Option<&str>, table: Option<&str>) -> bool {
        table == Some(&self.table) && self.schema.as_deref().is_none_or(|own| schema == Some(own))
    }
}

fn is_name(text: &str) -> bool {
    let starts = text.starts_with(|first: char| first.is_ascii_lowercase() || first == '_');
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    starts && text.len() <= LONGEST && text.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_are_taken_and_quoted() {
        assert_eq!(TableName::parse("notifications_usage").unwrap().quoted(), "\"notifications_usage\"");
        assert_eq!(TableName::parse("billing.user").unwrap().quoted(), "\"billing\".\"user\"");
        assert_eq!(TableName::parse("billing.user").unwrap().table(), "user");
        assert!(TableName::parse(&"a".repeat(LONGEST)).is_ok());
    }

    #[test]
    fn anything_else_is_refused() {
        let long = "a".repeat(LONGEST + 1);
        for bad in ["", "Usage", "1st", "a b", "a\"; DROP TABLE b; --", "a.b.c", ".a", "a.", "ä", &long] {
            assert_eq!(TableName::parse(bad), Err(InvalidName(bad.to_owned())));
        }
    }

    #[test]
    fn an_error_belongs_to_the_table_it_names() {
        let plain = TableName::parse("spent").unwrap();
        assert!(plain.is(Some("anywhere"), Some("spent")));
        assert!(!plain.is(None, Some("other")) && !plain.is(None, None));
        let placed = TableName::parse("billing.spent").unwrap();
        assert!(placed.is(Some("billing"), Some("spent")) && !placed.is(Some("public"), Some("spent")));
    }
}
