//! ClickHouse's library from the npm registry.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::{cache, install::apt};

const PACKAGE: &str = "@chdb/lib-linux-x64-gnu";
const VERSION: &str = "26.7.3-stable.1";
const TARBALL: &str = "chdb-lib-linux-x64-gnu-26.7.3-stable.1.tgz";
const SHA256: &str = "c0d32b129e988f2b9a9a31c9141aecf5e1e2453f9a079efc4d36ab8e3f92b2ad";
const LAUNCHER: &str = "usage-clickhouse-server";

/// The path of `libchdb.so`, fetched first if it is not in the cache.
pub fn library() -> Result<PathBuf> {
    let root = cache::root()?;
    let dir = cache::part(&root, "clickhouse", VERSION, |dir| {
        apt::ensure(&[apt::NPM])?;
        let downloads = root.join("downloads");
        let tarball = cache::tarball(&downloads, TARBALL, SHA256, |into| npm_pack(PACKAGE, VERSION, into))?;
        cache::unpack(&tarball, dir, &["package/libchdb.so"])?;
        // 178 MB that are not needed again.
        fs::remove_file(tarball)?;
        Ok(())
    })?;
    Ok(dir.join("libchdb.so"))
}

/// Downloads the tarball of an npm package into a directory.
pub fn npm_pack(package: &str, version: &str, into: &Path) -> Result<()> {
    let spinner = cache::spinner(&format!("downloading {package} {version}"));
    let mut command = Command::new("npm");
    command
        .arg("pack")
        .arg(format!("{package}@{version}"))
        .arg("--silent")
        .arg("--pack-destination")
        .arg(into)
        .current_dir(into);
    let result = cache::run_quietly(command);
    spinner.finish_and_clear();
    result
}

/// The launcher: beside the running program or its `deps` directory, else built now.
///
/// Cargo builds no programs of a dependency, so a test of another package finds none unless it was built before.
pub fn launcher() -> Result<PathBuf> {
    if let Some(path) = env::var_os("USAGE_CLICKHOUSE_LAUNCHER") {
        return Ok(path.into());
    }
    let program = env::current_exe().context("asking for the running program")?;
    let profile_dir = profile_dir(&program);
    let launcher = profile_dir.join(LAUNCHER);
    if launcher.is_file() {
        return Ok(launcher);
    }
    build_launcher(profile_dir)
}

/// `target/debug` of `target/debug/x` or `target/debug/deps/x`.
fn profile_dir(program: &Path) -> &Path {
    let dir = program.parent().unwrap_or(Path::new("."));
    match dir.file_name() {
        Some(name) if name == "deps" || name == "examples" => dir.parent().unwrap_or(dir),
        _ => dir,
    }
}

fn build_launcher(profile_dir: &Path) -> Result<PathBuf> {
    let target_dir = profile_dir.parent().unwrap_or(profile_dir);
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(["build", "--quiet", "--package", "usage-devstack", "--bin", LAUNCHER, "--target-dir"])
        .arg(target_dir)
        .arg("--manifest-path")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    cache::run_quietly(command).context("building ClickHouse's launcher")?;
    let launcher = target_dir.join("debug").join(LAUNCHER);
    ensure!(launcher.is_file(), "cargo did not leave {}", launcher.display());
    Ok(launcher)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_directory_is_found_from_programs_and_tests() {
        assert_eq!(profile_dir(Path::new("/t/debug/xtask")), Path::new("/t/debug"));
        assert_eq!(profile_dir(Path::new("/t/debug/deps/crash-0a1b")), Path::new("/t/debug"));
        assert_eq!(profile_dir(Path::new("/t/release/examples/x")), Path::new("/t/release"));
    }
}
