//! Tools of the system: as root on Debian or Ubuntu they are installed, elsewhere named with the command that brings them.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::cache;

/// A program (or file) that must be there, and the Debian package that brings it.
#[derive(Debug, Clone, Copy)]
pub struct Tool {
    /// How people call it.
    pub name: &'static str,
    /// The Debian package.
    pub package: &'static str,
    /// Where it is looked for.
    pub present: fn() -> bool,
}

/// Runs the broker.
pub const JAVA: Tool =
    Tool { name: "Java 17", package: "openjdk-17-jre-headless", present: || java().is_some() };
/// Brings the broker's jars.
pub const MAVEN: Tool = Tool { name: "Maven", package: "maven", present: || on_path("mvn").is_some() };
/// Brings ClickHouse's library.
pub const NPM: Tool = Tool { name: "npm", package: "npm", present: || on_path("npm").is_some() };
/// What the services need to be compiled: librdkafka is built from C source against the system's OpenSSL.
pub const BUILD_TOOLS: [Tool; 4] = [
    Tool { name: "gcc", package: "gcc", present: || on_path("cc").is_some() },
    Tool { name: "g++", package: "g++", present: || on_path("c++").is_some() },
    Tool { name: "make", package: "make", present: || on_path("make").is_some() },
    Tool { name: "OpenSSL's headers", package: "libssl-dev", present: openssl_headers },
];
/// rdkafka-sys asks it where OpenSSL is.
pub const PKG_CONFIG: Tool =
    Tool { name: "pkg-config", package: "pkg-config", present: || on_path("pkg-config").is_some() };

/// Installs what is missing, or says how to.
pub fn ensure(tools: &[Tool]) -> Result<()> {
    let missing: Vec<Tool> = tools.iter().copied().filter(|tool| !(tool.present)()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    if !can_install() {
        bail!("{}", hint(&missing));
    }
    install(&packages)?;
    match missing.iter().find(|tool| !(tool.present)()) {
        None => Ok(()),
        Some(tool) => bail!("{} is still missing after installing the package {}", tool.name, tool.package),
    }
}

fn hint(missing: &[Tool]) -> String {
    let names: Vec<&str> = missing.iter().map(|tool| tool.name).collect();
    let packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    let packages = packages.join(" ");
    format!(
        "missing: {}. On Debian or Ubuntu: sudo apt-get install {packages}. Elsewhere install them by your system's means.",
        names.join(", ")
    )
}

/// Whether packages can be installed here: root, and apt.
#[must_use]
pub fn can_install() -> bool {
    nix::unistd::geteuid().is_root() && on_path("apt-get").is_some()
}

/// Installs Debian packages.
pub fn install(packages: &[&str]) -> Result<()> {
    let spinner = cache::spinner(&format!("installing {} with apt-get", packages.join(" ")));
    if packages.iter().any(|package| package.starts_with("postgresql")) {
        no_main_cluster()?;
    }
    let mut update = Command::new("apt-get");
    update.args(["-qq", "update"]);
    cache::run_quietly(update)?;
    let mut install = Command::new("apt-get");
    install
        .args(["-qq", "-y", "--no-install-recommends", "install"])
        .args(packages)
        .env("DEBIAN_FRONTEND", "noninteractive");
    let result = cache::run_quietly(install);
    spinner.finish_and_clear();
    result
}

/// Debian's package makes and starts a cluster on port 5432 unless it is told not to; we only want the programs.
fn no_main_cluster() -> Result<()> {
    let file = Path::new("/etc/postgresql-common/createcluster.conf");
    if !file.exists() {
        fs::create_dir_all("/etc/postgresql-common")?;
        fs::write(file, "create_main_cluster = false\n")?;
    }
    Ok(())
}

/// A program on `PATH`.
#[must_use]
pub fn on_path(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|dir| dir.join(program)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The Java to run the broker with: `$JAVA_HOME`, else the one on `PATH`; it must be 17 or newer.
#[must_use]
pub fn java() -> Option<PathBuf> {
    let home = env::var_os("JAVA_HOME").map(|home| PathBuf::from(home).join("bin/java"));
    home.into_iter().chain(on_path("java")).find(|path| is_program(path) && java_version(path) >= Some(17))
}

fn java_version(java: &Path) -> Option<u32> {
    let output = Command::new(java).arg("-version").output().ok()?;
    parse_java_version(&String::from_utf8_lossy(&output.stderr))
}

fn parse_java_version(text: &str) -> Option<u32> {
    let version = text.split('"').nth(1)?;
    let mut numbers = version.split(['.', '-', '+']).map(str::parse);
    match numbers.next()?.ok()? {
        1 => numbers.next()?.ok(),
        major => Some(major),
    }
}

fn openssl_headers() -> bool {
    ["/usr/include/openssl/ssl.h", "/usr/local/include/openssl/ssl.h"]
        .iter()
        .any(|path| Path::new(path).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn java_versions_are_read() {
        assert_eq!(parse_java_version("openjdk version \"17.0.15\" 2025-04-15"), Some(17));
        assert_eq!(parse_java_version("openjdk version \"21-ea\" 2023"), Some(21));
        assert_eq!(parse_java_version("java version \"1.8.0_292\""), Some(8));
        assert_eq!(parse_java_version("command not found"), None);
    }

    #[test]
    fn programs_are_found_on_the_path() {
        assert!(on_path("sh").is_some());
        assert_eq!(on_path("no-such-program-here"), None);
    }

    #[test]
    fn what_is_there_needs_no_installation() {
        ensure(&[Tool { name: "a shell", package: "dash", present: || true }]).unwrap();
    }

    #[test]
    fn the_hint_names_tools_and_packages() {
        let text = hint(&[MAVEN, NPM]);
        assert!(text.contains("missing: Maven, npm."), "{text}");
        assert!(text.contains("apt-get install maven npm"), "{text}");
    }
}
