//! `docker-compose.yml` and `deploy/`: as far as they can be checked without Docker.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use usage_devstack::demo::USAGE_TYPES;
use yaml_rust2::{Yaml, YamlLoader};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn yaml(path: &str) -> Yaml {
    YamlLoader::load_from_str(&text(path)).unwrap_or_else(|error| panic!("{path}: {error}")).remove(0)
}

/// A service's value, also from what it is merged with.
fn value<'a>(service: &'a Yaml, key: &str) -> &'a Yaml {
    match &service[key] {
        Yaml::BadValue => &service["<<"][key],
        own => own,
    }
}

fn services(compose: &Yaml) -> Vec<(&str, &Yaml)> {
    let services = compose["services"].as_hash().expect("services");
    services.iter().map(|(name, service)| (name.as_str().unwrap(), service)).collect()
}

fn strings(list: &Yaml) -> impl Iterator<Item = &str> {
    list.as_vec().map(Vec::as_slice).unwrap_or_default().iter().map(|item| item.as_str().expect("text"))
}

#[test]
fn the_parts_of_the_design_are_there_by_their_names() {
    let compose = yaml("docker-compose.yml");
    let names: BTreeSet<&str> = services(&compose).into_iter().map(|(name, _)| name).collect();
    for name in ["kafka", "clickhouse", "postgres", "consumer", "query-api", "relay", "prometheus", "grafana"]
    {
        assert!(names.contains(name), "{name}");
    }
}

#[test]
fn images_are_pinned_and_ports_are_on_loopback() {
    for (name, service) in services(&yaml("docker-compose.yml")) {
        let image = value(service, "image").as_str().unwrap_or_else(|| panic!("{name} has no image"));
        let own = value(service, "build")["dockerfile"].as_str().is_some();
        assert!(own || image.split_once(':').is_some_and(|(_, tag)| tag != "latest"), "{name}: {image}");
        for port in strings(value(service, "ports")) {
            assert!(port.starts_with("127.0.0.1:"), "{name}: {port}");
        }
    }
}

#[test]
fn files_volumes_and_dependencies_exist() {
    let compose = yaml("docker-compose.yml");
    let volumes = compose["volumes"].as_hash().unwrap();
    let all = services(&compose);
    for (name, service) in &all {
        for volume in strings(value(service, "volumes")) {
            let source = volume.split(':').next().unwrap();
            if source.starts_with("./") {
                assert!(root().join(source).exists(), "{name}: {source}");
            } else {
                assert!(volumes.contains_key(&Yaml::String(source.to_owned())), "{name}: {source}");
            }
        }
        if let Some(needed) = value(service, "depends_on").as_hash() {
            for other in needed.keys().map(|key| key.as_str().unwrap()) {
                assert!(all.iter().any(|(name, _)| *name == other), "{name} depends on {other}");
            }
        }
        if let Some(dockerfile) = value(service, "build")["dockerfile"].as_str() {
            assert!(root().join(dockerfile).exists(), "{name}: {dockerfile}");
        }
    }
}

#[test]
fn prometheus_scrapes_services_of_the_file_where_they_listen() {
    let compose = yaml("docker-compose.yml");
    let prometheus = yaml("deploy/prometheus.yml");
    let targets: Vec<&str> =
        strings(&prometheus["scrape_configs"][0]["static_configs"][0]["targets"]).collect();
    assert_eq!(targets.len(), 3);
    for target in targets {
        let (name, port) = target.split_once(':').unwrap();
        let (_, service) = services(&compose).into_iter().find(|(other, _)| *other == name).expect(name);
        let environment = value(service, "environment");
        let listen = value(environment, "USAGE_TELEMETRY_LISTEN").as_str().unwrap();
        assert_eq!(listen, format!("0.0.0.0:{port}"), "{name}");
    }
    assert_eq!(
        yaml("deploy/grafana/provisioning/datasources/prometheus.yml")["datasources"][0]["uid"].as_str(),
        Some("prometheus")
    );
}

#[test]
fn the_same_usage_types_are_registered_everywhere() {
    let init = text("deploy/init.sh");
    let registered: Vec<&str> = init.lines().filter(|line| line.starts_with("usagectl types add")).collect();
    let expected: Vec<String> = USAGE_TYPES
        .iter()
        .map(|(name, kind, unit)| format!("usagectl types add {name} --kind {kind} --unit {unit}"))
        .collect();
    assert_eq!(registered, expected);
    let status = Command::new("sh").arg("-n").arg(root().join("deploy/init.sh")).status().unwrap();
    assert!(status.success());
}

#[test]
fn clickhouse_has_the_same_profiles_everywhere() {
    let profiles = |path: &str| {
        let text = text(path);
        let start = text.find("<profiles>").unwrap();
        text[start..text.find("</profiles>").unwrap()].to_owned()
    };
    assert_eq!(profiles("deploy/clickhouse/users.xml"), profiles("crates/devstack/clickhouse-users.xml"));
}

/// Where Docker's client has its plugin, it judges the file itself.
#[test]
fn docker_accepts_the_file_where_it_can_be_asked() {
    let compose = |arguments: &[&str]| {
        Command::new("docker").arg("compose").args(arguments).current_dir(root()).output()
    };
    if !compose(&["version"]).is_ok_and(|output| output.status.success()) {
        eprintln!("docker compose is not installed: not asked");
        return;
    }
    let output = compose(&["config", "--quiet"]).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
