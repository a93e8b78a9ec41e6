//! The texts of a policy folder.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::{Fault, PolicyFolderError};

/// Bytes of all files together that are read at most.
const FOLDER_BYTES: u64 = 16 << 20;

/// The files of a folder by name, in that order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Contents {
    /// `*.cedar`.
    pub policies: Vec<(String, String)>,
    /// `*.json`.
    pub entities: Vec<(String, String)>,
}

impl Contents {
    /// The policies that hold when no folder is configured.
    pub fn shipped() -> Self {
        let files = super::DEFAULT_POLICIES.iter();
        let policies = files.map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        Self { policies, entities: Vec::new() }
    }

    /// Reads a folder. Hidden files, `*.md` and `*.cedarschema` are left alone; anything else that is not a policy or entity file is
    /// refused: a misspelt name must not make a `forbid` vanish.
    pub fn read(folder: &Path) -> Result<Self, PolicyFolderError> {
        let unreadable =
            |path: PathBuf| move |source: std::io::Error| PolicyFolderError::Read { path, source };
        let mut names = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(unreadable(folder.into()))? {
            let name = entry.map_err(unreadable(folder.into()))?.file_name();
            names.push(
                name.into_string()
                    .map_err(|name| refused(&name.to_string_lossy(), "its name is not UTF-8"))?,
            );
        }
        names.sort();
        let mut contents = Self { policies: Vec::new(), entities: Vec::new() };
        let mut left = FOLDER_BYTES;
        for name in names {
            let extension = Path::new(&name).extension().and_then(|extension| extension.to_str());
            let list = match extension {
                _ if name.starts_with('.') => continue,
                Some("md" | "cedarschema") => continue,
                Some("cedar") => &mut contents.policies,
                Some("json") => &mut contents.entities,
                _ => {
                    return Err(refused(
                        &name,
                        "is neither a policy (*.cedar) nor a file of entities (*.json)",
                    ));
                }
            };
            let path = folder.join(&name);
            // Reading a pipe would wait for whoever writes it, and no later change would ever be looked at.
            if !std::fs::metadata(&path).map_err(unreadable(path.clone()))?.is_file() {
                return Err(refused(&name, "is not a file"));
            }
            let mut text = String::new();
            let file = std::fs::File::open(&path).map_err(unreadable(path.clone()))?;
            let read = file.take(left + 1).read_to_string(&mut text).map_err(unreadable(path))?;
            left = left
                .checked_sub(read as u64)
                .ok_or_else(|| refused(&name, "the folder holds more than 16 MiB"))?;
            list.push((name, text));
        }
        if contents.policies.is_empty() {
            return Err(PolicyFolderError::Empty { path: folder.into() });
        }
        Ok(contents)
    }
}

fn refused(file: &str, detail: &str) -> PolicyFolderError {
    PolicyFolderError::Refused(vec![Fault { file: file.into(), line: None, detail: detail.into() }])
}
