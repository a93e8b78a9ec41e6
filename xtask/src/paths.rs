//! Where things are in the checkout.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The root of the checkout.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_owned()
}

/// What belongs to `up`: `$USAGE_STACK_DIR`, else `target/stack` of the checkout.
#[must_use]
pub fn stack() -> PathBuf {
    stack_from(env::var_os("USAGE_STACK_DIR").map(PathBuf::from))
}

fn stack_from(given: Option<PathBuf>) -> PathBuf {
    match given.filter(|dir| !dir.as_os_str().is_empty()) {
        // Services are started in other directories.
        Some(dir) => std::path::absolute(&dir).unwrap_or(dir),
        None => root().join("target/stack"),
    }
}

/// Cargo's target directory: the one this program was built in.
pub fn target() -> Result<PathBuf> {
    let program = env::current_exe().context("asking for the running program")?;
    let profile = program.parent().context("the program has no directory")?;
    let profile = if profile.ends_with("deps") { profile.parent().unwrap_or(profile) } else { profile };
    Ok(profile.parent().context("the program is not in a target directory")?.to_owned())
}

/// Where cargo puts programs of a profile.
pub fn bin_dir(release: bool) -> Result<PathBuf> {
    Ok(target()?.join(if release { "release" } else { "debug" }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stack_is_in_the_checkout_unless_said_otherwise() {
        assert!(stack_from(None).ends_with("target/stack"));
        assert!(root().join("xtask/Cargo.toml").is_file());
        assert_eq!(stack_from(Some("".into())), stack_from(None));
        assert_eq!(stack_from(Some("/x/stack".into())), Path::new("/x/stack"));
        assert!(stack_from(Some("stack".into())).is_absolute());
    }

    #[test]
    fn programs_are_looked_for_beside_this_one() {
        assert!(bin_dir(false).unwrap().ends_with("debug"));
        assert_eq!(bin_dir(true).unwrap().parent(), bin_dir(false).unwrap().parent());
    }
}
