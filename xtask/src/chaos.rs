//! `cargo xtask chaos`: faults drawn from a seed, on servers that the program starts and kills itself.

use std::process::Command;

use anyhow::Result;

use crate::{paths, run, up};

/// Builds and runs `usage-chaos …`. Logs of a run that fails stay in `target/chaos`.
pub fn chaos(release: bool, rest: &[String]) -> Result<()> {
    up::build_tools()?;
    let mut build = vec!["build", "--workspace", "--bins"];
    build.extend(release.then_some("--release"));
    run::run(run::cargo(&build)?)?;
    let bin = paths::bin_dir(release)?;
    let dir = paths::target()?.join("chaos").join(std::process::id().to_string());
    let mut command = Command::new(bin.join("usage-chaos"));
    command.args(rest).env("USAGE_BIN_DIR", &bin);
    if !rest.iter().any(|argument| argument == "--dir" || argument.starts_with("--dir=")) {
        command.arg("--dir").arg(dir);
    }
    run::run(command)
}
