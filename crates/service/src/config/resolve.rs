//! Puts the sources on top of each other.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::{Cli, ConfigError, Kind, OpenSection, Origin, Setting, endpoints, kafka_security, value};

/// A configuration with every value found, checked by kind.
#[derive(Debug, Clone)]
pub struct Resolved {
    settings: Vec<Setting>,
    values: BTreeMap<&'static str, (Value, Origin)>,
}

impl Resolved {
    /// Reads file, environment and flags.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting and where its value came from.
    pub fn from_process(settings: &[Setting], cli: &Cli) -> Result<Self, ConfigError> {
        Self::from_parts(settings, cli, |name| std::env::var_os(name))
    }

    /// As [`Resolved::from_process`], but leaves it to [`Resolved::section`] to miss what is required: for a tool whose commands need
    /// different parts.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting and where its value came from.
    pub fn partial(settings: &[Setting], cli: &Cli) -> Result<Self, ConfigError> {
        Self::gather(settings, cli, |name| std::env::var_os(name))
    }

    /// As [`Resolved::from_process`] with another environment.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting and where its value came from.
    pub fn from_parts(
        settings: &[Setting],
        cli: &Cli,
        variable: impl Fn(&str) -> Option<std::ffi::OsString>,
    ) -> Result<Self, ConfigError> {
        let resolved = Self::gather(settings, cli, variable)?;
        resolved.require("")?;
        Ok(resolved)
    }

    pub(super) fn gather(
        settings: &[Setting],
        cli: &Cli,
        variable: impl Fn(&str) -> Option<std::ffi::OsString>,
    ) -> Result<Self, ConfigError> {
        let mut values = BTreeMap::new();
        for setting in settings {
            if let Some(text) = setting.default
                && !setting.path.contains("[]")
            {
                let value = value::from_text(setting.kind, text)
                    .map_err(|detail| ConfigError::Declaration { path: setting.path.into(), detail })?;
                values.insert(setting.path, (value, Origin::Default));
            }
        }
        if let Some(path) = &cli.config {
            read_file(settings, path, &mut values)?;
        }
        for setting in settings {
            let Some(name) = setting.variable() else { continue };
            let Some(text) = variable(&name).filter(|text| !text.is_empty()) else { continue };
            let origin = Origin::Variable(name);
            let text = text.into_string().map_err(|_| invalid(setting.path, &origin, "is not UTF-8"))?;
            let value = value::from_text(setting.kind, &text)
                .and_then(|value| value::permitted(setting, value))
                .map_err(|detail| invalid(setting.path, &origin, detail))?;
            values.insert(setting.path, (value, origin));
        }
        for (index, argument) in cli.set.iter().enumerate() {
            let (path, text) = argument.split_once('=').ok_or(ConfigError::Flag { number: index + 1 })?;
            let setting = find(settings, path).ok_or_else(|| unknown(settings, path, Origin::Flag))?;
            let value = value::from_text(setting.kind, text)
                .and_then(|value| value::permitted(setting, value))
                .map_err(|detail| invalid(setting.path, &Origin::Flag, detail))?;
            values.insert(setting.path, (value, Origin::Flag));
        }
        Ok(Self { settings: settings.to_vec(), values })
    }

    /// Misses what is required below a section; the empty one is the whole.
    fn require(&self, section: &str) -> Result<(), ConfigError> {
        for setting in self.settings.iter().filter(|setting| setting.required && !setting.path.contains("[]"))
        {
            let inside = section.is_empty() || is_below(setting.path, section);
            if inside && !self.values.contains_key(setting.path) {
                return Err(missing(setting, setting.path.into()));
            }
        }
        Ok(())
    }

    /// Refuses addresses below a section that would be used in plaintext, and those that are none; the empty section is the whole.
    /// What is left to warn of comes back.
    fn permit(&self, section: &str) -> Result<Vec<OpenSection>, ConfigError> {
        let all = self.table(|_, value| value.clone());
        kafka_security::look(self, section)?;
        let mut open = Vec::new();
        for setting in &self.settings {
            let inside = section.is_empty() || is_below(setting.path, section);
            let Some((value, origin)) = self.values.get(setting.path).filter(|_| inside) else { continue };
            let found = endpoints::look(setting, value, &all);
            open.extend(found.map_err(|detail| invalid(setting.path, origin, detail))?);
        }
        Ok(open)
    }

    /// The sections whose connections can be read on their way, because `allow_plaintext` is set: for a warning at each start.
    ///
    /// # Errors
    /// As [`Resolved::value`] for addresses.
    pub fn open_sections(&self) -> Result<Vec<OpenSection>, ConfigError> {
        self.permit("")
    }

