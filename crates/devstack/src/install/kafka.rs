//! Kafka's jars from Maven Central.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::{cache, install::apt};

/// The broker's version.
pub const VERSION: &str = "4.1.1";
const PLUGIN: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";
const JARS: &str = include_str!("../../kafka-jars.sha256");

/// The directory with `libs/*.jar` of the broker and its tools, fetched first if it is not in the cache.
pub fn home() -> Result<PathBuf> {
    cache::part(&cache::root()?, "kafka", VERSION, |dir| {
        apt::ensure(&[apt::JAVA, apt::MAVEN])?;
        let pom = dir.join("pom.xml");
        fs::write(&pom, POM.replace("{version}", VERSION))?;
        let libs = dir.join("libs");
        let spinner = cache::spinner(&format!("downloading Kafka {VERSION} with Maven"));
        let mut command = Command::new("mvn");
        command.args(["-B", "-ntp", "-q", "-f"]).arg(&pom).arg(PLUGIN).arg("-DincludeScope=runtime");
        command.arg(format!("-DoutputDirectory={}", libs.display()));
        let result = cache::run_quietly(command);
        spinner.finish_and_clear();
        result?;
        check_jars(&libs, &parse_list(JARS)?)
    })
}

/// The jars that were there when the list was made, no others, each with its hash.
fn check_jars(libs: &Path, expected: &BTreeMap<String, String>) -> Result<()> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(libs)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        found.insert(name, cache::sha256(&path, None)?);
    }
    for (name, hash) in expected {
        match found.remove(name) {
            None => bail!("{name} is missing"),
            Some(other) => ensure!(other == *hash, "{name} has SHA-256 {other}, expected {hash}"),
        }
    }
    ensure!(found.is_empty(), "not in the list of jars: {:?}", found.keys().collect::<Vec<_>>());
    Ok(())
}

/// Lines `hash  name`, as sha256sum prints them.
fn parse_list(text: &str) -> Result<BTreeMap<String, String>> {
    text.lines()
        .map(|line| {
            let (hash, name) =
                line.split_once("  ").with_context(|| format!("not `hash  name`: {line:?}"))?;
            Ok((name.to_owned(), hash.to_owned()))
        })
        .collect()
}

/// The tools' own dependencies (Connect and its web server) are not needed for the consumer-group and topic tools.
const POM: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>usage-collector</groupId>
  <artifactId>kafka-runtime</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{version}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka-tools</artifactId>
      <version>{version}</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j-impl</artifactId>
      <version>2.24.3</version>
    </dependency>
  </dependencies>
</project>
"#;

#[cfg(test)]
mod tests {
    use super::*;

    const HASH_OF_X: &str = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881";

    fn list(name: &str, hash: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(name.to_owned(), hash.to_owned())])
    }

    #[test]
    fn the_list_in_the_repository_names_the_broker_of_this_version() {
        let jars = parse_list(JARS).unwrap();
        assert!(jars.contains_key(&format!("kafka_2.13-{VERSION}.jar")));
        assert!(jars.values().all(|hash| hash.len() == 64));
    }

    #[test]
    fn jars_must_be_those_of_the_list() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.jar"), "x").unwrap();
        check_jars(dir.path(), &list("a.jar", HASH_OF_X)).unwrap();
        let changed = check_jars(dir.path(), &list("a.jar", &"0".repeat(64))).unwrap_err();
        assert!(changed.to_string().contains("a.jar has SHA-256 2d71"), "{changed}");
        let missing = check_jars(dir.path(), &list("b.jar", HASH_OF_X)).unwrap_err();
        assert_eq!(missing.to_string(), "b.jar is missing");
        let more = check_jars(dir.path(), &BTreeMap::new()).unwrap_err();
        assert!(more.to_string().contains("a.jar"), "{more}");
    }
}