    /// Looks at the addresses of everything that is given, as a tool's `--check-config` does.
    ///
    /// # Errors
    /// As [`Resolved::value`] for addresses.
    pub fn check_addresses(&self) -> Result<(), ConfigError> {
        self.permit("").map(|_| ())
    }

    /// The text of one setting, if it has one: for a tool that looks at parts of a section that may lack others.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.values.get(path).and_then(|(value, _)| value.as_str())
    }

    /// Fills the struct of one section, for example `kafka`. Warns of plaintext that is allowed.
    ///
    /// # Errors
    /// As [`Resolved::value`], and [`ConfigError::Missing`] for what the section requires.
    pub fn section<T: DeserializeOwned>(&self, section: &str) -> Result<T, ConfigError> {
        self.require(section)?;
        for open in self.permit(section)? {
            open.warn();
        }
        let table = self.table(|_, value| value.clone());
        let value = lookup(&table, section).cloned().unwrap_or_else(|| Value::Table(Table::new()));
        T::deserialize(value).map_err(|error| self.misfit(&error, section))
    }

    /// Fills the struct.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] when a value does not fit its field, a secret's value is not repeated; or when an address would be used
    /// in plaintext and must not.
    pub fn value<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        self.permit("")?;
        T::deserialize(Value::Table(self.table(|_, value| value.clone())))
            .map_err(|error| self.misfit(&error, ""))
    }

    /// The error of a value that does not fit its field in the struct.
    fn misfit(&self, error: &toml::de::Error, section: &str) -> ConfigError {
        // The error keeps its path private, but ends its text with: in `a.b`
        let text = error.to_string();
        let path = text.trim_end().rsplit_once("in `").and_then(|(_, path)| path.strip_suffix('`'));
        let path = match (section, path.unwrap_or_default()) {
            ("", path) => path.to_string(),
            (section, "") => section.to_string(),
            (section, path) => format!("{section}.{path}"),
        };
        let secret = find(&self.settings, &path).is_none_or(|setting| setting.secret);
        let origin = self.values.get(path.as_str()).map_or(Origin::Default, |(_, origin)| origin.clone());
        let hide = secret && error.message().contains("invalid");
        let detail = if hide { "does not fit" } else { error.message() };
        ConfigError::Invalid { path, origin, detail: detail.into() }
    }

    /// Where the value of a setting came from.
    pub fn origin(&self, path: &str) -> Option<&Origin> {
        self.values.get(path).map(|(_, origin)| origin)
    }

    fn table(&self, show: impl Fn(&Setting, &Value) -> Value) -> Table {
        let mut table = Table::new();
        for setting in &self.settings {
            if let Some((value, _)) = self.values.get(setting.path) {
                insert(&mut table, setting.path, show(setting, value));
            }
        }
        table
    }
}

impl std::fmt::Display for Resolved {
    /// TOML with secrets as `***`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let table = self.table(|setting, value| hide(&self.settings, setting, value));
        f.write_str(&toml::to_string(&table).map_err(|_| std::fmt::Error)?)
    }
}

fn hide(settings: &[Setting], setting: &Setting, value: &Value) -> Value {
    if setting.secret {
        return Value::String("***".into());
    }
    let (Kind::Tables, Value::Array(items)) = (setting.kind, value) else { return value.clone() };
    let fields = fields_of(settings, setting.path);
    let hidden = items.iter().map(|item| {
        let mut item = item.clone();
        for field in fields.iter().filter(|field| field.secret) {
            if let Some(table) = item.as_table_mut()
                && lookup(table, field.path).is_some()
            {
                insert(table, field.path, Value::String("***".into()));
            }
        }
        item
    });
    Value::Array(hidden.collect())
}

fn read_file(
    settings: &[Setting],
    path: &Path,
    values: &mut BTreeMap<&'static str, (Value, Origin)>,
) -> Result<(), ConfigError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
    let table: Table = text.parse().map_err(|error| syntax(path, &text, &error))?;
    let origin = Origin::File(path.into());
    for (setting, value) in walk(settings, "", table, &origin)? {
        values.insert(setting.path, (value, origin.clone()));
    }
    Ok(())
}

/// The error of a file that is not TOML. The parser's own shows the line, which may hold a secret.
fn syntax(path: &Path, text: &str, error: &toml::de::Error) -> ConfigError {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    ConfigError::Syntax { path: path.into(), line, detail: error.message().into() }
}

/// Finds the declared settings in a table of the file; whatever is not declared is an error.
fn walk(
    settings: &[Setting],
    prefix: &str,
    table: Table,
    origin: &Origin,
) -> Result<Vec<(Setting, Value)>, ConfigError> {
    let mut found = Vec::new();
    for (key, value) in table {
        let path = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
        if let Some(setting) = find(settings, &path) {
            let value = match (setting.kind, value) {
                (Kind::Tables, Value::Array(items)) => tables(settings, setting, items, origin)?,
                (kind, value) => value::from_file(kind, value)
                    .and_then(|value| value::permitted(setting, value))
                    .map_err(|detail| invalid(setting.path, origin, detail))?,
            };
            found.push((*setting, value));
        } else if settings.iter().any(|setting| is_below(setting.path, &path)) {
            let Value::Table(inner) = value else {
                return Err(invalid(&path, origin, "is a section, not a setting"));
            };
            found.extend(walk(settings, &path, inner, origin)?);
        } else {
            return Err(unknown(settings, &path, origin.clone()));
        }
    }
    Ok(found)
}

/// The elements of a list of tables, each checked and filled up with defaults.
fn tables(
    settings: &[Setting],
    setting: &Setting,
    items: Vec<Value>,
    origin: &Origin,
) -> Result<Value, ConfigError> {
    let fields = fields_of(settings, setting.path);
    let mut filled = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        let place = format!("{}[{index}]", setting.path);
        let Value::Table(item) = item else {
            return Err(invalid(&place, origin, "expected a table"));
        };
        let found = walk(&fields, "", item, origin).map_err(|error| error.inside(&place))?;
        let mut table = Table::new();
        for field in &fields {
            let given =
                found.iter().find(|(known, _)| known.path == field.path).map(|(_, value)| value.clone());
            let value = match (given, field.default) {
                (Some(value), _) => value,
                (None, Some(text)) => value::from_text(field.kind, text)
                    .map_err(|detail| ConfigError::Declaration { path: field.path.into(), detail })?,
                (None, None) if field.required => {
                    return Err(ConfigError::Missing {
                        path: format!("{place}.{}", field.path),
                        way: "each of these tables needs it".into(),
                    });
                }
                (None, None) => continue,
            };
            insert(&mut table, field.path, value);
        }
        filled.push(Value::Table(table));
    }
    Ok(Value::Array(filled))
}

impl ConfigError {
    /// The same error of an element of a list of tables.
    fn inside(self, place: &str) -> Self {
        match self {
            Self::Unknown { path, origin, nearest } => {
                let path = format!("{place}.{path}");
                Self::Unknown { path, origin, nearest }
            }
            Self::Invalid { path, origin, detail } => {
                let path = format!("{place}.{path}");
                Self::Invalid { path, origin, detail }
            }
            other => other,
        }
    }
}

/// The settings of the elements of a list of tables, with paths as they stand inside of one.
fn fields_of(settings: &[Setting], list: &str) -> Vec<Setting> {
    let inside = |setting: &Setting| {
        let path = setting.path.strip_prefix(list)?.strip_prefix("[].")?;
        Some(Setting { path, ..*setting })
    };
    settings.iter().filter_map(inside).collect()
}

fn find<'a>(settings: &'a [Setting], path: &str) -> Option<&'a Setting> {
    settings.iter().find(|setting| setting.path == path && !setting.path.contains("[]"))
}

pub(super) fn is_below(path: &str, section: &str) -> bool {
    path.strip_prefix(section).is_some_and(|rest| rest.starts_with('.'))
}

fn insert(table: &mut Table, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            table.insert(path.into(), value);
        }
        Some((section, rest)) => {
            let inner = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}

pub(super) fn lookup<'a>(table: &'a Table, path: &str) -> Option<&'a Value> {
    match path.split_once('.') {
        None => table.get(path),
        Some((section, rest)) => lookup(table.get(section)?.as_table()?, rest),
    }
}

pub(super) fn invalid(path: &str, origin: &Origin, detail: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { path: path.into(), origin: origin.clone(), detail: detail.into() }
}

fn missing(setting: &Setting, path: String) -> ConfigError {
    let variable = setting.variable().map_or_else(String::new, |name| format!(", as {name}"));
    ConfigError::Missing { path, way: format!("set it in the file{variable} or with --set") }
}

/// The nearest declared path: one with the same last word, else the one with the fewest edits.
fn unknown(settings: &[Setting], path: &str, origin: Origin) -> ConfigError {
    let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_string();
    let distance = |setting: &&Setting| {
        let other = last(setting.path) != last(path);
        (other, strsim::damerau_levenshtein(setting.path, path))
    };
    let nearest = settings.iter().filter(|setting| !setting.path.contains("[]")).min_by_key(distance);
    let nearest = nearest.map_or("", |setting| setting.path).to_string();
    ConfigError::Unknown { path: path.into(), origin, nearest }
}
